//! Workers on a device that violates its contract, unlike any device of the registry.

use super::*;
use blkmq_core::{Buffer, GroupId, Limits, Op, Owner, Payload, SECTOR_SIZE};
use blkmq_engine::{
    BioTable, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight,
    WriteCache,
};
use blkmq_lab::workload::{
    Amount, Depth, Generator, Job, Rw, Stream, Tally, Ties, Verifier, Verify, Window,
    verify::{Fault, Findings, Method},
};
use blkmq_runtime::Service;

const CAPACITY: u64 = 2048;

/// The fault of one write.
#[derive(Clone, Copy, Debug)]
enum Lie {
    None,
    /// One bit of the data is flipped.
    Flip,
    /// The write is not done.
    Lose,
    /// Writes to the preceding block.
    Misdirect,
    /// Only the first half is written.
    Tear,
}

/// A device that stores its data correctly, except for one faulty write.
struct Liar {
    memory: Vec<u8>,
    lie: Lie,
    /// The number of writes before the faulty one.
    writes: u32,
}

impl Liar {
    fn write(&mut self, start: usize, payload: &Buffer, len: usize) {
        let mut bytes = vec![0; len];
        payload.write_to(0, &mut bytes).expect("a buffer of that length");
        self.writes = self.writes.wrapping_sub(1);
        let (mut start, mut len) = (start, len);
        if self.writes == 0 {
            match self.lie {
                Lie::None => {}
                Lie::Flip => bytes[1234] ^= 4,
                Lie::Lose => len = 0,
                Lie::Misdirect => start -= 4096,
                Lie::Tear => len /= 2,
            }
        }
        self.memory[start..][..len].copy_from_slice(&bytes[..len]);
    }
}

impl DeviceQueue<Buffer> for Liar {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<Buffer>, rq: Inflight) -> Enqueued {
        for bio in rq.bios(bios) {
            let start = (bio.sector * u64::from(SECTOR_SIZE)) as usize;
            let len = (bio.sectors * SECTOR_SIZE) as usize;
            if rq.op() == Op::Write {
                self.write(start, bio.payload, len);
            } else {
                bio.payload.read_from(0, &self.memory[start..][..len]).expect("a buffer");
            }
        }
        Enqueued::Done(rq, Ok(()))
    }

    fn reap(&mut self, _: Instant, _: &BioTable<Buffer>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

/// Runs `job` on a device that commits `lie` at write number `after`.
fn run(job: &Job, lie: Lie, after: u32) -> Tally {
    let shape = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 32,
        shared_tags: false,
        budget: None,
        limits: Limits { capacity: CAPACITY, ..Limits::default() },
        cache: WriteCache::Through,
        timeout: DEFAULT_TIMEOUT,
    };
    let memory = vec![0; (CAPACITY * u64::from(SECTOR_SIZE)) as usize];
    let queues: Vec<Box<dyn DeviceQueue<Buffer>>> =
        vec![Box::new(Liar { memory, lie, writes: after })];
    let config = Config { depth: job.depth.iodepth, ..Config::new(shape, queues) };
    let service = Service::start(config).expect("a sound configuration");
    let client = service.client().expect("for one thread");
    let bytes = CAPACITY * u64::from(SECTOR_SIZE);
    let stream = Stream {
        generator: Generator::new(job, 0, bytes).expect("possible"),
        verifier: Verifier::new(job, 0, bytes).expect("possible"),
        owner: Owner(1),
        group: GroupId::ROOT,
        ties: Ties::default(),
    };
    let window = Window::of(job, client.clock().now());
    let pool = Pool::new(job, 0, bytes, ());
    let stop = Stop::default();
    drive(Worker::new(job, stream, pool, window), client, None, Outside::from(&stop)).tally
}

/// A job that writes all of 64 blocks twice.
fn job(verify: Verify) -> Job {
    Job {
        rw: Rw::Write,
        verify: Some(verify),
        offset: Amount::Bytes(64 << 10),
        size: Some(Amount::Bytes(256 << 10)),
        loops: 2,
        depth: Depth { iodepth: 8, low: 8, batch_submit: 4, ..Depth::default() },
        ..Job::default()
    }
}

fn findings(verify: Verify, lie: Lie, after: u32) -> Findings {
    let tally = run(&job(verify), lie, after);
    let found = tally.verify.expect("the job verifies");
    assert_eq!(tally.error, if found.errors > 0 { 84 } else { 0 });
    found
}

#[test]
fn every_lie_is_found_once_at_its_block_and_called_by_its_name() {
    // The 64 + 11th write is the second one of block 10.
    for (lie, wrong) in
        [(Lie::None, 0), (Lie::Flip, 1), (Lie::Lose, 1), (Lie::Misdirect, 2), (Lie::Tear, 1)]
    {
        let found = findings(Verify::new(Method::Crc32c), lie, 75);
        // All blocks are read back after each loop.
        assert_eq!((found.verified, found.errors), (512 << 10, wrong), "{lie:?}");
        let Some(first) = found.first else { continue };
        assert_eq!(first.offset, (64 << 10) + first.block * 4096);
        let expected = match lie {
            Lie::None => false,
            Lie::Flip | Lie::Tear => {
                first.block == 10 && matches!(first.fault, Fault::Checksum { generation: 2, .. })
            }
            Lie::Lose => {
                first.block == 10 && first.fault == Fault::Generation { expected: 2, found: 1 }
            }
            Lie::Misdirect => first.block == 9 && matches!(first.fault, Fault::Offset { .. }),
        };
        assert!(expected, "{lie:?}: {first}");
    }
}

/// Damage that is overwritten before blocks are read back is only found by a job that verifies earlier: after each
/// loop, or after some writes.
#[test]
fn a_backlog_and_the_end_of_a_loop_look_before_the_next_pass() {
    let verify = Verify::new(Method::Crc32c);
    let twice = |verify: Verify| {
        let io_size = Some(Amount::Bytes(512 << 10));
        let tally = run(&Job { loops: 1, io_size, ..job(verify) }, Lie::Flip, 11);
        tally.verify.expect("the job verifies").errors
    };
    // As with fio 3.33, a pass over the size is read back before more of the `io_size` is written.
    assert_eq!(twice(verify.clone()), 1);
    assert_eq!(twice(Verify { backlog: 16, ..verify.clone() }), 1);
    assert_eq!(findings(verify, Lie::Flip, 11).errors, 1);
}

#[test]
fn a_fatal_mismatch_ends_the_job() {
    let verify = Verify { backlog: 16, fatal: true, ..Verify::new(Method::Crc32c) };
    let tally = run(&job(verify), Lie::Lose, 11);
    assert_eq!(tally.error, 84);
    assert!(tally.counts[1].ios < 64, "{} writes after it", tally.counts[1].ios);
}

/// A worker checks contents only on request, but its I/Os carry data in any case.
#[test]
fn without_verify_nothing_is_found() {
    let tally = run(&Job { verify: None, ..job(Verify::new(Method::Crc32c)) }, Lie::Flip, 11);
    assert_eq!((tally.error, tally.counts[1].ios, tally.verify), (0, 128, None));
}
