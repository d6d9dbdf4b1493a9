//! Refuses plans that cannot be verified: devices that store nothing, and threads that write where another thread
//! verifies at the same time.

use super::runs::ThreadSpec;
use super::{DeviceChoice, Plan};
use crate::devices;
use crate::error::UsageError;
use blkmq_lab::workload::{Direction, Job, verify::Method};

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
    start: u64,
    end: u64,
}

impl Part<'_> {
    fn writes(&self) -> bool {
        let only = self.job.verify.as_ref().is_some_and(|verify| verify.only);
        !only && self.job.rw.directions().iter().any(|way| *way != Direction::Read)
    }

    /// Can its verification read data that `other` has written meanwhile?
    fn is_disturbed_by(&self, other: &Part<'_>, jobs: &[Job]) -> bool {
        self.job.verify.is_some()
            && other.writes()
            && self.thread.phase == other.thread.phase
            && !waits(jobs, self.thread.job, other.thread.job)
            && !waits(jobs, other.thread.job, self.thread.job)
            && self.start < other.end
            && other.start < self.end
    }
}

/// Does job `later` begin behind job `earlier` (`wait_for`), or behind one that does?
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
        let region = job.region(thread.thread, device.size_bytes).ok()?;
        let (start, end) = (region.start, region.start + region.size);
        Some(Part { job, thread: *thread, start, end })
    };
    let parts = Vec::from_iter(threads.iter().filter_map(part));
    let disturbed = |verifying: &Part<'_>| {
        let other = parts.iter().find(|other| {
            other.thread != verifying.thread && verifying.is_disturbed_by(other, &plan.jobs)
        })?;
        let text = format!(
            "thread {} verifies bytes {} to {}, and thread {} of job '{}' writes from {} to {} meanwhile; \
             accepted: parts that do not overlap, such as size=1g with offset_increment=1g, or stonewall",
            verifying.thread.thread,
            verifying.start,
            verifying.end,
            other.thread.thread,
            other.job.name,
            other.start,
            other.end,
        );
        Some(UsageError::new(text).at(format!("job '{}'", verifying.job.name)))
    };
    parts.iter().find_map(disturbed).map_or(Ok(()), Err)
}
