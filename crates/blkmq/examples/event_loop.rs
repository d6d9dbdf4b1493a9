//! One event loop on one thread for a listening socket, its connections, and the clients of two disks.
//!
//! A connection sends `copy N`, and the server copies page N of the first disk to the second. It answers when a copy
//! ends, so answers come in any order and no copy waits for another. `stop` ends the server.
//!
//! `cargo run --release --example event_loop -- disks.socket uring:one.img uring:two.img`

use blkmq::prelude::*;
use blkmq::{Device, Nanos, Sleep};
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const PAGE: usize = 4096;
/// The numbers of events: each disk, the listener, and connections from [`CONNECTIONS`] on.
const DISKS: [u64; 2] = [0, 1];
const LISTENER: u64 = 2;
const CONNECTIONS: u64 = 3;

type Failure = Box<dyn Error + Send + Sync>;

struct Server {
    epoll: OwnedFd,
    from: Client<AlignedBuf>,
    to: Client<AlignedBuf>,
    /// Each connection with the unfinished line that it has sent so far.
    connections: BTreeMap<u64, (UnixStream, Vec<u8>)>,
    next: u64,
    stopped: bool,
}

/// Serves the socket and the two devices that the arguments name.
pub fn main() -> Result<(), Failure> {
    let arguments = Vec::from_iter(std::env::args().skip(1));
    let [socket, from, to] = &arguments[..] else {
        return Err("usage: event_loop SOCKET FROM TO".into());
    };
    serve(&UnixListener::bind(socket)?, &blkmq::open(from)?, &blkmq::open(to)?)
}

/// Serves all connections until one of them sends `stop`.
pub fn serve(listener: &UnixListener, from: &Device, to: &Device) -> Result<(), Failure> {
    let (source, target) = (from.start("mq-deadline")?, to.start("mq-deadline")?);
    let (mut from, mut to) = (source.client()?, target.client()?);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    watch(&epoll, from.event_fd()?, DISKS[0])?;
    watch(&epoll, to.event_fd()?, DISKS[1])?;
    listener.set_nonblocking(true)?;
    watch(&epoll, listener, LISTENER)?;
    let connections = BTreeMap::new();
    let mut server = Server { epoll, from, to, connections, next: CONNECTIONS, stopped: false };
    while !server.stopped || server.from.in_flight() + server.to.in_flight() > 0 {
        for event in server.wait()? {
            match event {
                LISTENER => server.accept(listener)?,
                CONNECTIONS.. => server.hear(event),
                // Both disks are reaped after each wait, so an event of a disk needs no action here.
                _ => {}
            }
        }
        server.reap();
    }
    Ok(())
}

fn watch(epoll: impl AsFd, what: impl AsFd, event: u64) -> Result<(), Failure> {
    Ok(epoll::add(epoll, what, epoll::EventData::new_u64(event), epoll::EventFlags::IN)?)
}

impl Server {
    /// Sleeps until a socket or a disk has an event; does not sleep if a disk already has work.
    fn wait(&mut self) -> Result<Vec<u64>, Failure> {
        let disks = [&mut self.from, &mut self.to];
        // `prepare_wait` also flushes the plug. Each client has its own clock.
        let left = disks.map(|disk| match disk.prepare_wait() {
            Sleep::No => Some(Nanos::ZERO),
            Sleep::Until(at) => at.map(|at| at - disk.clock().now()),
        });
        let left = left.into_iter().flatten().min();
        let left =
            left.map(|Nanos(ns)| Timespec::try_from(Duration::from_nanos(ns))).transpose()?;
        let mut events = Vec::with_capacity(64);
        let room = rustix::buffer::spare_capacity(&mut events);
        let slept = epoll::wait(&self.epoll, room, left.as_ref());
        // Each `prepare_wait` needs its `end_wait`, even after an error.
        self.from.end_wait();
        self.to.end_wait();
        if let Err(error) = slept
            && error != rustix::io::Errno::INTR
        {
            return Err(error.into());
        }
        Ok(events.iter().map(|event| event.data.u64()).collect())
    }

    fn accept(&mut self, listener: &UnixListener) -> Result<(), Failure> {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        watch(&self.epoll, &stream, self.next)?;
        self.connections.insert(self.next, (stream, Vec::new()));
        self.next += 1;
        Ok(())
    }

    /// Reads from a connection and carries out the complete lines.
    fn hear(&mut self, number: u64) {
        let Some((stream, said)) = self.connections.get_mut(&number) else { return };
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(len) if len > 0 => said.extend(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => return drop(self.connections.remove(&number)),
        }
        let end = said.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = said.drain(..end).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            match line.strip_prefix("copy ").map(str::parse::<u32>) {
                Some(Ok(page)) => self.copy(number, page),
                _ if line == "stop" => self.stopped = true,
                _ => self.answer(number, "copy N, or stop"),
            }
        }
    }

    /// Pushes the read that begins a copy. The cookie holds the connection and the page, so no table is needed.
    fn copy(&mut self, number: u64, page: u32) {
        let place = Bytes(u64::from(page) * PAGE as u64);
        let io = Io::read(place, AlignedBuf::new(PAGE)).cookie(number << 32 | u64::from(page));
        if let Err(refused) = self.from.push(io) {
            // The page is past the end of the disk, or the client has no credit left. The connection may try again.
            self.answer(number, &format!("page {page}: {refused}"));
        }
    }

    /// Reaps both disks: writes the pages that were read, and answers for the pages that were written.
    fn reap(&mut self) {
        let mut ended = Vec::new();
        self.from.reap(self.from.depth(), |read| {
            let (page, cookie) = (read.cookie & u64::from(u32::MAX), read.cookie);
            let io = Io::write(Bytes(page * PAGE as u64), read.payload).cookie(cookie);
            let pushed = read.result.map_err(|error| error.to_string());
            let pushed = pushed.and_then(|()| self.to.push(io).map_err(|error| error.to_string()));
            ended.extend(pushed.err().map(|error| (cookie, error)));
        });
        self.to.reap(self.to.depth(), |written| {
            let text = written.result.map_or_else(|error| error.to_string(), |()| "copied".into());
            ended.push((written.cookie, text));
        });
        for (cookie, text) in ended {
            self.answer(cookie >> 32, &format!("page {}: {text}", cookie & u64::from(u32::MAX)));
        }
    }

    /// Sends an answer. A connection that is closed, or that does not read its answers, is dropped.
    fn answer(&mut self, number: u64, text: &str) {
        let Some((stream, _)) = self.connections.get_mut(&number) else { return };
        if stream.write_all(format!("{text}\n").as_bytes()).is_err() {
            self.connections.remove(&number);
        }
    }
}
