//! The groups of threads that end together (`exitall`).

use crate::plan::Plan;
use crate::plan::runs::ThreadSpec;
use blkmq_lab::workload::Exit;
use std::collections::BTreeMap;

/// A word for each reporting group of a run, if its threads end together.
#[derive(Default)]
pub struct Exits(BTreeMap<u32, Exit>);

impl Exits {
    /// The groups of `threads`. As in fio, `exitall` of one job holds for all of them.
    pub fn new(plan: &Plan, threads: &[ThreadSpec]) -> Self {
        if !plan.jobs.iter().any(|job| job.exitall) {
            return Self::default();
        }
        Self(threads.iter().map(|thread| (thread.group, Exit::default())).collect())
    }

    /// The word of a thread's group.
    pub fn of(&self, thread: &ThreadSpec) -> Option<&Exit> {
        self.0.get(&thread.group)
    }
}
