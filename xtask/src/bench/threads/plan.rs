//! The size of `bench --threads`, from its options, and the commands of both sides.
//!
//! Both sides get the same words for the load. Ours gets no other setting: the defaults are compared.

use crate::Result;
use crate::measurement::number;
use crate::shell::{BLKMQ, Cmd};
use std::fmt;
use std::path::{Path, PathBuf, absolute};

/// The schedulers in the order of the table.
const SCHEDULERS: [&str; 5] = ["none", "mq-deadline", "kyber", "bfq", "mclock"];
const THREADS: [u32; 6] = [1, 2, 4, 8, 16, 64];
const DEPTHS: [u32; 3] = [1, 8, 32];

/// Threads, and the I/Os that each keeps in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) threads: u32,
    pub(super) depth: u32,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.threads, self.depth)
    }
}

/// The direction of the I/Os, all of 4 KiB at random offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

impl Direction {
    /// The name in fio's spelling.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "randread",
            Self::Write => "randwrite",
        }
    }
}

/// The target of the I/Os.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A file in the build folder, created for the measurement.
    File,
    /// A loop device over a file on tmpfs, created for the measurement.
    Loop,
    /// A file or a device that is there, by its absolute path.
    Given(PathBuf),
}

/// The size of the measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(super) rows: Vec<Row>,
    pub(super) schedulers: Vec<&'static str>,
    pub(super) directions: &'static [Direction],
    /// Runs of each side in each row; the medians are reported.
    pub(super) rounds: u32,
    /// The length of a run.
    pub(super) milliseconds: u64,
    /// MiB of the file.
    pub(super) size: u64,
    /// Shell loops keep CPUs busy during the runs.
    pub(super) busy: bool,
    pub(super) place: Place,
    /// The program that is measured.
    pub(super) program: String,
}

impl Plan {
    /// The published size: half an hour for a direction.
    fn full() -> Self {
        let row = |threads| DEPTHS.map(|depth| Row { threads, depth });
        Self {
            rows: THREADS.into_iter().flat_map(row).collect(),
            schedulers: SCHEDULERS.into(),
            directions: &[Direction::Read],
            rounds: 7,
            milliseconds: 2_000,
            size: 1024,
            busy: false,
            place: Place::File,
            program: BLKMQ.into(),
        }
    }

    /// The size of `bench --layers`: five minutes.
    pub(super) fn of_layers() -> Self {
        let rows = [1, 32].map(|depth| Row { threads: 2, depth });
        Self { rows: rows.into(), size: 512, ..Self::full() }
    }

    /// As [`of_layers`](Self::of_layers), to see that it works.
    pub(crate) fn layers_at_test_size() -> Self {
        let Self { rounds, milliseconds, size, .. } = Self::test_size();
        Self { rounds, milliseconds, size, ..Self::of_layers() }
    }

    /// A run of every kind, to check that it works. The figures mean nothing.
    pub(crate) fn test_size() -> Self {
        Self {
            rows: vec![Row { threads: 2, depth: 8 }],
            schedulers: vec!["none", "bfq"],
            directions: &[Direction::Read, Direction::Write],
            rounds: 1,
            // Beside the loops a thread may get no CPU for some time, and a run without I/O is an error.
            milliseconds: 300,
            size: 16,
            busy: true,
            ..Self::full()
        }
    }

    /// The size given by the words behind `--threads`.
    ///
    /// # Errors
    /// If an option is unknown, or its word is missing or wrong.
    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let mut plan = Self::full();
        let (mut write, mut both) = (false, false);
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let mut word = || args.next().ok_or_else(|| format!("{name} needs a word"));
            match name.as_str() {
                "--rows" => plan.rows = rows(word()?)?,
                "--schedulers" => plan.schedulers = schedulers(word()?)?,
                "--rounds" => plan.rounds = number(word()?)?,
                "--seconds" => plan.milliseconds = u64::from(number(word()?)?) * 1_000,
                "--busy" => plan.busy = true,
                "--write" => write = true,
                "--both" => both = true,
                "--file" => plan.put(Place::Given(absolute(word()?)?))?,
                "--loop" => plan.put(Place::Loop)?,
                "--blkmq" => plan.program = absolute(word()?)?.display().to_string(),
                other => return Err(format!("bench --threads does not know {other}").into()),
            }
        }
        plan.directions = match (write, both) {
            (_, true) => &[Direction::Read, Direction::Write],
            (true, false) => &[Direction::Write],
            (false, false) => &[Direction::Read],
        };
        Ok(plan)
    }

    fn put(&mut self, place: Place) -> Result<()> {
        if self.place != Place::File {
            return Err("one --file or one --loop".into());
        }
        self.place = place;
        Ok(())
    }

    /// Returns whether the measured program is built here, not given by an option.
    pub(crate) fn builds(&self) -> bool {
        self.program == BLKMQ
    }

    /// The line above a table.
    pub(super) fn title(&self, direction: Direction) -> String {
        let place = match &self.place {
            Place::File => "a file".to_owned(),
            Place::Loop => "a loop device over tmpfs".to_owned(),
            Place::Given(path) => path.display().to_string(),
        };
        let busy = if self.busy { ", with two busy loops" } else { "" };
        format!(
            "4 KiB {} on {place}{busy}, beside fio's io_uring engine: medians of {} rounds, runs of {} s",
            direction.name(),
            self.rounds,
            self.milliseconds as f64 / 1e3,
        )
    }

    /// The part of the command line that both sides share.
    fn load(&self, row: Row, direction: Direction) -> String {
        let Row { threads, depth } = row;
        format!(
            "--name=threads --rw={} --bs=4k --iodepth={depth} --numjobs={threads} --direct=1 --size={}m --norandommap \
             --time_based --runtime={}ms --lat_percentiles=1 --group_reporting --output-format=json",
            direction.name(),
            self.size,
            self.milliseconds,
        )
    }

    /// The run of fio.
    pub(super) fn fio(&self, row: Row, direction: Direction, path: &str) -> Cmd {
        let engine = Cmd::new("fio --ioengine=io_uring --thread").arg(format!("--filename={path}"));
        words(engine, &self.load(row, direction))
    }

    /// The run of `blkmq bench` with a scheduler.
    pub(super) fn ours(&self, scheduler: &str, row: Row, direction: Direction, path: &str) -> Cmd {
        // By default bfq favours threads that have just started, and lets the device idle for them.
        let setting = if scheduler == "bfq" { ":low_latency=0" } else { "" };
        let bench = self.bench(&format!("--scheduler={scheduler}{setting} --repeat=1"));
        words(bench.arg(format!("--device=uring:{path}")), &self.load(row, direction))
    }

    /// The run that creates a file with random bytes, since holes are read without accessing the disk.
    pub(super) fn fill(&self, path: &Path) -> Cmd {
        let device = format!("--device=uring:{},size={}", path.display(), self.size);
        self.bench("--scheduler=none --rw=randread --bs=4k --number_ios=1 --output-format=json")
            .arg(device)
    }

    pub(super) fn bench(&self, options: &str) -> Cmd {
        words(Cmd::new("").arg(self.program.clone()).arg("bench"), options)
    }
}

pub(super) fn words(cmd: Cmd, line: &str) -> Cmd {
    line.split_whitespace().fold(cmd, Cmd::arg)
}

/// The rows of `1x1,4x32`.
fn rows(list: &str) -> Result<Vec<Row>> {
    let row = |word: &str| -> Result<Row> {
        let (threads, depth) = word.split_once('x').ok_or_else(|| {
            format!("'{word}' is no row: threads and depth, as in --rows 1x1,4x32")
        })?;
        Ok(Row { threads: number(threads)?, depth: number(depth)? })
    };
    list.split(',').map(row).collect()
}

/// The schedulers of `none,bfq`.
fn schedulers(list: &str) -> Result<Vec<&'static str>> {
    let known = |word: &str| -> Result<&'static str> {
        let found = SCHEDULERS.into_iter().find(|name| *name == word);
        found.ok_or_else(|| format!("'{word}' is none of {}", SCHEDULERS.join(", ")).into())
    };
    list.split(',').map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn all_rows_are_the_default_and_others_are_read() {
        let all = parse("").unwrap();
        assert_eq!(all, Plan::full());
        assert_eq!(all.rows.len(), 18);
        assert_eq!(
            (all.rows[4].to_string(), all.rows[17].to_string()),
            ("2x8".into(), "64x32".into())
        );
        let some = rows("1x1,4x32").unwrap();
        assert_eq!(some, [Row { threads: 1, depth: 1 }, Row { threads: 4, depth: 32 }]);
        for bad in ["", "4", "4x", "x4", "0x1", "1x0", "1x1,", "1x1x1", "-1x1", "1 x 1"] {
            assert!(rows(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_are_read() {
        let line = "--rows 2x1 --schedulers none,mclock --rounds 3 --seconds 5 --busy --file /f --blkmq /b --write";
        let plan = parse(line).unwrap();
        assert_eq!(plan.rows, [Row { threads: 2, depth: 1 }]);
        assert_eq!(plan.schedulers, ["none", "mclock"]);
        assert_eq!((plan.rounds, plan.milliseconds, plan.busy), (3, 5_000, true));
        assert_eq!(plan.place, Place::Given("/f".into()));
        assert_eq!(plan.directions, [Direction::Write]);
        assert!(!plan.builds() && Plan::full().builds());
        assert_eq!(parse("--loop").unwrap().place, Place::Loop);
        for both in ["--both", "--both --write", "--write --both"] {
            let directions = parse(both).unwrap().directions;
            assert_eq!(directions, [Direction::Read, Direction::Write], "{both}");
        }
        let relative = parse("--file some/file").unwrap().place;
        assert!(matches!(relative, Place::Given(path) if path.is_absolute()));
    }

    #[test]
    fn wrong_options_are_refused() {
        for bad in [
            "--rows",
            "--rows 4",
            "--schedulers cfq",
            "--schedulers none,",
            "--rounds 0",
            "--seconds x",
            "--loop --file f",
            "--file f --loop",
            "--fast",
            "4x1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let error = parse("--schedulers cfq").unwrap_err().to_string();
        assert!(error.contains("none, mq-deadline, kyber, bfq, mclock"), "{error}");
    }

    #[test]
    fn both_sides_get_the_same_load_and_ours_no_other_setting() {
        let (plan, row) = (Plan::full(), Row { threads: 4, depth: 32 });
        let load = plan.load(row, Direction::Write);
        for word in ["randwrite", "--iodepth=32", "--numjobs=4", "--size=1024m", "--runtime=2000ms"]
        {
            assert!(load.contains(word), "{word}: {load}");
        }
        let fio = plan.fio(row, Direction::Write, "/f").to_string();
        assert_eq!(fio, format!("fio --ioengine=io_uring --thread --filename=/f {load}"));
        let ours = |scheduler| plan.ours(scheduler, row, Direction::Write, "/f").to_string();
        let with = |scheduler| {
            format!("{BLKMQ} bench --scheduler={scheduler} --repeat=1 --device=uring:/f {load}")
        };
        assert_eq!(ours("kyber"), with("kyber"));
        assert_eq!(ours("bfq"), with("bfq:low_latency=0"));
    }

    #[test]
    fn the_title_names_the_place_and_the_loops() {
        let title = |line| parse(line).unwrap().title(Direction::Read);
        assert!(title("").starts_with("4 KiB randread on a file, beside fio's io_uring engine"));
        assert!(
            title("--loop --busy").contains("on a loop device over tmpfs, with two busy loops")
        );
        assert!(title("--file /f --rounds 3").contains("on /f, beside fio"));
        assert!(title("").ends_with("medians of 7 rounds, runs of 2 s"));
    }
}
