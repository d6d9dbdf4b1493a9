//! Runs the tests over mutants, two at a time, each with limits of memory and time.

use super::list::Mutant;
use super::program::{Package, Programs, Target, Way};
use super::switch::VARIABLE;
use super::{Module, Tests};
use crate::Result;
use crate::shell::{Cmd, passed_tests};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

/// Bytes of address space of a test: a mutant that grows without an end fails alone.
const MEMORY: u64 = 2_000_000_000;
/// Seconds by the clock for each second of CPU time, for mutants that sleep for ever. Generous, because other programs
/// run meanwhile.
const PATIENCE: u32 = 15;
/// Mutants that are tested at the same time.
const WORKERS: usize = 2;

/// What came of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fate {
    /// A test failed, or used up its memory or CPU time.
    Caught,
    /// Every test passed.
    Missed,
    /// A test slept for ever.
    Timeout,
    /// The mutant did not compile.
    Unviable,
}

impl Fate {
    const ALL: [Self; 4] = [Self::Caught, Self::Missed, Self::Timeout, Self::Unviable];

    /// The fate by the name that is written.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.to_string() == name)
    }

    /// How a run under `timeout` has ended.
    fn of(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Missed,
            Some(124) => Self::Timeout,
            // A failed test, or a process that aborted or reached a limit.
            _ => Self::Caught,
        }
    }

    /// Has no test caught it?
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Missed | Self::Timeout)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Caught => "caught",
            Self::Missed => "missed",
            Self::Timeout => "timeout",
            Self::Unviable => "unviable",
        })
    }
}

/// The tests of a package, built.
pub(super) struct Runner<'a> {
    package: &'a Package,
    programs: Programs,
}

impl<'a> Runner<'a> {
    pub(super) fn new(package: &'a Package, programs: Programs) -> Self {
        Self { package, programs }
    }

    /// Shows that the tests pass without a mutant, within the limits, and that there are tests.
    ///
    /// # Errors
    /// If that is not so.
    pub(super) fn check(&self, module: &Module) -> Result<()> {
        for tests in module.tests() {
            let mut passed = 0;
            for target in tests.targets {
                let output = self.command(*target, tests, 0).output_in(&self.package.folder());
                let output = output.map_err(|error| format!("without a mutant: {error}"))?;
                passed += output.lines().filter_map(passed_tests).sum::<u32>();
            }
            if passed == 0 {
                return Err(format!("{}: no test is named {}", module.name, tests.filter).into());
            }
        }
        Ok(())
    }

    /// Tests these mutants, by their indices, all of which are switched, and tells `note` of each when it is done.
    ///
    /// # Errors
    /// If a test cannot be started, or `note` fails.
    pub(super) fn test_all(
        &self,
        module: &Module,
        mutants: &[usize],
        note: impl FnMut(usize, Fate) -> Result<()> + Send,
    ) -> Result<()> {
        let shared = Mutex::new((mutants.iter(), note));
        // A message and no error, which could not leave its thread.
        let work = || -> std::result::Result<(), String> {
            loop {
                let Some(index) = lock(&shared).0.next().copied() else { return Ok(()) };
                let fate =
                    self.fate(module, index as u32 + 1).map_err(|error| error.to_string())?;
                (lock(&shared).1)(index, fate).map_err(|error| error.to_string())?;
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                worker.join().expect("a worker does not panic")?;
            }
            Ok(())
        })
    }

    fn fate(&self, module: &Module, number: u32) -> Result<Fate> {
        let mut fate = Fate::Missed;
        for tests in module.tests() {
            for target in tests.targets {
                let cmd = self.command(*target, tests, number);
                let this = Fate::of(cmd.quiet_code_in(&self.package.folder())?);
                if this == Fate::Caught {
                    return Ok(this);
                }
                fate = fate.max(this);
            }
        }
        Ok(fate)
    }

    fn command(&self, target: Target, tests: &Tests, number: u32) -> Cmd {
        let cpu = tests.cpu;
        let limits = format!("timeout {} prlimit --as={MEMORY} --cpu={cpu}", cpu * PATIENCE);
        let mut cmd = Cmd::new(&format!("{limits} nice -n 19"));
        cmd = cmd.arg(self.programs[&target].to_string_lossy()).arg("--test-threads=1");
        for filter in tests.filter.split_whitespace() {
            cmd = cmd.arg(filter);
        }
        // A trace would be most of the time of a test that fails at once.
        cmd.env(VARIABLE, number.to_string()).env("RUST_BACKTRACE", "0")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("a worker does not panic")
}

/// Builds this mutant by itself, and tests it.
///
/// # Errors
/// If the tests cannot be built for another reason, or not be started.
pub(super) fn alone(package: &Package, module: &Module, mutant: &Mutant) -> Result<Fate> {
    match package.alone(mutant)? {
        Some(programs) => Runner::new(package, programs).fate(module, 0),
        None => Ok(Fate::Unviable),
    }
}

/// The mutants of the package, by their indices, that are in these files and go this way.
pub(super) fn going(
    package: &Package,
    way: Way,
    is_wanted: impl Fn(&Mutant) -> bool,
) -> Vec<usize> {
    let pairs = package.mutants.iter().zip(&package.ways).enumerate();
    let wanted = pairs.filter(|(_, (mutant, its))| **its == way && is_wanted(mutant));
    wanted.map(|(index, _)| index).collect()
}

/// Is `file` meant by `pattern`, which is a file, or all files that are in a folder itself: `folder/*.rs`?
pub(super) fn is_meant(pattern: &str, file: &str) -> bool {
    match pattern.strip_suffix("*.rs") {
        Some(folder) => file.strip_prefix(folder).is_some_and(|rest| !rest.contains('/')),
        None => Path::new(pattern) == Path::new(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_kind_catches() {
        assert_eq!(Fate::of(Some(0)), Fate::Missed);
        assert_eq!(Fate::of(Some(124)), Fate::Timeout);
        assert_eq!(Fate::of(Some(101)), Fate::Caught);
        assert_eq!(Fate::of(None), Fate::Caught);
    }

    #[test]
    fn a_fate_is_read_as_it_is_written() {
        for fate in Fate::ALL {
            assert_eq!(Fate::named(&fate.to_string()), Some(fate));
        }
        assert_eq!(Fate::named("lost"), None);
    }

    #[test]
    fn a_pattern_means_a_file_or_the_files_of_a_folder() {
        assert!(is_meant("a/b/*.rs", "a/b/c.rs") && is_meant("a/b.rs", "a/b.rs"));
        assert!(!is_meant("a/b/*.rs", "a/b/c/d.rs") && !is_meant("a/b.rs", "a/c.rs"));
    }
}
