//! The parts of a run: a device, a stream for each thread, and the configuration of the queue.

use super::payload::BenchPayload;
use super::state;
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::plan::{Nomerges, Plan, PumpChoice, StatsChoice};
use crate::{Failure, devices};
use blkmq::Device;
#[cfg(target_os = "linux")]
use blkmq_buf::AlignedBuf;
use blkmq_core::{GroupId, Limits, Nanos, Owner, SECTOR_SIZE};
use blkmq_engine::{AUTO, Config, ConfigNote, NoMerges, PolicyChoice, PumpMode, Queue, StatsMode};
use blkmq_lab::workload::{Direction, Generator, GeneratorError, Job, Stream, Ties, Verifier};
use blkmq_sched::StatsLevel;
use blkmq_terminal::UsageError;
use std::borrow::Cow;

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
    state::load(plan, spec, thread, &mut verifier)?;
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
        nomerges: match plan.nomerges {
            Nomerges::All => NoMerges::All,
            Nomerges::Simple => NoMerges::Simple,
            Nomerges::None => NoMerges::None,
        },
        pump: match plan.pump {
            PumpChoice::Inline => PumpMode::Inline,
            PumpChoice::Threads => PumpMode::Thread,
        },
        submitters: threads,
        depth: depths.max().unwrap_or(1),
        ..P::config(device)?.scheduler(spec.scheduler.factory)
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
