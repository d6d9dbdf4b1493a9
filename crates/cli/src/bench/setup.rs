//! The parts of a run: a device, a stream for each thread, the payloads, the configuration of the queue, and the start
//! of its threads.
//!
//! The payload that a worker submits with each I/O is nothing, or a buffer from a pool; the worker fills and checks the
//! buffers. States of verification are read from files and saved in files under fio's names, in the current folder.
//!
//! Threads begin together or not at all: at a gate that can be cancelled. A barrier waits for ever if one of its
//! threads could not be started, or panics before it. Here each thread holds a [`Ticket`]; a ticket that is dropped
//! before its use cancels the gate for all threads. The threads that wait at the gate return, and the caller gets the
//! reason.

use super::tally::Part;
use crate::plan::{Plan, RunSpec, StatsChoice, ThreadSpec};
use crate::{Failure, devices};
use blkmq::{BlockDevice, Device};
use blkmq_buf::{AlignedBuf, BufferPool, IoBuf};
use blkmq_core::{GroupId, Limits, Nanos, Owner, SECTOR_SIZE};
use blkmq_engine::{AUTO, Config, ConfigNote, PolicyChoice, Queue, StatsMode};
use blkmq_lab::workload::{
    Buffers, Direction, Filler, Generator, GeneratorError, Job, Stream, Ties, Verifier, longest,
};
use blkmq_sched::StatsLevel;
use blkmq_terminal::UsageError;
use std::any::Any;
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// The device of a run.
///
/// # Errors
/// If it cannot be opened.
pub fn device(plan: &Plan, spec: &RunSpec<'_>) -> Result<Device, UsageError> {
    devices::open_choice(spec.device, plan.time)
        .map_err(|e| UsageError::new(e.to_string()).at(&spec.device.chosen_by))
}

/// Checks that a run is possible, and returns the device's notes.
///
/// # Errors
/// If a job does not fit the device, or the queue cannot be built.
pub fn check(plan: &Plan, spec: &RunSpec<'_>) -> Result<Vec<String>, Failure> {
    let device = device(plan, spec)?;
    let chosen = spec.scheduler.on(device.default_scheduler(), &plan.groups);
    let spec = &spec.under(plan, &chosen);
    let notes = device.notes().to_vec();
    for thread in &spec.threads {
        let job = &plan.jobs[thread.job];
        fits(job, &device.shape().limits)?;
        stream(plan, spec, *thread, &device, Ties::default())?;
    }
    match device {
        Device::Virtual(_) => built::<()>(plan, spec, &device)?,
        // A queue would take over its connections, and close them.
        #[cfg(target_os = "linux")]
        Device::Nbd(_) => spec.device.kept.keep(device),
        _ => built::<AlignedBuf>(plan, spec, &device)?,
    }
    Ok(notes)
}

/// Builds the queue, and drops it.
fn built<P: BenchPayload>(plan: &Plan, spec: &RunSpec<'_>, device: &Device) -> Result<(), Failure> {
    Queue::new(config::<P>(plan, spec, device)?).map(drop).map_err(impossible)
}

/// The error for a queue that cannot be built.
pub fn impossible(e: impl std::fmt::Display) -> Failure {
    UsageError::new(format!("the queue cannot be built: {e}")).into()
}

/// Checks that every block size of `job` suits the device. Blocks longer than the device accepts are divided.
fn fits(job: &Job, limits: &Limits) -> Result<(), UsageError> {
    let refuse = |what: String| Err(UsageError::new(format!("job '{}': {what}", job.name)));
    for direction in job.rw.directions() {
        if limits.max_sectors_of(direction.op()) == 0 {
            return refuse(
                "the device takes no discards; for null and memory add discard=1".into(),
            );
        }
        let bs = &job.bs[*direction];
        for bs in [bs.min(), bs.max()] {
            if !bs.is_multiple_of(limits.logical_block_size) {
                let block = limits.logical_block_size;
                return refuse(format!("bs={bs}; the device takes multiples of {block}"));
            }
        }
    }
    Ok(())
}

/// The job of a thread in a run: on its device, with its random seed combined with the run's. The run seed 0 changes
/// nothing, so that such a simulation accesses the same positions as a bench.
fn job_of<'a>(plan: &'a Plan, spec: &RunSpec<'_>, thread: ThreadSpec) -> Cow<'a, Job> {
    let (job, ends_at_size) = (&plan.jobs[thread.job], spec.device.is_stand_in);
    let seed = plan.time.seed().map_or(0, |seed| spec.seed_of(seed));
    if seed == 0 && !ends_at_size {
        return Cow::Borrowed(job);
    }
    // An odd factor maps different seeds to different products; otherwise it is arbitrary.
    let randseed = job.randseed ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Cow::Owned(Job { randseed, ends_at_size, ..job.clone() })
}

/// The I/O stream of a thread, and its verification; `ties` connect it to other threads.
///
/// # Errors
/// If the job is impossible or does not fit the device.
pub fn stream(
    plan: &Plan,
    spec: &RunSpec<'_>,
    thread: ThreadSpec,
    device: &Device,
    ties: Ties,
) -> Result<Stream, UsageError> {
    let job = &*job_of(plan, spec, thread);
    let bytes = bytes(device);
    let refuse = |e: GeneratorError| UsageError::new(format!("job '{}': {e}", job.name));
    let generator = Generator::new(job, thread.thread, bytes).map_err(refuse)?;
    let mut verifier = Verifier::new(job, thread.thread, bytes).map_err(refuse)?;
    load_state(plan, spec, thread, &mut verifier)?;
    // Each thread is a separate process, but not a tenant: tenants have groups.
    let owner = Owner::thread((thread.job as u32) << 16 | (thread.thread + 1));
    let group = job.cgroup.as_deref().map_or(Ok(GroupId::ROOT), |name| plan.groups.find(name));
    let group = group.map_err(|e| UsageError::new(e.to_string()))?;
    Ok(Stream { generator, verifier, owner, group, ties })
}

/// The size of `device` in bytes.
pub fn bytes(device: &Device) -> u64 {
    device.shape().limits.capacity * u64::from(SECTOR_SIZE)
}

/// The credit that a thread of `job` needs for `iodepth` I/Os in flight, each divided into the maximum number of parts.
fn credit(job: &Job, limits: &Limits) -> u32 {
    // A verification read is no longer than the write that it checks.
    let parts = |direction: &Direction| {
        limits.most_parts(direction.op(), job.bs[*direction].max() / SECTOR_SIZE)
    };
    let parts = job.rw.directions().iter().map(parts).max().unwrap_or(1);
    // A credit that is too large is refused when the queue is built.
    u32::try_from(parts * u64::from(job.depth.iodepth)).unwrap_or(u32::MAX)
}

/// The credit that a thread of `job` needs if requests may be shortened for latency goals: parts use at most three
/// quarters of it.
fn credit_beside_goals(job: &Job, limits: &Limits) -> u32 {
    let max_sectors = limits.max_sectors.min(SHORTENED);
    let short = credit(job, &Limits { max_sectors, ..*limits }).saturating_mul(2);
    credit(job, limits).max(short.min(MOST_SHORTENED))
}

/// The least length, in sectors, to which requests are shortened.
const SHORTENED: u32 = 256;
/// The maximum credit for that purpose alone: threads with more I/Os in flight get longer requests.
const MOST_SHORTENED: u32 = 1_024;

/// The configuration of the queue on `device`.
///
/// # Errors
/// If the device cannot create its queues, or there are too many threads.
pub fn config<P: BenchPayload>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Device,
) -> Result<Config<P>, Failure> {
    let threads = u16::try_from(spec.threads.len()).map_err(|_| {
        UsageError::new(format!("{} threads; at most {}", spec.threads.len(), u16::MAX))
    })?;
    let limits = &device.shape().limits;
    let credit = if plan.groups.has_goals() { credit_beside_goals } else { credit };
    let depths = spec.threads.iter().map(|thread| credit(&plan.jobs[thread.job], limits));
    let default = BlockDevice::config(device).map_err(|e| UsageError::new(e.to_string()))?;
    let config = Config {
        options: spec.scheduler.options.clone(),
        scope: Some(spec.scope),
        nr_requests: plan.nr_requests,
        device_depth: plan.device_depth,
        groups: plan.groups.clone(),
        stats: StatsMode {
            level: match plan.group_stats {
                StatsChoice::Off => StatsLevel::Off,
                StatsChoice::Basic => StatsLevel::Basic,
                StatsChoice::Full | StatsChoice::Inline => StatsLevel::Full,
            },
            inline: plan.group_stats == StatsChoice::Inline,
            times: plan.iostats,
            ..StatsMode::default()
        },
        access: spec.access.access,
        modes: spec.access.modes,
        nomerges: plan.nomerges,
        pump: plan.pump,
        submitters: threads,
        depth: depths.max().unwrap_or(1),
        ..default.scheduler(spec.scheduler.factory)
    };
    Ok(match spec.scheduler.choice {
        PolicyChoice::Named => config,
        PolicyChoice::Auto => config.auto(),
    })
}

/// Returns notes for the report on the scheduler chosen by `auto`, and on sharing that the configuration does not
/// support. Each thread has its own submitter, so that owners do not wait for each other there.
pub fn notes<P>(plan: &Plan, spec: &RunSpec<'_>, config: &Config<P>) -> Vec<String> {
    let place = if plan.devices.len() > 1 { &format!(" on {}", spec.device.text) } else { "" };
    let chosen = config.plan().auto().map(|chosen| format!("{AUTO}{place}: {chosen}"));
    let notes = config.notes().into_iter();
    let of_groups = notes.filter(|note| !matches!(note, ConfigNote::OwnersWaitInLine { .. }));
    let notes = chosen.into_iter().chain(of_groups.map(|note| note.to_string()));
    notes.chain(merged_by_bfq(plan, spec)).collect()
}

/// bfq merges the queues of threads that begin within this time of each other.
const TOGETHER: Nanos = Nanos::from_millis(180);

/// A note on two jobs that bfq serves as one, since they begin together.
fn merged_by_bfq(plan: &Plan, spec: &RunSpec<'_>) -> Option<String> {
    if spec.scheduler.factory.name != "bfq" || spec.scheduler.text.contains("queue_merge=0") {
        return None;
    }
    let waits =
        |job: &Job| job.rw.directions().contains(&Direction::Read) || job.direct || job.sync;
    let are_together = |a: &ThreadSpec, b: &ThreadSpec| {
        let (one, other) = (&plan.jobs[a.job], &plan.jobs[b.job]);
        let delays = [one.startdelay.0, other.startdelay.0];
        a.job != b.job
            && a.phase == b.phase
            && delays[0].abs_diff(delays[1]) < TOGETHER.0
            && one.cgroup == other.cgroup
            && one.prio == other.prio
            && [one, other].into_iter().all(|job| waits(job) && job.wait_for.is_none())
    };
    let first = &spec.threads;
    let pair = first.iter().find_map(|a| Some((a, first.iter().find(|b| are_together(a, b))?)));
    let (a, b) = pair.map(|(a, b)| (&plan.jobs[a.job].name, &plan.jobs[b.job].name))?;
    Some(format!(
        "bfq merges the queues of {a} and {b}, which begin together, as Linux does with the threads of a program: it \
         serves them as one; a startdelay, a cgroup each, or bfq:queue_merge=0 keeps them apart"
    ))
}

/// The bytes that a worker's I/Os carry.
///
/// A worker creates as many payloads as it has I/Os in flight, each large enough for its longest I/O, and reuses them:
/// [`set_len`](Self::set_len), the I/O, [`bytes`](Self::bytes).
pub trait BenchPayload: IoBuf {
    /// Whether this type carries any bytes. If false, no other method needs to do anything.
    const CARRIES: bool = true;

    /// The source of the payloads, shared by all workers. The default takes the memory of each payload from the system.
    type Source: Clone + Default + Send + Sync;

    /// Creates a source of `count` payloads for I/Os of up to `most` bytes. May register their memory with `device` to
    /// speed up I/Os.
    fn source(device: &mut Device, count: u32, most: usize) -> Self::Source;

    /// A payload for I/Os of up to `most` bytes, with unspecified contents.
    fn with_capacity(source: &Self::Source, most: usize) -> Self;

    /// Sets the length of the payload to `len` bytes, at most the length for which it was created; 0 for an I/O without
    /// data. The contents are unspecified. Does not allocate.
    fn set_len(&mut self, len: usize);

    /// The bytes of the payload.
    fn bytes(&mut self) -> &mut [u8];
}

impl BenchPayload for () {
    const CARRIES: bool = false;

    type Source = ();

    fn source(_: &mut Device, _: u32, _: usize) {}

    fn with_capacity((): &(), _: usize) -> Self {}

    fn set_len(&mut self, _: usize) {}

    fn bytes(&mut self) -> &mut [u8] {
        &mut []
    }
}

/// Direct I/O needs aligned memory.
impl BenchPayload for AlignedBuf {
    /// A pool registered with the kernel; `None` for I/Os without bytes.
    type Source = Option<BufferPool>;

    fn source(device: &mut Device, count: u32, most: usize) -> Self::Source {
        let pool = (count > 0 && most > 0).then(|| BufferPool::new(count, most))?;
        device.register(&pool);
        Some(pool)
    }

    fn with_capacity(source: &Self::Source, most: usize) -> Self {
        source.as_ref().and_then(BufferPool::take).unwrap_or_else(|| Self::new(most))
    }

    fn set_len(&mut self, len: usize) {
        Self::set_len(self, len);
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// The payloads of one worker that are not in flight.
pub struct Pool<P: BenchPayload> {
    free: Vec<P>,
    source: P::Source,
    most: usize,
    filler: Filler,
}

impl<P: BenchPayload> Pool<P> {
    /// Creates a pool for the I/Os of a thread on a device of `device_bytes`. Payloads are created on first use, so
    /// that a deep queue that is never filled costs nothing.
    pub fn new(job: &Job, thread: u32, device_bytes: u64, source: P::Source) -> Self {
        let depth = if P::CARRIES { job.depth.iodepth as usize } else { 0 };
        let filler = Filler::new(job, thread, device_bytes);
        Self { free: Vec::with_capacity(depth), source, most: longest(job), filler }
    }

    fn made(&mut self) -> P {
        let mut payload = P::with_capacity(&self.source, self.most);
        payload.set_len(self.most);
        self.filler.begin(payload.bytes());
        payload
    }
}

impl<P: BenchPayload> Buffers<P> for Pool<P> {
    const CARRIES: bool = P::CARRIES;

    #[inline]
    fn take(&mut self, len: usize) -> P {
        if !P::CARRIES {
            return P::with_capacity(&self.source, 0);
        }
        let mut payload = self.free.pop().unwrap_or_else(|| self.made());
        payload.set_len(len);
        payload
    }

    #[inline]
    fn prepare(&mut self, payload: &mut P) {
        if P::CARRIES {
            self.filler.next(payload.bytes());
        }
    }

    #[inline]
    fn give(&mut self, payload: P) {
        if P::CARRIES {
            self.free.push(payload);
        }
    }

    #[inline]
    fn bytes(payload: &mut P) -> &mut [u8] {
        payload.bytes()
    }
}

/// The file of a thread.
fn state_path(plan: &Plan, spec: &RunSpec<'_>, thread: ThreadSpec) -> PathBuf {
    let name = plan.file_of(spec, &format!("local-{}", plan.jobs[thread.job].name));
    PathBuf::from(format!("{name}-{}-verify.state", thread.thread))
}

/// Restores the state saved by an earlier run, if the thread's job requests it.
///
/// # Errors
/// If there is no saved state, or it belongs to another job.
fn load_state(
    plan: &Plan,
    spec: &RunSpec<'_>,
    thread: ThreadSpec,
    verifier: &mut Option<Verifier>,
) -> Result<(), UsageError> {
    let Some(verifier) = verifier.as_mut().filter(|verifier| verifier.loads()) else {
        return Ok(());
    };
    let path = state_path(plan, spec, thread);
    let refuse =
        |why: String| UsageError::new(format!("verify_state_load: {}: {why}", path.display()));
    let state = std::fs::read(&path).map_err(|e| refuse(e.to_string()))?;
    verifier.restore(&state).map_err(|e| refuse(e.to_string()))
}

/// Saves the states of all threads for which it is requested. Returns a message for each that could not be saved.
pub fn save_state(plan: &Plan, spec: &RunSpec<'_>, parts: &[(ThreadSpec, Part)]) -> Vec<String> {
    let mut failed = Vec::new();
    for (thread, part) in parts {
        let Some(state) = &part.tally.verify_state else { continue };
        let path = state_path(plan, spec, *thread);
        if let Err(why) = std::fs::write(&path, state) {
            failed.push(format!("verify_state_save: {}: {why}", path.display()));
        }
    }
    failed
}

/// Why threads did not do their work.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A thread could not be started.
    #[error(
        "only {started} of {wanted} threads could be started: {why} (ulimit -u and -v bound them; accepted: \
         a smaller numjobs)"
    )]
    Spawn {
        /// The number of threads started before.
        started: usize,
        /// The number of threads that were to be started.
        wanted: usize,
        /// The system's error.
        why: io::Error,
    },
    /// A thread panicked.
    #[error("thread {thread} panicked: {message}")]
    Panic {
        /// The number of the thread.
        thread: usize,
        /// The message of the panic.
        message: String,
    },
}

/// A source of threads.
pub trait Spawn {
    /// Starts a thread that runs `work`.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    fn spawn<'scope, T: Send + 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>;
}

/// Threads of the operating system.
pub struct Threads;

impl Spawn for Threads {
    fn spawn<'scope, T: Send + 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Builder::new().spawn_scoped(scope, work)
    }
}

/// The number of threads that are still missing, or that the start is cancelled.
enum State {
    Missing(usize),
    Cancelled,
}

/// Lets all threads pass when the last of them arrives.
struct Gate {
    state: Mutex<State>,
    turned: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is harmless: each change is one store.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right of one thread to pass the gate, and its duty to arrive there.
pub struct Ticket<'a> {
    gate: &'a Gate,
    used: bool,
}

impl Ticket<'_> {
    /// Waits until all threads have arrived. False if one of them never will.
    #[must_use]
    pub fn pass(mut self) -> bool {
        self.used = true;
        let mut state = self.gate.state();
        if let State::Missing(left) = &mut *state {
            *left -= 1;
            self.gate.turned.notify_all();
        }
        loop {
            match *state {
                State::Missing(0) => return true,
                State::Cancelled => return false,
                State::Missing(_) => {
                    state = self.gate.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.used {
            *self.gate.state() = State::Cancelled;
            self.gate.turned.notify_all();
        }
    }
}

/// Runs all of `works` in parallel, each on a separate thread, and waits for them. Each thread passes the gate with its
/// ticket before it begins, and returns `None` if the gate is cancelled.
///
/// # Errors
/// If a thread cannot be started; then no thread has begun its work. If a thread panics; then the others have run to
/// their end.
pub fn together<T: Send>(
    spawner: &mut impl Spawn,
    works: Vec<impl FnOnce(Ticket<'_>) -> Option<T> + Send>,
) -> Result<Vec<T>, StartError> {
    let wanted = works.len();
    let gate = Gate { state: Mutex::new(State::Missing(wanted)), turned: Condvar::new() };
    std::thread::scope(|scope| {
        let (mut handles, mut failed) = (Vec::with_capacity(wanted), None);
        for work in works {
            let ticket = Ticket { gate: &gate, used: false };
            // A thread that could not be started drops its ticket.
            match spawner.spawn(scope, move || work(ticket)) {
                Ok(handle) => handles.push(handle),
                Err(why) => {
                    failed = Some(StartError::Spawn { started: handles.len(), wanted, why });
                    break;
                }
            }
        }
        let mut parts = Vec::with_capacity(wanted);
        for (thread, handle) in handles.into_iter().enumerate() {
            match handle.join() {
                Ok(part) => parts.extend(part),
                Err(panic) if failed.is_none() => {
                    failed = Some(StartError::Panic { thread, message: text(&*panic) });
                }
                Err(_) => {}
            }
        }
        failed.map_or(Ok(parts), Err)
    })
}

/// The message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_lab::workload::{BlockSize, PerDirection};
    use std::sync::atomic::{AtomicU32, Ordering};

    fn job() -> Job {
        Job { bs: PerDirection::all(BlockSize::Fixed(8192)), ..Job::default() }
    }

    /// The address and the length of the bytes of a payload of `len` bytes.
    fn used<P: BenchPayload>(pool: &mut Pool<P>, len: usize) -> (*const u8, Option<usize>) {
        let mut payload = pool.take(len);
        let place = (payload.bytes().as_ptr(), payload.data_len());
        assert_eq!(payload.bytes().len(), place.1.unwrap_or(0));
        pool.give(payload);
        place
    }

    #[test]
    fn buffers_are_used_again_and_never_grow() {
        let mut pool: Pool<AlignedBuf> = Pool::new(&job(), 0, 1 << 30, None);
        let (first, _) = used(&mut pool, 8192);
        for len in [512, 8192, 0, 4096] {
            let carried = Some(len).filter(|len| *len > 0);
            assert_eq!(used(&mut pool, len), (first, carried), "one buffer, never moved");
        }
        assert_eq!(pool.free.len(), 1);
    }

    #[test]
    fn nothing_is_carried_by_nothing() {
        let mut pool: Pool<()> = Pool::new(&job(), 0, 1 << 30, ());
        assert_eq!(used(&mut pool, 4096).1, None);
        assert!(pool.free.is_empty());
    }

    /// A source with a limited number of threads.
    struct Few(usize);

    impl Spawn for Few {
        fn spawn<'scope, T: Send + 'scope>(
            &mut self,
            scope: &'scope Scope<'scope, '_>,
            work: impl FnOnce() -> T + Send + 'scope,
        ) -> io::Result<ScopedJoinHandle<'scope, T>> {
            match self.0.checked_sub(1) {
                None => Err(io::Error::from_raw_os_error(11)),
                Some(left) => {
                    self.0 = left;
                    Threads.spawn(scope, work)
                }
            }
        }
    }

    #[test]
    fn all_begin_together_and_answer_in_their_order() {
        let there = AtomicU32::new(0);
        let work = |n: u32| {
            let there = &there;
            move |ticket: Ticket<'_>| {
                there.fetch_add(1, Ordering::SeqCst);
                ticket.pass().then(|| (n, there.load(Ordering::SeqCst)))
            }
        };
        let parts = together(&mut Threads, (0..4).map(work).collect()).expect("four threads");
        assert_eq!(parts, [(0, 4), (1, 4), (2, 4), (3, 4)]);
    }

    /// Regression test: with `thread::scope` and a barrier this hung, because the threads already started waited for
    /// the one that could not be.
    #[test]
    fn where_one_cannot_be_started_none_begins_and_none_hangs() {
        for few in 0..4 {
            let begun = AtomicU32::new(0);
            let work =
                |ticket: Ticket<'_>| ticket.pass().then(|| begun.fetch_add(1, Ordering::SeqCst));
            let error = together(&mut Few(few), vec![&work; 4]).expect_err("one is missing");
            assert!(
                matches!(error, StartError::Spawn { started, wanted: 4, .. } if started == few),
                "{error}"
            );
            assert_eq!(begun.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_panic_on_the_way_to_the_gate_sends_the_others_home() {
        let begun = AtomicU32::new(0);
        let work = |n: u32| {
            let begun = &begun;
            move |ticket: Ticket<'_>| {
                assert!(n != 2, "no room for number {n}");
                ticket.pass().then(|| begun.fetch_add(1, Ordering::SeqCst))
            }
        };
        let error = together(&mut Threads, (0..4).map(work).collect()).expect_err("a panic");
        assert_eq!(error.to_string(), "thread 2 panicked: no room for number 2");
        assert_eq!(begun.load(Ordering::SeqCst), 0);
    }
}
