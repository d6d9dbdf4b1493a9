//! A process under watch, and busy loops beside it.
//!
//! Takes samples; the verdict is in `judge.rs`.

use super::judge::Sample;
use super::kernel::{self, Disk};
use crate::Result;
use crate::shell::{Cmd, timed};
use std::fs::File;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread::park_timeout;
use std::time::Duration;

/// Between two samples.
const PERIOD: Duration = Duration::from_millis(20);
/// A process that has not ended by then never will: it abandons its last I/Os five seconds after the load.
const PATIENCE: Duration = Duration::from_secs(30);

/// The life of a process.
pub(super) struct Life {
    pub(super) samples: Vec<Sample>,
    /// The exit status; `None` if the process had to be killed.
    pub(super) status: Option<ExitStatus>,
}

/// Processes that are killed when this is dropped, even after an error.
struct Killed(Vec<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `cmd` beside busy loops, with its output in `log`, and samples it and its disk until it has ended.
///
/// # Errors
/// If a process cannot be started, or the kernel does not report its end.
pub(super) fn watch(cmd: &Cmd, log: &Path, disk: Option<&Disk>, busy_loops: u32) -> Result<Life> {
    let mut loops = Killed(Vec::new());
    for _ in 0..busy_loops {
        // The limit ends the loop if this program is killed and cannot end it.
        let busy = Cmd::new("sh -c").arg("ulimit -t 60; while :; do :; done");
        loops.0.push(busy.start(File::open("/dev/null")?)?);
    }
    let mut process = Killed(vec![cmd.start(File::create(log)?)?]);
    let process = &mut process.0[0];
    let (mut samples, mut now) = (Vec::new(), Duration::ZERO);
    while now < PATIENCE {
        let ((), waited) = timed(|| park_timeout(PERIOD));
        now += waited;
        if let Some(status) = process.try_wait()? {
            return Ok(Life { samples, status: Some(status) });
        }
        let (sample, took) = timed(|| look(process.id(), disk, now, samples.last()));
        samples.extend(sample);
        now += took;
    }
    Ok(Life { samples, status: None })
}

/// A sample at `at`, unless the process is about to end.
fn look(pid: u32, disk: Option<&Disk>, at: Duration, before: Option<&Sample>) -> Option<Sample> {
    let (bytes, count) = (kernel::bytes(pid)?, kernel::thread_count(pid)?);
    let mut in_flight = disk.and_then(Disk::in_flight);
    let is_still = before.is_some_and(|before| before.bytes == bytes);
    let mut threads = kernel::Threads::new();
    if is_still {
        // With a hundred threads this takes two milliseconds, which a working process should not lose.
        threads = kernel::threads(pid);
        in_flight = in_flight.map(|requests| requests + kernel::busy_workers());
    }
    Some(Sample { at, count, bytes, in_flight, threads })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> std::path::PathBuf {
        let log = format!("blkmq-watchdog-{name}-{}.log", std::process::id());
        std::env::temp_dir().join(log)
    }

    #[test]
    fn a_process_is_seen_until_it_ends() {
        let path = log("life");
        let cmd = Cmd::new("sh -c").arg("echo words; sleep 0.3; exit 3");
        let life = watch(&cmd, &path, None, 1).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "words\n");
        assert_eq!(life.status.and_then(|status| status.code()), Some(3));
        assert!(life.samples.len() > 1, "{:?}", life.samples);
        assert!(life.samples.is_sorted_by(|a, b| a.at < b.at), "{:?}", life.samples);
        assert!(life.samples.iter().any(|sample| !sample.threads.is_empty()));
        assert!(life.samples.iter().all(|sample| sample.in_flight.is_none()));
    }
}
