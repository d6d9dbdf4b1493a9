//! The null device: completes every request and stores no data, with null_blk's parameters.
//!
//! Its page (`doc/null.md`) describes the model and its limits. It has two kinds of hardware queue: inline ones
//! (`InlineQueue`) for `irqmode=0` with every feature off, which must cost nothing since the block layer is measured
//! with them, and modelled ones (`NullQueue`) for all other settings.
//!
//! `Faults` chooses the faults of requests to a hardware queue, and the queue performs them. At most one fault applies
//! to an attempt, in the order of [`FaultPlan`]'s fields; later fault points do not count that attempt.
//!
//! Invariant: a refusal with DEV_RESOURCE leaves a request inside the queue, or a time in `retry_at` at which there is
//! room. A lost request has no time: it stays until it times out and the engine asks for it.
//!
//! The cap (`mbps`) is a budget of bytes that all hardware queues share, refilled every 20 ms. A request passes while
//! the budget is above zero and may overdraw it; the next refills pay the debt. So a request larger than a refill
//! passes too, and the long-run rate equals the cap to the byte. Unused budget is not saved beyond one refill. Hardware
//! queues do not share fairly: the first to ask after a refill is served first.

mod params;

pub use crate::basics::IrqMode;
use crate::basics::{About, Argument, Description, Parts, Ring};
use crate::fault::{self, Fault, FaultPoint};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape};
use blkmq_core::{HwQueue, Instant, IoError, Nanos, Op, Rng, SECTOR_SIZE, Tag};
use blkmq_engine::{
    BioTable, Busy, DeviceQueue, DeviceQueues, Enqueued, Expiry, Finished, Inflight, Verdict,
};
pub use params::{DEV_RESOURCE_DELAY, NullParams, REQUEST_TIMEOUT};
use std::sync::{Arc, Mutex};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "null",
    summary: "answers everything, stores nothing; null_blk's parameters, faults on demand",
    argument: Argument::None,
    parameters: &params::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<NullParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = NullParams::parse(&given.pairs, host).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: params.no_sched,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: params,
    })
}

/// The hardware queues of a null device.
pub(crate) fn queues<P: Send + 'static>(
    params: &NullParams,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    let hws = (0..params.submit_queues).map(HwQueue);
    if params.is_plain() {
        return hws.map(|_| Box::new(InlineQueue) as _).collect();
    }
    let limited = params.mbps > 0;
    let bandwidth = limited.then(|| Arc::new(Mutex::new(Bandwidth::new(params.mbps))));
    hws.map(|hw| Box::new(NullQueue::new(params, hw, bandwidth.clone(), log.cloned())) as _)
        .collect()
}

/// The faults of a null device. `None` means never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// `resource`: refuse with RESOURCE.
    pub resource: Option<Fault>,
    /// `dev_resource`: refuse with DEV_RESOURCE.
    pub dev_resource: Option<Fault>,
    /// `requeue`: alternately refuse with RESOURCE, and take the request and ask for a requeue.
    pub requeue: Option<Fault>,
    /// `requeue_tail`: take the request and ask for a requeue past the scheduler.
    pub requeue_tail: Option<Fault>,
    /// `timeout`: take the request and lose it.
    pub timeout: Option<Fault>,
}

impl FaultPlan {
    /// Returns whether every fault is off.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A fault that applies to an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    Resource,
    DevResource,
    Requeue,
    RequeueTail,
    Lose,
}

/// The fault points of one hardware queue.
struct Faults {
    resource: Option<FaultPoint>,
    dev_resource: Option<FaultPoint>,
    requeue: Option<FaultPoint>,
    requeue_tail: Option<FaultPoint>,
    timeout: Option<FaultPoint>,
    /// Whether the next requeue fault takes the request and asks for a requeue, instead of refusing it.
    take_next: bool,
    rng: Rng,
}

impl Faults {
    fn new(plan: &FaultPlan, seed: u64, hw: HwQueue) -> Self {
        Self {
            resource: plan.resource.map(FaultPoint::new),
            dev_resource: plan.dev_resource.map(FaultPoint::new),
            requeue: plan.requeue.map(FaultPoint::new),
            requeue_tail: plan.requeue_tail.map(FaultPoint::new),
            timeout: plan.timeout.map(FaultPoint::new),
            take_next: false,
            rng: fault::stream(seed, hw),
        }
    }

    /// Draws the fault for one attempt to pass a request to the device.
    fn draw(&mut self) -> Option<Strike> {
        let rng = &mut self.rng;
        let mut strikes = |point: &mut Option<FaultPoint>| {
            point.as_mut().is_some_and(|point| point.should_fail(rng))
        };
        if strikes(&mut self.resource) {
            return Some(Strike::Resource);
        }
        if strikes(&mut self.dev_resource) {
            return Some(Strike::DevResource);
        }
        if strikes(&mut self.requeue) {
            let take = self.take_next;
            self.take_next = !take;
            return Some(if take { Strike::Requeue } else { Strike::Resource });
        }
        if strikes(&mut self.requeue_tail) {
            return Some(Strike::RequeueTail);
        }
        strikes(&mut self.timeout).then_some(Strike::Lose)
    }
}

/// A lost request, which stays inside the queue.
struct Lost {
    rq: Inflight,
    /// The remaining number of timer resets.
    resets: u32,
}

/// The fate of a request that is taken.
enum Fate {
    Serve,
    Lose,
    /// Have it issued again, with this verdict.
    AskBack(Verdict),
}

struct NullQueue {
    irqmode: IrqMode,
    /// The completion mode of writes, if they have their own service time.
    write: IrqMode,
    service_limit: Option<u32>,
    timeout_resets: u32,
    bandwidth: Option<Arc<Mutex<Bandwidth>>>,
    faults: Option<Faults>,
    log: Option<ArrivalLog>,
    /// Requests in service; the front ends first.
    serving: Ring<()>,
    /// Lost requests; few.
    lost: Vec<Lost>,
    /// Requests to be requeued at the next reap.
    asked_back: Vec<Finished>,
    /// The time at which the last refused request may be retried, if it is known.
    retry_at: Option<Instant>,
}

impl NullQueue {
    fn new(
        params: &NullParams,
        hw: HwQueue,
        bandwidth: Option<Arc<Mutex<Bandwidth>>>,
        log: Option<ArrivalLog>,
    ) -> Self {
        let faults = &params.faults;
        let serving = if params.irqmode == IrqMode::Inline { 0 } else { params.hw_queue_depth };
        Self {
            irqmode: params.irqmode,
            write: params.write_time.map_or(params.irqmode, IrqMode::Timer),
            service_limit: params.service_limit,
            timeout_resets: params.timeout_resets,
            bandwidth,
            faults: (!faults.is_empty()).then(|| Faults::new(faults, params.seed, hw)),
            log,
            serving: Ring::with_capacity(serving),
            lost: Vec::new(),
            asked_back: Vec::new(),
            retry_at: None,
        }
    }

    /// Decides the fate of `rq` without touching it.
    fn admit(&mut self, now: Instant, rq: &Inflight) -> Result<Fate, Busy> {
        self.retry_at = None;
        if let Some(limit) = self.service_limit
            && self.inside(now) >= limit as usize
        {
            // The first request in service leaves at the time that `next_event` returns, and a lost request when the
            // engine asks for it.
            return Err(Busy::DevResource);
        }
        match self.faults.as_mut().and_then(Faults::draw) {
            Some(Strike::Resource) => Err(Busy::Resource),
            Some(Strike::DevResource) => {
                // A request that has already ended will be reaped before the refused one is retried, so it cannot
                // fulfil the promise.
                if self.serving.last().is_none_or(|last| last <= now) {
                    self.retry_at = Some(now + DEV_RESOURCE_DELAY);
                }
                Err(Busy::DevResource)
            }
            Some(Strike::Requeue) => Ok(Fate::AskBack(Verdict::Requeue)),
            Some(Strike::RequeueTail) => Ok(Fate::AskBack(Verdict::RequeueTail)),
            Some(Strike::Lose) => Ok(Fate::Lose),
            None => self.pay(now, rq).map(|()| Fate::Serve),
        }
    }

    /// The number of requests that have not ended by `now`.
    fn inside(&self, now: Instant) -> usize {
        let (serving, _) = self.serving.inside(now);
        serving + self.lost.len()
    }

    /// Charges the bandwidth budget for the data of `rq`; discards and flushes have none.
    fn pay(&mut self, now: Instant, rq: &Inflight) -> Result<(), Busy> {
        let Some(bandwidth) = &self.bandwidth else { return Ok(()) };
        if !matches!(rq.op(), Op::Read | Op::Write) {
            return Ok(());
        }
        let bytes = u64::from(rq.sectors()) * u64::from(SECTOR_SIZE);
        let mut bandwidth = bandwidth.lock().expect("no panic happens under this lock");
        bandwidth.take(now, bytes).map_err(|refill| {
            self.retry_at = Some(refill);
            Busy::DevResource
        })
    }

    #[inline]
    fn serve(&mut self, now: Instant, rq: Inflight) -> Enqueued {
        let mode = if rq.op() == Op::Write { self.write } else { self.irqmode };
        let Some(until) = mode.end(now) else { return Enqueued::Done(rq, Ok(())) };
        self.serving.push(until, rq, ());
        Enqueued::Accepted
    }
}

impl<P> DeviceQueue<P> for NullQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        let decision = self.admit(now, &rq);
        if let Some(log) = &self.log {
            let answer =
                decision.as_ref().map_or_else(|busy| Answer::from(*busy), |_| Answer::Taken);
            log.record(now, &rq, answer);
        }
        match decision {
            Ok(Fate::Serve) => return self.serve(now, rq),
            Ok(Fate::Lose) => self.lost.push(Lost { rq, resets: self.timeout_resets }),
            Ok(Fate::AskBack(verdict)) => self.asked_back.push(Finished { rq, verdict }),
            Err(busy) => return Enqueued::Busy(rq, busy),
        }
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        let mut ended = self.serving.drain(now);
        // Written in place: pushing a verdict would first store it beside a copy of the token, and read both back.
        out.resize_with(out.len() + ended.len(), || {
            let rq = ended.next().expect("as many as were counted").rq;
            Finished { rq, verdict: Verdict::Done(Ok(())) }
        });
        drop(ended);
        if !self.asked_back.is_empty() {
            out.append(&mut self.asked_back);
        }
    }

    /// Gives up a lost request whose resets are used up. Any other request will be returned, however slow it is.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        let Some(at) = self.lost.iter().position(|lost| lost.rq.tag() == tag) else {
            return Expiry::ResetTimer;
        };
        if let Some(left) = self.lost[at].resets.checked_sub(1) {
            self.lost[at].resets = left;
            return Expiry::ResetTimer;
        }
        Expiry::Done(self.lost.swap_remove(at).rq, Err(IoError::TIMED_OUT))
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if there is none.
    fn next_event(&self) -> Option<Instant> {
        if !self.asked_back.is_empty() {
            return Some(Instant::ZERO);
        }
        let ends = self.serving.first();
        Some(ends.into_iter().chain(self.retry_at).min().unwrap_or(Instant::MAX))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.serving.abandon(out);
        out.extend(self.asked_back.drain(..).map(|back| back.rq));
        out.extend(self.lost.drain(..).map(|lost| lost.rq));
    }
}

/// Time between refills.
const QUANTUM: Nanos = Nanos::from_millis(20);
/// Refills in a second.
const REFILLS: i64 = 50;

/// Counts in fiftieths of a byte, so that a refill at M MiB/s is a whole number: `M << 20`.
#[derive(Debug)]
struct Bandwidth {
    refill: i64,
    left: i64,
    /// The quantum since the epoch up to which the budget has been refilled.
    quantum: u64,
}

impl Bandwidth {
    /// Creates a full budget of `mbps` MiB/s.
    ///
    /// # Panics
    /// If `mbps` is zero, which means no cap.
    fn new(mbps: u32) -> Self {
        assert!(mbps > 0, "a cap of zero would never let anything through");
        let refill = i64::from(mbps) << 20;
        Self { refill, left: refill, quantum: 0 }
    }

    /// Pays for `bytes`, or returns the time at which the budget is positive again.
    fn take(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        // Each hardware queue passes its own clock, so `now` may be slightly earlier than in the previous call.
        let quantum = now.as_nanos() / QUANTUM.0;
        let passed = quantum.saturating_sub(self.quantum);
        if passed > 0 {
            let refills = i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(self.refill);
            self.left = self.left.saturating_add(refills).min(self.refill);
            self.quantum = quantum;
        }
        if self.left > 0 {
            self.left -= bytes as i64 * REFILLS;
            return Ok(());
        }
        let missing = -self.left / self.refill + 1;
        Err(Instant::from_nanos((self.quantum + missing as u64) * QUANTUM.0))
    }
}

struct InlineQueue;

impl<P> DeviceQueue<P> for InlineQueue {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        Enqueued::Done(rq, Ok(()))
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

#[cfg(test)]
mod tests {
    use super::params::{NOT_BUILT, OF_MEMORY, PARAMETERS};
    use super::*;
    use blkmq_core::Nanos;

    const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

    fn pairs(text: &str) -> Vec<(String, String)> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
    }

    fn parse(text: &str) -> (NullParams, Vec<String>) {
        NullParams::parse(&pairs(text), &HOST).unwrap()
    }

    fn device(text: &str) -> Result<Parts<NullParams>, DeviceError> {
        build(&Description { argument: "", pairs: pairs(text) }, &HOST)
    }

    fn refusal(text: &str) -> String {
        device(text).err().expect("refused").to_string()
    }

    #[test]
    fn defaults_are_those_of_null_blk() {
        let (params, notes) = parse("");
        assert_eq!(params, NullParams::default());
        assert_eq!(notes, [] as [&str; 0]);
        assert_eq!((params.submit_queues, params.hw_queue_depth, params.size), (1, 64, 250 * 1024));
        assert_eq!(parse("irqmode=2").0.irqmode, IrqMode::Timer(Nanos(10_000)));
    }

    #[test]
    fn every_parameter_in_the_table_takes_its_own_default() {
        for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
            let (params, _) = parse(&format!("{}={}", parameter.name, parameter.default));
            assert_eq!(params, NullParams::default(), "{}", parameter.name);
        }
    }

    /// No parameter is accepted and then ignored: each changes the device or leaves a note.
    #[test]
    fn every_parameter_in_the_table_has_an_effect() {
        let other = |name: &str| match name {
            "use_per_node_hctx" | "shared_tags" | "shared_tag_bitmap" | "virt_boundary"
            | "no_sched" | "discard" | "rotational" | "write_cache" | "log" => "1",
            "bs" | "blocksize" => "1024",
            "home_node" | "queue_mode" | "irqmode" | "fua" => "0",
            "requeue" | "requeue_tail" | "timeout" | "resource" | "dev_resource" => "2:50:1:3",
            _ => "3",
        };
        for parameter in &PARAMETERS {
            let (params, notes) = parse(&format!("{}={}", parameter.name, other(parameter.name)));
            let changed = params != NullParams::default() || !notes.is_empty();
            assert!(changed, "{} was ignored", parameter.name);
        }
    }

    #[test]
    fn a_write_cache_is_announced_with_or_without_fua() {
        use blkmq_engine::WriteCache;
        for (text, cache) in [
            ("", WriteCache::Through),
            ("write_cache=1", WriteCache::Back { fua: true }),
            ("write_cache=1,fua=1", WriteCache::Back { fua: true }),
            ("write_cache=1,fua=0", WriteCache::Back { fua: false }),
            ("fua=1", WriteCache::Through),
        ] {
            assert_eq!((parse(text).0.shape().cache, parse(text).1.len()), (cache, 0), "{text}");
        }
        let (params, notes) = parse("fua=0");
        assert_eq!(params.shape().cache, WriteCache::Through);
        assert_eq!(notes, ["fua has no effect without write_cache=1"]);
    }

    #[test]
    fn the_seeds_device_is_understood() {
        let (params, notes) = parse(
            "completion_nsec=0,blocksize=512,home_node=0,irqmode=0,submit_queues=128,\
             hw_queue_depth=1024,size=1024,memory_backed=0,queue_mode=2",
        );
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(params.is_plain());
        assert_eq!((params.hw_queue_depth, params.limits().capacity), (1024, 1 << 21));
    }

    #[test]
    fn size_wins_over_gb_whatever_the_order() {
        assert_eq!(parse("size=7,gb=3").0.size, 7);
        assert_eq!(parse("gb=3").0.size, 3 * 1024);
        assert!(refusal("gb=0").contains("a whole number of GiB from 1 to"));
    }

    #[test]
    fn limits_follow_from_parameters() {
        let limits = parse("max_sectors=64,virt_boundary=1,discard=1,bs=4096").0.limits();
        assert_eq!((limits.max_sectors, limits.virt_boundary_mask), (64, 4095));
        assert_eq!(limits.max_segment_size, u32::MAX);
        assert_eq!(parse("").0.limits().max_segment_size, 65536);
        assert_eq!(limits.max_discard_sectors, 8_388_600);
        assert_eq!(limits.max_write_zeroes_sectors, 64, "as long as a write");
        assert_eq!((limits.physical_block_size, limits.discard_granularity), (4096, 4096));
        assert_eq!(parse("").0.limits().max_discard_sectors, 0);
        assert!(refusal("max_sectors=4,bs=4096").contains("max_sectors is 4"));
    }

    #[test]
    fn what_is_not_here_says_so_and_off_is_accepted() {
        let not_built = NOT_BUILT.iter().map(|row| (row, "not built yet"));
        let of_memory = OF_MEMORY.iter().map(|row| (row, "a parameter of device memory"));
        for ((name, off), why) in not_built.chain(of_memory) {
            let message = refusal(&format!("{name}=17"));
            assert!(message.contains(&format!("{name} is {why}")), "{message}");
            if let Some(off) = off {
                assert_eq!(parse(&format!("{name}={off}")).0, NullParams::default());
            }
        }
    }

    #[test]
    fn refusals_say_what_would_be_accepted() {
        assert!(
            refusal("queues=1")
                .starts_with("device null: no parameter 'queues'; accepted: submit_")
        );
        assert!(
            refusal("irqmode=3")
                .ends_with("irqmode=3 is not possible; accepted: a whole number from 0 to 2")
        );
        assert!(refusal("queue_mode=1").contains("1 (single queue) no longer exists"));
        assert!(
            refusal("timeout=1,100,0,-1".split(',').next().unwrap())
                .contains("interval:probability")
        );
        assert!(refusal("budget=0").contains("a whole number from 1"));
    }

    #[test]
    fn what_would_have_no_effect_is_said() {
        for text in [
            "completion_nsec=5",
            "write_nsec=5",
            "service_limit=4",
            "log_size=9",
            "home_node=1",
            "queue_mode=0",
            "seed=5",
            "timeout_resets=1",
        ] {
            assert_eq!(parse(text).1.len(), 1, "{text}");
        }
        assert_eq!(
            parse("irqmode=2,completion_nsec=5,service_limit=4,log=1,log_size=9").1.len(),
            0
        );
        assert_eq!(
            parse("service_limit=4,timeout=1:100:0:1").1.len(),
            0,
            "what is lost stays inside"
        );
        assert_eq!(parse("mbps=50000").0.mbps, 40 * 1024);
        assert_eq!(parse("hw_queue_depth=20000").0.hw_queue_depth, 10240);
    }

    #[test]
    fn the_default_scheduler_is_that_of_linux() {
        let scheduler = |text: &str| {
            let text = ["null", text].join(if text.is_empty() { "" } else { "," });
            crate::registry::parse(&text, &HOST).expect("it is possible").default_scheduler()
        };
        assert_eq!(scheduler(""), "mq-deadline");
        assert_eq!(scheduler("no_sched=1"), "none");
        assert_eq!(scheduler("submit_queues=2"), "none");
        assert_eq!(scheduler("submit_queues=2,shared_tags=1"), "mq-deadline");
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    #[test]
    fn a_refusal_names_the_first_refill_that_pays_the_debt() {
        // 1 MiB/s: 20971.52 bytes in a quantum.
        let mut cap = Bandwidth::new(1);
        assert_eq!(
            cap.take(at(0), 20_972),
            Ok(()),
            "the budget may be overdrawn by the last request"
        );
        assert_eq!(cap.take(at(1), 1), Err(at(20)));
        assert_eq!(cap.take(at(20), 60_000), Ok(()));
        // A debt of 39029 bytes: two refills give 41943.
        assert_eq!(cap.take(at(20), 1), Err(at(60)));
        assert_eq!(cap.take(at(59), 1), Err(at(60)));
        assert_eq!(cap.take(at(60), 1), Ok(()));
    }

    #[test]
    fn budget_is_not_saved_while_idle() {
        let mut cap = Bandwidth::new(1);
        let mut passed = 0;
        while cap.take(at(10_000), 512).is_ok() {
            passed += 512;
        }
        assert_eq!(passed, 20_971_u64.div_ceil(512) * 512);
    }

    #[test]
    fn a_queue_whose_clock_is_behind_gets_no_second_refill() {
        let mut cap = Bandwidth::new(1);
        assert_eq!(cap.take(at(40), 30_000), Ok(()));
        assert_eq!(cap.take(at(20), 1), Err(at(60)));
    }
}
