//! A measurement: its arguments `[ROUNDS [SECONDS]]`, the properties of the machine that are needed to judge a figure,
//! and fio as a client in the background, usually with its NBD engine, with the figures of its report.
//!
//! A property that cannot be determined is "unknown"; nothing is guessed. The machine's network name is not recorded.

use crate::Result;
use crate::shell::{Cmd, is_installed, parse_json};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

/// The place and the time of a result.
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// The cores that this process may use.
    pub(crate) cores: u32,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    pub(crate) rustc: String,
    pub(crate) fio: String,
    /// The load of the minute before the first benchmark.
    pub(crate) load: String,
    /// The commit that was measured.
    pub(crate) commit: String,
    /// UTC, `2026-01-31`.
    pub(crate) date: String,
}

impl Machine {
    /// Describes this machine; to be called before the first benchmark.
    pub(crate) fn describe() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            memory: memory(&field("/proc/meminfo", "MemTotal")),
            kernel: read("/proc/sys/kernel/osrelease"),
            rustc: first_line("rustc --version"),
            fio: if is_installed("fio") { first_line("fio --version") } else { "none".into() },
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            commit: commit(),
            date: first_line("date -u +%Y-%m-%d"),
        }
    }

    /// The machine as the beginning of a file name: `amd-epyc-7763-2cpu`.
    pub(crate) fn slug(&self) -> String {
        let cpu = self.cpu.replace("(R)", "").replace("(TM)", "").to_lowercase();
        let words = cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.filter(|word| !is_noise(word)).take(5).collect();
        format!("{}-{}cpu", words.join("-"), self.cores)
    }

    /// Reasons to distrust the figures of this run, if there are any.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.load.parse::<f64>().is_ok_and(|load| load > 0.25 * f64::from(self.cores)) {
            let (load, cores) = (&self.load, self.cores);
            warnings.push(format!("The machine was busy: load {load} on {cores} cores."));
        }
        if self.commit.ends_with("changed") {
            warnings.push("The working tree had changes that are in no commit.".into());
        }
        warnings
    }

    /// Names and values, for tables.
    pub(crate) fn rows(&self) -> [(&'static str, String); 9] {
        [
            ("cpu", self.cpu.clone()),
            ("cores", self.cores.to_string()),
            ("memory", self.memory.clone()),
            ("kernel", self.kernel.clone()),
            ("rustc", self.rustc.clone()),
            ("fio", self.fio.clone()),
            ("load before", self.load.clone()),
            ("commit", self.commit.clone()),
            ("date", self.date.clone()),
        ]
    }
}

/// Returns whether `word`, from a processor's name, does not identify the processor.
fn is_noise(word: &str) -> bool {
    matches!(word, "processor" | "cpu" | "core" | "with") || word.ends_with("ghz")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// The value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> String {
    let text = read(path);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    value.map_or_else(|| "unknown".into(), |(_, value)| value.trim().to_owned())
}

/// `16384000 kB` in GiB.
fn memory(total: &str) -> String {
    let kib = total.strip_suffix(" kB").and_then(|kib| kib.parse::<f64>().ok());
    kib.map_or_else(|| "unknown".into(), |kib| format!("{:.1} GiB", kib / f64::from(1 << 20)))
}

fn first_line(command: &str) -> String {
    let output = Cmd::new(command).output();
    let line = output.ok().and_then(|output| output.lines().next().map(str::to_owned));
    line.unwrap_or_else(|| "unknown".into())
}

fn commit() -> String {
    let commit = first_line("git rev-parse --short=12 HEAD");
    let is_clean = Cmd::new("git status --porcelain").output().is_ok_and(|text| text.is_empty());
    if is_clean { commit } else { format!("{commit}, changed") }
}

/// The size of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rounds {
    pub(crate) rounds: u32,
    /// Seconds of a run.
    pub(crate) seconds: u32,
}

impl Rounds {
    /// The size given by `args`; `self` has the defaults. `None` if they ask for `help`, which is printed.
    ///
    /// # Errors
    /// If an argument is not a number of at least 1, or there are too many.
    pub(crate) fn or(self, args: &[String], help: &str) -> Result<Option<Self>> {
        let number = |text| number(text).map_err(|error| format!("{error}\n{help}"));
        Ok(match args {
            [] => Some(self),
            [word] if word == "--help" => {
                println!("{help}");
                None
            }
            [rounds] => Some(Self { rounds: number(rounds)?, ..self }),
            [rounds, seconds] => Some(Self { rounds: number(rounds)?, seconds: number(seconds)? }),
            _ => return Err(help.into()),
        })
    }
}

/// A number of rounds or seconds, at least 1.
///
/// # Errors
/// If it is none.
pub(crate) fn number(text: &str) -> Result<u32> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("'{text}' is no number from 1 on").into())
}

/// A fio that runs; killed when this is dropped.
pub(crate) struct Fio {
    child: Child,
    cmd: Cmd,
    report: PathBuf,
}

/// The figures of all jobs of a fio.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    /// I/Os in a second.
    pub(crate) iops: f64,
    /// Latencies in nanoseconds, of the direction that has the longer one.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) longest: u64,
}

impl Fio {
    /// Starts it against the export at `uri`. Its jobs are threads, so that it is one process; the names of its files
    /// begin with `path`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(uri: &str, path: &Path, options: &str) -> Result<Self> {
        Self::of(Cmd::new(&format!("fio --name=nbd --ioengine=nbd --uri={uri} {options}")), path)
    }

    /// As [`start`](Self::start), with a command line for any engine. Its report is JSON in fio's short form, unless
    /// the line names another form.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn of(load: Cmd, path: &Path) -> Result<Self> {
        let report = path.with_extension("json");
        // If two forms are given, fio uses the last one.
        let form =
            (!load.to_string().contains("--output-format=")).then_some("--output-format=json");
        let words = ["--thread", "--group_reporting"].into_iter().chain(form);
        let cmd = words.fold(load, Cmd::arg);
        let cmd = cmd.arg(format!("--output={}", report.display()));
        let child = cmd.start(File::create(path.with_extension("log"))?)?;
        Ok(Self { child, cmd, report })
    }

    /// Returns whether fio has ended.
    ///
    /// # Errors
    /// If the system does not report it.
    pub(crate) fn is_over(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If an I/O failed or read other data than was written.
    pub(crate) fn wait(mut self) -> Result<Figures> {
        let status = self.child.wait()?;
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        let log = fs::read_to_string(self.report.with_extension("log")).unwrap_or_default();
        if !status.success() {
            let error = parse_json(&text).map(|report| report["jobs"][0]["error"].clone());
            let error = error.unwrap_or_default();
            return Err(format!("{}: {status}, error {error}: {}", self.cmd, log.trim()).into());
        }
        let figures = figures(&parse_json(&text)?);
        figures.map_err(|error| format!("{}: {error}", self.cmd).into())
    }

    /// Ends fio by SIGKILL, wherever it is.
    ///
    /// # Errors
    /// If fio has ended already.
    pub(crate) fn kill(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("{} ended too early: {status}", self.cmd).into());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // As a rule fio has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs fio to its end; see [`Fio::start`].
///
/// # Errors
/// As [`Fio::wait`].
pub(crate) fn run_fio(uri: &str, path: &Path, options: &str) -> Result<Figures> {
    Fio::start(uri, path, options)?.wait()
}

/// The figures of a report of one group.
fn figures(report: &Value) -> std::result::Result<Figures, String> {
    let job = &report["jobs"][0];
    if job["error"] != 0 {
        return Err(format!("error {}", job["error"]));
    }
    let mut all = Figures::default();
    for direction in [&job["read"], &job["write"]] {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let percentile = |name: &str| number(&direction["clat_ns"]["percentile"][name]);
        all.ios += number(&direction["total_ios"]);
        all.bytes += number(&direction["io_bytes"]);
        all.iops += direction["iops"].as_f64().unwrap_or(0.0);
        all.p50 = all.p50.max(percentile("50.000000"));
        all.p99 = all.p99.max(percentile("99.000000"));
        all.longest = all.longest.max(number(&direction["clat_ns"]["max"]));
    }
    if all.ios == 0 { Err("no I/O".to_owned()) } else { Ok(all) }
}

/// The middle one; of an even number, the upper of the two.
pub(crate) fn median<T: Copy + PartialOrd>(mut values: Vec<T>) -> Option<T> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

/// Waits for `seconds`.
///
/// # Errors
/// If there is no program to wait for.
pub(crate) fn pause(seconds: f64) -> Result<()> {
    Cmd::new(&format!("sleep {seconds}")).output().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(cpu: &str, load: &str) -> Machine {
        let text = String::new;
        Machine {
            cpu: cpu.into(),
            cores: 2,
            memory: text(),
            kernel: text(),
            rustc: text(),
            fio: text(),
            load: load.into(),
            commit: "abc".into(),
            date: text(),
        }
    }

    #[test]
    fn the_slug_is_short_and_plain() {
        let slug = |cpu| machine(cpu, "0").slug();
        assert_eq!(slug("AMD EPYC 7763 64-Core Processor"), "amd-epyc-7763-64-2cpu");
        assert_eq!(slug("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"), "intel-xeon-e5-2680-v4-2cpu");
    }

    #[test]
    fn a_busy_machine_is_said_to_be_busy() {
        assert_eq!(machine("x", "0.4").warnings().len(), 0);
        assert_eq!(machine("x", "1.7").warnings().len(), 1);
    }

    #[test]
    fn memory_is_in_gib() {
        assert_eq!(memory("8388608 kB"), "8.0 GiB");
        assert_eq!(memory("unknown"), "unknown");
    }

    #[test]
    fn arguments_are_read_and_refused() {
        let size = Rounds { rounds: 5, seconds: 6 };
        let read = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            size.or(&args, "usage")
        };
        assert_eq!(read("").unwrap(), Some(size));
        assert_eq!(read("2").unwrap(), Some(Rounds { rounds: 2, ..size }));
        assert_eq!(read("2 3").unwrap(), Some(Rounds { rounds: 2, seconds: 3 }));
        assert_eq!(read("--help").unwrap(), None);
        for line in ["0", "x", "1 x", "1 2 3"] {
            assert!(read(line).unwrap_err().to_string().contains("usage"), "{line}");
        }
    }

    #[test]
    fn a_report_is_summed_and_its_latencies_are_the_longer_ones() {
        let direction = |ios: u64, p99: u64| {
            let clat =
                json!({ "max": p99 + 1, "percentile": { "50.000000": 5, "99.000000": p99 } });
            json!({ "total_ios": ios, "io_bytes": ios * 10, "iops": 1.5, "clat_ns": clat })
        };
        let job = |error: u32, ios: u64| json!({ "jobs": [{ "error": error, "read": direction(ios, 7), "write": direction(ios, 9) }] });
        let all = figures(&job(0, 3)).unwrap();
        assert_eq!((all.ios, all.bytes, all.p50, all.p99, all.longest), (6, 60, 5, 9, 10));
        assert!(all.iops > 2.9 && all.iops < 3.1);
        assert_eq!(figures(&job(84, 3)).unwrap_err(), "error 84");
        assert_eq!(figures(&job(0, 0)).unwrap_err(), "no I/O");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9, 1, 5]), Some(5));
        assert_eq!(median(vec![2.5, 1.5]), Some(2.5));
        assert_eq!(median::<u32>(vec![]), None);
    }
}
