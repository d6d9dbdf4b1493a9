//! The exact commands of the comparison set, at full size and small.

use super::figures::{Cell, Fio, Workload};
use crate::shell::{BLKMQ, Cmd};

/// Policies whose cost is compared with having no block layer.
pub(super) const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

/// Policies that several threads share, in the kernel under one lock each.
pub(super) const CONTENDED: [&str; 2] = ["mq-deadline", "bfq"];

/// The policies compared with an elevator for each hardware queue: no scheduler, and one that schedules.
pub(super) const PER_QUEUE: [&str; 2] = ["none", "mq-deadline"];

/// How threads share the elevator; the first way is ours, the others are compared with it.
pub(super) const ACCESS: [&str; 3] = ["combining", "spin", "mutex"];

/// Plugs of 8, in fio's spelling.
const BATCHES: &str = "--iodepth_batch_submit=8 --iodepth_batch_complete=8";

/// The load of the published measurement of one lock: 512 B reads, four in flight, four at a time (seed 001).
const PUBLISHED: &str = "--rw=randread --bs=512 --iodepth=4 --iodepth_batch_submit=4 \
                         --iodepth_batch_complete=4 --gtod_reduce=1";

/// The size of the comparison.
pub(super) struct Plan {
    /// Repetitions of each command; medians are reported.
    pub(super) repetitions: u32,
    /// Submitting threads of the contention experiments.
    pub(super) threads: Vec<u32>,
    /// Hardware queues of the experiment with a policy for each: one, and as many as cores.
    pub(super) queues: Vec<u32>,
    /// The runtime of one repetition, in fio's spelling.
    runtime: &'static str,
}

impl Plan {
    /// The published size, for a machine with `cores` cores.
    pub(super) fn full(cores: u32) -> Self {
        let mut threads: Vec<u32> = (0..).map(|n| 1 << n).take_while(|n| *n <= cores).collect();
        threads.extend([cores, 2 * cores, 16]);
        threads.sort_unstable();
        threads.dedup();
        let queues = if cores > 1 { vec![1, cores] } else { vec![1] };
        Self { repetitions: 5, threads, queues, runtime: "1" }
    }

    /// Every command once and briefly, to check that it works. The figures mean nothing.
    pub(super) fn test_size() -> Self {
        Self { repetitions: 1, threads: vec![1, 2], queues: vec![1, 2], runtime: "50ms" }
    }

    /// The part of every command line that fio and blkmq share.
    fn workload(&self) -> String {
        format!("{} --gtod_reduce=1", self.timed())
    }

    fn timed(&self) -> String {
        format!("--bs=4k --iodepth=32 {}", self.endless())
    }

    fn endless(&self) -> String {
        format!("--runtime={} --time_based --norandommap", self.runtime)
    }

    /// Each experiment of several threads, with its command.
    pub(super) fn together(&self) -> [(Workload, Cmd); 3] {
        [
            (Workload::Contention, self.contention()),
            (Workload::Plugs, self.plugs()),
            (Workload::PerQueue, self.per_queue()),
        ]
    }

    /// One elevator, several threads, three ways to share it, the load of the published figures.
    fn contention(&self) -> Cmd {
        self.ours(&format!(
            "--device null,submit_queues=1,irqmode=0,hw_queue_depth=1024 --scheduler {} --access spin,mutex,combining \
             --threads {} {PUBLISHED} {}",
            CONTENDED.join(","),
            list(&self.threads),
            self.endless(),
        ))
    }

    /// Like [`contention`](Self::contention), but with larger plugs and more I/Os in flight.
    fn plugs(&self) -> Cmd {
        self.ours(&format!(
            "--device null,submit_queues=1,irqmode=0,hw_queue_depth=1024 --scheduler mq-deadline \
             --access spin,mutex,combining --threads {} --rw=randwrite {} {BATCHES}",
            list(&self.threads),
            self.workload(),
        ))
    }

    /// A policy for each of as many hardware queues as cores, one I/O at a time, with its latency.
    fn per_queue(&self) -> Cmd {
        let queues = self.queues.last().expect("there is at least one");
        self.ours(&format!(
            "--device null,submit_queues={queues},irqmode=0 --scope hwqueue --scheduler {} --access combining \
             --threads {} --rw=randwrite {}",
            PER_QUEUE.join(","),
            list(&self.queues),
            self.timed(),
        ))
    }

    fn ours(&self, options: &str) -> Cmd {
        let repetitions = self.repetitions;
        Cmd::new(&format!("{BLKMQ} bench {options} --repeat {repetitions} --output-format json"))
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
        let together = self.together().map(|(_, cmd)| cmd.to_string());
        let alone = SCHEDULERS.iter().map(|scheduler| self.alone(scheduler).to_string());
        let fio = Fio::ALL.map(|fio| self.fio(fio).to_string());
        together.into_iter().chain(alone).chain(fio).collect()
    }

    /// The cells of an experiment of several threads, a row for each scheduler and number of threads.
    pub(super) fn rows(&self, workload: Workload) -> Vec<Vec<Cell>> {
        let (schedulers, threads): (&[&str], _) = match workload {
            Workload::Contention => (&CONTENDED, &self.threads),
            Workload::Plugs => (&["mq-deadline"], &self.threads),
            Workload::PerQueue => (&PER_QUEUE, &self.queues),
            Workload::Alone => unreachable!("that is one thread"),
        };
        let ways: &[&str] = if workload == Workload::PerQueue { &ACCESS[..1] } else { &ACCESS };
        let row = |scheduler: &str, threads: u32| {
            ways.iter().map(|access| Cell::new(workload, scheduler, access, threads)).collect()
        };
        schedulers.iter().flat_map(|name| threads.iter().map(move |n| row(name, *n))).collect()
    }
}

fn list(counts: &[u32]) -> String {
    let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
    counts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_and_blkmq_get_the_same_workload() {
        let plan = Plan::full(2);
        let workload = plan.workload();
        for scheduler in SCHEDULERS {
            assert!(plan.alone(scheduler).to_string().contains(&workload));
        }
        for fio in Fio::ALL {
            assert!(plan.fio(fio).to_string().contains(&workload));
        }
    }

    #[test]
    fn threads_go_up_to_twice_the_cores_and_to_sixteen() {
        assert_eq!(Plan::full(1).threads, [1, 2, 16]);
        assert_eq!(Plan::full(2).threads, [1, 2, 4, 16]);
        assert_eq!(Plan::full(6).threads, [1, 2, 4, 6, 12, 16]);
        assert_eq!(Plan::full(16).threads, [1, 2, 4, 8, 16, 32]);
        assert_eq!((Plan::full(1).queues, Plan::full(16).queues), (vec![1], vec![1, 16]));
    }

    #[test]
    fn each_cell_has_its_row() {
        let plan = Plan::full(2);
        let rows = plan.rows(Workload::Contention);
        assert_eq!((rows.len(), rows[0].len()), (8, 3));
        assert_eq!(rows[4][2], Cell::new(Workload::Contention, "bfq", "mutex", 1));
        assert_eq!(plan.rows(Workload::Plugs).len(), 4);
        let each = |n| [Cell::new(Workload::PerQueue, "none", "combining", n)].to_vec();
        assert_eq!(plan.rows(Workload::PerQueue)[..2], [each(1), each(2)]);
    }
}
