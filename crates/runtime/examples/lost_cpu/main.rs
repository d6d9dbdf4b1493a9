//! Measures, with twice as many busy threads as CPUs on one queue, how long requests wait in the engine while the
//! device is idle and a thread of the queue has a CPU.
//!
//! A thread computes for a while, sends a few writes, reaps completions, and computes again. So it may lose its CPU
//! anywhere, also while it runs the elevator for other threads. `cargo xtask lost-cpu` runs all schedulers and modes of
//! access; `docs/decisions/0025-a-runner-without-a-cpu.md` has the results.

mod account;
mod device;

use account::{Absence, Account};
use blkmq_core::{Instant, Limits, Nanos, Op, Rng};
use blkmq_engine::{Access, Config, DeviceQueue, DeviceShape, Io, WriteCache};
use blkmq_runtime::{Client, Service, available_cpus};
use blkmq_sched::registry;
use device::{Log, ME, Meter, STRIDE};
use std::error::Error;
use std::sync::Arc;
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
