//! The exact commands of the comparison set, at full size and small.

use crate::shell::{BLKMQ, Cmd};

/// Policies whose cost is compared with having no block layer at all.
pub(super) const SCHEDULERS: [&str; 2] = ["none", "mq-deadline"];

/// How threads reach the elevator; the first is ours, the others are what it is compared with.
pub(super) const ACCESS: [&str; 3] = ["combining", "spin", "mutex"];

/// Plugs of 8, in fio's spelling.
const BATCHES: &str = "--iodepth_batch_submit=8 --iodepth_batch_complete=8";

/// How fio is asked for the work of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fio {
    /// One I/O at a time, as fio does it unless told otherwise.
    Plain,
    /// In batches of 8. Its null engine then does not even see single I/Os.
    Batched,
}

impl Fio {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Batched];

    /// In place of a way to reach an elevator, which fio has not.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "fio",
            Self::Batched => "fio, batches of 8",
        }
    }
}

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

    /// The part of every command line that fio and blkmq share.
    fn workload(&self) -> String {
        format!(
            "--bs=4k --iodepth=32 --runtime={} --time_based --norandommap --gtod_reduce=1",
            self.runtime
        )
    }

    /// One elevator, several threads, three ways to reach it.
    pub(super) fn contention(&self) -> Cmd {
        let threads: Vec<String> = self.threads.iter().map(ToString::to_string).collect();
        Cmd::new(&format!(
            "{BLKMQ} bench --device null,submit_queues=1,irqmode=0,hw_queue_depth=1024 \
             --scheduler mq-deadline --access spin,mutex,combining --threads {} \
             --rw=randwrite {} {BATCHES} --repeat {} --output-format json",
            threads.join(","),
            self.workload(),
            self.repetitions,
        ))
    }

    /// One thread through the whole block layer.
    pub(super) fn alone(&self, scheduler: &str) -> Cmd {
        Cmd::new(&format!(
            "{BLKMQ} bench --device null,submit_queues=1,irqmode=0 --scheduler {scheduler} \
             --access combining --threads 1 --rw=randread --size=1g {} {BATCHES} --repeat 1 \
             --output-format json",
            self.workload(),
        ))
    }

    /// The same work through fio's null engine, which has no block layer.
    pub(super) fn fio(&self, fio: Fio) -> Cmd {
        let batches = match fio {
            Fio::Plain => "",
            Fio::Batched => BATCHES,
        };
        Cmd::new(&format!(
            "fio --name=null --ioengine=null --rw=randread --size=1g {} {batches} \
             --output-format=json",
            self.workload(),
        ))
    }

    /// Every command, for the record.
    pub(super) fn commands(&self) -> Vec<String> {
        let alone = SCHEDULERS.iter().map(|scheduler| self.alone(scheduler).to_string());
        [self.contention().to_string()]
            .into_iter()
            .chain(alone)
            .chain(Fio::ALL.map(|fio| self.fio(fio).to_string()))
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
