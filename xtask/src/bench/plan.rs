//! The exact commands of the comparison set, at full size and small.

use crate::shell::{BLKMQ, Cmd};

/// Policies whose cost is compared with having no block layer at all.
pub(super) const SCHEDULERS: [&str; 2] = ["none", "mq-deadline"];

/// How threads reach the elevator; the first is ours, the others are what it is compared with.
pub(super) const ACCESS: [&str; 3] = ["combining", "spin", "mutex"];

/// How much to run.
pub(super) struct Plan {
    /// Of each command; medians are reported.
    pub(super) repetitions: u32,
    /// Submitting threads of the contention experiment.
    pub(super) threads: &'static [u32],
    /// Of one repetition, in fio's spelling.
    runtime: &'static str,
}

impl Plan {
    /// What is published.
    pub(super) fn full() -> Self {
        Self { repetitions: 5, threads: &[1, 2, 4, 16], runtime: "1" }
    }

    /// Every command once and briefly, to see that it works. The figures mean nothing.
    pub(super) fn test_size() -> Self {
        Self { repetitions: 1, threads: &[1, 2], runtime: "50ms" }
    }

    /// The part of the command line that fio and blkmq share.
    fn workload(&self) -> String {
        format!(
            "--bs=4k --iodepth=32 --iodepth_batch_submit=8 --iodepth_batch_complete=8 \
             --runtime={} --time_based --norandommap --gtod_reduce=1",
            self.runtime
        )
    }

    /// One elevator, several threads, three ways to reach it.
    pub(super) fn contention(&self) -> Cmd {
        let threads: Vec<String> = self.threads.iter().map(ToString::to_string).collect();
        Cmd::new(&format!(
            "{BLKMQ} bench --device null,submit_queues=1,irqmode=0,hw_queue_depth=1024 \
             --scheduler mq-deadline --access spin,mutex,combining --threads {} \
             --rw=randwrite {} --repeat {} --output-format json",
            threads.join(","),
            self.workload(),
            self.repetitions,
        ))
    }

    /// One thread through the whole block layer.
    pub(super) fn alone(&self, scheduler: &str) -> Cmd {
        Cmd::new(&format!(
            "{BLKMQ} bench --device null,submit_queues=1,irqmode=0 --scheduler {scheduler} \
             --access combining --threads 1 --rw=randread --size=1g {} --repeat 1 \
             --output-format json",
            self.workload(),
        ))
    }

    /// The same work through fio's null engine, which has no block layer.
    pub(super) fn fio(&self) -> Cmd {
        Cmd::new(&format!(
            "fio --name=null --ioengine=null --rw=randread --size=1g {} --output-format=json",
            self.workload(),
        ))
    }

    /// Every command, for the record.
    pub(super) fn commands(&self) -> Vec<String> {
        let alone = SCHEDULERS.iter().map(|scheduler| self.alone(scheduler).to_string());
        [self.contention().to_string()]
            .into_iter()
            .chain(alone)
            .chain([self.fio().to_string()])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_and_blkmq_get_the_same_workload() {
        let plan = Plan::full();
        let workload = plan.workload();
        for command in plan.commands() {
            assert!(command.contains(&workload), "{command}");
        }
    }
}
