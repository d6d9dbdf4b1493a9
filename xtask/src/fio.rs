//! Runs fio as a client in the background, usually with its NBD engine, and reads the figures of its report.

use crate::Result;
use crate::shell::{Cmd, parse_json};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

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
pub(crate) fn run(uri: &str, path: &Path, options: &str) -> Result<Figures> {
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
