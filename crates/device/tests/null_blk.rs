//! The null device and the memory device against `spec/null_blk.md` section 6: a test for each line that applies. Lines
//! 7 and 9 need stored data; the memory device is tested for them, and against its page: contents, bad blocks, cache.
//! `crash.rs` tests power cuts.

use crate::{Disk, HOST, device, null, rig, stamp, unmerged};
use blkmq_core::{
    Buffer, HwQueue, Instant, IoError, IoFlags, IoResult, Nanos, Op, Owner, Payload, Rng, Tag,
};
use blkmq_device::contract::{self, Checked, Rig};
use blkmq_device::{Answer, Device, registry};
use blkmq_engine::{
    Access, BioTable, Config, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Io, Queue,
    Submitter,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn after(span: Nanos) -> Instant {
    Instant::ZERO + span
}

#[test]
fn s6_1_irqmode_0_completes_before_enqueue_returns() {
    let device = null("irqmode=0");
    let (queues, watch) = Checked::wrap(&device.shape, device.queues());
    let mut rig = Rig::new(Config::new(device.shape, queues));
    for round in 0..10 {
        for io in 0..20 {
            rig.push(0, Op::Write, (round * 20 + io) * 64, 8).expect("there is credit");
        }
        rig.flush(0);
        assert_eq!(rig.queue.tags_in_use(HwQueue(0)), 0, "inside although the call has returned");
        assert_eq!(rig.reap(), 20, "without polling, at the same instant");
    }
    assert_eq!(watch.lock().unwrap().most_held, 0);
    assert_eq!(rig.queue.dispatch_busy(HwQueue(0)), 0);
    rig.check_at_rest(1);
}

/// Counts the requests inside the device at a time, over all of its hardware queues.
struct Inside {
    inner: Box<dyn DeviceQueue<u64>>,
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
}

impl DeviceQueue<u64> for Inside {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u64>, rq: Inflight) -> Enqueued {
        let inside = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        let answer = self.inner.enqueue(now, bios, rq);
        assert!(matches!(answer, Enqueued::Done(..)), "{answer:?}");
        self.now.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    fn reap(&mut self, _: Instant, _: &BioTable<u64>, _: &mut Vec<Finished>) {
        unreachable!("nothing was accepted");
    }

    fn timed_out(&mut self, _: Instant, _: Tag) -> Expiry {
        unreachable!("nothing was accepted");
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}

#[test]
fn s6_1_irqmode_0_never_has_more_in_flight_than_dispatching_threads() {
    const THREADS: u16 = 3;
    let device = null("irqmode=0,submit_queues=4,hw_queue_depth=16");
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let inside = |inner| {
        Box::new(Inside { inner, now: Arc::clone(&now), most: Arc::clone(&most) })
            as Box<dyn DeviceQueue<u64>>
    };
    let queues = device.queues().into_iter().map(inside).collect();
    let config = Config { submitters: THREADS, ..Config::new(device.shape, queues) };
    let queue = Queue::new(config).expect("a queue");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let submitter = queue.submitter().expect("one per thread");
            scope.spawn(|| submit_and_reap(submitter, 4000));
        }
    });
    assert!((1..=THREADS.into()).contains(&most.load(Ordering::SeqCst)));
    assert_eq!(queue.stats().completed, 4000 * u64::from(THREADS));
}

fn submit_and_reap(mut submitter: Submitter<u64>, ios: u64) {
    let (mut pushed, mut ended) = (0, 0);
    while ended < ios {
        for _ in 0..8.min(ios - pushed) {
            let io = Io::new(Op::Read, pushed * 1024, 8, pushed, pushed);
            submitter.push(Instant::ZERO, io).expect("reaped before the next batch");
            pushed += 1;
        }
        submitter.flush(Instant::ZERO);
        while ended < pushed {
            submitter.poll(Instant::ZERO);
            ended += u64::from(submitter.reap(u32::MAX, |done| assert!(done.result.is_ok())));
            std::thread::yield_now();
        }
    }
}

#[test]
fn s6_2_irqmode_2_throughput_is_depth_over_service_time() {
    const DEPTH: u64 = 4;
    const SERVICE: Nanos = Nanos(10_000);
    let mut rig = rig(&null("irqmode=2,completion_nsec=10000,hw_queue_depth=4"));
    for io in 0..400 {
        rig.push(0, Op::Read, io * 64, 8).expect("there is credit");
    }
    rig.finish();
    for (count, ended) in (1..).zip(&rig.ended) {
        let most = ended.at.as_nanos() / SERVICE.0 * DEPTH;
        assert!(count <= most, "{count} ended by {:?}", ended.at);
    }
    assert_eq!(rig.now, after(Nanos(400 / DEPTH * SERVICE.0)), "never an idle tag");
}

#[test]
fn writes_may_take_a_time_of_their_own_and_are_passed_by_reads() {
    let mut rig = rig(&null("irqmode=2,completion_nsec=1ms,write_nsec=4ms,hw_queue_depth=4"));
    let write = rig.submit(Op::Write, 0, 8);
    let read = rig.submit(Op::Read, 64, 8);
    let last = rig.submit(Op::Write, 128, 8);
    rig.finish();
    assert_eq!(rig.ended(read).at, after(Nanos::from_millis(1)));
    assert_eq!(rig.ended(write).at, after(Nanos::from_millis(4)));
    assert_eq!(rig.ended(last).at, after(Nanos::from_millis(4)));
    rig.check_at_rest(1);
}

#[test]
fn s6_2_each_hardware_queue_adds_its_own_depth() {
    let device = null("irqmode=2,completion_nsec=10000,hw_queue_depth=4,submit_queues=4");
    let mut rig = Rig::new(unmerged(&device, 4, 128));
    for io in 0..400 {
        rig.push(io % 4, Op::Read, io as u64 * 64, 8).expect("there is credit");
    }
    rig.finish();
    assert_eq!(rig.now, after(Nanos(400 / 16 * 10_000)));
}

#[test]
fn s6_3_submit_queues_are_clamped_and_use_per_node_hctx_overrides() {
    let queues = |text: &str| {
        let device = null(text);
        assert_eq!(device.queues::<u64>().len(), usize::from(device.shape.hw_queues));
        (device.shape.hw_queues, device.notes.len())
    };
    assert_eq!(queues(""), (1, 0));
    assert_eq!(queues("submit_queues=4"), (HOST.cpus, 0));
    assert_eq!(queues("submit_queues=128"), (HOST.cpus, 1));
    assert_eq!(queues("submit_queues=0"), (1, 1));
    assert_eq!(queues("use_per_node_hctx=1"), (HOST.nodes, 0));
    assert_eq!(queues("submit_queues=3,use_per_node_hctx=1"), (HOST.nodes, 1));
}

/// Moves 4 KiB requests at 10 MiB/s for two seconds. At every refill the bytes moved agree with the rate within one
/// quantum and one request, and no bandwidth is lost where the queue stopped and started.
fn bandwidth_is_capped(text: &str, submitters: u16) {
    const IOS: u64 = 5120;
    const BYTES: u64 = 4096;
    const QUANTUM: Nanos = Nanos::from_millis(20);
    let per_quantum = (10 << 20) as f64 / 50.0;
    let device = null(&format!("mbps=10,{text}"));
    let mut rig = Rig::new(unmerged(&device, submitters, 4096));
    for io in 0..IOS {
        let who = (io % u64::from(submitters)) as usize;
        while rig.push(who, Op::Write, io * 64, 8).is_none() {
            let at = rig.next_deadline().expect("a refill will come");
            rig.run_until(at);
        }
    }
    rig.finish();
    for (count, ended) in (1_u64..).zip(&rig.ended) {
        let moved = (count * BYTES) as f64;
        let granted = (ended.at.as_nanos() / QUANTUM.0 + 1) as f64 * per_quantum;
        assert!(moved < granted + BYTES as f64, "{count} by {:?}", ended.at);
        assert!(moved > granted - per_quantum, "only {count} by {:?}", ended.at);
    }
    // 20 MiB at 10 MiB/s; the first quantum is available at the start.
    let last = rig.now.as_nanos();
    assert!((1_960_000_000..=2_000_000_000).contains(&last), "{last} ns");
    rig.check_at_rest(device.shape.hw_queues);
}

#[test]
fn s6_4_mbps_holds_in_the_long_run_within_a_quantum() {
    bandwidth_is_capped("irqmode=0", 1);
    bandwidth_is_capped("irqmode=1,submit_queues=3", 3);
    bandwidth_is_capped("irqmode=2,hw_queue_depth=7", 2);
}

#[test]
fn s6_4_a_request_larger_than_a_quantum_passes_and_is_paid_for() {
    let mut rig = rig(&null("mbps=1,irqmode=0"));
    for io in 0..3 {
        rig.submit(Op::Write, io * 4096, 2048);
    }
    rig.finish();
    let times: Vec<u64> = rig.ended.iter().map(|ended| ended.at.as_nanos() / 1_000_000).collect();
    assert_eq!(times, [0, 1000, 2000], "1 MiB each, at 1 MiB/s");
}

#[test]
fn s6_5_requeue_alternates_both_forms_and_everything_finishes() {
    use Answer::{Resource, Taken};
    let device = null("irqmode=0,requeue=1:100:0:6,log=1");
    let mut rig = rig(&device);
    rig.submit(Op::Read, 0, 8);
    rig.finish();
    let arrivals = device.log.as_ref().expect("log=1").arrivals();
    let answers: Vec<Answer> = arrivals.iter().map(|arrival| arrival.answer).collect();
    assert_eq!(answers, [Resource, Taken, Resource, Taken, Resource, Taken, Taken]);
    let stats = rig.queue.stats();
    assert_eq!((stats.busy, stats.requeues), (3, 3));
    assert_eq!(rig.now, after(Nanos::from_millis(9)), "three times RESOURCE, 3 ms each");
    rig.check_at_rest(1);

    for text in ["irqmode=1", "irqmode=2", "irqmode=2,submit_queues=2,hw_queue_depth=3,budget=4"] {
        let device = null(&format!("{text},requeue=1:100:0:50"));
        let mut rig = Rig::new(unmerged(&device, 2, 256));
        for io in 0..200 {
            rig.push(io % 2, Op::Write, io as u64 * 64, 8).expect("there is credit");
        }
        rig.finish();
        let stats = rig.queue.stats();
        let each = 25 * u64::from(device.shape.hw_queues);
        assert_eq!((stats.busy, stats.requeues), (each, each), "{text}");
        assert!(rig.ended.iter().all(|ended| ended.result.is_ok()));
        rig.check_at_rest(device.shape.hw_queues);
    }
}

#[test]
fn s6_6_a_lost_request_ends_after_5_s_with_exactly_one_status() {
    for irqmode in 0..3 {
        let mut rig = rig(&null(&format!("irqmode={irqmode},timeout=1:100:0:1")));
        assert_eq!(null("").shape.timeout, Nanos::from_secs(5));
        rig.run_for(Nanos::from_millis(7));
        let lost = rig.submit(Op::Write, 0, 8);
        let other = rig.submit(Op::Write, 64, 8);
        rig.run_for(Nanos::from_millis(1));
        assert!(rig.ended(other).result.is_ok(), "others are not held up");
        rig.run_until(after(Nanos::from_millis(5007)).saturating_sub(Nanos(1)));
        assert_eq!(
            (rig.in_flight(), rig.queue.tags_in_use(HwQueue(0))),
            (1, 1),
            "it keeps its tag"
        );
        rig.finish();
        let ended = rig.ended(lost);
        assert_eq!(ended.result, Err(IoError::TIMED_OUT));
        assert_eq!(ended.at, after(Nanos::from_millis(5007)));
        rig.run_for(Nanos::from_secs(20));
        assert_eq!((rig.ended.len(), rig.queue.stats().timeouts), (2, 1), "each ends once");
        rig.check_at_rest(1);
    }
}

/// The device answers RESET_TIMER as often as configured, each time for another 5 s.
#[test]
fn s6_6_a_lost_request_may_have_its_timer_reset_first() {
    let (device, resets) = (null("irqmode=2,timeout=1:100:0:1,timeout_resets=2"), 2);
    let (queues, watch) = Checked::wrap(&device.shape, device.queues());
    let mut rig = Rig::new(Config { queues, ..device.config() });
    let lost = rig.submit(Op::Write, 0, 8);
    for resets in 1..=resets {
        rig.run_until(after(Nanos::from_secs(5 * resets)));
        assert_eq!((rig.queue.stats().timeouts, rig.in_flight()), (resets, 1));
    }
    rig.finish();
    assert_eq!(rig.ended(lost).result, Err(IoError::TIMED_OUT));
    assert_eq!(rig.ended(lost).at, after(Nanos::from_secs(15)));
    assert_eq!((rig.queue.stats().timeouts, watch.lock().unwrap().timeouts), (3, 3));
    rig.check_at_rest(1);
}

/// With retries the client does not notice the lost requests.
#[test]
fn s6_6_a_lost_request_that_is_tried_again_succeeds() {
    let device = null("irqmode=1,timeout=1:100:0:2,log=1");
    let mut rig = Rig::new(Config { retries: 2, ..device.config() });
    let lost = rig.submit(Op::Write, 0, 8);
    rig.finish();
    assert_eq!((rig.ended(lost).result, rig.ended(lost).at), (Ok(()), after(Nanos::from_secs(10))));
    assert_eq!((rig.queue.stats().timeouts, rig.queue.stats().retries), (2, 2));
    assert_eq!(device.log.as_ref().expect("log=1").arrivals().len(), 3);
    rig.check_at_rest(1);
}

/// A timeout only asks the device; the queue waits for a request that is still in service.
#[test]
fn s6_6_what_is_slow_is_not_lost() {
    let mut rig = rig(&null("irqmode=2,completion_nsec=12000000000"));
    let slow = rig.submit(Op::Write, 0, 8);
    rig.finish();
    assert_eq!((rig.ended(slow).result, rig.ended(slow).at), (Ok(()), after(Nanos::from_secs(12))));
    assert_eq!(rig.queue.stats().timeouts, 2);
    rig.check_at_rest(1);
}

/// Lost requests count as inside the device, and only the timer makes room again.
#[test]
fn s6_6_lost_requests_hold_up_the_rest_behind_a_service_limit() {
    let mut rig = rig(&null("irqmode=2,service_limit=2,timeout=1:100:0:2"));
    for io in 0..4 {
        rig.push(0, Op::Write, io * 64, 8).expect("there is credit");
    }
    rig.finish();
    let five = Nanos::from_secs(5);
    let times: Vec<Instant> = rig.ended.iter().map(|ended| ended.at).collect();
    let served = after(five) + Nanos(10_000);
    assert_eq!(times, [after(five), after(five), served, served]);
    rig.check_at_rest(1);
}

/// A requeued request bypasses the scheduler, goes behind the requests that wait, and keeps its tag
/// (`spec/framework.md` section 10).
#[test]
fn requeue_tail_keeps_the_tag_and_finishes_when_the_fault_stops() {
    let device = null("irqmode=1,requeue_tail=1:100:0:3,log=1");
    let mut rig = rig(&device);
    rig.submit(Op::Read, 0, 8);
    assert_eq!(rig.queue.tags_in_use(HwQueue(0)), 1);
    rig.finish();
    let arrivals = device.log.as_ref().expect("log=1").arrivals();
    let times: Vec<Instant> = arrivals.iter().map(|arrival| arrival.at).collect();
    let expected: Vec<Instant> = (0..4).map(|i| after(Nanos::from_millis(3 * i))).collect();
    assert_eq!(times, expected);
    assert!(arrivals.iter().all(|arrival| arrival.tag == arrivals[0].tag));
    let stats = rig.queue.stats();
    assert_eq!((stats.tail_requeues, stats.requeues, stats.dispatched), (3, 0, 1));
    rig.check_at_rest(1);
}

#[test]
fn s6_8_block_sizes_are_rounded_and_clamped() {
    for (given, becomes) in [(513, 512), (8192, 4096), (100, 512), (1024, 1024)] {
        let device = null(&format!("bs={given}"));
        assert_eq!(device.shape.limits.logical_block_size, becomes);
        assert_eq!(device.notes.len(), usize::from(given != becomes), "{:?}", device.notes);
    }
    let error = registry::parse("null,blocksize=2600", &HOST).expect_err("2560 is no power of two");
    assert!(error.to_string().ends_with("accepted are 512, 1024, 2048 and 4096"), "{error}");
}

/// `service_limit` (`spec/null_blk.md` section 5): beyond it the device answers DEV_RESOURCE, until a request leaves.
#[test]
fn the_service_limit_bounds_what_is_inside() {
    let device = null("irqmode=2,completion_nsec=1000,service_limit=3,hw_queue_depth=32,log=1");
    let mut rig = rig(&device);
    for io in 0..30 {
        rig.push(0, Op::Read, io * 64, 8).expect("there is credit");
    }
    rig.finish();
    let log = device.log.as_ref().expect("log=1");
    let taken: Vec<u64> = log.taken().iter().map(|arrival| arrival.at.as_nanos()).collect();
    let expected: Vec<u64> = (0..30).map(|io| io / 3 * 1000).collect();
    assert_eq!(taken, expected, "three at a time, each for 1000 ns, without a gap");
    assert!(log.arrivals().iter().any(|arrival| arrival.answer == Answer::DevResource));
}

#[test]
fn the_log_keeps_what_fits_and_counts_the_rest() {
    let device = null("irqmode=0,log=1,log_size=3");
    let mut rig = rig(&device);
    for io in 0..5 {
        rig.submit(Op::Write, io * 64, 16);
    }
    let log = device.log.as_ref().expect("log=1");
    let arrivals = log.arrivals();
    let seen: Vec<_> = arrivals.iter().map(|a| (a.sequence, a.sector, a.sectors, a.bios)).collect();
    assert_eq!(seen, [(0, 0, 16, 1), (1, 64, 16, 1), (2, 128, 16, 1)]);
    assert_eq!(log.missed(), 2);
}

const SECTOR: usize = 512;

fn filled(byte: u8, sectors: usize) -> Vec<u8> {
    vec![byte; sectors * SECTOR]
}

fn disk(text: &str) -> (Disk, Device) {
    let device = device("memory", text);
    (Disk::plain(&device), device)
}

#[test]
fn s6_7_an_io_that_touches_a_bad_block_fails_and_is_not_done() {
    for irqmode in 0..3 {
        let (mut disk, device) = disk(&format!("irqmode={irqmode},badblocks=+8-9,discard=1"));
        for (op, sector, sectors) in
            [(Op::Read, 0, 9), (Op::Write, 9, 4), (Op::WriteZeroes, 4, 20), (Op::Discard, 8, 1)]
        {
            let done = disk.one(op, sector, filled(1, sectors));
            assert_eq!((done.result, done.bytes), (Err(IoError::IO), filled(1, sectors)), "{op:?}");
        }
        assert_eq!(disk.one(Op::Flush, 0, vec![]).result, Ok(()));
        assert_eq!(device.memory().expect("it stores").stored_bytes(), 0);
        assert_eq!(disk.one(Op::Write, 0, filled(2, 8)).result, Ok(()), "up to it");
        assert_eq!(disk.one(Op::Write, 10, filled(3, 8)).result, Ok(()), "behind it");
        assert_eq!(disk.one(Op::Read, 7, filled(1, 2)).result, Err(IoError::IO), "every time");
        assert_eq!(disk.read(0, 8), filled(2, 8));
    }
}

#[test]
fn s6_7_with_partial_io_what_lies_before_is_done() {
    for irqmode in 0..3 {
        let text = format!("irqmode={irqmode},badblocks=+21-22,badblocks_partial_io=1,bs=4096");
        let (mut disk, _) = disk(&text);
        let done = disk.one(Op::Write, 0, filled(7, 32));
        assert_eq!(done.result, Err(IoError::IO));
        assert_eq!(disk.read(0, 16), filled(7, 16), "sector 21 rounded down to its block");
        assert_eq!(disk.read(24, 8), filled(0, 8), "nothing behind");
        let done = disk.one(Op::Read, 0, filled(1, 24));
        assert_eq!(done.result, Err(IoError::IO));
        assert_eq!(done.bytes, [filled(7, 16), filled(1, 8)].concat());
    }
}

#[test]
fn s6_7_with_once_the_second_try_succeeds() {
    let (mut disk, device) = disk("badblocks=+8-15,badblocks=+40-41,badblocks_once=1");
    assert_eq!(disk.one(Op::Write, 10, filled(5, 1)).result, Err(IoError::IO));
    assert_eq!(disk.one(Op::Write, 0, filled(5, 32)).result, Ok(()), "the whole range is healed");
    assert_eq!(disk.read(8, 8), filled(5, 8));
    let store = device.memory().expect("it stores");
    assert_eq!(store.bad().ranges().collect::<Vec<_>>(), [(40, 41)]);
    store.badblocks("-40-40").expect("well formed");
    store.badblocks("+60-60").expect("well formed");
    assert!(store.badblocks("60").is_err());
    assert_eq!(disk.one(Op::Read, 40, filled(0, 21)).result, Err(IoError::IO));
    assert_eq!(disk.one(Op::Read, 40, filled(0, 21)).result, Err(IoError::IO), "two ranges");
    assert_eq!(disk.one(Op::Read, 40, filled(0, 21)).result, Ok(()));
}

#[test]
fn s6_7_a_bad_block_fails_the_whole_merged_request() {
    let device = device("memory", "badblocks=+8-8,badblocks_partial_io=1");
    let mut disk = Disk::new(device.config());
    let cookies: Vec<_> =
        (0..3).map(|io| disk.push(0, Op::Write, io * 8, filled(4, 8), IoFlags::NONE)).collect();
    disk.finish();
    assert_eq!(disk.queue.stats().merges.plug, 2);
    assert!(cookies.iter().all(|cookie| disk.done[cookie].result == Err(IoError::IO)));
    assert_eq!(disk.read(0, 8), filled(4, 8));
}

/// An I/O in flight: its blocks, and whether it is a read, so that its data must be checked.
struct Pending {
    first: usize,
    blocks: usize,
    read: bool,
}

/// Does random stamped writes, zeroes, discards and reads from several submitters that share a small device, so that
/// neighbours merge, and compares every byte read. Returns the number of requests with merged I/Os.
fn integrity(
    text: &str,
    scheduler: &'static blkmq_sched::Factory,
    access: Access,
    seed: u64,
) -> u64 {
    const SUBMITTERS: usize = 4;
    const BLOCKS: usize = 256;
    let device = device("memory", text);
    let config = device.config().scheduler(scheduler);
    let mut disk = Disk::new(Config { submitters: SUBMITTERS as u16, depth: 64, access, ..config });
    let block = device.shape.limits.logical_block_size as usize;
    let image = |versions: &[u64], first: usize| {
        let mut bytes = vec![0; versions.len() * block];
        for (at, out) in bytes.chunks_mut(block).enumerate() {
            stamp((first + at) as u64, versions[at], out);
        }
        bytes
    };
    let mut rng = Rng::new(seed);
    let (mut versions, mut busy) = ([0_u64; BLOCKS], [false; BLOCKS]);
    let mut pending: Vec<(u64, Pending)> = Vec::new();
    let mut runs = [(0, Op::Write); SUBMITTERS];
    for version in 1..=400 {
        for (who, run) in runs.iter_mut().enumerate() {
            let blocks = 1 + rng.below(8) as usize;
            // Most I/Os continue the last I/O of the same submitter with the same operation, so that they merge.
            let (end, last) = *run;
            let goes_on = end + blocks <= BLOCKS && rng.chance(2, 3);
            let anywhere = rng.below((BLOCKS - blocks) as u64) as usize;
            let first = if goes_on { end } else { anywhere };
            let range = first..first + blocks;
            // Overlapping I/Os in flight have no order, so applications and this test avoid them.
            if busy[range.clone()].contains(&true) {
                continue;
            }
            let op = match rng.below(10) {
                _ if goes_on => last,
                0 => Op::WriteZeroes,
                1 if device.shape.limits.max_discard_sectors > 0 => Op::Discard,
                2..6 => Op::Read,
                _ => Op::Write,
            };
            if op != Op::Read {
                versions[range.clone()].fill(if op == Op::Write { version } else { 0 });
            }
            let bytes = if op == Op::Write {
                image(&versions[range.clone()], first)
            } else {
                vec![0xaa; blocks * block]
            };
            busy[range].fill(true);
            *run = (first + blocks, op);
            let sector = (first * block / SECTOR) as u64;
            let cookie = disk.push(who, op, sector, bytes, IoFlags::NONE);
            pending.push((cookie, Pending { first, blocks, read: op == Op::Read }));
        }
        if rng.chance(1, 20) {
            disk.push(0, Op::Flush, 0, vec![], IoFlags::NONE);
        }
        match rng.below(4) {
            0 => disk.settle(),
            1 => disk.run_for(Nanos(rng.below(30_000))),
            _ if pending.len() > 60 => disk.finish(),
            _ => {}
        }
        pending.retain(|(cookie, io)| {
            let Some(done) = disk.done.remove(cookie) else { return true };
            let range = io.first..io.first + io.blocks;
            assert_eq!(done.result, Ok(()), "{text}, seed {seed}");
            if io.read {
                let expected = image(&versions[range.clone()], io.first);
                assert!(done.bytes == expected, "{text}, seed {seed}: wrong bytes at {range:?}");
            }
            busy[range].fill(false);
            false
        });
    }
    disk.finish();
    let mut all = vec![0; BLOCKS * block];
    device.memory().expect("it stores").read_at(0, &mut all);
    assert!(all == image(&versions, 0), "{text}, seed {seed}: wrong bytes at the end");
    // Making new hardware queues writes the whole cache back.
    drop(disk);
    drop(device.queues::<()>());
    device.memory().expect("it stores").durable_image().read_at(0, &mut all);
    assert!(all == image(&versions, 0), "{text}, seed {seed}: wrong bytes after power-off");
    disk_merges(&device)
}

/// The number of requests with more than one I/O, from the arrival log.
fn disk_merges(device: &Device) -> u64 {
    let log = device.log.as_ref().expect("log=1");
    log.taken().iter().filter(|arrival| arrival.bios > 1).count() as u64
}

#[test]
fn s6_9_what_is_read_is_what_was_written_under_every_scheduler() {
    let mut seed = 0;
    for scheduler in blkmq_sched::registry::ALL {
        for (_, access) in Access::ALL {
            let mut merged = 0;
            for text in [
                "irqmode=0,discard=1",
                "irqmode=1,bs=4096,cache_size=1",
                "irqmode=2,hw_queue_depth=2,discard=1",
                "irqmode=2,hw_queue_depth=4,submit_queues=3,cache_size=1,bs=1024",
            ] {
                seed += 1;
                let text = format!("{text},size=1,log=1");
                merged += integrity(&text, scheduler, access, seed);
            }
            assert!(merged > 100, "{} merged {merged} requests", scheduler.name);
        }
    }
}

#[test]
fn s6_9_threads_that_share_a_device_read_what_they_wrote() {
    const THREADS: u64 = 3;
    let device = device("memory", "submit_queues=2,size=1,bs=4096,cache_size=1");
    for scheduler in blkmq_sched::registry::ALL {
        let config = device.config::<Buffer>().scheduler(scheduler);
        let queue = Queue::new(Config { submitters: THREADS as u16, ..config }).expect("a queue");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let submitter = queue.submitter().expect("one per thread");
                scope.spawn(move || write_and_read(submitter, thread, THREADS));
            }
        });
    }
}

/// Writes and reads back every `step`-th block from `thread` on, so that neighbouring blocks belong to different
/// threads.
fn write_and_read(mut submitter: Submitter<Buffer>, thread: u64, step: u64) {
    // The clock stands still, so no policy may keep the device idle for one thread: all threads are one tenant.
    let (now, tenant) = (Instant::ZERO, Owner(1));
    let blocks: Vec<u64> = (thread..256).step_by(step as usize).collect();
    for version in 1..=20 {
        for op in [Op::Write, Op::Read] {
            let mut ended = 0;
            for batch in blocks.chunks(16) {
                for block in batch {
                    let mut bytes = vec![0; 4096];
                    if op == Op::Write {
                        stamp(*block, version, &mut bytes);
                    }
                    let buffer = Buffer::new(bytes);
                    let io = Io::new(op, block * 8, 8, *block, buffer).owner(tenant);
                    submitter.push(now, io).expect("there is credit for all");
                }
                submitter.flush(now);
            }
            while ended < blocks.len() as u32 {
                submitter.poll(now);
                ended += submitter.reap(u32::MAX, |done| {
                    let mut expected = vec![0; 4096];
                    stamp(done.cookie, version, &mut expected);
                    assert_eq!(done.result, Ok(()));
                    assert!(done.payload.into_inner() == expected, "block {}", done.cookie);
                });
                std::thread::yield_now();
            }
        }
    }
}

/// Does I/Os of one sector at sector 5 with these payloads, and returns their results.
fn results<P: Payload + std::fmt::Debug>(
    device: &Device,
    ios: impl IntoIterator<Item = (Op, P)>,
) -> Vec<IoResult> {
    let queue = Queue::new(device.config()).expect("a queue");
    let mut submitter = queue.submitter().expect("one");
    let mut results = Vec::new();
    for (op, payload) in ios {
        submitter.push(Instant::ZERO, Io::new(op, 5, 1, 0, payload)).expect("there is credit");
        submitter.flush(Instant::ZERO);
        submitter.reap(1, |done| results.push(done.result));
    }
    results
}

#[test]
fn payloads_of_another_length_are_refused() {
    let device = device("memory", "irqmode=0,cache_size=1");
    let lengths = [(Op::Write, 512), (Op::Write, 511), (Op::Read, 513), (Op::Write, 513)];
    let invalid = Err(IoError::INVALID);
    let results = results(&device, lengths.map(|(op, len)| (op, Buffer::new(vec![9; len]))));
    assert_eq!(results, [Ok(()), invalid, invalid, invalid]);
    assert_eq!(
        Disk::plain(&device).read(4, 3),
        [filled(0, 1), filled(9, 1), filled(0, 1)].concat()
    );
}

#[test]
fn payloads_without_data_move_none() {
    let device = device("memory", "irqmode=0,badblocks=+9-9");
    Disk::plain(&device).one(Op::Write, 5, filled(3, 1));
    assert_eq!(results(&device, [(Op::Write, 7_u64), (Op::Read, 8)]), [Ok(()); 2]);
    assert_eq!(Disk::plain(&device).read(5, 1), filled(3, 1));
    assert_eq!(results(&device, [(Op::WriteZeroes, ())]), [Ok(())]);
    assert_eq!(Disk::plain(&device).read(5, 1), filled(0, 1));
}

#[test]
fn a_cache_is_flushed_by_flush_fua_and_preflush() {
    for irqmode in 0..3 {
        for fua in [false, true] {
            let text = format!("irqmode={irqmode},cache_size=1,fua={}", u8::from(fua));
            let (mut disk, device) = disk(&text);
            let store = device.memory().expect("it stores");
            disk.one(Op::Write, 0, filled(1, 8));
            assert_eq!((store.dirty_bytes(), store.stored_bytes()), (4096, 0));
            disk.one_with(Op::Write, 8, filled(2, 8), IoFlags::FUA);
            assert_eq!(store.dirty_bytes(), if fua { 4096 } else { 0 }, "or a flush behind it");
            disk.one_with(Op::Write, 16, filled(3, 8), IoFlags::PREFLUSH);
            assert_eq!((store.dirty_bytes(), store.stored_bytes()), (4096, 8192));
            disk.one(Op::Flush, 0, vec![]);
            assert_eq!((store.dirty_bytes(), store.stored_bytes()), (0, 3 * 4096));
            disk.one(Op::Write, 0, filled(4, 1));
            assert_eq!(disk.read(0, 2), [filled(4, 1), filled(1, 1)].concat(), "two layers");
        }
    }
}

#[test]
fn every_feature_and_fault_conforms() {
    for (seed, text) in (0..).zip([
        "irqmode=0",
        "irqmode=2,completion_nsec=3000,hw_queue_depth=3",
        "submit_queues=4,log=1",
        "bs=4096,max_sectors=64",
        "discard=1,cache_size=1",
        "irqmode=2,cache_size=1,fua=0,discard=1",
        "use_per_node_hctx=1,irqmode=0,discard=1",
        "badblocks=+5-80",
        "badblocks=+5-80,badblocks_partial_io=1,discard=1",
        "badblocks=+5-80,badblocks=+300-302,badblocks_once=1,irqmode=2",
        "badblocks=+5-5,badblocks_once=1,badblocks_partial_io=1,irqmode=0",
    ]) {
        for round in 0..8 {
            let device = device("memory", text);
            let outcome = contract::conformance(device.shape, device.queues(), seed * 8 + round);
            assert_eq!(outcome.failed > 0, text.contains("badblocks"), "{text}");
            contract::abandonment(device.shape, device.queues(), seed);
        }
    }
}
