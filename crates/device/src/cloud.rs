//! The cloud device: a network disk as rented from providers, with limits on I/Os and bytes, burst credits, and a
//! latency; with its parameters, their parsing from pairs, and the figures of the modelled disks.
//!
//! Its page (`doc/cloud.md`) describes the model and its limits, and compares it and the presets with published
//! results. Figures that are not published are marked. All times are computed in whole nanoseconds, so that a run
//! repeats on every machine. It stores no data.
//!
//! The disk has one hardware queue: requests pass the limits in order of arrival, and are answered after a latency.
//! Like such a disk, it never reports busy: requests beyond the limits wait inside.
//!
//! Each rate limit, one for I/Os and one for bytes, is a token bucket at the entrance of the disk. Tokens arrive at the
//! present rate, the bucket holds the tokens of a short time, and a request passes when there are tokens for all of it.
//! Burst credits only raise the rate.
//!
//! The preset is applied first, wherever it stands: every other parameter overrides one of its figures. A value that is
//! changed or has no effect is reported in a note; an invalid one is an error.

use crate::basics::{self, Basics, clamp, parameter};
use crate::basics::{About, Argument, Description, Parts};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, ParamError, Parameter};
use blkmq_core::{
    Given, Instant, IoError, IoResult, Limits, Nanos, Op, PairError, Rng, SECTOR_SIZE, Unit,
};
use blkmq_engine::{
    BioTable, DEFAULT_TIMEOUT, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Finished,
    Inflight, MAX_HW_QUEUE_DEPTH, Verdict, WriteCache,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "cloud",
    summary: "a network disk: limits on I/Os and bytes, credits, a latency; stores nothing",
    argument: Argument::None,
    parameters: PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    _: &MachineShape,
) -> Result<Parts<CloudParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = CloudParams::parse(&given.pairs).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: params,
    })
}

/// The hardware queue of a disk with full credits.
pub(crate) fn queues<P: 'static>(
    params: &CloudParams,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    vec![Box::new(CloudQueue::new(params, log.cloned()))]
}

struct CloudQueue {
    terms: Terms,
    capacity: u64,
    iops: Bucket,
    bps: Bucket,
    latencies: Rng,
    log: Option<ArrivalLog>,
    /// The times of the answers, with driver tags; the earliest first.
    ends: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The requests inside, by driver tag, with their results.
    held: Box<[Option<(Inflight, IoResult)>]>,
}

impl CloudQueue {
    fn new(params: &CloudParams, log: Option<ArrivalLog>) -> Self {
        let terms = params.terms;
        Self {
            terms,
            capacity: params.limits().capacity,
            iops: Bucket::new(terms.iops, terms.bucket),
            bps: Bucket::new(terms.bps, terms.bucket),
            latencies: Rng::new(params.seed),
            log,
            ends: BinaryHeap::with_capacity(terms.hw_queue_depth as usize),
            held: (0..terms.hw_queue_depth).map(|_| None).collect(),
        }
    }

    /// Returns the time at which a request that arrives at `now` is answered.
    fn end(&mut self, now: Instant, rq: &Inflight) -> Instant {
        let bytes = match rq.op() {
            Op::Read | Op::Write => u64::from(rq.sectors()) * u64::from(SECTOR_SIZE),
            Op::WriteZeroes | Op::Flush | Op::Discard => 0,
        };
        let ios = match self.terms.io_size {
            0 => 1,
            size => bytes.div_ceil(size).max(1),
        };
        let passed = self.iops.pass(now, ios).max(self.bps.pass(now, bytes));
        let spread = self.latencies.below(self.terms.latency_spread.0.saturating_add(1));
        let transfer = bytes.saturating_mul(1_000_000_000) / self.terms.stream_bps.max(1);
        passed + self.terms.latency + Nanos(spread) + Nanos(transfer)
    }
}

impl<P> DeviceQueue<P> for CloudQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        if rq.op() == Op::Discard {
            // Not supported, as the limits say.
            return Enqueued::Done(rq, Err(IoError::NOT_SUPPORTED));
        }
        let inside = rq.sector() + u64::from(rq.sectors()) <= self.capacity;
        let result = if inside { Ok(()) } else { Err(IoError::NO_SPACE) };
        let tag = rq.tag().0;
        let end = self.end(now, &rq);
        self.ends.push(Reverse((end, tag)));
        self.held[tag as usize] = Some((rq, result));
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        while let Some(Reverse((_, tag))) = self.ends.peek().filter(|next| next.0.0 <= now).copied()
        {
            self.ends.pop();
            let (rq, result) = self.held[tag as usize].take().expect("what ends was inside");
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if it holds no request.
    fn next_event(&self) -> Option<Instant> {
        Some(self.ends.peek().map_or(Instant::MAX, |next| next.0.0))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.ends.clear();
        out.extend(self.held.iter_mut().filter_map(Option::take).map(|(rq, _)| rq));
    }
}

const SECOND: u128 = 1_000_000_000;

/// A rate limit: a sustained rate, and a higher one while there are credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// The sustained rate in units per second, at which unused allowance becomes credits.
    pub rate: u64,
    /// The rate in units per second while there are credits; at least `rate`.
    pub burst: u64,
    /// The maximum credits in units; 0 for no bursts.
    pub credits: u64,
}

/// The state of a limit.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    allowed: Allowance,
    /// The capacity of the bucket, as a time at the present rate.
    depth: Nanos,
    /// The time by which tokens for all requests so far have arrived.
    free: Instant,
    /// Credits at the time `counted`, in units multiplied by the nanoseconds of a second.
    saved: u128,
    counted: Instant,
}

impl Bucket {
    /// Creates a full bucket with full credits.
    fn new(allowed: Allowance, depth: Nanos) -> Self {
        let saved = u128::from(allowed.credits) * SECOND;
        Self { allowed, depth, free: Instant::ZERO, saved, counted: Instant::ZERO }
    }

    /// The time at which a request of `units` that arrives at `now` has passed, after all earlier requests.
    fn pass(&mut self, now: Instant, units: u64) -> Instant {
        let begin = self.free.max(now);
        let grown = u128::from(begin.since(self.counted).0) * u128::from(self.allowed.rate);
        let most = u128::from(self.allowed.credits) * SECOND;
        self.saved = (self.saved + grown).min(most);
        self.counted = begin;
        let wanted = u128::from(units) * SECOND;
        let bursts = self.saved >= wanted && self.allowed.credits > 0;
        let rate = if bursts { self.allowed.burst } else { self.allowed.rate };
        let takes = (wanted / u128::from(rate.max(1))).min(u128::from(u64::MAX >> 1));
        self.free = begin + Nanos(takes as u64);
        if bursts {
            self.saved -= wanted;
        } else {
            // A request uses the credits gained while it passes at the sustained rate.
            self.counted = self.free;
        }
        self.free.saturating_sub(self.depth).max(now)
    }
}

/// The figures of a disk, given by a preset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Size in MiB.
    pub size: u64,
    /// The limit on I/Os.
    pub iops: Allowance,
    /// The limit on bytes.
    pub bps: Allowance,
    /// The capacity of each limit's bucket, as a time at its rate.
    pub bucket: Nanos,
    /// Bytes that count as one I/O: a larger request counts as several. 0 counts each request as one.
    pub io_size: u64,
    /// The minimum time from passing the limits to the answer.
    pub latency: Nanos,
    /// The maximum of the random, uniformly distributed addition to `latency`.
    pub latency_spread: Nanos,
    /// The rate at which a single request is transferred, in bytes per second.
    pub stream_bps: u64,
    /// The number of commands that the disk holds, which is the number of driver tags.
    pub hw_queue_depth: u32,
}

/// The final parameters of a cloud disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloudParams {
    /// The figures of the disk.
    pub terms: Terms,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// The maximum sectors of a request; 0 for the default.
    pub max_sectors: u32,
    /// The seed of latencies.
    pub seed: u64,
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl CloudParams {
    /// The limits of a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        basics::limits(self.blocksize, self.max_sectors, false, self.terms.size)
    }

    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: 1,
            hw_queue_depth: self.terms.hw_queue_depth,
            shared_tags: false,
            budget: None,
            timeout: DEFAULT_TIMEOUT,
            limits: self.limits(),
            cache: WriteCache::Through,
        }
    }
}

/// The largest disk: 16 PiB.
const MAX_MIB: u64 = 1 << 34;
/// The longest latency: a minute.
const MAX_NSEC: u64 = 60_000_000_000;
/// The highest rate, and the most credits.
const MOST: u64 = 1 << 50;

impl Default for CloudParams {
    /// The parameters of the first preset.
    fn default() -> Self {
        let terms = ALL[0].terms;
        Self { terms, blocksize: 512, max_sectors: 0, seed: 0, log_size: None }
    }
}

impl CloudParams {
    /// Parses pairs of name and value; if a name is repeated, the last value counts. Also returns notes, a sentence
    /// each, on values that were changed or have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if the parameters together describe no valid
    /// device.
    pub fn parse(pairs: &[(String, String)]) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

fn read(pairs: &[(String, String)], notes: &mut Vec<String>) -> Result<CloudParams, ParamError> {
    let mut params = CloudParams::default();
    for (name, value) in pairs.iter().filter(|(name, _)| name == "preset") {
        params.terms = preset(&Given::find(PARAMETERS, name, value)?)?;
    }
    let (mut basics, mut sized) = (Basics::default(), false);
    let mut depth = params.terms.hw_queue_depth.into();
    for (name, value) in pairs {
        let given = Given::find(PARAMETERS, name, value)?;
        match given.name {
            "preset" => {}
            "gb" | "size" => {
                sized = true;
                let unit = if given.name == "gb" { Unit::GIB } else { Unit::MIB };
                let most = if given.name == "gb" { MAX_MIB / 1024 } else { MAX_MIB };
                given.measure(unit, 1..=most)?;
                basics.set(&given)?;
            }
            "hw_queue_depth" => depth = given.number(1..=u64::MAX)?,
            "seed" => params.seed = given.number(0..=u64::MAX)?,
            _ => {
                let is_read = set(&mut params.terms, &given)? || basics.set(&given)?;
                assert!(is_read, "every name in the table is read by one of them");
            }
        }
    }
    if sized {
        params.terms.size = basics.size();
    }
    let most = MAX_HW_QUEUE_DEPTH.into();
    params.terms.hw_queue_depth = clamp(notes, "hw_queue_depth", depth, most) as u32;
    params.blocksize = basics.blocksize(notes);
    params.max_sectors = basics.max_sectors;
    params.log_size = basics.log_size(notes);
    raise(notes, "iops", &mut params.terms.iops);
    raise(notes, "bps", &mut params.terms.bps);
    Ok(params)
}

/// Sets one of the figures. Returns false if `given` is not one of them.
fn set(terms: &mut Terms, given: &Given<'_>) -> Result<bool, PairError> {
    let nanos = |most| given.measure(Unit::NS, 0..=most).map(Nanos);
    let bytes = |least| given.measure(Unit::Bytes(1), least..=MOST);
    match given.name {
        "iops" => terms.iops.rate = given.number(1..=MOST)?,
        "burst_iops" => terms.iops.burst = given.number(1..=MOST)?,
        "iops_credits" => terms.iops.credits = given.number(0..=MOST)?,
        "bps" => terms.bps.rate = bytes(1)?,
        "burst_bps" => terms.bps.burst = bytes(1)?,
        "bps_credits" => terms.bps.credits = bytes(0)?,
        "io_size" => terms.io_size = bytes(0)?,
        "bucket_nsec" => terms.bucket = nanos(MAX_NSEC)?,
        "stream_bps" => terms.stream_bps = bytes(1)?,
        "latency_nsec" => terms.latency = nanos(MAX_NSEC)?,
        "latency_spread_nsec" => terms.latency_spread = nanos(MAX_NSEC)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Raises the burst rate to at least the sustained rate.
fn raise(notes: &mut Vec<String>, name: &str, allowed: &mut Allowance) {
    if allowed.burst < allowed.rate {
        // A note is only useful if bursts can occur.
        if allowed.credits > 0 {
            notes.push(format!("burst_{name}={} is raised to {name}", allowed.burst));
        }
        allowed.burst = allowed.rate;
    }
}

fn preset(given: &Given<'_>) -> Result<Terms, PairError> {
    let found = ALL.iter().find(|preset| preset.name == given.value);
    found.map(|preset| preset.terms).ok_or_else(|| {
        given.refuse(Vec::from_iter(ALL.iter().map(|preset| preset.name)).join(", "))
    })
}

/// In the order of the help page. Defaults are those of the default preset.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter(
        "preset",
        "azure-p20",
        "the disk that all other defaults come from: azure-p20, ebs-gp3, ebs-gp2, gcp-pd",
    ),
    parameter("gb", "", "size in GiB; that of the disk unless given"),
    basics::SIZE,
    parameter("iops", "2300", "I/Os a second that last"),
    parameter("burst_iops", "3566", "I/Os a second while there are credits"),
    parameter("iops_credits", "2278800", "I/Os that are saved up at most; 0: no bursts"),
    parameter("bps", "150000000", "bytes a second that last"),
    parameter("burst_bps", "173471131", "bytes a second while there are credits"),
    parameter("bps_credits", "42248035800", "bytes that are saved up at most; 0: no bursts"),
    parameter("io_size", "262144", "bytes that count as one I/O; 0: each request is one"),
    parameter(
        "bucket_nsec",
        "20000000",
        "the time's worth of tokens that each limit saves up, in ns",
    ),
    parameter("latency_nsec", "1500000", "from leaving the limits to the answer, at least, in ns"),
    parameter("latency_spread_nsec", "800000", "what is drawn on top of it at most, in ns"),
    parameter("stream_bps", "150000000", "bytes a second at which one request is transferred"),
    parameter("hw_queue_depth", "256", "commands that the disk holds, 1 to 10240"),
    basics::BS,
    basics::BLOCKSIZE,
    basics::MAX_SECTORS,
    parameter("seed", "0", "of latencies"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

pub(super) struct Preset {
    pub(super) name: &'static str,
    terms: Terms,
}

/// All presets; the first is the default.
pub(super) const ALL: &[Preset] = &[
    Preset { name: "azure-p20", terms: AZURE_P20 },
    Preset { name: "ebs-gp3", terms: EBS_GP3 },
    Preset { name: "ebs-gp2", terms: EBS_GP2 },
    Preset { name: "gcp-pd", terms: GCP_PD },
];

const MIB: u64 = 1 << 20;

const fn steady(rate: u64) -> Allowance {
    Allowance { rate, burst: rate, credits: 0 }
}

/// Azure Premium SSD P20, 512 GiB: 2300 IOPS and 150 MB/s, bursts of half an hour. The burst rates are those measured
/// for the change of Linux's io.cost of March 2026, 3566 IOPS and 173,471,131 bytes per second; the provider states
/// 3500 and 170 MB.
const AZURE_P20: Terms = Terms {
    size: 512 * 1024,
    iops: Allowance { rate: 2_300, burst: 3_566, credits: (3_566 - 2_300) * 1_800 },
    bps: Allowance {
        rate: 150_000_000,
        burst: 173_471_131,
        credits: (173_471_131 - 150_000_000) * 1_800,
    },
    // Not published. The measurement shows that an I/O need not wait for the transfer of a 1 MiB I/O.
    bucket: Nanos::from_millis(20),
    io_size: 256 * 1024,
    // From the average completion latencies of 4 KiB and 256 KiB under a paced load: 1.95 and 3.69 ms.
    latency: Nanos::from_micros(1_500),
    latency_spread: Nanos::from_micros(800),
    stream_bps: 150_000_000,
    // Not published. The measurement had 128 I/Os of 1 MiB in flight.
    hw_queue_depth: 256,
};

/// Amazon EBS gp3 in its default configuration: 3000 IOPS and 125 MiB/s, no credits.
const EBS_GP3: Terms = Terms {
    size: 100 * 1024,
    iops: steady(3_000),
    bps: steady(125 * MIB),
    // Not published.
    bucket: Nanos::from_millis(20),
    io_size: 256 * 1024,
    // Published only as "single-digit milliseconds".
    latency: Nanos::from_micros(1_000),
    latency_spread: Nanos::from_micros(600),
    stream_bps: 250_000_000,
    hw_queue_depth: 128,
};

/// Amazon EBS gp2 of 100 GiB: 3 IOPS for each GiB, bursts of 3000 from 5.4 million credits, 128 MiB/s.
const EBS_GP2: Terms = Terms {
    iops: Allowance { rate: 300, burst: 3_000, credits: 5_400_000 },
    bps: steady(128 * MIB),
    ..EBS_GP3
};

/// Google Persistent Disk, balanced, 500 GiB: 3000 IOPS and 6 for each GiB, 140 MiB/s and 0.28 for each GiB.
const GCP_PD: Terms = Terms {
    size: 500 * 1024,
    iops: steady(6_000),
    bps: steady(280 * MIB),
    // Not published, including the following figures up to the transfer rate.
    bucket: Nanos::from_millis(20),
    io_size: 0,
    latency: Nanos::from_micros(1_000),
    latency_spread: Nanos::from_micros(800),
    stream_bps: 250_000_000,
    hw_queue_depth: 128,
};

#[cfg(test)]
mod tests {
    use super::PARAMETERS;
    use super::*;
    use crate::Model;
    use crate::{Device, registry};

    const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

    fn device(text: &str) -> Result<Device, DeviceError> {
        registry::parse(&["cloud", text].join(if text.is_empty() { "" } else { "," }), &HOST)
    }

    fn params(text: &str) -> CloudParams {
        match device(text).unwrap_or_else(|e| panic!("{text}: {e}")).model {
            Model::Cloud(params) => params,
            _ => unreachable!("it was asked for by name"),
        }
    }

    #[test]
    fn every_parameter_in_the_table_takes_its_own_default() {
        assert_eq!(params(""), CloudParams::default());
        for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
            if parameter.name != "log_size" {
                let given = params(&format!("{}={}", parameter.name, parameter.default));
                assert_eq!(given, CloudParams::default(), "{}", parameter.name);
            }
        }
    }

    /// No parameter is accepted and then ignored: each changes the device or leaves a note.
    #[test]
    fn every_parameter_in_the_table_has_an_effect() {
        for parameter in PARAMETERS {
            let other = match parameter.name {
                "preset" => "ebs-gp2",
                "log" => "1",
                "bs" | "blocksize" => "4096",
                "max_sectors" => "64",
                _ => "3",
            };
            let text = format!("{}={other}", parameter.name);
            let made = device(&text).expect("valid");
            assert!(params(&text) != CloudParams::default() || !made.notes.is_empty(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refusal = |text| device(text).expect_err(text).to_string();
        assert!(refusal("preset=s3").contains("azure-p20, ebs-gp3, ebs-gp2, gcp-pd"));
        assert!(refusal("iops=0").contains("1 to"));
        assert!(refusal("fast=1").contains("no parameter 'fast'"));
        assert_eq!(
            device("iops=9000").expect("valid").notes,
            ["burst_iops=3566 is raised to iops"]
        );
    }

    const START: Instant = Instant::from_nanos(1_000);

    /// Returns the time in which `units` pass one by one, in seconds, rounded.
    fn seconds(bucket: &mut Bucket, units: u64) -> u64 {
        let mut last = START;
        (0..units).for_each(|_| last = bucket.pass(START, 1));
        (last.since(START).0 + 500_000_000) / 1_000_000_000
    }

    #[test]
    fn without_credits_the_rate_is_the_rate() {
        let mut bucket = Bucket::new(Allowance { rate: 100, burst: 100, credits: 0 }, Nanos::ZERO);
        assert_eq!(seconds(&mut bucket, 1_000), 10);
    }

    #[test]
    fn a_full_bucket_lets_pass_what_it_holds() {
        let allowed = Allowance { rate: 100, burst: 100, credits: 0 };
        let mut bucket = Bucket::new(allowed, Nanos::from_millis(50));
        let waits: Vec<u64> =
            (0..8).map(|_| bucket.pass(START, 1).since(START).0 / 1_000_000).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 10, 20, 30]);
    }

    #[test]
    fn a_burst_lasts_until_the_credits_are_used_and_comes_back_with_rest() {
        // 900 credits at 400 per second, while 100 per second are regained: three seconds, and 1200 I/Os.
        let allowed = Allowance { rate: 100, burst: 400, credits: 900 };
        let mut bucket = Bucket::new(allowed, Nanos::ZERO);
        assert_eq!(seconds(&mut bucket, 1_200), 3);
        assert_eq!(seconds(&mut bucket, 1_000), 13);
        // After nine idle seconds, all credits are back.
        let rested = bucket.free + Nanos::from_secs(9);
        let mut last = rested;
        (0..400).for_each(|_| last = bucket.pass(rested, 1));
        assert_eq!(last.since(rested), Nanos::from_secs(1));
    }
}
