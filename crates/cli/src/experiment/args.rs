//! The command `blkmq experiment`: its page, its options, and their meaning.

use super::store::Shard;
use blkmq_terminal::page::Page;
use clap::builder::ValueHint;
use clap::{Arg, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};

const PAGE: Page = Page {
    name: "experiment",
    summary: "run a grid of simulations, benchmarks or replays, and compare",
    description: "\
Makes a run at each point of a grid of options, and compares one axis: for each job and figure the difference of each value \
from the first one, over pairs of runs with the same seed, with a 95 % interval, or that there is none. Simulations run on \
all CPUs, benchmarks in real time one after the other.

The results are a folder: a line of JSON for each point as soon as it is done, and at the end all of them in the order of \
the grid (runs.jsonl), a table (runs.csv) and a page with plots (page.html). The same command continues where a run was \
ended, however it was. --shard divides the points among machines or the tasks of a batch system; the word merge instead of \
a file puts the shards of a folder together.",
    examples: &[
        "blkmq experiment study.toml",
        "blkmq experiment study.toml --shard=2/3 --out=results",
        "blkmq experiment merge --out=results",
    ],
};

/// The form of the file.
const NOTES: &str = "\
The file is TOML. Options are those of the command, and an axis JOB.OPTION is of one job:
  program = \"sim\"                  # or bench, or replay with trace = \"FILE\"
  options = { device = \"disk\", runtime = \"10s\", time_based = true }
  job = [
      { name = \"reader\", rw = \"randread\", bs = \"4k\" },
      { name = \"writers\", rw = \"write\", bs = \"128k\", iodepth = 16 },
  ]
  [grid]
  scheduler = [\"none\", \"mq-deadline\", \"bfq\"]
  seed = \"1..10\"
  [compare]                        # may be left out
  axis = \"scheduler\"               # what is compared (default: scheduler)
  with = \"none\"                    # with this value (default: the first)
  pair = \"seed\"                    # over pairs with the same value (default: seed)
  metrics = [\"reader.read_p99\", \"iops\"]
  least = 1                        # percent; smaller differences are none
  names = { bfq = \"proposed\" }     # of values, for the results (default: none)
A figure of a job is iops, bytes_per_s, or one of read, write, trim and sync with _iops, _mean, _max or a percentile, as \
read_p99.9. A figure of the whole run is merged (the share of I/Os), request_bytes, cpu_per_io, kicks_per_io, waiting (the \
share of the threads' time for a lock) or inversions (of a thousand requests).";

/// The task.
pub enum Wanted {
    /// Run the points of a study.
    Run {
        /// The study file.
        file: PathBuf,
        /// The folder of results.
        out: PathBuf,
        /// The points.
        shard: Shard,
        /// Threads.
        threads: usize,
    },
    /// Put the shards of a folder together.
    Merge {
        /// The folder.
        out: PathBuf,
    },
}

/// The command.
pub fn definition() -> Command {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    PAGE.command(NOTES).args([
        Arg::new("file")
            .value_name("FILE.toml|merge")
            .required(true)
            .value_hint(ValueHint::FilePath)
            .help("the experiment, or the word merge"),
        option("out", "DIR").value_hint(ValueHint::DirPath).help(
            "the folder of the results (default: the name of the file without its ending; of merge, .)",
        ),
        option("shard", "I/N")
            .value_parser(Shard::parse)
            .help("only the I-th of N parts of the points; they are put together by merge"),
        option("threads", "N")
            .value_parser(value_parser!(u16).range(1..=1024))
            .help("simulations at a time (default: as many as there are CPUs)"),
    ])
}

impl Wanted {
    /// Converts the arguments that clap has parsed.
    ///
    /// # Errors
    /// If an option does not apply to merge.
    pub fn of(found: &ArgMatches) -> Result<Self, blkmq_terminal::UsageError> {
        let file = found.get_one::<String>("file").expect("clap refuses a line without it");
        let out = found.get_one::<String>("out").map(PathBuf::from);
        if file == "merge" {
            if let Some(name) = ["shard", "threads"].into_iter().find(|it| found.contains_id(it)) {
                let text = format!("--{name}: not of merge, which makes no run; accepted: --out");
                return Err(blkmq_terminal::UsageError::new(text));
            }
            return Ok(Self::Merge { out: out.unwrap_or_else(|| ".".into()) });
        }
        let threads = found.get_one::<u16>("threads").copied();
        Ok(Self::Run {
            out: out.unwrap_or_else(|| Path::new(file).with_extension("")),
            file: file.into(),
            shard: found.get_one("shard").copied().unwrap_or(Shard::ALL),
            threads: threads.unwrap_or_else(blkmq_runtime::available_cpus).into(),
        })
    }
}
