//! A measurement: its arguments `[ROUNDS [SECONDS]]`, and the properties of the machine that are needed to judge a
//! figure.
//!
//! A property that cannot be determined is "unknown"; nothing is guessed. The machine's network name is not recorded.

use crate::Result;
use crate::shell::{Cmd, is_installed};
use std::fs;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
