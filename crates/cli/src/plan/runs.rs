//! The runs that a plan expands to, in order.

use super::{AccessChoice, DeviceChoice, Plan, SchedulerChoice, ScopeChoice};
use blkmq_core::Nanos;
use blkmq_sched::Scope;

/// One run: one queue, built and torn down.
#[derive(Clone, Debug)]
pub struct RunSpec<'a> {
    /// Runs with the same number repeat one measurement. Counts from 0 without gaps.
    pub case: usize,
    /// The number of the repetition of the case, from 0.
    pub repetition: u32,
    /// The device.
    pub device: &'a DeviceChoice,
    /// The scheduler.
    pub scheduler: &'a SchedulerChoice,
    /// How threads share the elevator.
    pub access: &'a AccessChoice,
    /// How many elevators there are.
    pub scope: Scope,
    /// Every thread of every job.
    pub threads: Vec<ThreadSpec>,
}

impl RunSpec<'_> {
    /// Returns this run with `scheduler` and its scope.
    pub fn under<'b>(&'b self, plan: &Plan, scheduler: &'b SchedulerChoice) -> RunSpec<'b> {
        RunSpec { scheduler, scope: plan.scope_of(scheduler), ..self.clone() }
    }

    /// The seed of this repetition: each has a different one, or it would be the same run again.
    pub fn seed_of(&self, seed: u64) -> u64 {
        seed.wrapping_add(self.repetition.into())
    }
}

/// One thread of one job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadSpec {
    /// Index into the plan's jobs.
    pub job: usize,
    /// Index within the job, from 0: the `thread` of the workload generator.
    pub thread: u32,
    /// Reporting group (`new_group`, `stonewall`), from 0.
    pub group: u32,
    /// Threads of phase n start when all threads of phase n - 1 have ended (`stonewall`), from 0.
    pub phase: u32,
}

impl Plan {
    /// Every run, in the order in which they happen. Repetitions are the outermost loop and schedulers the innermost,
    /// so that compared runs are close together in time and a drift of the machine affects all alike.
    pub fn runs(&self) -> Vec<RunSpec<'_>> {
        let mut runs = Vec::new();
        for repetition in 0..self.repeat {
            let mut case = 0;
            for device in &self.devices {
                for &numjobs in &self.threads {
                    for access in &self.access {
                        for scheduler in &self.schedulers {
                            let scope = self.scope_of(scheduler);
                            let threads = self.threads_of(numjobs);
                            let spec = RunSpec {
                                case,
                                repetition,
                                device,
                                scheduler,
                                access,
                                scope,
                                threads,
                            };
                            runs.push(spec);
                            case += 1;
                        }
                    }
                }
            }
        }
        runs
    }

    /// The number of different measurements.
    pub fn cases(&self) -> usize {
        self.devices.len() * self.threads.len() * self.access.len() * self.schedulers.len()
    }

    /// The number of elevators of a queue with `scheduler`.
    pub fn scope_of(&self, scheduler: &SchedulerChoice) -> Scope {
        match self.scope {
            None => scheduler.factory.scope,
            Some(ScopeChoice::Queue) => Scope::Queue,
            Some(ScopeChoice::HwQueue) => Scope::HwQueue,
        }
    }

    /// The threads of a run with `numjobs` threads per job, or as many as each job says.
    pub fn threads_of(&self, numjobs: Option<u32>) -> Vec<ThreadSpec> {
        let mut threads = Vec::new();
        let (mut group, mut phase) = (0, 0);
        for (job, spec) in self.jobs.iter().enumerate() {
            if job > 0 {
                // As in fio, a stonewall also begins a new group.
                group += u32::from(spec.new_group || spec.stonewall);
                phase += u32::from(spec.stonewall);
            }
            let count = numjobs.unwrap_or(spec.numjobs);
            threads.extend((0..count).map(|thread| ThreadSpec { job, thread, group, phase }));
        }
        threads
    }

    /// How long a run takes: the longest job of each phase. `None` if a job has no runtime; it then ends when its I/O
    /// is done.
    pub fn run_time(&self) -> Option<Nanos> {
        let (mut done, mut phase, mut ends) = (0u64, 0u64, Vec::new());
        for (i, job) in self.jobs.iter().enumerate() {
            if i > 0 && job.stonewall {
                done = done.saturating_add(std::mem::take(&mut phase));
            }
            let named = |at: &usize| Some(&self.jobs[*at].name) == job.wait_for.as_ref();
            let behind = (0..i).filter(named).map(|at| ends[at]).max().unwrap_or(0);
            let start = done.saturating_add(job.startdelay.0).max(behind);
            let end = start.saturating_add(job.ramp_time.0).saturating_add(job.runtime?.0);
            phase = phase.max(end - done);
            ends.push(end);
        }
        Some(Nanos(done.saturating_add(phase)))
    }
}
