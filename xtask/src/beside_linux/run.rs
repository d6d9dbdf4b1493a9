//! A run of one side: fio on a scheduler of Linux, or `blkmq bench` with the same scheduler of ours above `none`.

use super::figures::Sample;
use super::load::{Job, Load, Time};
use super::side::Side;
use super::stack::{Stack, TAGS};
use crate::Result;
use crate::interop::parse;
use crate::serve::fio::pause;
use crate::shell::Cmd;
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;

/// Clients run before whatever else the machine does; their I/O priority is said, so it does not follow from that.
const SOON: &str = "nice -n -20";
/// A run that takes so much longer than it should has hung.
const PATIENCE: u32 = 60;

/// What both sides of a run need to know.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) load: &'a Load,
    /// With attributes of ours behind it, as `bfq:slice_idle=0`.
    pub(super) scheduler: &'a str,
    pub(super) time: Time,
    /// The command line of blkmq.
    pub(super) program: &'a str,
    /// More options of `blkmq bench`.
    pub(super) more: &'a str,
}

impl Run<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// If a program cannot be run, or an I/O failed.
    pub(super) fn measure(&self, side: Side, stack: &mut Stack) -> Result<Sample> {
        let reports = match side {
            Side::Linux => self.linux(stack)?,
            Side::Ours => self.ours(stack)?,
        };
        Sample::of(self.load, &reports)
    }

    fn limit(&self) -> String {
        format!("timeout --foreground -k 5 {}", self.time.ramp + self.time.counted + PATIENCE)
    }

    /// The report of each job, with the file that its fio writes. Jobs are processes of their own, since a group has
    /// processes.
    fn linux(&self, stack: &mut Stack) -> Result<Vec<Value>> {
        let name = self.scheduler.split(':').next().unwrap_or_default();
        stack.kernel(name)?;
        stack.merging()?;
        if self.load.jobs.iter().any(|job| job.is_async) {
            stack.bound_cache()?;
        }
        let jobs = self.load.jobs.iter();
        let started: Result<Vec<(Child, PathBuf)>> = jobs.map(|job| self.fio(job, stack)).collect();
        let mut started = started?;
        let written = self.written(stack)?;
        let mut reports = Vec::new();
        for ((child, report), job) in started.iter_mut().zip(self.load.jobs) {
            let status = child.wait()?;
            let text = fs::read_to_string(&*report).unwrap_or_default();
            if !status.success() {
                let log = fs::read_to_string(report.with_extension("log")).unwrap_or_default();
                return Err(format!("fio, {}: {status}: {}", job.name, log.trim()).into());
            }
            let mut report = parse(&text)?["jobs"][0].take();
            if job.is_async {
                report["write"]["bw_bytes"] = written.into();
            }
            reports.push(report);
        }
        Ok(reports)
    }

    fn fio(&self, job: &Job, stack: &mut Stack) -> Result<(Child, PathBuf)> {
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
        Ok((cmd.start(log)?, report))
    }

    /// Bytes a second that the device wrote in the middle of the run, for writes that end in the page cache.
    fn written(&self, stack: &Stack) -> Result<u64> {
        if !self.load.jobs.iter().any(|job| job.is_async) {
            return Ok(0);
        }
        let counted = f64::from(self.time.counted) - 0.5;
        pause(f64::from(self.time.ramp))?;
        let before = stack.written()?;
        pause(counted)?;
        Ok(((stack.written()? - before) as f64 / counted) as u64)
    }

    fn ours(&self, stack: &Stack) -> Result<Vec<Value>> {
        stack.ours()?;
        let jobs = self.load.jobs;
        let groups = jobs.iter().filter_map(|job| Some((job.name, job.weight?)));
        let groups: String =
            groups.map(|(name, weight)| format!(" --group={name}:weight={weight}")).collect();
        let lines: Vec<String> =
            (0..).zip(jobs).map(|(at, job)| job.of_bench(self.time, at == 0)).collect();
        let line = format!(
            "{} {SOON} {} bench --device=uring:{},hw_queue_depth={} --scheduler={} --nr_requests={TAGS} {}{groups} \
             --output-format=json {}",
            self.limit(),
            self.program,
            stack.node(),
            stack.depth(),
            self.scheduler,
            self.more,
            lines.join(" ")
        );
        let mut report = parse(&Cmd::new(&line).output()?)?;
        let found = report["jobs"].as_array_mut().map(std::mem::take).unwrap_or_default();
        if found.len() != jobs.len() {
            return Err(format!("{} jobs in the report of {line}", found.len()).into());
        }
        Ok(found)
    }
}
