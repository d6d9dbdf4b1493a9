//! `kyber`, written from its page: a vector of waiting requests, and a governor that keeps every sample; for
//! `adaptive`, its additional state, the changes of tokens, and the verdict of a review about reads with its effect on
//! bursts.
//!
//! The twin has counters and shared state of its own: its governor turns counts into samples and sorts them.

use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Nanos, Op, RequestId};
use blkmq_sched::{At, Common, Cx, Done, Facts, Governor, Options, Pick, Scheduler, Shape, Used};

const NAMES: [&str; 4] = ["read_lat_nsec", "write_lat_nsec", "linux_quirks", "adaptive"];
const TOKENS: [u32; 4] = [256, 128, 64, 16];
const BATCHES: [usize; 4] = [16, 8, 1, 1];
const DISCARD_TARGET: u64 = 5_000_000_000;
/// Counters of a domain: 8 of total latency, 8 of device latency, one of refusals, and the fine ones.
const EACH: usize = 17 + FINE_BUCKETS;
const OLD: usize = 3 * EACH;

pub(super) const COMMON: Common = Common {
    tokens: &TOKENS,
    counters: OLD + 1,
    values: 6,
    governor: |_, _| Box::new(Reviewer::default()),
};

pub(super) fn build(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    Box::new(Naive {
        values: NAMES.map(|name| options.get(name)),
        async_depth: (shape.nr_requests * 3 / 4).max(1),
        entries: Vec::new(),
        turn: 0,
        batching: 0,
        dispatched: [0; 4],
        period: 0,
        burst: None,
        opens: Vec::new(),
    })
}

fn domain_of(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Discard => 2,
        _ => 3,
    }
}

fn bucket_of(latency: u64, target: u64) -> usize {
    let width = u128::from(target / 4).max(1);
    // The first bucket whose upper end is not exceeded.
    (0..7).find(|i| u128::from(latency) <= width * (*i as u128 + 1)).unwrap_or(7)
}

/// Fine buckets up to 2^28 units of 256 ns.
const FINE_BUCKETS: usize = 4 + 26 * 4;

/// The first unit of 256 ns above a fine bucket.
fn fine_end(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64 + 1;
    }
    let power = 4 << (bucket / 4 - 1);
    power + power / 4 * (bucket as u64 % 4 + 1)
}

fn fine_of(latency: u64) -> usize {
    let last = FINE_BUCKETS - 1;
    (0..last).find(|bucket| latency / 256 < fine_end(*bucket)).unwrap_or(last)
}

#[derive(Clone, Copy)]
struct Entry {
    rq: RequestId,
    domain: usize,
    staged: bool,
    headed: bool,
}

/// Entries are in the order in which they would leave with one domain and without tokens.
struct Naive {
    values: [i64; 4],
    async_depth: u32,
    entries: Vec<Entry>,
    turn: usize,
    batching: usize,
    dispatched: [u64; 4],
    /// The number of the period in which it was last asked for a burst, and the time at which that left.
    period: u64,
    burst: Option<Instant>,
    /// The times at which domains that are held back may leave, as of this pick.
    opens: Vec<Instant>,
}

impl Naive {
    /// The time until which a domain has to wait, whether or not there is a token.
    fn shut_until(&mut self, cx: &Cx<'_>, domain: usize) -> Option<Instant> {
        let [period, alone] = [4, 5].map(|value| cx.env.value(value));
        let (now, waits) = (cx.now.as_nanos(), self.values[3] > 0 && domain != 0);
        if !waits || cx.env.is_draining() {
            return None;
        }
        if alone > now {
            return Some(Instant::from_nanos(alone));
        }
        if period == 0 || domain == 3 {
            return None;
        }
        if now / period != self.period {
            self.period = now / period;
            self.burst = None;
        }
        let over = self.burst.is_some_and(|at| at != cx.now);
        over.then(|| Instant::from_nanos((self.period + 1) * period))
    }

    fn serve(&mut self, cx: &Cx<'_>) -> Option<RequestId> {
        let turn = self.turn;
        if self.entries.iter().all(|e| e.domain != turn) {
            return None;
        }
        let shut = self.shut_until(cx, turn);
        self.opens.extend(shut);
        if shut.is_some() || !cx.env.take(turn) {
            if self.values[3] > 0 && turn < 3 {
                cx.env.count(turn * EACH + 16);
            }
            return None;
        }
        if self.values[3] > 0 && (turn == 1 || turn == 2) {
            self.burst = Some(cx.now);
        }
        if !self.entries.iter().any(|e| e.domain == turn && e.staged) {
            for entry in self.entries.iter_mut().filter(|e| e.domain == turn) {
                entry.staged = true;
            }
        }
        let mut staged = self.entries.iter().filter(|e| e.domain == turn && e.staged);
        let rq = staged.next().expect("something was staged").rq;
        self.entries.retain(|e| e.rq != rq);
        self.batching += 1;
        self.dispatched[turn] += 1;
        Some(rq)
    }
}

impl Scheduler for Naive {
    fn facts(&self) -> Facts {
        Facts { limits_slots: true, ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let meta = cx.requests.get(rq);
        let domain = domain_of(meta.op);
        let entry = Entry { rq, domain, staged: false, headed: at == At::Head };
        let place = if entry.headed { 0 } else { self.entries.len() };
        self.entries.insert(place, entry);
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        if self.entries.is_empty() {
            return Pick::Empty;
        }
        self.opens.clear();
        if self.batching < BATCHES[self.turn]
            && let Some(rq) = self.serve(cx)
        {
            return Pick::Issue(rq);
        }
        let last = self.turn;
        for domain in [last + 1, last + 2, last + 3, last + 4] {
            (self.turn, self.batching) = (domain % 4, 0);
            if let Some(rq) = self.serve(cx) {
                return Pick::Issue(rq);
            }
        }
        self.opens.iter().min().map_or(Pick::WaitToken, |at| Pick::WaitUntil(*at))
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        let meta = cx.requests.get(done.rq);
        let domain = domain_of(meta.op);
        if domain == 3 {
            return;
        }
        let target = cx.env.value(domain);
        let (total, device) = (done.completed - meta.arrived, done.completed - done.issued);
        cx.env.count(domain * EACH + bucket_of(total.0, target));
        cx.env.count(domain * EACH + 8 + bucket_of(device.0, target));
        if self.values[3] > 0 {
            let is_old = done.issued.as_nanos() < cx.env.value(3);
            cx.env.count(if is_old { OLD } else { domain * EACH + 17 + fine_of(device.0) });
        }
        cx.env.review_by(cx.now + Nanos::from_millis(100));
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.entries.retain(|e| e.rq != rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, into: RequestId, gone: RequestId) {
        let place = |rq| self.entries.iter().position(|e| e.rq == rq).expect("it is held");
        let (kept, lost) = (place(into), place(gone));
        if lost < kept {
            self.entries[lost].rq = into;
            self.entries.remove(kept);
        } else {
            self.entries.remove(lost);
        }
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let count = |domain, staged| {
            self.entries.iter().filter(|e| e.domain == domain && e.staged == staged).count() as u64
        };
        for (domain, [waiting, staged, dispatched]) in [
            ["read_waiting", "read_staged", "read_dispatched"],
            ["write_waiting", "write_staged", "write_dispatched"],
            ["discard_waiting", "discard_staged", "discard_dispatched"],
            ["other_waiting", "other_staged", "other_dispatched"],
        ]
        .into_iter()
        .enumerate()
        {
            out(waiting, count(domain, false));
            out(staged, count(domain, true));
            out(dispatched, self.dispatched[domain]);
        }
        out("current_domain", self.turn as u64);
        out("batching", self.batching as u64);
        out("async_depth", self.async_depth.into());
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, _: &IoMeta) -> bool {
        self.entries.iter().any(|e| e.rq == into && !e.staged && !e.headed)
    }

    fn admits(&self, _: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        io.flags.contains(IoFlags::SYNC) || used.unsynced < self.async_depth
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        NAMES.iter().position(|n| *n == name).map(|at| self.values[at])
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let at = NAMES.iter().position(|n| *n == name);
        at.map(|at| self.values[at] = value).is_some()
    }
}

/// Samples of one domain, each a bucket.
#[derive(Default)]
struct Samples {
    total: Vec<usize>,
    device: Vec<usize>,
    fine: Vec<usize>,
    total_since: Option<Instant>,
    device_since: Option<Instant>,
}

#[derive(Default)]
struct Reviewer {
    set: [u64; 2],
    quirks: bool,
    samples: [Samples; 3],
    remembered: [Option<usize>; 3],
    adaptive: Option<Adaptive>,
}

/// The sample at `percent`, by the rank that the page defines.
fn ranked(samples: &[usize], percent: usize) -> Option<usize> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.wrapping_sub(1)).copied()
}

/// As [`ranked`], of fine samples at 90 %, in nanoseconds.
fn fine_p90(samples: &[usize]) -> Option<u64> {
    ranked(samples, 90).map(|bucket| fine_end(bucket) * 256 - 1)
}

fn extend(samples: &mut Vec<usize>, grown: &[u64]) {
    for (bucket, count) in grown.iter().enumerate() {
        samples.extend(vec![bucket; *count as usize]);
    }
}

impl Reviewer {
    fn forget(&mut self) {
        self.samples = Default::default();
        self.remembered = [None; 3];
    }

    fn targets(&self) -> [u64; 3] {
        let set = [self.set[0], self.set[1], DISCARD_TARGET];
        let Some(adaptive) = &self.adaptive else { return set };
        let set = set.map(|target| u128::from(target.max(1)));
        let limited = |domain: usize, target: u128| {
            let most = (set[domain] * 64).min(u64::MAX.into());
            target.max(set[domain] / 64).min(most)
        };
        let alone = adaptive.base.map(|base| base.map(|base| u128::from(base) * 4));
        let read = limited(0, alone[0].unwrap_or(set[0]));
        let other = |domain: usize| {
            limited(domain, (read * set[domain] / set[0]).max(alone[domain].unwrap_or(0)))
        };
        [read, other(1), other(2)].map(|target| target as u64)
    }

    /// The current period of bursts.
    fn period(&self) -> u64 {
        let adaptive = self.adaptive.as_ref();
        let adaptive =
            adaptive.filter(|a| a.measuring.is_none() && a.measured.is_some() && a.reads);
        adaptive.and_then(|a| a.bursts).map_or(0, |bursts| bursts.period)
    }

    /// Steps 1 to 3: whether the device is too slow, which domains are, and the bucket p of each domain.
    fn judge(
        &mut self,
        now: Instant,
        grown: &[u64],
    ) -> (bool, [Option<usize>; 3], [Option<usize>; 3]) {
        let second = Nanos::from_secs(1);
        let due = |samples: &[usize], since: &mut Option<Instant>| {
            if samples.is_empty() {
                return false;
            }
            let due = samples.len() >= 500 || *since.get_or_insert(now) + second <= now;
            if due {
                *since = None;
            }
            due
        };
        let mut device = [None; 3];
        for (domain, samples) in self.samples.iter_mut().enumerate() {
            let grown = &grown[domain * EACH..][..EACH];
            extend(&mut samples.total, &grown[..8]);
            extend(&mut samples.device, &grown[8..16]);
            extend(&mut samples.fine, &grown[17..]);
            if due(&samples.device, &mut samples.device_since) {
                device[domain] = ranked(&std::mem::take(&mut samples.device), 90);
            }
        }
        let bad = device.iter().any(|bucket| bucket.is_some_and(|b| b >= 4));
        let mut total = [None; 3];
        for (domain, samples) in self.samples.iter_mut().enumerate() {
            let since =
                if self.quirks { &mut samples.device_since } else { &mut samples.total_since };
            if due(&samples.total, since) {
                total[domain] = ranked(&std::mem::take(&mut samples.total), 99);
            }
            if bad {
                total[domain] = total[domain].or(self.remembered[domain]);
                self.remembered[domain] = None;
            } else if total[domain].is_some() {
                self.remembered[domain] = total[domain];
            }
        }
        (bad, device, total)
    }

    /// Applies a review while the device is measured. Returns whether the measurement is over.
    fn measure(
        &mut self,
        now: Instant,
        grown: &[u64],
        tokens: &mut [u32],
        values: &mut [u64],
    ) -> bool {
        let adaptive = self.adaptive.as_mut().expect("only then is the device measured");
        if values[3] == u64::MAX {
            values[3] = now.as_nanos();
            tokens.fill(1);
            (adaptive.measuring, adaptive.reads_first) = (Some(now), true);
            return false;
        }
        if grown[OLD] > 0 {
            (adaptive.measuring, adaptive.reads_first) = (Some(now), true);
            self.forget();
            return false;
        }
        for (domain, samples) in self.samples.iter_mut().enumerate() {
            extend(&mut samples.fine, &grown[domain * EACH..][17..EACH]);
        }
        let late = adaptive.measuring.expect("it has begun") + Nanos::from_secs(1) <= now;
        if adaptive.reads_first {
            let reads = self.samples[0].fine.len();
            if reads > 0 && reads < 32 && !late {
                return false;
            }
            adaptive.base[0] = fine_p90(&self.samples[0].fine).or(adaptive.base[0]);
            let others =
                (1..3).any(|d| grown[d * EACH + 16] > 0 || !self.samples[d].fine.is_empty());
            if others || reads == 0 {
                (adaptive.measuring, adaptive.reads_first) = (Some(now), false);
                self.forget();
                return false;
            }
        } else {
            let most = self.samples.iter().map(|s| s.fine.len()).max().unwrap_or(0);
            if most < 32 && !(late && most > 0) {
                return false;
            }
            for (base, samples) in adaptive.base.iter_mut().zip(&self.samples).skip(1) {
                *base = fine_p90(&samples.fine).or(*base);
            }
        }
        let Adaptive { base, pause, bursts, .. } = *adaptive;
        *adaptive = Adaptive { base, pause, bursts, measured: Some(now), ..Adaptive::default() };
        true
    }

    /// Applies a review while the device is not measured.
    fn adapt(&mut self, now: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]) {
        let targets = self.targets();
        let (bad, device, total) = self.judge(now, grown);
        let adaptive = self.adaptive.as_mut().expect("the caller knows");
        let mut p90 = [None; 3];
        let mut faster = false;
        let reads = self.samples[0].fine.clone();
        adaptive.reads = !reads.is_empty();
        for domain in 0..3 {
            let grown = &grown[domain * EACH..][..EACH];
            adaptive.refused[domain] |= grown[16] > 0;
            let spent = (0..FINE_BUCKETS).map(|at| (fine_end(at) * 256 - 1) * grown[17 + at]);
            adaptive.busy[domain] = adaptive.busy[domain] / 2 + spent.sum::<u64>();
            if let Some(bucket) = device[domain] {
                let missed = &mut adaptive.missed[domain];
                *missed = if bucket >= 4 { *missed + 1 } else { 0 };
                adaptive.vouched[domain] = bucket < 4;
                let fine = std::mem::take(&mut self.samples[domain].fine);
                p90[domain] = fine_p90(&fine);
                if let (Some(p90), Some(base)) = (p90[domain], adaptive.base[domain])
                    && fine.len() >= 32
                    && p90 < base
                {
                    adaptive.base[domain] = Some(p90);
                    adaptive.doubtful |= p90 <= base / 4 * 3;
                    faster = true;
                }
            }
        }
        let quiet = now - adaptive.measured.expect("it is measured before anything else");
        let unknown = adaptive.base[0].is_none() && device[0].is_some();
        let stale = adaptive.doubtful || adaptive.missed.iter().any(|missed| *missed >= 16);
        let rested = quiet >= Nanos::from_secs(adaptive.pause);
        if (stale || unknown) && rested || unknown && adaptive.pause == 10 {
            let soon = quiet < Nanos::from_secs(adaptive.pause * 2);
            adaptive.pause = if soon { (adaptive.pause * 2).min(80) } else { 10 };
            (adaptive.measuring, adaptive.reads_first) = (Some(now), true);
            tokens.fill(1);
            values[3] = now.as_nanos();
            self.forget();
            return;
        }
        adaptive.judge_bursts(targets[0], &reads, device[0], total[0], tokens);
        let in_bursts = adaptive.bursts.is_some_and(|bursts| bursts.period > 0);
        let agreed = (0..3).all(|d| adaptive.vouched[d] || self.samples[d].fine.is_empty());
        if bad {
            adaptive.vouched = [false; 3];
        }
        for domain in 0..3 {
            if bad {
                adaptive.cut(domain, targets, p90, &device, total[domain], &mut tokens[domain]);
            } else if agreed && !(in_bursts && domain > 0) {
                adaptive.grow(domain, total[domain], &mut tokens[domain]);
            }
        }
        if faster {
            self.forget();
        }
    }
}

impl Governor for Reviewer {
    fn review(&mut self, now: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]) {
        if values[3] != 0 {
            if self.measure(now, grown, tokens, values) {
                self.forget();
                values[3] = 0;
                tokens.copy_from_slice(&TOKENS);
            }
        } else if self.adaptive.is_some() {
            self.adapt(now, grown, tokens, values);
        } else {
            let (bad, _, total) = self.judge(now, grown);
            for (domain, p) in total.iter().enumerate() {
                if let Some(p) = p.filter(|p| bad || *p >= 4) {
                    let left = tokens[domain] * (p as u32 + 1) / 4;
                    tokens[domain] = left.max(1).min(TOKENS[domain]);
                }
            }
        }
        values[5] = match &self.adaptive {
            Some(adaptive) if adaptive.measuring.is_some() && adaptive.reads_first => {
                (now + Nanos::from_millis(150)).as_nanos()
            }
            _ => 0,
        };
        values[4] = self.period();
        values[..3].copy_from_slice(&self.targets());
    }

    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]) {
        match name {
            "read_lat_nsec" => self.set[0] = value as u64,
            "write_lat_nsec" => self.set[1] = value as u64,
            "linux_quirks" => {
                if self.quirks != (value == 1) {
                    for samples in &mut self.samples {
                        (samples.total_since, samples.device_since) = (None, None);
                    }
                }
                self.quirks = value == 1;
            }
            _ => {
                let present =
                    self.adaptive.as_ref().map_or(0, |a| 1 + i64::from(a.bursts.is_some()));
                if present != value {
                    let on = value > 0;
                    self.forget();
                    let bursts = (value == 2).then(Bursts::default);
                    self.adaptive =
                        on.then(|| Adaptive { pause: 10, bursts, ..Adaptive::default() });
                    tokens.copy_from_slice(if on { &[1, 1, 1, 16] } else { &TOKENS });
                    values[3] = if on { u64::MAX } else { 0 };
                    values[5] = 0;
                }
            }
        }
        values[4] = self.period();
        values[..3].copy_from_slice(&self.targets());
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let targets = self.targets();
        for (domain, names) in [
            ["read_target", "read_total_samples", "read_device_samples", "read_p99"],
            ["write_target", "write_total_samples", "write_device_samples", "write_p99"],
            ["discard_target", "discard_total_samples", "discard_device_samples", "discard_p99"],
        ]
        .into_iter()
        .enumerate()
        {
            let samples = &self.samples[domain];
            out(names[0], targets[domain]);
            out(names[1], samples.total.len() as u64);
            out(names[2], samples.device.len() as u64);
            out(names[3], self.remembered[domain].unwrap_or(8) as u64);
        }
        let Some(adaptive) = &self.adaptive else { return };
        for (domain, names) in [
            ["read_base", "read_missed", "read_busy", "read_refused"],
            ["write_base", "write_missed", "write_busy", "write_refused"],
            ["discard_base", "discard_missed", "discard_busy", "discard_refused"],
        ]
        .into_iter()
        .enumerate()
        {
            out(names[0], adaptive.base[domain].unwrap_or(0));
            out(names[1], adaptive.missed[domain].into());
            out(names[2], adaptive.busy[domain]);
            out(names[3], adaptive.refused[domain].into());
        }
        out("burst_period", self.period());
        out("measuring", u64::from(adaptive.measuring.is_some() || adaptive.measured.is_none()));
        out("measure_pause", adaptive.pause * 1_000_000_000);
    }
}

/// The additional state of `adaptive`.
#[derive(Default)]
struct Adaptive {
    base: [Option<u64>; 3],
    busy: [u64; 3],
    refused: [bool; 3],
    missed: [u32; 3],
    /// Domains judged good since tokens last changed.
    vouched: [bool; 3],
    doubtful: bool,
    /// The seconds after a measurement in which no other one begins.
    pause: u64,
    /// The time of the review at which the measurement began, or last saw an old request.
    measuring: Option<Instant>,
    /// Reads are being measured, and no other domain.
    reads_first: bool,
    /// There were reads at the last review.
    reads: bool,
    bursts: Option<Bursts>,
    /// The time at which the last measurement ended.
    measured: Option<Instant>,
}

impl Adaptive {
    fn cut(
        &self,
        domain: usize,
        targets: [u64; 3],
        p90: [Option<u64>; 3],
        device: &[Option<usize>; 3],
        total: Option<usize>,
        tokens: &mut u32,
    ) {
        if self.busy[domain] < self.busy.iter().sum::<u64>() / 4 {
            return;
        }
        let depth = u64::from(*tokens);
        let missed = (0..3).filter(|d| device[*d].is_some_and(|b| b >= 4));
        let shares = missed
            .filter_map(|d| Some(u128::from(depth) * u128::from(targets[d]) / u128::from(p90[d]?)));
        let most = depth * 7 / 8;
        let share = shares.min().map_or(most, |share| most.min(share.min(1 << 32) as u64));
        let share = share.max(depth / 4);
        let spare = total.filter(|p| *p < 4).map(|p| depth * (p as u64 + 1) / 4);
        *tokens = share.min(spare.unwrap_or(share)).max(1) as u32;
    }

    fn grow(&mut self, domain: usize, total: Option<usize>, tokens: &mut u32) {
        let Some(p) = total else { return };
        if p >= 4 && self.refused[domain] {
            *tokens = (*tokens + (*tokens / 4).max(1)).min(1024);
            self.vouched = [false; 3];
        }
        self.refused[domain] = false;
    }
}

/// The state of bursts, with `adaptive=2`.
#[derive(Clone, Copy, Default)]
struct Bursts {
    period: u64,
    content: u32,
    complaints_at_longest: u32,
    let_pass: u32,
    /// More was admitted since the last complaint.
    more: bool,
    too_large: bool,
}

impl Bursts {
    /// Applies a verdict. Returns the factor by which bursts grow, in eighths.
    fn judge(&mut self, verdict: &str, base: u64) -> u64 {
        let [shortest, longest] = [16, 4096].map(|times| (base * times).min(250_000_000));
        let hopeless = self.complaints_at_longest >= 8;
        if verdict == "met" || verdict == "content" {
            (self.complaints_at_longest, self.let_pass) = (0, 0);
        }
        if verdict == "content" || verdict == "tail" && hopeless {
            self.content += 1;
            self.more = true;
            if self.content.is_multiple_of(8) {
                self.period -= self.period / 8;
                if self.period < shortest {
                    self.period = 0;
                }
                return if self.too_large { 10 } else { 16 };
            }
            return if self.too_large { 8 } else { 16 };
        }
        if verdict == "met" {
            self.content = 0;
        }
        if verdict == "open" || verdict == "met" {
            return 8;
        }
        self.content = 0;
        if verdict == "tail" && self.let_pass > 0 {
            self.let_pass -= 1;
            return 8;
        }
        self.too_large = self.period > 0 && (self.too_large || self.more);
        self.more = false;
        let at_longest = verdict == "tail" && self.period >= longest;
        if verdict == "tail" {
            self.let_pass = 3;
        }
        self.complaints_at_longest += u32::from(at_longest);
        self.period *= if verdict == "far" { 4 } else { 2 };
        self.period = self.period.max(shortest).min(longest);
        if at_longest { 7 } else { 8 }
    }
}

impl Adaptive {
    /// Applies a review: reads that completed since they were last judged, and the judgement of READ.
    fn judge_bursts(
        &mut self,
        target: u64,
        reads: &[usize],
        device: Option<usize>,
        total: Option<usize>,
        tokens: &mut [u32],
    ) {
        let (Some(mut bursts), Some(base)) = (self.bursts, self.base[0]) else { return };
        let verdict = self.verdict(target, reads, device, total, tokens);
        let eighths = bursts.judge(verdict, base);
        self.bursts = Some(bursts);
        for domain in [1, 2].into_iter().filter(|_| bursts.period > 0) {
            let before = u64::from(tokens[domain]);
            let larger = (before * eighths / 8).max(before + 1).min(1024);
            if eighths > 8 && self.refused[domain] {
                tokens[domain] = larger as u32;
                self.refused[domain] = larger <= before;
            } else if eighths < 8 {
                tokens[domain] = (before * eighths / 8).max(1) as u32;
            }
        }
    }

    /// The verdict of a review about reads.
    fn verdict(
        &self,
        target: u64,
        reads: &[usize],
        device: Option<usize>,
        total: Option<usize>,
        tokens: &[u32],
    ) -> &'static str {
        let (Some(p90), Some(device)) = (fine_p90(reads), device) else { return "open" };
        let late = reads.iter().filter(|bucket| fine_end(**bucket) * 256 - 1 > target).count();
        let in_bursts = self.bursts.is_some_and(|bursts| bursts.period > 0);
        let busy = self.busy.iter().sum::<u64>() / 4;
        let culprits = [1, 2].into_iter().filter(|d| self.busy[*d] >= busy);
        let most = culprits.map(|d| u64::from(tokens[d])).max().unwrap_or(1);
        if !in_bursts && self.busy[1] + self.busy[2] < busy {
            return "open";
        }
        match total {
            _ if device >= 4 && p90 / target >= most.max(4) => "far",
            _ if device >= 4 && (in_bursts || most == 1) => "missed",
            _ if device >= 4 => "open",
            Some(7) if !self.refused[0] => "tail",
            Some(0..=3) if 200 * late <= reads.len() => "content",
            Some(0..=3) => "met",
            _ => "open",
        }
    }
}
