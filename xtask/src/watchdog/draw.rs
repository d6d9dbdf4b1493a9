//! A round of the watchdog: the load, the queue and the busy loops determined by a seed.
//!
//! The same seed gives the same round on every machine, so a seed in the output is enough to repeat it. Nothing is run
//! here.

use crate::random::SplitMix64;
use crate::shell::Cmd;
use std::fmt;
use std::path::Path;

/// Seconds of a round's load.
const RUNTIME: u32 = 3;

const SCHEDULERS: [&str; 5] = ["none", "mq-deadline", "kyber", "bfq", "mclock"];
const MOST_READERS: u32 = 96;
const MOST_WRITERS: u32 = 6;
const IODEPTHS: [u32; 4] = [1, 2, 8, 32];
const HW_QUEUE_DEPTHS: [u32; 5] = [1, 2, 4, 32, 128];
const HW_QUEUES: [Option<u32>; 3] = [None, Some(1), Some(2)];
const BUSY_LOOPS: [u32; 4] = [0, 1, 2, 4];
/// One round in this many has pump threads, which few programs use.
const PUMP_THREADS_IN: u32 = 8;

/// The drawn parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Round {
    pub(super) seed: u64,
    pub(super) scheduler: &'static str,
    /// Threads that read 4 KiB at random places.
    readers: Threads,
    /// Threads that write 256 KiB at random places; there may be none.
    writers: Threads,
    hw_queue_depth: u32,
    /// The device's own number if `None`.
    hw_queues: Option<u32>,
    /// In the spelling of `--pump`.
    pump: &'static str,
    pub(super) busy_loops: u32,
}

/// The threads of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Threads {
    numjobs: u32,
    iodepth: u32,
}

impl Round {
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let scheduler = random.pick(&SCHEDULERS);
        let readers =
            Threads { numjobs: 1 + random.below(MOST_READERS), iodepth: random.pick(&IODEPTHS) };
        let writers =
            Threads { numjobs: random.below(MOST_WRITERS + 1), iodepth: random.pick(&IODEPTHS) };
        Self {
            seed,
            scheduler,
            readers,
            writers,
            hw_queue_depth: random.pick(&HW_QUEUE_DEPTHS),
            hw_queues: random.pick(&HW_QUEUES),
            pump: if random.below(PUMP_THREADS_IN) == 0 { "threads" } else { "inline" },
            busy_loops: random.pick(&BUSY_LOOPS),
        }
    }

    /// Threads of its load.
    pub(super) fn threads(&self) -> u32 {
        self.readers.numjobs + self.writers.numjobs
    }

    /// The command of its load, on the first GiB of `file`, with the results in `report`.
    pub(super) fn command(&self, blkmq: &str, file: &Path, report: &Path) -> Cmd {
        let mut device = format!("uring:{},hw_queue_depth={}", file.display(), self.hw_queue_depth);
        if let Some(hw_queues) = self.hw_queues {
            device += &format!(",hw_queues={hw_queues}");
        }
        let cmd = Cmd::new("")
            .arg(blkmq)
            .arg("bench")
            .arg(format!("--scheduler={}", self.scheduler))
            .arg(format!("--device={device}"))
            .arg(format!("--pump={}", self.pump))
            .arg(format!("--output={}", report.display()));
        let mut line = format!(
            "--direct=1 --runtime={RUNTIME} --time_based --repeat=1 --size=1G --output-format=json "
        );
        line += &self.readers.job("r", "randread", "4k");
        if self.writers.numjobs > 0 {
            line += &self.writers.job("w", "randwrite", "256k");
        }
        line.split_whitespace().fold(cmd, Cmd::arg)
    }
}

impl Threads {
    fn job(self, name: &str, rw: &str, bs: &str) -> String {
        let Self { numjobs, iodepth } = self;
        format!(
            "--name={name} --rw={rw} --bs={bs} --iodepth={iodepth} --numjobs={numjobs} --group_reporting "
        )
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, scheduler, readers, writers, hw_queue_depth, pump, busy_loops, .. } = self;
        write!(f, "seed {seed}: {scheduler}, readers {}x{}", readers.numjobs, readers.iodepth)?;
        if writers.numjobs > 0 {
            write!(f, ", writers {}x{}", writers.numjobs, writers.iodepth)?;
        }
        write!(f, ", hw_queue_depth {hw_queue_depth}")?;
        if let Some(hw_queues) = self.hw_queues {
            write!(f, ", hw_queues {hw_queues}")?;
        }
        write!(f, ", pump {pump}, busy loops {busy_loops}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_always_gives_the_same_round() {
        for seed in [0, 1, 2, u64::MAX] {
            assert_eq!(Round::draw(seed), Round::draw(seed));
        }
        assert_ne!(Round::draw(1), Round { seed: 1, ..Round::draw(2) });
        let shown = "seed 1: kyber, readers 72x32, writers 3x2, hw_queue_depth 32, hw_queues 2, pump inline, busy loops 1";
        assert_eq!(Round::draw(1).to_string(), shown);
    }

    #[test]
    fn every_value_is_drawn_and_none_beyond_the_bounds() {
        let rounds: Vec<Round> = (0..20_000).map(Round::draw).collect();
        let values = |of: fn(&Round) -> u32| rounds.iter().map(of).collect::<BTreeSet<u32>>();
        let are = |values: &[u32]| values.iter().copied().collect();
        assert_eq!(values(|it| it.readers.numjobs), (1..=96).collect());
        assert_eq!(values(|it| it.writers.numjobs), (0..=6).collect());
        assert_eq!(values(|it| it.readers.iodepth), are(&IODEPTHS));
        assert_eq!(values(|it| it.writers.iodepth), are(&IODEPTHS));
        assert_eq!(values(|it| it.hw_queue_depth), are(&HW_QUEUE_DEPTHS));
        assert_eq!(values(|it| it.hw_queues.unwrap_or(0)), are(&[0, 1, 2]));
        assert_eq!(values(|it| it.busy_loops), are(&BUSY_LOOPS));
        let names: BTreeSet<&str> = rounds.iter().map(|it| it.scheduler).collect();
        assert_eq!(names, SCHEDULERS.into());
        let threads = rounds.iter().filter(|it| it.pump == "threads").count();
        assert!((2_000..3_000).contains(&threads), "{threads} of 20000 rounds");
    }

    #[test]
    fn the_command_has_all_that_was_drawn() {
        let round = Round {
            seed: 7,
            scheduler: "kyber",
            readers: Threads { numjobs: 64, iodepth: 1 },
            writers: Threads { numjobs: 4, iodepth: 2 },
            hw_queue_depth: 4,
            hw_queues: Some(2),
            pump: "threads",
            busy_loops: 2,
        };
        let line = |round: &Round| {
            round.command("blkmq", Path::new("/d/file"), Path::new("/d/report")).to_string()
        };
        assert_eq!(round.threads(), 68);
        assert_eq!(
            line(&round),
            "blkmq bench --scheduler=kyber --device=uring:/d/file,hw_queue_depth=4,hw_queues=2 --pump=threads \
             --output=/d/report --direct=1 --runtime=3 --time_based --repeat=1 --size=1G --output-format=json --name=r \
             --rw=randread --bs=4k --iodepth=1 --numjobs=64 --group_reporting --name=w --rw=randwrite --bs=256k \
             --iodepth=2 --numjobs=4 --group_reporting"
        );
        let idle = Threads { numjobs: 0, iodepth: 2 };
        let alone = Round { writers: idle, hw_queues: None, ..round };
        assert!(!line(&alone).contains("--name=w"), "{}", line(&alone));
        assert!(!line(&alone).contains("hw_queues"), "{}", line(&alone));
    }
}
