//! A run of one side: fio on a scheduler of Linux, or `blkmq bench` with the same scheduler of ours above `none`.

use super::figures::Sample;
use super::load::{Job, Load, Time};
use super::side::Side;
use super::stack::{Stack, TAGS};
use crate::Result;
use crate::fio::pause;
use crate::shell::{Cmd, parse_json, timed};
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;

/// Clients run before all other programs of the machine; their I/O priority is set explicitly, so that it does not
/// follow from that.
const SOON: &str = "nice -n -20";
/// Seconds that a client may exceed its time. fio under Linux' bfq has taken minutes: a thread whose I/O is never
/// served does not notice that its time is over.
const PATIENCE: u32 = 30;

/// The facts of a run that both sides need.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) load: &'a Load,
    /// Possibly with attributes of ours, as in `bfq:slice_idle=0`.
    pub(super) scheduler: &'a str,
    pub(super) time: Time,
    /// The command line of blkmq.
    pub(super) program: &'a str,
    /// More options of `blkmq bench`.
    pub(super) more: &'a str,
}

impl Run<'_> {
    /// Runs it; `None` if a client failed or did not end in time. If only one job has a direction, its rate is the
    /// device's own count: fio's is wrong for threads that waited through the ramp.
    ///
    /// # Errors
    /// If a program cannot be run, or an I/O failed.
    pub(super) fn measure(&self, side: Side, stack: &mut Stack) -> Result<Option<Sample>> {
        let started = match side {
            Side::Linux => self.linux(stack)?,
            Side::Ours => vec![self.ours(stack)?],
        };
        let moved = self.moved(stack)?;
        let ended = started.into_iter().map(Client::wait).collect::<Result<Vec<_>>>()?;
        let Some(ended) = ended.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let reports = ended.concat();
        if reports.len() != self.load.jobs.len() {
            return Err(format!("{} jobs in the reports", reports.len()).into());
        }
        Sample::of(self.load, &reports, moved).map(Some)
    }

    fn limit(&self) -> String {
        format!("timeout --foreground -k 5 {}", self.time.ramp + self.time.counted + PATIENCE)
    }

    /// Each job is a process, since a group consists of processes.
    fn linux(&self, stack: &mut Stack) -> Result<Vec<Client>> {
        let name = self.scheduler.split(':').next().unwrap_or_default();
        stack.kernel(name)?;
        stack.merging()?;
        if self.load.jobs.iter().any(|job| job.is_async) {
            stack.bound_cache()?;
        }
        self.load.jobs.iter().map(|job| self.fio(job, stack)).collect()
    }

    fn fio(&self, job: &Job, stack: &mut Stack) -> Result<Client> {
        let report = stack.path(&format!("{}.json", job.name));
        let line = format!(
            "{} {SOON} fio --filename={} --thread --allow_mounted_write=1 --lat_percentiles=1 --clat_percentiles=0 \
             --output-format=json --output={} {}",
            self.limit(),
            stack.node(),
            report.display(),
            job.of_fio(self.time)
        );
        let log = File::create(report.with_extension("log"))?;
        let cmd = match job.weight {
            None => Cmd::new(&line),
            Some(weight) => {
                let procs = stack.group(weight)?;
                Cmd::new("sh -c").arg(format!("echo $$ > {} && exec {line}", procs.display()))
            }
        };
        Ok(Client { child: cmd.start(log)?, report })
    }

    /// Bytes a second, read and written, in the middle of the run.
    fn moved(&self, stack: &Stack) -> Result<[f64; 2]> {
        // Clients need a moment to begin, and none may have ended.
        let counted = f64::from(self.time.counted) - 0.5;
        pause(f64::from(self.time.ramp))?;
        let before = stack.moved()?;
        let (paused, took) = timed(|| pause(counted));
        paused?;
        let after = stack.moved()?;
        Ok([0, 1].map(|way| (after[way] - before[way]) as f64 / took.as_secs_f64()))
    }

    fn ours(&self, stack: &Stack) -> Result<Client> {
        stack.ours()?;
        let jobs = self.load.jobs;
        let groups = jobs.iter().filter_map(|job| Some((job.name, job.weight?)));
        let groups: String =
            groups.map(|(name, weight)| format!(" --group={name}:weight={weight}")).collect();
        let lines: Vec<String> =
            (0..).zip(jobs).map(|(at, job)| job.of_bench(self.time, at == 0)).collect();
        let report = stack.path("bench.json");
        let line = format!(
            "{} {SOON} {} bench --device=uring:{},hw_queue_depth={} --scheduler={} --nr_requests={TAGS} {}{groups} \
             --output-format=json --output={} {}",
            self.limit(),
            self.program,
            stack.node(),
            stack.depth(),
            self.scheduler,
            self.more,
            report.display(),
            lines.join(" ")
        );
        let log = File::create(report.with_extension("log"))?;
        Ok(Client { child: Cmd::new(&line).start(log)?, report })
    }
}

struct Client {
    child: Child,
    report: PathBuf,
}

impl Client {
    /// The reports of its jobs, when it has ended; `None` if it failed or had to be ended.
    fn wait(mut self) -> Result<Option<Vec<Value>>> {
        let status = self.child.wait()?;
        if !status.success() {
            let log = fs::read_to_string(self.report.with_extension("log")).unwrap_or_default();
            eprintln!("{}: {status} {}", self.report.display(), log.trim());
            return Ok(None);
        }
        let text = fs::read_to_string(&self.report)?;
        let mut report = parse_json(&text)?;
        Ok(Some(report["jobs"].as_array_mut().map(std::mem::take).unwrap_or_default()))
    }
}
