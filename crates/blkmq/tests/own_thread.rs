//! A device with its own thread, in safe code: data arrives after `enqueue`, and `reap` copies it into the bios.

#![forbid(unsafe_code)]

use crate::lists::run;
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
