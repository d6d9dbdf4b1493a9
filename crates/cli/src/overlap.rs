//! Refuses plans that cannot be verified: devices that store nothing, and threads that write where another thread
//! verifies concurrently.

use crate::devices;
use crate::plan::runs::ThreadSpec;
use crate::plan::{DeviceChoice, Plan};
use blkmq_lab::workload::{Direction, Job, Region, verify::Method};
use blkmq_terminal::UsageError;

/// Checks every job that verifies, on every device and with every number of threads.
///
/// # Errors
/// For the first job that cannot be verified.
pub fn check(plan: &Plan) -> Result<(), UsageError> {
    if plan.jobs.iter().all(|job| job.verify.is_none()) {
        return Ok(());
    }
    for device in &plan.devices {
        plan.jobs.iter().try_for_each(|job| keeps(job, device))?;
        for &numjobs in &plan.threads {
            apart(plan, device, &plan.threads_of(numjobs))?;
        }
    }
    Ok(())
}

fn keeps(job: &Job, device: &DeviceChoice) -> Result<(), UsageError> {
    match &job.verify {
        Some(verify) if verify.method != Method::Null && !device.keeps => {
            let (method, devices) = (verify.method, devices::keeping());
            let text = format!(
                "verify={method}, but this device keeps nothing of what is written; accepted: --device with one \
                 that does ({devices}), or verify=null, which does not look at contents"
            );
            Err(UsageError::new(text).at(format!("job '{}' on device {}", job.name, device.text)))
        }
        _ => Ok(()),
    }
}

/// One thread's part of the device, in bytes.
struct Part<'a> {
    job: &'a Job,
    thread: ThreadSpec,
    regions: Vec<Region>,
}

impl Part<'_> {
    fn writes(&self) -> bool {
        let only = self.job.verify.as_ref().is_some_and(|verify| verify.only);
        !only && self.job.rw.directions().iter().any(|way| *way != Direction::Read)
    }

    /// Returns two overlapping regions of the parts, or `None` if the verification of this part cannot read data
    /// written by `other` in the meantime.
    fn is_disturbed_by(&self, other: &Part<'_>, jobs: &[Job]) -> Option<[Region; 2]> {
        let at_once = self.job.verify.is_some()
            && other.writes()
            && self.thread.phase == other.thread.phase
            && !waits(jobs, self.thread.job, other.thread.job)
            && !waits(jobs, other.thread.job, self.thread.job);
        if !at_once {
            return None;
        }
        let end = |region: &Region| region.start + region.size;
        self.regions.iter().find_map(|mine| {
            let overlaps = |it: &&Region| mine.start < end(it) && it.start < end(mine);
            other.regions.iter().find(overlaps).map(|theirs| [*mine, *theirs])
        })
    }
}

/// Returns whether job `later` begins after job `earlier` (`wait_for`), directly or indirectly.
fn waits(jobs: &[Job], later: usize, earlier: usize) -> bool {
    let Some(awaited) = &jobs[later].wait_for else { return false };
    let named = (0..later).filter(|at| jobs[*at].name == *awaited);
    named.into_iter().any(|at| at == earlier || waits(jobs, at, earlier))
}

/// Quadratic in the threads, of which there are a few thousand at most.
fn apart(plan: &Plan, device: &DeviceChoice, threads: &[ThreadSpec]) -> Result<(), UsageError> {
    let part = |thread: &ThreadSpec| {
        let job = &plan.jobs[thread.job];
        // Other code checks that the job fits.
        let regions = job.regions(thread.thread, device.size_bytes).ok()?;
        Some(Part { job, thread: *thread, regions })
    };
    let parts = Vec::from_iter(threads.iter().filter_map(part));
    let disturbed = |verifying: &Part<'_>| {
        let others = parts.iter().filter(|other| other.thread != verifying.thread);
        let (other, [mine, theirs]) = others
            .into_iter()
            .find_map(|other| Some((other, verifying.is_disturbed_by(other, &plan.jobs)?)))?;
        let text = format!(
            "thread {} verifies bytes {} to {}, and thread {} of job '{}' writes from {} to {} meanwhile; \
             accepted: parts that do not overlap, such as size=1g with offset_increment=1g, or stonewall",
            verifying.thread.thread,
            mine.start,
            mine.start + mine.size,
            other.thread.thread,
            other.job.name,
            theirs.start,
            theirs.start + theirs.size,
        );
        Some(UsageError::new(text).at(format!("job '{}'", verifying.job.name)))
    };
    parts.iter().find_map(disturbed).map_or(Ok(()), Err)
}
