//! A simulated virtual machine: the front end and the driver of a vhost-user disk, in this process.
//!
//! Its memory is a file that the server maps, too. A queue has a place for each of its descriptors, with a separate
//! table, header, status and data.

use blkmq_vhost::config::{protocol, virtio};
use blkmq_vhost::memory::{Memory, RegionInfo};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Descriptors of a queue.
pub const SIZE: u16 = 64;
/// The front end's address that corresponds to guest address 0.
const USER: u64 = 0x7f00_0000_0000;
/// Bytes of the rings of a queue, and of a place with its data.
const RINGS: u64 = 0x1000;
const PLACE: u64 = 0x2_0000;
/// The header and the status of a place, behind its table.
const HEADER: u64 = 0xf00;
const STATUS: u64 = 0xf10;
/// The data of a place, and the most bytes of it.
const DATA: u64 = 0x1000;
pub const MOST_DATA: u64 = PLACE - DATA;

/// The types of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

/// A request of a test.
#[derive(Clone, Copy)]
pub struct Ask {
    pub kind: u32,
    pub ioprio: u32,
    pub sector: u64,
    /// Bytes of the data.
    pub len: u32,
}

/// The guest's side of a queue.
struct Queue {
    kick: OwnedFd,
    call: OwnedFd,
    /// The indexes of the next request and of the next answer.
    next: u16,
    seen: u16,
}

pub struct Guest {
    pub socket: UnixStream,
    pub memory: Memory,
    pub file: OwnedFd,
    queues: Vec<Queue>,
    pub features: u64,
    /// The file of the record of requests in flight, with its description.
    pub inflight: Option<(Vec<u8>, OwnedFd)>,
}

fn numbers(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn pair(first: u32, second: u32) -> Vec<u8> {
    [first, second].map(u32::to_ne_bytes).as_flattened().to_vec()
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
}

impl Guest {
    /// Connects a guest with memory for `queues` queues, without negotiating anything.
    pub fn connect(path: &Path, queues: u16) -> Self {
        let socket = UnixStream::connect(path).expect("the server listens");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let size = u64::from(queues) * (RINGS * 2 + PLACE * u64::from(SIZE));
        let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, size).expect("it can grow");
        let mut memory = Memory::default();
        let region = RegionInfo { guest: 0, size, user: USER, offset: 0 };
        memory.add(region, &file).expect("it can be mapped");
        let queue = |_| Queue { kick: event(), call: event(), next: 0, seen: 0 };
        let queues = (0..queues).map(queue).collect();
        Self { socket, memory, file, queues, features: 0, inflight: None }
    }

    /// Like [`connect`](Self::connect), with all features but those in `without`, and all queues running.
    pub fn start(path: &Path, queues: u16, without: u64) -> Self {
        let mut guest = Self::connect(path, queues);
        guest.agree(without);
        guest.inflight = Some(guest.ask_for_record());
        guest.share_memory();
        (0..queues).for_each(|queue| guest.run_queue(queue, 0));
        guest
    }

    /// Connects again after the server was killed, with the memory as it was.
    pub fn reconnect(&mut self, path: &Path) {
        self.socket = UnixStream::connect(path).expect("the server listens");
        self.socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let all = self.features;
        self.agree(!all);
        let (info, file) = self.inflight.take().expect("a record");
        self.tell(32, &info, &[file.as_fd()]);
        self.inflight = Some((info, file));
        self.share_memory();
        (0..self.queues.len() as u16).for_each(|queue| self.run_queue(queue, 0));
    }

    pub fn send(&self, request: u32, needs_reply: bool, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let flags = 1 | u32::from(needs_reply) << 3;
        let head = [request, flags, payload.len() as u32].map(u32::to_ne_bytes);
        let bytes = [head.as_flattened(), payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // The test checks whether the server has closed the connection.
        let _ = rustix::io::retry_on_intr(|| {
            sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        });
    }

    /// The payload of the answer to a message, and its descriptor.
    pub fn receive(&mut self, request: u32) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut head = [0; 12];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        // With a time limit, a ring of this thread that the kernel takes down interrupts the call.
        let read = rustix::io::retry_on_intr(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut head)], &mut control, flags)
        });
        if read.ok()?.bytes != 12 {
            return None;
        }
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let number = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four"));
        assert_eq!((number(0), number(4) & 7), (request, 5), "an answer to another message");
        let mut payload = vec![0; number(8) as usize];
        self.socket.read_exact(&mut payload).ok()?;
        Some((payload, fd))
    }

    pub fn ask(&mut self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send(request, false, payload, &[]);
        self.receive(request).expect("an answer").0
    }

    pub fn ask_number(&mut self, request: u32) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().expect("a number"))
    }

    /// Sends a message and checks that it succeeds.
    pub fn tell(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(self.try_tell(request, payload, fds), Some(0), "message {request} is refused");
    }

    /// Sends a message, and returns its result, or `None` if the connection is closed.
    pub fn try_tell(
        &mut self,
        request: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Option<u64> {
        self.send(request, true, payload, fds);
        let (payload, _) = self.receive(request)?;
        Some(u64::from_ne_bytes(payload.try_into().expect("a number")))
    }

    fn agree(&mut self, without: u64) {
        self.send(3, false, &[], &[]);
        self.features = self.ask_number(1) & !without;
        let offered = self.ask_number(15);
        assert!(offered & protocol::REPLY_ACK != 0);
        self.tell(16, &numbers(&[offered]), &[]);
        self.tell(2, &numbers(&[self.features]), &[]);
    }

    fn ask_for_record(&mut self) -> (Vec<u8>, OwnedFd) {
        let mut payload = numbers(&[0, 0]);
        payload.extend((self.queues.len() as u16).to_ne_bytes());
        payload.extend(SIZE.to_ne_bytes());
        payload.extend([0; 4]);
        self.send(31, false, &payload, &[]);
        let (info, fd) = self.receive(31).expect("an answer");
        (info, fd.expect("a file"))
    }

    pub fn share_memory(&mut self) {
        let size = rustix::fs::fstat(&self.file).expect("it is open").st_size as u64;
        let payload = [pair(1, 0), numbers(&[0, size, USER, 0])].concat();
        let file = self.file.try_clone().expect("a descriptor");
        self.tell(5, &payload, &[file.as_fd()]);
    }

    pub fn rings(queue: u16) -> u64 {
        u64::from(queue) * (RINGS * 2 + PLACE * u64::from(SIZE))
    }

    /// Starts a queue at the request `base`.
    pub fn run_queue(&mut self, queue: u16, base: u16) {
        let at = Self::rings(queue);
        let number = u32::from(queue);
        self.tell(8, &pair(number, SIZE.into()), &[]);
        self.tell(10, &pair(number, base.into()), &[]);
        let places = numbers(&[USER + at, USER + at + RINGS, USER + at + RINGS / 2, 0]);
        self.tell(9, &[pair(number, 0), places].concat(), &[]);
        let [kick, call] =
            [&self.queues[usize::from(queue)].kick, &self.queues[usize::from(queue)].call]
                .map(|fd| fd.try_clone().expect("a descriptor"));
        self.tell(13, &numbers(&[number.into()]), &[call.as_fd()]);
        self.tell(12, &numbers(&[number.into()]), &[kick.as_fd()]);
        self.tell(18, &pair(number, 1), &[]);
    }

    /// Stops a queue once its requests have finished. Returns the index of its next request.
    pub fn stop_queue(&mut self, queue: u16) -> u16 {
        let answer = self.ask(11, &pair(queue.into(), 0));
        u32::from_ne_bytes(answer[4..8].try_into().expect("four bytes")) as u16
    }

    fn place(queue: u16, place: u16) -> u64 {
        Self::rings(queue) + RINGS * 2 + PLACE * u64::from(place)
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        assert!(self.memory.write(at, bytes), "{at:#x} is mapped");
    }

    pub fn number(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        assert!(self.memory.read(at, &mut bytes));
        u16::from_le_bytes(bytes)
    }

    /// Writes the data of a place.
    pub fn set_data(&self, queue: u16, place: u16, bytes: &[u8]) {
        self.put(Self::place(queue, place) + DATA, bytes);
    }

    /// Reads the data of a place.
    pub fn data(&self, queue: u16, place: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(Self::place(queue, place) + DATA, &mut bytes));
        bytes
    }

    /// Makes a request available in a place, without a kick. Its data is divided into segments of `cut` bytes.
    pub fn offer(&mut self, queue: u16, place: u16, ask: Ask, cut: u32) {
        let at = Self::place(queue, place);
        let Ask { kind, ioprio, sector, len } = ask;
        let header = [pair(kind, ioprio).as_slice(), &sector.to_le_bytes()].concat();
        self.put(at + HEADER, &header);
        self.put(at + STATUS, &[0xff]);
        let is_read = matches!(kind, IN | GET_ID);
        let mut pieces = vec![(at + HEADER, 16, 0)];
        for from in (0..len).step_by(cut as usize) {
            let flags = if is_read { 2 } else { 0 };
            pieces.push((at + DATA + u64::from(from), cut.min(len - from), flags));
        }
        pieces.push((at + STATUS, 1, 2));
        let count = pieces.len();
        for (number, (addr, len, flags)) in (0_u16..).zip(pieces) {
            let last = usize::from(number) + 1 == count;
            let flags = if last { flags } else { flags | 1 };
            self.describe(at + 16 * u64::from(number), addr, len, flags, number + 1);
        }
        let entry = Self::rings(queue) + 16 * u64::from(place);
        self.describe(entry, at, count as u32 * 16, 4, 0);
        self.make_available(queue, place);
    }

    pub fn describe(&self, entry: u64, addr: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = addr.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(entry, &bytes);
    }

    pub fn make_available(&mut self, queue: u16, head: u16) {
        let ring = Self::rings(queue) + RINGS / 2;
        let of_queue = &mut self.queues[usize::from(queue)];
        let at = u64::from(of_queue.next % SIZE);
        of_queue.next = of_queue.next.wrapping_add(1);
        let next = of_queue.next;
        self.put(ring + 4 + 2 * at, &head.to_le_bytes());
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.put(ring + 2, &next.to_le_bytes());
        // Requests a notification for the next answer.
        let seen = self.queues[usize::from(queue)].seen;
        self.put(ring + 4 + 2 * u64::from(SIZE), &seen.to_le_bytes());
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    pub fn kick(&self, queue: u16) {
        let kick = &self.queues[usize::from(queue)].kick;
        rustix::io::write(kick, &1_u64.to_ne_bytes()).expect("the counter has room");
    }

    /// The answers that have arrived: places, bytes written, and statuses.
    pub fn answers(&mut self, queue: u16) -> Vec<(u16, u32, u8)> {
        let ring = Self::rings(queue) + RINGS;
        let mut all = Vec::new();
        loop {
            let published = self.number(ring + 2);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            let of_queue = &mut self.queues[usize::from(queue)];
            if of_queue.seen == published {
                return all;
            }
            let at = ring + 4 + 8 * u64::from(of_queue.seen % SIZE);
            of_queue.seen = of_queue.seen.wrapping_add(1);
            let (mut bytes, mut status) = ([0; 8], [0]);
            assert!(self.memory.read(at, &mut bytes));
            let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
            let place = half(0) as u16;
            assert!(self.memory.read(Self::place(queue, place) + STATUS, &mut status));
            all.push((place, half(4), status[0]));
        }
    }

    /// Waits for at least one answer.
    pub fn wait(&mut self, queue: u16) -> Vec<(u16, u32, u8)> {
        for _ in 0..200 {
            let ring = Self::rings(queue) + RINGS / 2;
            let seen = self.queues[usize::from(queue)].seen;
            self.put(ring + 4 + 2 * u64::from(SIZE), &seen.to_le_bytes());
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            let all = self.answers(queue);
            if !all.is_empty() {
                return all;
            }
            let call = &self.queues[usize::from(queue)].call;
            let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&timeout));
            let _ = rustix::io::read(call, &mut [0; 8]);
        }
        panic!("no answer in 20 seconds");
    }

    /// Performs a request in one place. Returns bytes written and status.
    pub fn carry_out(&mut self, queue: u16, ask: Ask) -> (u32, u8) {
        self.offer(queue, 0, ask, 4096);
        self.kick(queue);
        let answers = self.wait(queue);
        assert_eq!((answers.len(), answers[0].0), (1, 0));
        (answers[0].1, answers[0].2)
    }
}

/// The features that every driver negotiates.
pub const NEEDED: u64 = virtio::VERSION_1 | virtio::PROTOCOL_FEATURES;
