//! Measures the studies of claims, point by point. Points that are compared follow each other, and each is run once
//! before any is repeated, so that a drift of the machine affects all alike.
//!
//! Runs go to a [`MemoryDisk`]: a file read through the page cache behind io_uring, created for the runs of one command
//! and removed after them. On any machine, this comes closest to the virtual disk of seed 002: its threads sleep on
//! descriptors, so each unnecessary wake-up is a system call. If io_uring is unavailable, the null device is used
//! instead.

use super::{Claim, Wanted};
use crate::Failure;
use crate::bench::status::Progress;
use crate::experiment::compare::{Question, questions};
use crate::experiment::{Points, Row, answer};
use crate::report::model::{Machine, Partial};
use crate::report::number::nanos;
use blkmq_core::{Instant, Nanos};
use blkmq_engine::KickMode;
use blkmq_engine::calls::{self, Call};
use blkmq_terminal::program::Stop;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU32, Ordering};

/// The results of one `blkmq repro`.
#[derive(Default)]
pub struct Repro {
    /// The command line as typed, which repeats the measurement.
    pub command: String,
    /// When the first run began: milliseconds since the epoch, UTC.
    pub time_ms: u64,
    /// The machine of the runs.
    pub machine: Machine,
    /// The claims for which something was measured.
    pub claims: Vec<Measured>,
    /// The number of missing runs, if a signal ended the measurement.
    pub partial: Option<Partial>,
}

/// A claim and its results.
pub struct Measured {
    /// The claim.
    pub claim: Claim,
    /// The results of its studies.
    pub found: Vec<Found>,
    /// The outcome of calls in quick succession, if they are a part of the claim.
    pub calls: Option<String>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
}

/// A study and its results.
pub struct Found {
    /// The subject, if a claim has several.
    pub of: String,
    /// Its points.
    pub points: Points,
    /// The rows of the first points, in order.
    pub rows: Vec<Row>,
    /// The answers.
    pub questions: Vec<Question>,
}

impl Found {
    /// Adds the answers of all rows.
    ///
    /// # Errors
    /// If no row has a compared figure.
    pub fn answer(&mut self) -> Result<(), Failure> {
        let rows = Vec::from_iter(&self.rows);
        self.questions = questions(self.points.study(), self.points.axes(), &rows)?;
        Ok(())
    }

    /// The results for display.
    pub fn result(&self) -> answer::Result<'_> {
        answer::Result {
            study: self.points.study(),
            axes: self.points.axes(),
            rows: self.rows.len(),
            points: self.points.len(),
            questions: &self.questions,
        }
    }
}

impl Measured {
    /// `claim` before the first run.
    ///
    /// # Errors
    /// If a study has an axis without values.
    pub fn of(mut claim: Claim) -> Result<Self, Failure> {
        let mut found = Vec::new();
        for part in std::mem::take(&mut claim.part) {
            let points = Points::of(part.study)?;
            found.push(Found { of: part.of, points, rows: Vec::new(), questions: Vec::new() });
        }
        let calls = claim.calls.then(kicks);
        Ok(Self { claim, found, calls, notes: Vec::new() })
    }

    fn points(&self) -> usize {
        self.found.iter().map(|found| found.points.len()).sum()
    }

    /// Runs all points, or the first of them until `stop` is set. Returns their number.
    fn run(&mut self, progress: &mut Progress, stop: &Stop) -> Result<usize, Failure> {
        let mut done = 0;
        for found in &mut self.found {
            for index in 0..found.points.len() {
                progress.begin(&format!("{}: {}", self.claim.name, found.points.label(index)));
                let row = found.points.run(index, stop);
                if stop.is_set() {
                    break;
                }
                let row = row?;
                progress.end();
                done += 1;
                for note in &row.notes {
                    if !self.notes.contains(note) {
                        self.notes.push(note.clone());
                    }
                }
                found.rows.push(row);
            }
            found.answer()?;
            if stop.is_set() {
                break;
            }
        }
        Ok(done)
    }
}

/// Measures the claims of `wanted` until `stop` is set. `command` is the command line.
///
/// # Errors
/// If a point cannot be run on this machine.
pub fn measure(wanted: &Wanted, command: String, stop: &Stop) -> Result<Repro, Failure> {
    let machine = Machine::detect();
    let time_ms = blkmq_runtime::wall_clock_millis();
    let mut claims = Claim::all();
    claims.retain(|claim| wanted.names.iter().any(|name| name == claim.name));
    let disk = claims.iter().any(Claim::reads_disk).then(MemoryDisk::new);
    let mut planned = Vec::new();
    for mut claim in claims {
        let disk = disk.as_ref().filter(|_| claim.reads_disk());
        let here = (machine.cores, disk.map_or("", MemoryDisk::device));
        claim.prepare(wanted.runtime, &wanted.threads, here);
        let mut measured = Measured::of(claim)?;
        measured.notes.extend(disk.and_then(MemoryDisk::note).map(String::from));
        planned.push(measured);
    }
    let runs: usize = planned.iter().map(Measured::points).sum();
    let mut progress = Progress::new(runs, None, true);
    let (mut claims, mut done) = (Vec::new(), 0);
    for mut measured in planned {
        if stop.is_set() {
            break;
        }
        done += measured.run(&mut progress, stop)?;
        claims.push(measured);
    }
    progress.finish();
    let partial = Partial { done, planned: runs, signal: stop.signal() };
    let partial = (done < runs).then_some(partial);
    Ok(Repro { command, time_ms, machine, claims, partial })
}

/// The time until a worker arrives.
const COMES: Nanos = Nanos::from_micros(50);
/// The delays that calls a microsecond apart allow for their pass, in nanoseconds: now, in 3 ms and now.
const DELAYS: [u64; 3] = [0, 3_000_000, 0];
const WAYS: [(&str, KickMode); 3] =
    [("before", KickMode::Always), ("as proposed", KickMode::Flag), ("ours", KickMode::Coalesced)];

/// The outcome for each way, as a sentence.
fn kicks() -> String {
    let calls = Vec::from_iter(
        (0..)
            .zip(DELAYS)
            .map(|(n, delay)| Call { at: Instant::from_nanos(n * 1_000), delay: Nanos(delay) }),
    );
    let last = calls[DELAYS.len() - 1].at;
    let clauses = WAYS.map(|(word, kick)| {
        let passes = calls::passes(kick, &calls, COMES);
        let times = passes.iter().map(|at| nanos(at.as_nanos() as f64));
        let times = Vec::from_iter(times).join(" and ");
        let answer = match passes.iter().find(|at| **at >= last) {
            Some(at) => format!("{} later", nanos((*at - last).0 as f64)),
            None => "never".into(),
        };
        format!("{word} (kick={kick}) {answer}, with passes after {times}")
    });
    format!(
        "Where a pass is called for now, in 3 ms and now, a microsecond apart, the last call is answered: {}.",
        clauses.join("; ")
    )
}

/// In MiB; entirely in the page cache, and half the size of `/dev/shm` usual in containers.
#[cfg(target_os = "linux")]
const SIZE: u64 = 32;

/// The device that runs of `kick` read from, with 8 hardware queues of depth 16.
struct MemoryDisk {
    path: Option<PathBuf>,
    /// The value of `--device`.
    device: String,
    /// A note about it.
    note: Option<String>,
}

impl MemoryDisk {
    /// A device that can be read from.
    fn new() -> Self {
        match Self::make() {
            Ok(disk) => disk,
            Err(why) => Self {
                path: None,
                device: "null,irqmode=2,completion_nsec=10000,submit_queues=8,hw_queue_depth=16"
                    .into(),
                note: Some(format!(
                    "There is no disk in memory here ({why}), so kick is shown on the null device: waking a thread that \
                     is awake costs next to nothing there."
                )),
            },
        }
    }

    #[cfg(target_os = "linux")]
    fn make() -> Result<Self, String> {
        // `/dev/shm` is always memory.
        let folder = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        // Each disk of a process has its own file.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("blkmq-repro-{}-{nth}", std::process::id()));
        let words = format!("{},size={SIZE},direct=0", path.display());
        let device = format!("uring:{words},hw_queues=8,hw_queue_depth=16");
        let disk = Self { path: Some(path), device, note: None };
        let opened = blkmq_uring::UringDevice::parse(&words).map_err(|error| error.to_string())?;
        opened.queues::<blkmq_buf::AlignedBuf>().map_err(|error| error.to_string())?;
        Ok(disk)
    }

    #[cfg(not(target_os = "linux"))]
    fn make() -> Result<Self, String> {
        Err("io_uring is Linux's".into())
    }

    /// The value of `--device`.
    fn device(&self) -> &str {
        &self.device
    }

    /// Why the disk is not in memory, if it is not.
    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The file may not have been created.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::super::tests::wanted;
    use super::*;
    use crate::report::Format;

    #[test]
    fn after_a_signal_there_is_what_was_measured_until_then() {
        let stop = Stop::after_ctrl_c();
        let repro = measure(&wanted("batch"), "blkmq repro".into(), &stop).expect("it ends");
        assert!(repro.claims.is_empty());
        let partial = repro.partial.expect("everything is missing");
        assert!(partial.done == 0 && partial.planned > 0 && partial.signal == Some(2));
        for format in [Format::Normal, Format::Json, Format::Html] {
            assert!(render(&repro, format).to_lowercase().contains("partial"), "{format:?}");
        }
    }

    #[test]
    fn every_claim_can_be_run() {
        let mut wanted = wanted("--runtime=25ms --threads=2");
        // Merge and depth need seconds for any result at all.
        wanted.names.retain(|name| !["merge", "depth"].contains(&name.as_str()));
        let repro = measure(&wanted, "blkmq repro".into(), &Stop::default());
        let repro = repro.expect("it can be measured");
        assert_eq!(repro.claims.len(), 5);
        for Measured { claim, found, .. } in &repro.claims {
            let found = &found[0];
            assert_eq!(found.rows.len(), found.points.len(), "{}", claim.name);
            for metric in &found.points.study().compare.metrics {
                let of = |it: &&Question| it.metric.to_string() == *metric;
                let question = found.questions.iter().find(of).expect(metric);
                let median = question.answers[0].median.expect(metric);
                assert!(median > 0.0 || !metric.ends_with("iops"), "{}: {metric}", claim.name);
            }
        }
        let order = &repro.claims[2].found[0].questions;
        let ours = order.iter().filter(|question| question.metric.name == "inversions");
        let ours = ours.map(|question| question.answers.last().and_then(|answer| answer.median));
        assert!(ours.clone().count() == 2 && ours.into_iter().all(|median| median == Some(0.0)));
    }

    #[test]
    fn only_the_flag_lets_the_last_call_wait() {
        let text = kicks();
        for clause in [
            "before (kick=always) 48.0 us later",
            "as proposed (kick=flag) 3.05 ms later",
            "ours (kick=coalesced) 48.0 us later",
        ] {
            assert!(text.contains(clause), "{text}");
        }
    }

    #[test]
    fn it_is_gone_with_whoever_made_it() {
        let disk = MemoryDisk::new();
        assert_eq!(disk.path.is_some(), disk.note().is_none());
        let path = disk.path.clone();
        assert!(path.as_ref().is_none_or(|path| path.is_file()));
        drop(disk);
        assert!(path.is_none_or(|path| !path.exists()));
    }
}
