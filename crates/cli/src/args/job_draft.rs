//! A job while its options are being read, and the meanings of their values.

use super::cmdprio_draft::CmdPrioDraft;
use super::file_draft::FileDraft;
use super::iolog_draft::IologDraft;
use super::options::logs;
pub use super::places::block_size;
use super::places::{in_sectors, to_sectors};
use super::value::Value;
use super::verify_draft::VerifyDraft;
use super::zone_draft::ZoneDraft;
use crate::plan::Cpus;
use blkmq_core::{Class, IoPrio, Nanos};
use blkmq_lab::workload::{
    BlockSize, Depth, Direction, Flow, Job, Latencies, LatencyTarget, Logs, PerDirection,
    ThinkTime, longest,
};
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase};

/// The options of a job read so far. Fields of the job that depend on several options are computed in
/// [`finish`](Self::finish), so that the order of the options does not matter.
#[derive(Clone, Debug)]
pub struct JobDraft {
    /// The fields that an option fills in directly.
    pub job: Job,
    /// `kb_base`.
    pub base: KbBase,
    /// `bsrange`, which as in fio overrides `bs` in any order.
    pub bsrange: PerDirection<Option<BlockSize>>,
    /// `bssplit`, which as in fio overrides `bs` and `bsrange` in any order.
    pub bssplit: PerDirection<Option<BlockSize>>,
    /// `iodepth`.
    pub iodepth: u32,
    /// `iodepth_low`.
    pub low: Option<u32>,
    /// `iodepth_batch_submit`.
    pub batch_submit: Option<u32>,
    /// `iodepth_batch_complete_min`.
    pub complete_min: Option<u32>,
    /// `iodepth_batch_complete_max`.
    pub complete_max: Option<u32>,
    /// `thinktime`.
    pub thinktime: Nanos,
    /// `thinktime_blocks`.
    pub thinktime_blocks: u32,
    /// `fsync_on_close`, in addition to `end_fsync`.
    pub fsync_on_close: bool,
    /// `prioclass`.
    pub prioclass: Option<u8>,
    /// `prio`.
    pub prio: Option<u16>,
    /// `cmdprio_percentage` and its companions.
    pub cmdprio: CmdPrioDraft,
    /// `latency_target`; 0 for none.
    pub latency_target: Nanos,
    /// `latency_window`, `latency_percentile` and `latency_run`.
    pub latency: LatencyTarget,
    /// `flow` and its companions; a weight of 0 disables it.
    pub flow: Flow,
    /// `zonemode` and its companions.
    pub zones: ZoneDraft,
    /// `gtod_reduce`.
    pub gtod_reduce: bool,
    /// `filename`, `ioengine` and their companions.
    pub files: FileDraft,
    /// `cpus_allowed` and its policy.
    pub cpus: CpusDraft,
    /// `verify` and its companions.
    pub verify: VerifyDraft,
    /// `read_iolog` and its companions.
    pub iolog: IologDraft,
    /// `random_generator=lfsr`.
    pub lfsr: bool,
    /// A block size was written in KiB, MiB or GiB.
    pub says_kib: bool,
    /// Whether any option about the workload has been given.
    pub touched: bool,
}

/// `cpus_allowed` and its policy.
#[derive(Clone, Debug, Default)]
pub struct CpusDraft {
    /// `cpus_allowed` or `cpumask`.
    pub list: Option<Cpus>,
    /// `cpus_allowed_policy=split`.
    pub is_split: bool,
}

impl CpusDraft {
    /// The CPUs, if any were given.
    pub fn finish(&self) -> Option<Cpus> {
        self.list.clone().map(|cpus| Cpus { is_split: self.is_split, ..cpus })
    }
}

impl Default for JobDraft {
    fn default() -> Self {
        Self {
            job: Job::default(),
            base: KbBase::Binary,
            bsrange: PerDirection::default(),
            bssplit: PerDirection::default(),
            iodepth: 1,
            low: None,
            batch_submit: None,
            complete_min: None,
            complete_max: None,
            thinktime: Nanos::ZERO,
            thinktime_blocks: 1,
            fsync_on_close: false,
            prioclass: None,
            prio: None,
            cmdprio: CmdPrioDraft::default(),
            latency_target: Nanos::ZERO,
            latency: LatencyTarget {
                target: Nanos::ZERO,
                window: Nanos::ZERO,
                percentile: 100.0,
                run: false,
            },
            flow: Flow { weight: 0, id: 0, sleep: Nanos::ZERO },
            zones: ZoneDraft::default(),
            gtod_reduce: false,
            files: FileDraft::default(),
            cpus: CpusDraft::default(),
            verify: VerifyDraft::default(),
            iolog: IologDraft::default(),
            lfsr: false,
            says_kib: false,
            touched: false,
        }
    }
}

impl JobDraft {
    /// Builds the job `name` with number `index`, and its file. Appends every adjustment to `notes`.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn finish(
        mut self,
        name: &str,
        index: usize,
        notes: &mut Vec<String>,
    ) -> Result<(Job, FileDraft), UsageError> {
        self.files.job = name.into();
        if let Some(engine) = self.files.engine.filter(|it| it.is_synchronous && self.iodepth > 1) {
            let (engine, depth) = (engine.name, self.iodepth);
            notes.push(format!(
                "job '{name}': ioengine={engine} has one I/O in flight: iodepth={depth} is cut to 1, as in fio"
            ));
            self.iodepth = 1;
        }
        if self.files.engine.is_some_and(|it| it.is_synchronous) {
            // As in fio: the one call that does the I/O is all completion.
            self.job.latencies.slat = false;
        }
        let depth = self.depth(name, notes);
        let mut job = Job { name: name.into(), index: index as u32, depth, ..self.job };
        job.end_fsync |= self.fsync_on_close;
        for direction in Direction::ALL {
            let lengths = self.bssplit[direction].as_ref().or(self.bsrange[direction].as_ref());
            if let Some(lengths) = lengths {
                job.bs[direction] = lengths.clone();
            }
        }
        let is_direct = self.files.direct == Some(true)
            && self.files.engine.is_none_or(|engine| engine.is_storage);
        let kib = if self.says_kib && self.base == KbBase::Binary {
            "; kib is 1000 bytes, as in fio, and k is 1024"
        } else {
            ""
        };
        whole_sectors(&mut job, is_direct, kib, notes)?;
        job.thinktime = (self.thinktime > Nanos::ZERO)
            .then_some(ThinkTime { pause: self.thinktime, blocks: self.thinktime_blocks });
        job.prio = prio(self.prioclass, self.prio);
        let target = self.latency_target;
        job.latency_target =
            (target > Nanos::ZERO).then_some(LatencyTarget { target, ..self.latency });
        job.flow = Some(self.flow).filter(|flow| flow.weight > 0);
        job.strided = self.zones.finish().map_err(|e| e.at(format!("job '{name}'")))?;
        job.cmdprio = self.cmdprio.finish(name, notes)?;
        if self.gtod_reduce {
            job.latencies = Latencies::NONE;
        }
        job.verify = self.verify.finish(name, job.rw, notes);
        self.iolog.finish(&mut job, notes).map_err(|e| e.at(format!("job '{name}'")))?;
        whole_blocks(&mut job, notes);
        if self.lfsr && job.norandommap && has_one_size(&job) {
            // fio's register visits all blocks.
            job.norandommap = false;
            notes.push(format!(
                "job '{name}': random_generator=lfsr: each block comes once in a pass, as in fio, so norandommap has no effect"
            ));
        }
        self.files.bound(&mut job);
        job.logs = logs::finish(job.logs, name).map_err(|e| e.at(format!("job '{name}'")))?;
        idle_logs(&job, notes);
        let refuse = |e: blkmq_lab::workload::JobError| UsageError::new(e.to_string());
        job.validate().map_err(|e| refuse(e).at(format!("job '{name}'")))?;
        Ok((job, self.files))
    }

    /// Applies fio's rules: 0 means iodepth where fio says so, and no value exceeds iodepth.
    fn depth(&self, name: &str, notes: &mut Vec<String>) -> Depth {
        let iodepth = self.iodepth;
        let mut cut = |option: &str, count: u32| {
            if count > iodepth {
                notes.push(format!("job '{name}': {option}={count} is cut to iodepth={iodepth}"));
            }
            count.min(iodepth)
        };
        let or_full = |count: u32| if count == 0 { iodepth } else { count };
        let low = cut("iodepth_low", or_full(self.low.unwrap_or(0)));
        let submit = or_full(self.batch_submit.unwrap_or(1));
        let batch_submit = cut("iodepth_batch_submit", submit);
        let min = cut("iodepth_batch_complete_min", self.complete_min.unwrap_or(1));
        let max = cut("iodepth_batch_complete_max", self.complete_max.unwrap_or(1));
        Depth {
            iodepth,
            low,
            batch_submit,
            batch_complete_min: min,
            batch_complete_max: max.max(min).max(1),
        }
    }
}

/// Rounds block sizes and alignments up to whole sectors, with a note. `kib` formats sizes. In fio, direct I/O of such
/// sizes fails, and so it does here.
fn whole_sectors(
    job: &mut Job,
    is_direct: bool,
    kib: &str,
    notes: &mut Vec<String>,
) -> Result<(), UsageError> {
    let mut odd: Vec<(String, String)> = Vec::new();
    for direction in Direction::ALL {
        let is_used = job.rw.directions().contains(&direction);
        let size = in_sectors(&job.bs[direction]);
        let name = match size {
            BlockSize::Fixed(_) => "bs",
            BlockSize::Range { .. } => "bsrange",
            BlockSize::Split(_) => "bssplit",
        };
        let grid = job.blockalign[direction].map(to_sectors);
        let grids = job.blockalign[direction].zip(grid);
        let sizes = (format!("{name}={}", job.bs[direction]), size.to_string());
        let grids = grids.map(|(given, grid)| (format!("blockalign={given}"), grid.to_string()));
        let changes = [Some(sizes), grids].into_iter().flatten();
        let new =
            changes.filter(|(given, whole)| !given.ends_with(&format!("={whole}")) && is_used);
        odd.extend(new);
        (job.bs[direction], job.blockalign[direction]) = (size, grid);
    }
    odd.dedup();
    let name = &job.name;
    if let (Some((given, whole)), true) = (odd.first(), is_direct) {
        let text = format!(
            "{given}: no whole sectors, which direct=1 needs, as in fio; accepted: multiples of 512, such as {whole}, or \
             direct=0"
        );
        return Err(UsageError::new(text).at(format!("job '{name}'")));
    }
    for (given, whole) in odd {
        notes.push(format!(
            "job '{name}': {given} is rounded up to {whole}, since I/O is in whole sectors; bytes and rates are those of \
             the longer I/Os{kib}"
        ));
    }
    Ok(())
}

/// Returns whether all I/Os of the job have the same length. If not, fio's lfsr is not used.
fn has_one_size(job: &Job) -> bool {
    let mut sizes = job.rw.directions().iter().map(|direction| &job.bs[*direction]);
    let first = sizes.next().map(BlockSize::min);
    let is_fixed = |size: &BlockSize| matches!(size, BlockSize::Fixed(bs) if Some(*bs) == first);
    job.rw.directions().iter().all(|direction| is_fixed(&job.bs[*direction]))
}

/// As in fio, an I/O shorter than `verify_interval` is one block; intervals that do not divide every I/O are replaced
/// by shorter ones that do.
fn whole_blocks(job: &mut Job, notes: &mut Vec<String>) {
    let Some(interval) = job.verify.as_ref().and_then(|verify| verify.interval) else { return };
    let (longest, common) = (longest(job), job.common_interval(interval));
    let (blocks, effect) = if interval as usize > longest {
        (None, format!("no effect, since no I/O is longer than {longest}"))
    } else if common < interval {
        (Some(common), format!("blocks of {common} bytes, which divide every I/O"))
    } else {
        return;
    };
    notes.push(format!("job '{}': verify_interval={interval}: {effect}", job.name));
    if let Some(verify) = &mut job.verify {
        verify.interval = blocks;
    }
}

/// Appends log options without effect to `notes`.
fn idle_logs(job: &Job, notes: &mut Vec<String>) {
    let logs = &job.logs;
    let default = Logs { bw: None, iops: None, lat: None, hist: None, io: None, ..logs.clone() };
    let mut note = |what: &str| notes.push(format!("job '{}': {what}", job.name));
    if !logs.any() && default != Logs::default() {
        note("options of logs: no effect without write_bw_log or one of its like");
    }
    if logs.lat.is_some() && job.latencies == Latencies::NONE {
        note("write_lat_log: no effect, since no latencies are taken");
    }
    if logs.hist.is_some() && logs.hist_window == Nanos::ZERO {
        note("write_hist_log: empty without log_hist_msec");
    }
}

/// A level without a class is best-effort, since class 0 has no levels.
fn prio(class: Option<u8>, level: Option<u16>) -> IoPrio {
    let class = match (class, level) {
        (Some(1), _) => Class::Realtime,
        (Some(2), _) | (None, Some(_)) => Class::BestEffort,
        (Some(3), _) => Class::Idle,
        _ => Class::None,
    };
    IoPrio::new(class, level.unwrap_or(0)).expect("the option's range is that of levels")
}

/// Parses one direction of `bssplit`: `4k/60:8k/40`. Sizes without a percentage divide the remainder equally; as in
/// fio, if every size has a percentage, the remainder goes to the last one.
pub fn split(value: Value<'_>) -> Result<BlockSize, UsageError> {
    let mut parts = Vec::new();
    for part in value.text.split(':') {
        let (size, share) = part.split_once('/').unwrap_or((part, ""));
        let share = if share.is_empty() { None } else { Some(units::percent(share)?) };
        parts.push((block_size(Value { text: size, ..value })?, share));
    }
    let given: u32 = parts.iter().filter_map(|(_, share)| share.map(u32::from)).sum();
    let blank = parts.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if given > 100 {
        let text =
            format!("the shares sum to {given} percent; accepted: up to 100, as in 4k/60:8k/40");
        return Err(UsageError::new(text));
    }
    if let (0, Some((_, Some(last)))) = (blank, parts.last_mut()) {
        *last += (100 - given) as u8;
    }
    let mut left = 100 - given;
    let mut open = blank;
    let filled = parts.into_iter().map(|(bs, share)| {
        let share = share.unwrap_or_else(|| {
            let share = left / open;
            (left, open) = (left - share, open - 1);
            share as u8
        });
        (bs, share)
    });
    Ok(BlockSize::Split(filled.collect()))
}

/// Rates by direction; 0 is fio's "unlimited".
pub fn rates(value: Value<'_>) -> Result<PerDirection<Option<u64>>, UsageError> {
    let mut rates = value.directions(|value| value.count(0..=u64::MAX))?;
    for direction in Direction::ALL {
        rates[direction] = rates[direction].filter(|rate| *rate > 0);
    }
    Ok(rates)
}

/// `percentile_list`, in ascending order.
pub fn percentiles(text: &str) -> Result<Vec<f64>, UsageError> {
    const ACCEPTED: &str = "up to 20 numbers above 0 and up to 100, such as 50:99:99.9";
    let refuse = || UsageError::new(format!("accepted: {ACCEPTED}"));
    let mut list = Vec::new();
    for part in text.split([':', ',']) {
        let percentile = units::decimal(part, ACCEPTED)?;
        if !(percentile > 0.0 && percentile <= 100.0) {
            return Err(refuse());
        }
        list.push(percentile);
    }
    list.sort_by(f64::total_cmp);
    if list.len() > 20 { Err(refuse()) } else { Ok(list) }
}
