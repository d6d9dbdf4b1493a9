//! Devices under a service in real time. A device with its own thread, in safe code: data arrives after `enqueue`, and
//! `reap` copies it into the bios. A mirror of files: a replaced leg is copied to while the client only waits, and a
//! queue that has ended in order leaves nothing to copy.

#![forbid(unsafe_code)]

use crate::integrity::run;
use blkmq::{
    AlignedBuf, BioTable, BufList, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued,
    Finished, Inflight, Instant, IoResult, Limits, Op, Payload, Verdict, WriteCache, testkit,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

const SECTORS: u64 = 4096;
const SECTOR: usize = 512;

/// A request to the thread, or its answer, with the bytes written or read.
struct Job {
    tag: usize,
    op: Op,
    sector: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The data of a read is not copied to its payload.
    Forgets,
    /// One request in fifty is not sent to the thread.
    Loses,
}

struct Queue {
    jobs: Sender<Job>,
    answers: Receiver<Job>,
    /// The requests that have not completed, by driver tag.
    held: Vec<Option<Inflight>>,
    /// Wait for the thread in `reap`, as virtual time requires.
    waits: bool,
    fault: Fault,
    taken: u64,
    /// Requests that the thread has not answered.
    at_thread: u32,
}

fn shape() -> DeviceShape {
    DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 32,
        shared_tags: false,
        budget: None,
        limits: Limits {
            max_sectors: 256,
            max_discard_sectors: 256,
            max_write_zeroes_sectors: 256,
            capacity: SECTORS,
            ..Limits::default()
        },
        cache: WriteCache::Through,
        timeout: DEFAULT_TIMEOUT,
    }
}

fn serve(jobs: &Receiver<Job>, answers: &Sender<Job>) {
    let mut memory = vec![0; SECTORS as usize * SECTOR];
    for mut job in jobs {
        let place = &mut memory[job.sector as usize * SECTOR..][..job.bytes.len()];
        match job.op {
            Op::Read => job.bytes.copy_from_slice(place),
            Op::Write => place.copy_from_slice(&job.bytes),
            Op::Discard | Op::WriteZeroes => place.fill(0),
            Op::Flush => {}
        }
        // The queue may have ended.
        let _ = answers.send(job);
    }
}

impl Queue {
    fn new(waits: bool, fault: Fault) -> Box<Self> {
        let (jobs, taken) = channel();
        let (done, answers) = channel();
        // The thread ends with the queue.
        thread::spawn(move || serve(&taken, &done));
        let held = (0..shape().hw_queue_depth).map(|_| None).collect();
        Box::new(Self { jobs, answers, held, waits, fault, taken: 0, at_thread: 0 })
    }

    fn next(&mut self) -> Option<Job> {
        let waits = self.waits && self.at_thread > 0;
        let job = if waits { self.answers.recv().ok() } else { self.answers.try_recv().ok() };
        self.at_thread -= u32::from(job.is_some());
        job
    }
}

/// Calls `move_bytes` with each payload that has bytes, and with the range of its bytes in the request.
fn with_payloads<P: Payload>(
    bios: &BioTable<P>,
    rq: &Inflight,
    mut move_bytes: impl FnMut(&P, std::ops::Range<usize>) -> IoResult,
) -> IoResult {
    let mut at = 0;
    for bio in rq.bios(bios) {
        let end = at + bio.sectors as usize * SECTOR;
        if bio.payload.data_len().is_some() {
            move_bytes(bio.payload, at..end)?;
        }
        at = end;
    }
    Ok(())
}

impl<P: Payload> DeviceQueue<P> for Queue {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let mut bytes = vec![0; rq.sectors() as usize * SECTOR];
        if rq.op() == Op::Write {
            let copied = with_payloads(bios, &rq, |it, at| it.write_to(0, &mut bytes[at]));
            if copied.is_err() {
                return Enqueued::Done(rq, copied);
            }
        }
        let tag = rq.tag().0 as usize;
        self.taken += 1;
        if self.fault != Fault::Loses || !self.taken.is_multiple_of(50) {
            self.at_thread += 1;
            let job = Job { tag, op: rq.op(), sector: rq.sector(), bytes };
            self.jobs.send(job).expect("the thread ends with the queue");
        }
        self.held[tag] = Some(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        while let Some(job) = self.next() {
            let rq = self.held[job.tag].take().expect("the thread answers each request once");
            let result = if job.op == Op::Read && self.fault != Fault::Forgets {
                with_payloads(bios, &rq, |it, at| it.read_from(0, &job.bytes[at]))
            } else {
                Ok(())
            };
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    /// The thread has only copies of the bytes.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.iter_mut().filter_map(Option::take));
    }
}

fn compare(fault: Fault) {
    for seed in 1..=3 {
        run::<AlignedBuf>(Config::new(shape(), vec![Queue::new(false, fault)]), seed);
        run::<BufList>(Config::new(shape(), vec![Queue::new(false, fault)]), seed);
    }
}

fn conform(fault: Fault) {
    for seed in 0..5 {
        let outcome = testkit::device::conformance(shape(), vec![Queue::new(true, fault)], seed);
        assert_eq!(outcome.failed, 0, "seed {seed}");
    }
}

#[test]
fn what_a_thread_has_stored_is_read() {
    compare(Fault::None);
}

#[test]
#[should_panic(expected = "read by")]
fn data_that_is_put_nowhere_is_found() {
    compare(Fault::Forgets);
}

#[test]
fn a_device_with_a_thread_conforms() {
    conform(Fault::None);
    let held = testkit::device::abandonment(shape(), vec![Queue::new(false, Fault::None)], 1);
    assert!(held > 0, "nothing was inside");
}

#[test]
#[should_panic(expected = "something is always due and nothing ends")]
fn a_lost_request_is_found() {
    conform(Fault::Loses);
}

/// A mirror of files.
#[cfg(target_os = "linux")]
mod mirror {
    use blkmq::prelude::*;
    use blkmq::runtime::Sleep;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::path::Path;

    const BYTES: u64 = 4 << 20;

    /// Writes `count` blocks of 64 KiB, each filled with its number and `salt`.
    fn write(client: &mut Client<AlignedBuf>, count: u64, salt: u8) {
        for at in 0..count {
            let bytes = AlignedBuf::copy_of(&[at as u8 ^ salt; 64 << 10]);
            client.push(Io::write(Bytes(at << 16), bytes).cookie(at)).expect("there is credit");
            client.wait(1, 1, |done| assert_eq!(done.result, Ok(())));
        }
    }

    /// Sleeps on the descriptor of an idle client until a finding of the device ends with `last`.
    fn idle_until(
        device: &blkmq::Device,
        client: &mut Client<AlignedBuf>,
        last: &str,
    ) -> Vec<String> {
        let mut findings = Vec::new();
        // Spurious readiness of the descriptor would exhaust the rounds.
        for _ in 0..1000 {
            let sleep = client.prepare_wait();
            let fd = client.event_fd().expect("a descriptor is left");
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let left = Timespec { tv_sec: if sleep == Sleep::No { 0 } else { 10 }, tv_nsec: 0 };
            let ready = poll(&mut fds, Some(&left)).expect("it can poll");
            client.end_wait();
            findings.extend(device.take_findings().iter().map(ToString::to_string));
            if findings.iter().any(|finding| finding.ends_with(last)) {
                return findings;
            }
            assert!(ready > 0 || sleep == Sleep::No, "nothing happens: {findings:?}");
        }
        panic!("it wakes too often: {findings:?}");
    }

    fn contents(path: &Path) -> Vec<u8> {
        let mut bytes = std::fs::read(path).expect("the file is there");
        // The records differ between legs.
        bytes.truncate((BYTES - 8192) as usize);
        bytes
    }

    #[test]
    fn a_leg_that_is_replaced_is_copied_while_nothing_else_is_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let leg = |name: &str| format!("[threads:{},size=4]", path(name).display());
        let open = |text: String| blkmq::open(&text).expect(&text);
        let begin = |device: &blkmq::Device| {
            let service = device.start::<AlignedBuf>("none").expect("it can run");
            let client = service.client().expect("one is free");
            (service, client)
        };
        {
            let device = open(format!("mirror,create=1:{}{}", leg("a"), leg("b")));
            assert_eq!(device.bytes(), BYTES - 8192);
            let (_service, mut client) = begin(&device);
            write(&mut client, 60, 0x55);
            let busy = device.start::<AlignedBuf>("none").expect_err("one at a time").to_string();
            assert!(busy.contains("a queue of the mirror exists already"), "{busy}");
        }
        // Opens the mirror without the first leg, which is then replaced.
        {
            let device = open(format!("mirror:[missing]{}", leg("b")));
            assert!(device.notes().iter().any(|note| note.starts_with("device 0 is missing")));
            let (_service, mut client) = begin(&device);
            write(&mut client, 10, 0xAA);
        }
        std::fs::remove_file(path("a")).expect("it is there");
        let error =
            blkmq::open(&format!("mirror:{}{}", leg("a"), leg("b"))).expect_err("no record");
        assert!(error.to_string().starts_with("device 0 has no record"), "{error}");
        {
            let device = open(format!("mirror,replace=1:{}{}", leg("a"), leg("b")));
            let (_service, mut client) = begin(&device);
            let findings = idle_until(&device, &mut client, "device 0 is in step");
            assert_eq!(
                findings.first().map(String::as_str),
                Some("device 0 is behind, and is copied")
            );
        }
        assert!(contents(&path("a")) == contents(&path("b")), "they are the same");
        assert_eq!(contents(&path("a"))[..64 << 10], vec![0xAA; 64 << 10]);
        let device = open(format!("mirror:{}{}", leg("a"), leg("b")));
        let (service, mut client) = begin(&device);
        write(&mut client, 1, 0);
        drop((client, service));
        assert_eq!(device.take_findings(), [], "it had ended in order");
        drop(device);
        let error = blkmq::open(&format!("mirror:{}{}", leg("b"), leg("a"))).expect_err("swapped");
        assert!(error.to_string().contains("is number 1 of the mirror"), "{error}");
    }
}
