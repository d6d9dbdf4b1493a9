//! Futures on tokio's multi-thread runtime beside other ways to the same file: random 4 KiB reads, at depths 1 and 32.
//!
//! ```text
//! cargo run --release -p blkmq-uring --example futures -- FILE [SECONDS [ROUNDS [SCHEDULER]]]
//! cargo run --release -p blkmq-uring --example futures -- threads:FILE,direct=0 1 7
//! ```
//!
//! The other ways are
//!
//! - beside io_uring (`FILE` or `uring:FILE`, with the device's parameters) a bare ring, the least that a program can
//!   do: one thread, a registered file, `submit_and_wait`;
//! - at depth 1 also `watched ring`, a ring whose descriptor a task of the runtime watches: the least that a future can
//!   do;
//! - beside `threads:FILE` tokio's `spawn_blocking` with a `pread` for each read, by as many tasks.
//!
//! On our side as many tasks as the depth await one read each, on a runtime with two workers: `worker` is a reactor on
//! that runtime, `thread` one with a thread of its own. The sides run in turns. A line has the rate of each and the CPU
//! time of the whole process for an I/O. The last lines have the medians of the ratios to the other way in the same
//! round.

use std::error::Error;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn Error>> {
    let args = Vec::from_iter(std::env::args().skip(1));
    let usage = "usage: futures [threads:]PATH[,KEY=VALUE]... [SECONDS [ROUNDS [SCHEDULER]]]";
    let text = args.first().ok_or(usage)?;
    let seconds = args.get(1).map_or(Ok(1), |arg| arg.parse())?;
    let rounds = args.get(2).map_or(Ok(5), |arg| arg.parse())?;
    let scheduler = args.get(3).map_or("none", String::as_str);
    linux::compare(text, seconds, rounds, scheduler)
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn Error>> {
    Err("there is io_uring on Linux only".into())
}

#[cfg(target_os = "linux")]
mod linux {
    use blkmq_buf::AlignedBuf;
    use blkmq_core::{Bytes, Nanos, Rng};
    use blkmq_engine::{BlockDevice, Config, Io};
    use blkmq_runtime::{Clock, Handle, Service};
    use blkmq_sched::registry;
    use blkmq_uring::{Options, UringDevice};
    use io_uring::{IoUring, opcode, types::Fixed};
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    use std::error::Error;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::unix::AsyncFd;
    use tokio::runtime::{Builder, Runtime};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    const BLOCK: usize = 4096;
    const WORKERS: usize = 2;

    /// The figures of one run.
    #[derive(Clone, Copy)]
    struct Figures {
        iops: f64,
        /// CPU time of the process for an I/O, in microseconds.
        cpu: f64,
    }

    /// The time and the CPU time of the process since a moment.
    struct Meter {
        clock: Clock,
        cpu: f64,
    }

    impl Meter {
        fn start() -> Result<Self> {
            Ok(Self { clock: Clock::start(), cpu: cpu_micros()? })
        }

        fn figures(&self, ios: u64) -> Result<Figures> {
            let (ios, nanos) = (ios as f64, self.clock.now().as_nanos() as f64);
            Ok(Figures { iops: ios * 1e9 / nanos, cpu: (cpu_micros()? - self.cpu) / ios })
        }

        fn is_over(&self, seconds: u64) -> bool {
            self.clock.now().as_nanos() >= Nanos::from_secs(seconds).0
        }
    }

    fn cpu_micros() -> Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let times = [usage.user_time(), usage.system_time()];
        Ok(times.map(|time| time.num_microseconds() as f64).iter().sum())
    }

    /// Runs all sides in turns and prints the figures.
    pub fn compare(text: &str, seconds: u64, rounds: u32, scheduler: &str) -> Result<()> {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        let described = Options::described(text).unwrap_or_else(|| Options::parse(text));
        let (path, options) = described?;
        let device = UringDevice::open(&path, &Options { readonly: true, ..options })?;
        let other = if device.has_threads() { "spawn_blocking" } else { "bare ring" };
        let blocks = device.shape.limits.capacity * 512 / BLOCK as u64;
        let factory = registry::find(scheduler).ok_or("no such scheduler")?;
        let config = || -> Result<Config<AlignedBuf>> { Ok(device.config()?.scheduler(factory)) };
        for depth in [1, 32] {
            let mut ratios: [Vec<Figures>; 2] = Default::default();
            let mut least = Vec::new();
            for round in 0..rounds {
                let file = open(&path, device.is_direct())?;
                let beside = if device.has_threads() {
                    blocking(&runtime, file, depth, seconds, round)?
                } else {
                    bare_ring(&file, depth, seconds, round)?
                };
                let watched = if device.has_threads() || depth > 1 {
                    None
                } else {
                    Some(watched_ring(&runtime, open(&path, device.is_direct())?, seconds, round)?)
                };
                let service = Service::start(Config { submitters: WORKERS as u16, ..config()? })?;
                let reactor = service.reactor_on(runtime.handle())?;
                let worker = futures(&runtime, (&reactor.handle(), blocks), depth, seconds, round)?;
                drop((reactor, service));
                let service = Service::start(config()?)?;
                let reactor = service.reactor()?;
                let thread = futures(&runtime, (&reactor.handle(), blocks), depth, seconds, round)?;
                print!(
                    "depth {depth:>2}: {other} {:>6.0} IOPS {:>5.1} us",
                    beside.iops, beside.cpu
                );
                for ((name, side), ratios) in
                    [("worker", worker), ("thread", thread)].into_iter().zip(&mut ratios)
                {
                    print!(", {name} {:>6.0} IOPS {:>5.1} us", side.iops, side.cpu);
                    let (iops, cpu) = (side.iops / beside.iops, side.cpu / beside.cpu);
                    ratios.push(Figures { iops, cpu });
                }
                if let Some(Figures { iops, cpu }) = watched {
                    print!(", watched ring {iops:>6.0} IOPS {cpu:>5.1} us");
                    let (iops, cpu) = (worker.iops / iops, worker.cpu / cpu);
                    least.push(Figures { iops, cpu });
                }
                println!();
            }
            let [worker, thread] = &ratios;
            let lines = [
                ("worker", other, worker),
                ("thread", other, thread),
                ("worker", "watched ring", &least),
            ];
            for (name, other, ratios) in lines.into_iter().filter(|(.., it)| !it.is_empty()) {
                let [iops, cpu] = [|it: &Figures| it.iops, |it: &Figures| it.cpu]
                    .map(|figure| median(ratios.iter().map(figure).collect()));
                println!(
                    "{scheduler}, depth {depth:>2}, {name}: {iops:.2} of the rate, {cpu:.2} times the CPU time of {other}"
                );
            }
        }
        Ok(())
    }

    fn median(mut figures: Vec<f64>) -> f64 {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    }

    fn open(path: &Path, is_direct: bool) -> Result<File> {
        let flags = if is_direct { libc::O_DIRECT } else { 0 };
        Ok(File::options().read(true).custom_flags(flags).open(path)?)
    }

    fn bare_ring(file: &File, depth: usize, seconds: u64, seed: u32) -> Result<Figures> {
        let blocks = file.metadata()?.len() / BLOCK as u64;
        let mut ring = IoUring::new(depth as u32)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let mut buffers: Vec<_> = (0..depth).map(|_| AlignedBuf::new(BLOCK)).collect();
        let mut rng = Rng::new(seed.into());
        let mut free = Vec::from_iter(0..depth);
        let meter = Meter::start()?;
        let (mut done, mut over) = (0, false);
        while !over || free.len() < depth {
            if !over {
                for at in free.drain(..) {
                    let buffer = buffers[at].as_mut_slice().as_mut_ptr();
                    let read = opcode::Read::new(Fixed(0), buffer, BLOCK as u32)
                        .offset(rng.below(blocks) * BLOCK as u64)
                        .build()
                        .user_data(at as u64);
                    // SAFETY: the buffer outlives the loop, which ends when every read has completed.
                    unsafe { ring.submission().push(&read) }?;
                }
            }
            ring.submit_and_wait(1)?;
            for completion in ring.completion() {
                assert_eq!(completion.result(), BLOCK as i32, "a whole block");
                free.push(completion.user_data() as usize);
                done += 1;
            }
            over = meter.is_over(seconds);
        }
        meter.figures(done)
    }

    /// A task with a ring of its own, which waits until the runtime finds the ring's descriptor readable.
    fn watched_ring(runtime: &Runtime, file: File, seconds: u64, seed: u32) -> Result<Figures> {
        let blocks = file.metadata()?.len() / BLOCK as u64;
        let file = Arc::new(file);
        run(runtime, 1, seconds, |_, over| {
            let file = Arc::clone(&file);
            async move {
                watched_reads(&file, over, blocks, seed.into()).await.expect("a ring can be made")
            }
        })
    }

    async fn watched_reads(
        file: &File,
        over: Arc<AtomicBool>,
        blocks: u64,
        seed: u64,
    ) -> std::io::Result<u64> {
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types whose descriptor changes; that of a ring does not"
        )]
        let mut ring = AsyncFd::new(IoUring::new(1)?)?;
        ring.get_ref().submitter().register_files(&[file.as_raw_fd()])?;
        let (mut rng, mut buffer, mut done) = (Rng::new(seed), AlignedBuf::new(BLOCK), 0);
        while !over.load(Ordering::Relaxed) {
            let address = buffer.as_mut_slice().as_mut_ptr();
            let read = opcode::Read::new(Fixed(0), address, BLOCK as u32)
                .offset(rng.below(blocks) * BLOCK as u64)
                .build();
            // SAFETY: the buffer outlives the loop, which ends when the read has completed.
            unsafe { ring.get_mut().submission().push(&read) }.expect("there is room for one");
            ring.get_ref().submit()?;
            let completion = loop {
                if let Some(completion) = ring.get_mut().completion().next() {
                    break completion;
                }
                ring.readable().await?.clear_ready();
            };
            assert_eq!(completion.result(), BLOCK as i32, "a whole block");
            done += 1;
        }
        Ok(done)
    }

    fn blocking(
        runtime: &Runtime,
        file: File,
        depth: usize,
        seconds: u64,
        seed: u32,
    ) -> Result<Figures> {
        let blocks = file.metadata()?.len() / BLOCK as u64;
        let file = Arc::new(file);
        let seed = u64::from(seed) << 8;
        run(runtime, depth, seconds, |nth, over| {
            preads(Arc::clone(&file), over, blocks, seed | nth)
        })
    }

    fn futures(
        runtime: &Runtime,
        (disk, blocks): (&Handle<AlignedBuf>, u64),
        depth: usize,
        seconds: u64,
        seed: u32,
    ) -> Result<Figures> {
        let seed = u64::from(seed) << 8;
        run(runtime, depth, seconds, |nth, over| reads(disk.clone(), over, blocks, seed | nth))
    }

    /// Runs `depth` tasks, each of which counts its reads until the time is over.
    fn run<T: Future<Output = u64> + Send + 'static>(
        runtime: &Runtime,
        depth: usize,
        seconds: u64,
        task: impl Fn(u64, Arc<AtomicBool>) -> T,
    ) -> Result<Figures> {
        let over = Arc::new(AtomicBool::new(false));
        let meter = Meter::start()?;
        let one = |nth| runtime.spawn(task(nth as u64, Arc::clone(&over)));
        let tasks = Vec::from_iter((0..depth).map(one));
        meter.clock.sleep_until(blkmq_core::Instant::ZERO + Nanos::from_secs(seconds));
        over.store(true, Ordering::Relaxed);
        let mut done = 0;
        for task in tasks {
            done += runtime.block_on(task)?;
        }
        meter.figures(done)
    }

    /// A task by tokio alone: one read after the other, each on a thread for blocking calls. Returns their number.
    async fn preads(file: Arc<File>, over: Arc<AtomicBool>, blocks: u64, seed: u64) -> u64 {
        let (mut rng, mut buffer, mut done) = (Rng::new(seed), AlignedBuf::new(BLOCK), 0);
        while !over.load(Ordering::Relaxed) {
            let (file, at) = (Arc::clone(&file), rng.below(blocks) * BLOCK as u64);
            let read = tokio::task::spawn_blocking(move || {
                file.read_exact_at(buffer.as_mut_slice(), at).map(|()| buffer)
            });
            let answer = read.await.expect("a read does not panic");
            (buffer, done) = (answer.expect("a whole block"), done + 1);
        }
        done
    }

    /// A task: one read after the other. Returns their number.
    async fn reads(disk: Handle<AlignedBuf>, over: Arc<AtomicBool>, blocks: u64, seed: u64) -> u64 {
        let (mut rng, mut buffer, mut done) = (Rng::new(seed), AlignedBuf::new(BLOCK), 0);
        while !over.load(Ordering::Relaxed) {
            let at = Bytes(rng.below(blocks) * BLOCK as u64);
            let answer = disk.submit(Io::read(at, buffer)).await.expect("the reactor is there");
            assert_eq!(answer.result, Ok(()), "a whole block");
            (buffer, done) = (answer.payload, done + 1);
        }
        done
    }
}
