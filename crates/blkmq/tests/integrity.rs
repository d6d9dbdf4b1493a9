//! Data integrity under load: threads write stamped blocks and read them back, with merging, faults at the device and
//! flushes, while the queue is reconfigured again and again.
//!
//! `BLKMQ_SWITCHES` is the number of reconfigurations (default 100);
//! `cargo test -p blkmq --test all -- integrity:: --nocapture` prints the results.

use blkmq::core::{Buffer, Nanos, Rng};
use blkmq::engine::Plan;
use blkmq::engine::{Access, PumpMode};
use blkmq::prelude::*;
use blkmq::sched::registry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: u16 = 4;
const DEPTH: u32 = 16;
/// Blocks of each thread; the regions of threads do not overlap.
const BLOCKS: u64 = 512;
const BLOCK: usize = 4096;
const SECTORS: u32 = BLOCK as u32 / 512;
/// I/Os of all threads between two reconfigurations: a few milliseconds of work.
const BETWEEN: u64 = 200;

/// Fills `bytes` with the content of block `block` of `thread` after its `generation`th write: its name, and noise
/// derived from the name, so that a byte from any other block or write is detected.
fn stamp(thread: u16, block: u64, generation: u32, bytes: &mut [u8]) {
    let name = u64::from(thread) << 48 | block << 32 | u64::from(generation);
    let mut noise = Rng::new(name);
    bytes[..8].copy_from_slice(&name.to_le_bytes());
    for word in bytes[8..].chunks_exact_mut(8) {
        word.copy_from_slice(&noise.next_u64().to_le_bytes());
    }
}

/// A thread and its blocks: how often each block was written, and whether an I/O for it is in flight.
struct Worker<'a> {
    thread: u16,
    client: Client<Buffer>,
    rng: Rng,
    written: Vec<u32>,
    busy: Vec<bool>,
    done: &'a AtomicU64,
    expected: Vec<u8>,
    checked: u64,
    longest: Nanos,
}

impl Worker<'_> {
    fn run(mut self, over: &AtomicBool) -> (u64, Nanos) {
        let mut last = self.client.clock().now();
        while !over.load(Ordering::Acquire) {
            let now = self.client.clock().now();
            while self.client.in_flight() < DEPTH {
                self.submit(now);
            }
            self.client.flush_at(now);
            self.take(1);
            let now = self.client.clock().now();
            self.longest = self.longest.max(now - last);
            last = now;
        }
        self.take(DEPTH);
        // Read all blocks once more, with no other I/O in flight.
        for block in 0..BLOCKS {
            self.push(self.client.clock().now(), Op::Read, block);
            self.take(1);
        }
        (self.checked, self.longest)
    }

    fn submit(&mut self, now: blkmq::core::Instant) {
        let mut block = self.rng.below(BLOCKS);
        while self.busy[block as usize] {
            block = (block + 1) % BLOCKS;
        }
        let op = if self.rng.chance(1, 2) { Op::Read } else { Op::Write };
        self.push(now, op, block);
        // Often push an I/O for the next block as well, so that they merge.
        let next = (block + 1) % BLOCKS;
        if self.rng.chance(1, 2) && self.client.in_flight() < DEPTH && !self.busy[next as usize] {
            self.push(now, op, next);
        }
    }

    fn push(&mut self, now: blkmq::core::Instant, op: Op, block: u64) {
        let mut bytes = vec![0; BLOCK];
        if op == Op::Write {
            self.written[block as usize] += 1;
            stamp(self.thread, block, self.written[block as usize], &mut bytes);
        }
        self.busy[block as usize] = true;
        let sector = (u64::from(self.thread) * BLOCKS + block) * u64::from(SECTORS);
        let mut io =
            Io::new(op, sector, SECTORS, block << 1 | u64::from(op.is_write()), Buffer::new(bytes));
        if op == Op::Write && self.rng.chance(1, 8) {
            io.flags = IoFlags::FUA;
        }
        self.client.push_at(now, io).expect("there is credit for it");
    }

    /// Waits for at least `least` completions and checks the data of reads.
    fn take(&mut self, least: u32) {
        let mut came = Vec::new();
        self.client.wait(least, DEPTH, |io| came.push(io));
        for io in came {
            let (block, write) = (io.cookie >> 1, io.cookie & 1 == 1);
            io.result.expect("faults that fail I/Os are not among these");
            self.busy[block as usize] = false;
            self.done.fetch_add(1, Ordering::Relaxed);
            if write {
                continue;
            }
            let (expected, generation) = (&mut self.expected, self.written[block as usize]);
            expected.fill(0);
            if generation > 0 {
                stamp(self.thread, block, generation, expected);
            }
            assert!(
                *expected == io.payload.into_inner(),
                "thread {}, block {block} is not what write {generation} left there",
                self.thread
            );
            self.checked += 1;
        }
    }
}

/// Returns the `nth` plan: schedulers, depths, scopes and access modes take turns.
fn next_plan(plan: Plan, nth: u64) -> Plan {
    let all = registry::ALL;
    let plan = plan.scheduler(all[nth as usize % all.len()]);
    let scopes = [None, Some(blkmq::sched::Scope::Queue), Some(blkmq::sched::Scope::HwQueue)];
    Plan {
        nr_requests: [None, Some(4), Some(64), Some(9)][nth as usize / 2 % 4],
        scope: scopes[nth as usize / 3 % 3],
        access: if nth % 16 < 12 { Access::Combining } else { Access::Mutex },
        ..plan
    }
}

fn hammer(device: &str, pump: PumpMode) {
    let switches = std::env::var("BLKMQ_SWITCHES")
        .map_or(100, |n| n.parse::<u64>().expect("BLKMQ_SWITCHES is a number"));
    let device = blkmq::device(device).expect("a device");
    let mut config = device.config::<Buffer>();
    (config.submitters, config.depth, config.pump) = (THREADS, DEPTH, pump);
    let service = Service::start(config).expect("a queue");
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut longest_switch, mut checked, mut longest) = (Nanos::ZERO, 0, Nanos::ZERO);
    std::thread::scope(|scope| {
        let work = |thread| {
            let (service, done, over) = (&service, &done, &over);
            scope.spawn(move || {
                let worker = Worker {
                    thread,
                    client: service.client().expect("one for each thread"),
                    rng: Rng::new(thread.into()),
                    written: vec![0; BLOCKS as usize],
                    busy: vec![false; BLOCKS as usize],
                    done,
                    expected: vec![0; BLOCK],
                    checked: 0,
                    longest: Nanos::ZERO,
                };
                worker.run(over)
            })
        };
        let workers = Vec::from_iter((0..THREADS).map(work));
        for nth in 0..switches {
            let target = done.load(Ordering::Relaxed) + BETWEEN;
            while done.load(Ordering::Relaxed) < target {
                assert!(
                    !workers.iter().any(std::thread::ScopedJoinHandle::is_finished),
                    "a thread has failed"
                );
                std::thread::yield_now();
            }
            let took = service.edit(|plan| {
                *plan = next_plan(plan.clone(), nth);
                Ok::<(), std::convert::Infallible>(())
            });
            let took = took.expect("a plan that is possible");
            longest_switch = longest_switch.max(took);
        }
        over.store(true, Ordering::Release);
        for worker in workers {
            let (blocks, stall) = worker.join().expect("a thread that found nothing wrong");
            checked += blocks;
            longest = longest.max(stall);
        }
    });
    let stats = service.stats();
    assert_eq!(stats.submitted, stats.completed, "{stats:?}");
    assert!(
        stats.merges.total() > 0 && stats.requeues > 0,
        "nothing merged or came back: {stats:?}"
    );
    println!(
        "{switches} changes of the queue under {THREADS} threads: {} I/Os, 0 lost; {checked} blocks read, 0 wrong; \
         {} merged, {} requeued, {} busy; longest change {longest_switch}, longest time without a completion \
         {longest}",
        stats.completed,
        stats.merges.total(),
        stats.requeues,
        stats.busy
    );
}

const FAULTS: &str =
    "faults,requeue=0.02,resource=0.01,dev_resource=0.05,late=0.05,reorder=0.1,seed=5";

#[test]
fn s6_09_every_byte_is_right_while_the_queue_is_switched_under_faults() {
    let memory = "memory,size=64,submit_queues=2,irqmode=1,hw_queue_depth=8,cache_size=4,fua=0";
    hammer(&format!("{FAULTS}:{memory}"), PumpMode::Inline);
}

#[test]
fn s6_09_every_byte_is_right_with_pump_threads() {
    let memory = "memory,size=64,submit_queues=2,irqmode=2,completion_nsec=20000,hw_queue_depth=8";
    hammer(&format!("{FAULTS}:{memory}"), PumpMode::Thread);
}
