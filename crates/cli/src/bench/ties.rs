//! The ties between the threads of a run: `exitall`, `wait_for` and `flow`.

use crate::plan::Plan;
use crate::plan::runs::ThreadSpec;
use blkmq_lab::workload::{Awaited, Exit, ExitWhat, FlowPool, Ties};
use std::collections::BTreeMap;

/// The ties of all threads of a run.
#[derive(Default)]
pub struct RunTies {
    /// The exit signal of each reporting group, and its phase, if threads end together.
    exits: BTreeMap<u32, (u32, Exit)>,
    /// The threads that a job waits for, by the job's index.
    awaited: BTreeMap<usize, Awaited>,
    flows: BTreeMap<u32, FlowPool>,
}

impl RunTies {
    /// Creates the ties of `threads`. As in fio, `exitall` of one job applies to all of them.
    pub fn new(plan: &Plan, threads: &[ThreadSpec]) -> Self {
        let mut ties = Self::default();
        if plan.jobs.iter().any(|job| job.exitall) {
            let word = |thread: &ThreadSpec| (thread.group, (thread.phase, Exit::default()));
            ties.exits = threads.iter().map(word).collect();
        }
        for (at, job) in plan.jobs.iter().enumerate() {
            if job.wait_for.is_some() {
                ties.awaited.insert(at, Awaited::default());
            }
            if let Some(flow) = job.flow {
                ties.flows.entry(flow.id).or_default();
            }
        }
        ties
    }

    /// The ties of a thread that is about to begin: from now on it takes part in its flow.
    pub fn of(&self, plan: &Plan, thread: &ThreadSpec) -> Ties {
        let job = &plan.jobs[thread.job];
        let waits = |(waiting, _): &(&usize, &Awaited)| {
            **waiting > thread.job && plan.jobs[**waiting].wait_for.as_ref() == Some(&job.name)
        };
        Ties {
            exit: self.exit(job.exit_what, thread),
            after: self.awaited.get(&thread.job).cloned(),
            awaited: self.awaited.iter().filter(waits).map(|(_, all)| all.member()).collect(),
            flow: job.flow.and_then(|flow| Some(self.flows.get(&flow.id)?.join(flow))),
        }
    }

    /// The exit signal of the thread's group for the threads selected by `what`.
    fn exit(&self, what: ExitWhat, thread: &ThreadSpec) -> Option<Exit> {
        let (_, own) = self.exits.get(&thread.group)?;
        let others = self.exits.values().filter(|(phase, _)| match what {
            ExitWhat::Group => false,
            ExitWhat::Stonewall => *phase == thread.phase,
            ExitWhat::All => true,
        });
        Some(own.with(others.map(|(_, exit)| exit)))
    }
}
