//! Tenants that keep I/Os in flight on a modelled device, and the I/Os that each completes in each window. The device
//! may be replaced, or stop answering for a while, in the middle of a run.

use blkmq_core::{Instant, Nanos, Owner, Payload, SECTOR_SIZE};
use blkmq_device::{MachineShape, registry as devices};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, Enqueued, Finished, GroupSpec, GroupTree, Inflight, IoMax,
    Promise,
};
use blkmq_lab::simulation::{Program, Settings, Simulation};
use blkmq_lab::workload::{
    Amount, BlockSize, Depth, Generator, Job, Latencies, NoBuffers, PerDirection, Rw, Sample,
    Stream, Ties,
};
use blkmq_sched::{Factory, FloorReport, Options};

/// A group with one thread, which keeps `iodepth` I/Os of `bs` bytes in flight.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    pub weight: u32,
    pub rw: Rw,
    pub bs: u32,
    pub iodepth: u32,
    /// Its promises besides the weight, and the most I/Os a second that it pushes; 0 for no limit.
    pub promise: Promise,
    pub rate: u64,
    /// Each write is followed by a flush.
    pub synced: bool,
}

/// A change of the device in the middle of a run, and its time in seconds.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Nothing,
    /// From then on it is another device of the same shape.
    Becomes(&'a str, u64),
    /// The device does not answer for five seconds.
    Stalls(u64),
}

/// Tenants beside each other, each with its own region.
pub struct Case<'a> {
    pub device: &'a str,
    pub change: Change<'a>,
    pub tenants: &'a [Tenant],
    pub seconds: u64,
}

/// The samples of each tenant, half a second each; and the accounts of its floors, by tenant.
pub struct Run {
    samples: Vec<Vec<Sample>>,
    pub floors: Vec<Option<FloorReport>>,
    /// The figures that the scheduler has learned, as its options.
    pub learned: String,
}

impl Tenant {
    pub fn new(weight: u32, rw: Rw, (kib, iodepth): (u32, u32)) -> Self {
        let (promise, rate) = (Promise::default(), 0);
        Self { weight, rw, bs: kib << 10, iodepth, promise, rate, synced: false }
    }

    pub fn promised(self, words: &str) -> Self {
        let words = words.split(',').filter(|word| !word.is_empty());
        let promise = words.fold(self.promise, |all, word| all.set(word).expect("a promise"));
        Self { promise, ..self }
    }

    pub fn rate(self, rate: u64) -> Self {
        Self { rate, ..self }
    }

    pub fn synced(self) -> Self {
        Self { synced: true, ..self }
    }
}

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;

type Queues<P> = Vec<Box<dyn DeviceQueue<P>>>;

impl<'a> Case<'a> {
    /// A case in which the device does not change.
    pub const fn new(device: &'a str, tenants: &'a [Tenant], seconds: u64) -> Self {
        Self { device, change: Change::Nothing, tenants, seconds }
    }

    fn changing<P: Payload + 'static>(&self, queues: Queues<P>, cpus: u16) -> Queues<P> {
        match self.change {
            Change::Nothing => queues,
            Change::Becomes(other, second) => {
                let at = Instant::from_nanos(second * SECOND);
                let other = devices::parse(other, &MachineShape { cpus, nodes: 1 });
                let others = other.expect("a virtual device").queues();
                assert_eq!(queues.len(), others.len(), "devices of one shape");
                let pairs = queues.into_iter().zip(others);
                pairs.map(|(a, b)| Box::new(Changing { queues: [a, b], at }) as _).collect()
            }
            Change::Stalls(second) => {
                let [from, to] = [second, second + 5].map(|at| Instant::from_nanos(at * SECOND));
                let stalling = |inside| Stalling { inside, from, to, now: Instant::ZERO };
                queues.into_iter().map(|queue| Box::new(stalling(queue)) as _).collect()
            }
        }
    }

    /// The job of tenant `at` on a device of so many bytes.
    fn job(&self, at: usize, bytes: u64) -> Job {
        let Tenant { rw, bs, iodepth, rate, synced, .. } = self.tenants[at];
        // Regions of a GiB each, and two GiB apart, if the device is large enough.
        let apart = (bytes / self.tenants.len() as u64).min(2 * GIB) >> 21 << 21;
        Job {
            rw,
            bs: PerDirection::all(BlockSize::Fixed(bs)),
            size: Some(Amount::Bytes(apart / 2)),
            offset: Amount::Bytes(apart * at as u64),
            rate_iops: PerDirection::all((rate > 0).then_some(rate)),
            fsync: u32::from(synced),
            depth: Depth { iodepth, low: iodepth, ..Depth::default() },
            runtime: Some(Nanos::from_secs(self.seconds)),
            time_based: true,
            latencies: Latencies::NONE,
            ..Job::default()
        }
    }

    fn tree(&self) -> GroupTree {
        let wanted = self.tenants.iter().enumerate().map(|(number, tenant)| GroupSpec {
            name: format!("g{number}"),
            parent: String::from("/"),
            weight: tenant.weight,
            promise: tenant.promise,
            max: IoMax::default(),
        });
        GroupTree::of(wanted.collect()).expect("a tree of groups side by side")
    }

    /// Runs the tenants under `scheduler`.
    pub fn run(&self, scheduler: &'static Factory, options: &str, seed: u64) -> Run {
        let cpus = self.tenants.len() as u16;
        let device = devices::parse(self.device, &MachineShape { cpus, nodes: 1 });
        let device = device.expect("a virtual device");
        let bytes = device.shape.limits.capacity * u64::from(SECTOR_SIZE);
        // An I/O that the device divides has a credit for each part.
        let longest = device.shape.limits.max_sectors * SECTOR_SIZE;
        let parts = |tenant: &Tenant| tenant.iodepth * tenant.bs.div_ceil(longest);
        let depth = self.tenants.iter().map(parts).max().unwrap_or(1);
        let tree = self.tree();
        let options = Options::parse(scheduler.attributes, options).expect("its options");
        let config = Config {
            submitters: cpus,
            depth,
            groups: tree.clone(),
            options,
            ..device.config().scheduler(scheduler)
        };
        let config = Config { queues: self.changing(config.queues, cpus), ..config };
        let jobs: Vec<Job> = (0..self.tenants.len()).map(|at| self.job(at, bytes)).collect();
        let simulation = Simulation::new(config, Settings::new(seed));
        let mut simulation = simulation.expect("a possible queue");
        let programs = jobs.iter().zip(0..).map(|(job, thread)| Program {
            job,
            stream: Stream {
                generator: Generator::new(job, 0, bytes).expect("a job that fits"),
                verifier: None,
                owner: Owner(thread + 1),
                group: tree.find(&format!("g{thread}")).expect("it is in the tree"),
                ties: Ties::default(),
            },
            buffers: NoBuffers,
            course: false,
            journal: None,
            pid: thread,
        });
        let done = simulation.run(programs).expect("everything ends");
        let samples = done.into_iter().map(|done| {
            let counts = done.tally.counts.into_iter().max_by_key(|counts| counts.ios);
            counts.expect("there are three kinds").samples
        });
        let learned = simulation.queue().attribute("blkmq/learned").expect("an attribute");
        let times = simulation.queue().times();
        let floor = |at| times.floor(tree.find(&format!("g{at}")).ok()?).copied();
        let floors = (0..self.tenants.len()).map(floor).collect();
        Run { samples: samples.collect(), floors, learned }
    }
}

impl Run {
    /// I/Os a second of each tenant, from second `from` on.
    pub fn rates(&self, from: u64) -> Vec<f64> {
        let rate = |samples: &Vec<Sample>| {
            let counted = samples.iter().skip(2 * from as usize);
            let (ios, time) = counted
                .fold((0, 0), |(ios, time), sample| (ios + sample.ios, time + sample.length.0));
            ios as f64 * 1e9 / time as f64
        };
        self.samples.iter().map(rate).collect()
    }

    /// I/Os of tenant `at` in each second from second `from` on.
    pub fn seconds(&self, at: usize, from: u64) -> Vec<f64> {
        let of = |pair: &[Sample]| {
            let time: u64 = pair.iter().map(|sample| sample.length.0).sum();
            pair.iter().map(|sample| sample.ios).sum::<u64>() as f64 * 1e9 / time as f64
        };
        let counted = self.samples[at].get(2 * from as usize..).unwrap_or_default();
        counted.chunks_exact(2).map(of).collect()
    }

    /// I/Os of all tenants in each second from second `from` on.
    pub fn totals(&self, from: u64) -> Vec<f64> {
        let of = |samples: &Vec<Sample>, second: usize| {
            let pair = samples.get(2 * second..2 * second + 2)?;
            let time: u64 = pair.iter().map(|sample| sample.length.0).sum();
            Some(pair.iter().map(|sample| sample.ios).sum::<u64>() as f64 * 1e9 / time as f64)
        };
        let all = |second| self.samples.iter().map(|samples| of(samples, second)).sum();
        (from as usize..).map_while(all).collect()
    }

    /// The part of the first tenant of all I/Os, in each second from second `from` on.
    pub fn windows(&self, from: u64) -> Vec<f64> {
        let of = |samples: &[Sample]| {
            let time: u64 = samples.iter().map(|sample| sample.length.0).sum();
            samples.iter().map(|sample| sample.ios).sum::<u64>() as f64 / time as f64
        };
        let seconds = |samples: &Vec<Sample>| {
            let counted = samples.get(2 * from as usize..).unwrap_or_default();
            counted.chunks_exact(2).map(of).collect::<Vec<f64>>()
        };
        let rates: Vec<Vec<f64>> = self.samples.iter().map(seconds).collect();
        let many = rates.iter().map(Vec::len).min().unwrap_or(0);
        let part = |second| rates[0][second] / rates.iter().map(|of| of[second]).sum::<f64>();
        (0..many).map(part).collect()
    }
}

/// A hardware queue of one device until an instant, and of another one from then on. Requests that the first one holds
/// at that time are still answered.
pub struct Changing<P> {
    pub queues: [Box<dyn DeviceQueue<P>>; 2],
    pub at: Instant,
}

impl<P: Payload> DeviceQueue<P> for Changing<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.queues[usize::from(now >= self.at)].enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.queues.iter_mut().for_each(|queue| queue.commit(now));
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        self.queues.iter_mut().for_each(|queue| queue.reap(now, bios, out));
    }

    fn next_event(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.next_event()).min()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.queues.iter_mut().for_each(|queue| queue.abandon(out));
    }
}

/// A hardware queue that does not answer between two instants.
pub struct Stalling<P> {
    pub inside: Box<dyn DeviceQueue<P>>,
    pub from: Instant,
    pub to: Instant,
    pub now: Instant,
}

impl<P: Payload> Stalling<P> {
    fn stalls(&self, at: Instant) -> bool {
        (self.from..self.to).contains(&at)
    }
}

impl<P: Payload> DeviceQueue<P> for Stalling<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.inside.enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.inside.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        self.now = now;
        if !self.stalls(now) {
            self.inside.reap(now, bios, out);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let next = self.inside.next_event()?;
        Some(if self.stalls(next.max(self.now)) { self.to } else { next })
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inside.abandon(out);
    }
}
