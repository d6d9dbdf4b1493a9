//! Measures, with twice as many busy threads as CPUs on one queue, how long requests wait in the engine while the
//! device is idle and a thread of the queue has a CPU.
//!
//! A thread computes for a while, sends a few writes, reaps completions, and computes again. So it may lose its CPU
//! anywhere, also while it runs the elevator for other threads. `cargo xtask lost-cpu` runs all schedulers and modes of
//! access; `docs/decisions/0025-a-runner-without-a-cpu.md` has the results.
//!
//! The device records when each request was sent, when it arrived, and when its service ended.

use blkmq_core::{Instant, Limits, Nanos, Op, Payload, Rng};
use blkmq_engine::{
    Access, BioTable, Config, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io, Verdict,
    WriteCache,
};
use blkmq_runtime::{Client, Clock, Service, available_cpus};
use blkmq_sched::registry;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

const USAGE: &str = "options, as NAME=VALUE: scheduler=mq-deadline access=combining|spin|mutex end=poll|wait \
                     seconds=5 threads=(twice the CPUs) compute=50 (us, on average) device=20 (us) depth=8";

/// A gap between two readings of the clock that shows that the thread was without a CPU.
const GONE: Nanos = Nanos::from_micros(100);

/// The last step of a thread that may send no more.
#[derive(Clone, Copy)]
enum End {
    /// Continues to compute, and polls.
    Poll,
    /// Waits, and sleeps if the wait is long.
    Wait,
}

#[derive(Clone)]
struct Options {
    scheduler: String,
    access: Access,
    end: End,
    seconds: u64,
    threads: u16,
    compute: Nanos,
    device: Nanos,
    depth: u32,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            scheduler: "mq-deadline".into(),
            access: Access::Combining,
            end: End::Poll,
            seconds: 5,
            threads: 2 * available_cpus(),
            compute: Nanos::from_micros(50),
            device: Nanos::from_micros(20),
            depth: 8,
        };
        for arg in args {
            match arg.split_once('=').ok_or(USAGE)? {
                ("scheduler", name) => options.scheduler = name.into(),
                ("access", name) => options.access = Access::from_name(name).ok_or(USAGE)?,
                ("end", "poll") => options.end = End::Poll,
                ("end", "wait") => options.end = End::Wait,
                ("seconds", n) => options.seconds = n.parse()?,
                ("threads", n) => options.threads = n.parse()?,
                ("compute", us) => options.compute = Nanos::from_micros(us.parse()?),
                ("device", us) => options.device = Nanos::from_micros(us.parse()?),
                ("depth", n) => options.depth = n.parse()?,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }
}

/// A thread of the load.
struct Worker {
    client: Client<u64>,
    log: Arc<Log>,
    rng: Rng,
    first: u64,
    /// Numbers without an I/O in flight.
    free: Vec<u64>,
    absence: Absence,
    last: Instant,
    switches: i64,
}

/// The number of context switches of the thread, voluntary or not.
fn switches() -> i64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("every Linux has it");
    usage.involuntary_context_switches() + usage.voluntary_context_switches()
}

impl Worker {
    /// Reads the clock, and records a gap since the last reading in which the thread had no CPU.
    fn beat(&mut self) -> Instant {
        let now = self.client.clock().now();
        if now - self.last > GONE {
            let before = std::mem::replace(&mut self.switches, switches());
            let span = (self.last, now);
            if before == self.switches {
                self.absence.stolen.push(span);
            } else {
                self.absence.gone.push(span);
            }
        }
        self.last = now;
        now
    }

    fn compute(&mut self, mean: Nanos) {
        let mut left = self.rng.below(2 * mean.0.max(1));
        let mut last = self.beat();
        while left > 0 {
            let now = self.beat();
            // Time without a CPU does not count as computing.
            left = left.saturating_sub((now - last).0.min(1_000));
            last = now;
        }
    }

    fn send(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let Some(io) = self.free.pop() else { break };
            let now = self.beat();
            self.log.send(self.first + io, now);
            let sector = (self.first + io) * STRIDE;
            self.client
                .push_at(now, Io::new(Op::Write, sector, 8, io, 0))
                .expect("there is credit");
        }
        self.client.flush();
        self.beat();
    }

    fn run(mut self, options: &Options, end: Instant) -> Absence {
        while self.beat() < end {
            self.compute(options.compute);
            self.send();
            let Self { client, free, .. } = &mut self;
            match options.end {
                End::Wait if free.is_empty() => {
                    _ = client.wait(1, u32::MAX, |done| free.push(done.cookie));
                }
                _ => {
                    client.poll();
                    client.reap(u32::MAX, |done| free.push(done.cookie));
                }
            }
        }
        let Self { client, free, .. } = &mut self;
        client.wait(u32::MAX, u32::MAX, |done| free.push(done.cookie));
        self.absence
    }
}

fn measure(options: &Options) -> Result<Account, Box<dyn Error>> {
    let (threads, credit) = (options.threads, u64::from(options.depth));
    let log = Log::new(threads, credit);
    let device = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 256,
        shared_tags: false,
        budget: None,
        limits: Limits { capacity: u64::from(threads) * credit * STRIDE, ..Limits::default() },
        cache: WriteCache::Through,
        timeout: blkmq_engine::DEFAULT_TIMEOUT,
    };
    let queues: Vec<Box<dyn DeviceQueue<u64>>> = vec![Box::new(Meter::new(&log, options.device))];
    let factory = registry::find(&options.scheduler).ok_or("no such scheduler")?;
    let config = Config::new(device, queues).scheduler(factory);
    let config =
        Config { submitters: threads, depth: options.depth, access: options.access, ..config };
    let service = Service::start(config)?;
    let clock = service.clock();
    log.set_clock(clock);
    let end = clock.now() + Nanos::from_secs(options.seconds);
    let absences: Vec<Absence> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|at| {
                let (client, log) = (service.client(), Arc::clone(&log));
                scope.spawn(move || {
                    ME.set(at);
                    let client = client.expect("one for each thread");
                    let last = client.clock().now();
                    let first = u64::from(at) * credit;
                    let free = (0..credit).collect();
                    Worker {
                        client,
                        log,
                        rng: Rng::new(at.into()),
                        first,
                        free,
                        absence: Absence::default(),
                        last,
                        switches: switches(),
                    }
                    .run(options, end)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no thread panics")).collect()
    });
    drop(service);
    Ok(Account::of(&log.take(), &absences, ((Instant::ZERO, end), available_cpus().into())))
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let account = measure(&options)?;
    let ms = |share: f64| account.quantile(share).0 as f64 / 1e6;
    let (foreign, longest) = account.foreign();
    println!(
        "{:<12} {:<10} {:>8} {:>9.4} {:>8.4} {:>8.3} {:>8.3} {:>6} {:>6} {:>8} {:>7.3} {:>6}",
        options.scheduler,
        options.access,
        account.requests() as u64 / options.seconds,
        ms(0.5),
        ms(0.99),
        ms(0.999),
        ms(1.0),
        account.held,
        account.unattended,
        foreign,
        longest.0 as f64 / 1e6,
        account.host,
    );
    Ok(())
}

/// The start and the end.
type Span = (Instant, Instant);

/// A request that waited longer than this beside an idle device is counted by its cause.
const LONG: Nanos = Nanos::from_millis(1);

/// When a thread did not run.
#[derive(Default)]
struct Absence {
    /// The thread slept, or other threads had its CPU.
    gone: Vec<Span>,
    /// The kernel counted the thread as running, but an interrupt or the host of the virtual machine had its CPU.
    stolen: Vec<Span>,
}

/// The result of one run.
#[derive(Default)]
struct Account {
    /// Waits beside an idle device, sorted; without the ones attributed to other processes or to the host.
    lay: Vec<Nanos>,
    /// Long waits with a thread that was not running.
    held: usize,
    /// Long waits with no thread at fault.
    unattended: usize,
    /// Long waits while fewer threads of the queue ran than there were CPUs: another process had a CPU.
    foreign: Vec<Nanos>,
    /// Long waits with a thread from which the host had taken the CPU. No other thread can help there.
    host: usize,
}

/// Sorted, disjoint spans, each with the sum of the lengths before it.
struct Sums(Vec<(Span, u64)>);

impl Sums {
    fn new(spans: &[Span]) -> Self {
        let mut sum = 0;
        let add = |span: &Span| {
            let before = sum;
            sum += (span.1 - span.0).0;
            (*span, before)
        };
        Self(spans.iter().map(add).collect())
    }

    /// The time in spans before `at`.
    fn before(&self, at: Instant) -> u64 {
        let behind = self.0.partition_point(|((from, _), _)| *from < at);
        let Some(((from, until), sum)) = behind.checked_sub(1).map(|last| self.0[last]) else {
            return 0;
        };
        sum + (at.min(until) - from).0
    }

    fn within(&self, (from, until): Span) -> Nanos {
        Nanos(self.before(until) - self.before(from))
    }
}

/// The spans of `all` that lie outside of `spans`.
fn outside(mut spans: Vec<Span>, all: Span) -> Vec<Span> {
    spans.sort_unstable();
    let (mut gaps, mut at) = (Vec::new(), all.0);
    for (from, until) in spans.into_iter().chain([(all.1, all.1)]) {
        if from > at {
            gaps.push((at, from));
        }
        at = at.max(until);
    }
    gaps
}

/// The observations of a run.
struct Evidence<'a> {
    arrivals: &'a [Arrival],
    /// Indexed by thread.
    absences: &'a [Absence],
    gone: Vec<Sums>,
    stolen: Vec<Sums>,
    /// When the device was idle and a thread of the queue was running.
    vain: Sums,
    /// When as many threads were running as there were CPUs for them.
    full: Sums,
}

/// The longest flush of a submitter that does not lose its CPU.
const FLUSH: Nanos = Nanos::from_micros(50);

impl<'a> Evidence<'a> {
    fn new(arrivals: &'a [Arrival], absences: &'a [Absence], (all, cpus): (Span, usize)) -> Self {
        let served = arrivals.iter().map(|it| (it.arrived, it.served));
        let away = |it: &Absence| [&it.gone[..], &it.stolen].concat();
        let ran: Vec<Span> = absences.iter().flat_map(|it| outside(away(it), all)).collect();
        // When the device was serving a request, or no thread was running.
        let blocked = served.chain(outside(ran.clone(), all)).collect();
        Self {
            arrivals,
            absences,
            gone: absences.iter().map(|it| Sums::new(&it.gone)).collect(),
            stolen: absences.iter().map(|it| Sums::new(&it.stolen)).collect(),
            vain: Sums::new(&outside(blocked, all)),
            full: Sums::new(&at_least(cpus.min(absences.len()), &ran)),
        }
    }

    /// When the engine received the I/O: when its flush began, or later if its thread lost its CPU before it entered
    /// the engine. Requests of other threads that reached the device in the meantime show the latter, because a thread
    /// inside the engine keeps them out.
    fn had(&self, it: &Arrival) -> Instant {
        let gone = &self.absences[usize::from(it.submitter)].gone;
        let next = gone.partition_point(|(from, _)| *from < it.sent);
        let Some((from, until)) = gone.get(next).filter(|(from, _)| *from - it.sent < FLUSH) else {
            return it.sent;
        };
        let first = self.arrivals.partition_point(|other| other.arrived < *from + FLUSH);
        let meanwhile = self.arrivals[first..].iter().take_while(|other| other.arrived < *until);
        if meanwhile.clone().any(|other| other.by != it.submitter) { *until } else { it.sent }
    }
}

/// When at least `least` of these spans overlap.
fn at_least(least: usize, spans: &[Span]) -> Vec<Span> {
    let ends = spans.iter().flat_map(|(from, until)| [(*from, true), (*until, false)]);
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    let (mut inside, mut since, mut found) = (0, Instant::ZERO, Vec::new());
    for (at, begins) in ends {
        if begins {
            inside += 1;
            since = if inside == least { at } else { since };
        } else {
            if inside == least {
                found.push((since, at));
            }
            inside -= 1;
        }
    }
    found
}

impl Account {
    /// The account of a run in the span and on the number of CPUs that `all` has. `absences` is indexed by thread.
    fn of(arrivals: &[Arrival], absences: &[Absence], all: (Span, usize)) -> Self {
        let evidence = Evidence::new(arrivals, absences, all);
        let mut account = Self::default();
        for it in arrivals.iter().filter(|it| it.sent >= all.0.0 && it.arrived <= all.0.1) {
            account.add(&evidence, it);
        }
        account.lay.sort_unstable();
        account
    }

    fn add(&mut self, evidence: &Evidence<'_>, it: &Arrival) {
        let span = (evidence.had(it).min(it.arrived), it.arrived);
        let lay = evidence.vain.within(span);
        let most = |sums: &Sums| sums.within(span).0 * 2 > lay.0;
        let by = usize::from(it.by);
        if lay <= LONG {
            self.lay.push(lay);
        } else if most(&evidence.stolen[by]) {
            self.host += 1;
        } else if !most(&evidence.full) {
            self.foreign.push(lay);
        } else {
            self.lay.push(lay);
            *(if most(&evidence.gone[by]) { &mut self.held } else { &mut self.unattended }) += 1;
        }
    }

    /// The number of long waits caused by other processes, and the longest of them.
    fn foreign(&self) -> (usize, Nanos) {
        (self.foreign.len(), self.foreign.iter().copied().max().unwrap_or_default())
    }

    fn requests(&self) -> usize {
        self.lay.len()
    }

    /// The wait that `share` of the requests did not exceed.
    fn quantile(&self, share: f64) -> Nanos {
        let at = (self.lay.len() as f64 * share) as usize;
        self.lay.get(at.min(self.lay.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Sectors from one I/O to the next, far enough apart that no two merge.
const STRIDE: u64 = 64;

thread_local! {
    /// The number of the calling thread within the load.
    static ME: Cell<u16> = const { Cell::new(u16::MAX) };
}

/// A request that reached the device.
#[derive(Clone, Copy)]
struct Arrival {
    /// When its submitter began to flush it.
    sent: Instant,
    arrived: Instant,
    /// When its service ended. It may have been reaped later.
    served: Instant,
    submitter: u16,
    /// The thread that handed it to the device.
    by: u16,
}

/// The record that submitters and the device write and the account reads.
struct Log {
    /// When the flush of each I/O began, by number of the I/O.
    sent: Box<[AtomicU64]>,
    credit: u64,
    /// Set before the first I/O.
    clock: OnceLock<Clock>,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Log {
    fn new(threads: u16, credit: u64) -> Arc<Self> {
        let ios = u64::from(threads) * credit;
        let sent = (0..ios).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { sent, credit, clock: OnceLock::new(), arrivals: Mutex::new(Vec::new()) })
    }

    /// Sets the clock of the service, which is created after its device. Must be called once.
    fn set_clock(&self, clock: Clock) {
        let _ = self.clock.set(clock);
    }

    /// Records that I/O number `io` was sent at `now`.
    fn send(&self, io: u64, now: Instant) {
        // The engine's own publication of the I/O orders this.
        self.sent[io as usize].store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The requests in the order of their arrival. Must be called when the device is gone.
    fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.arrivals.lock().expect("no thread panics with it"))
    }
}

/// Serves requests concurrently, each for the same time.
struct Meter {
    log: Arc<Log>,
    takes: Nanos,
    serving: VecDeque<(Instant, Inflight)>,
    arrivals: Vec<Arrival>,
}

impl Meter {
    fn new(log: &Arc<Log>, takes: Nanos) -> Self {
        Self { log: Arc::clone(log), takes, serving: VecDeque::new(), arrivals: Vec::new() }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.log.arrivals.lock().expect("no thread panics with it").append(&mut self.arrivals);
    }
}

impl<P: Payload> DeviceQueue<P> for Meter {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        // The caller may have lost its CPU after it read `now`.
        let arrived = self.log.clock.get().expect("it was set before the first I/O").now();
        let served = arrived + self.takes;
        let io = rq.sector() / STRIDE;
        let sent = Instant::from_nanos(self.log.sent[io as usize].load(Ordering::Relaxed));
        let submitter = (io / self.log.credit) as u16;
        self.arrivals.push(Arrival { sent, arrived, served, submitter, by: ME.get() });
        self.serving.push_back((served, rq));
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        while self.serving.front().is_some_and(|(at, _)| *at <= now) {
            let (_, rq) = self.serving.pop_front().expect("there is a first one");
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(self.serving.front().map_or(Instant::MAX, |(at, _)| *at))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.serving.drain(..).map(|(_, rq)| rq));
    }
}
