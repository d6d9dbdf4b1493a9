//! A job while its options are being read, and the values of the options: patterns with their numbers, block sizes,
//! rates, percentiles and distributions.
//!
//! The options that have a meaning only together have drafts of their own: another priority for a part of the I/Os
//! (`cmdprio_percentage`), the verification, and work in one zone at a time (`zonemode=strided`). Options without
//! effect become notes.
//!
//! Errors of a [`Value`] give the accepted values; the caller adds the origin.

use super::file_draft::{FileDraft, IologDraft};
use crate::plan::{Choice, Cpus};
use blkmq_core::{Class, IoPrio, Nanos, SECTOR_SIZE};
use blkmq_lab::workload::verify::Method;
use blkmq_lab::workload::{
    Amount, BlockSize, CmdPrio, Depth, Direction, Distribution, Flow, Job, Latencies,
    LatencyTarget, Logs, PerDirection, Rw, Strided, ThinkTime, Verify, Zones, longest,
};
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase, TimeUnit};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The options of a job read so far. Fields of the job that depend on several options are computed in
/// [`finish`](Self::finish), so that the order of the options does not matter.
#[derive(Clone, Debug)]
pub struct JobDraft {
    /// The fields that an option fills in directly.
    pub job: Job,
    /// The names of the options that have been given.
    pub given: Vec<&'static str>,
    /// `kb_base`.
    pub base: KbBase,
    /// `bsrange`, which as in fio overrides `bs` in any order.
    pub bsrange: PerDirection<Option<BlockSize>>,
    /// `bssplit`, which as in fio overrides `bs` and `bsrange` in any order.
    pub bssplit: PerDirection<Option<BlockSize>>,
    /// `thinktime` and `thinktime_blocks`; without a pause there is none.
    pub thinktime: ThinkTime,
    /// `fsync_on_close`, in addition to `end_fsync`.
    pub fsync_on_close: bool,
    /// `prioclass`.
    pub prioclass: Option<u8>,
    /// `prio`.
    pub prio: Option<u16>,
    /// `cmdprio_percentage` and its companions.
    pub cmdprio: CmdPrioDraft,
    /// `latency_target` and its companions; a target of 0 is none.
    pub latency: LatencyTarget,
    /// `flow` and its companions; a weight of 0 disables it.
    pub flow: Flow,
    /// `zonemode=strided`.
    pub is_strided: bool,
    /// `zonesize` and its companions, in bytes; 0 for none.
    pub zones: Strided,
    /// `gtod_reduce`.
    pub gtod_reduce: bool,
    /// `filename`, `ioengine` and their companions.
    pub files: FileDraft,
    /// `cpus_allowed` or `cpumask`.
    pub cpus: Option<Cpus>,
    /// `cpus_allowed_policy=split`.
    pub splits_cpus: bool,
    /// `verify`; 0 disables it.
    pub method: Option<Method>,
    /// The companions of `verify`.
    pub verify: Verify,
    /// `read_iolog` and its companions.
    pub iolog: IologDraft,
    /// `random_generator=lfsr`.
    pub lfsr: bool,
    /// A block size was written in KiB, MiB or GiB.
    pub says_kib: bool,
}

impl Default for JobDraft {
    fn default() -> Self {
        // 0 means iodepth.
        let depth = Depth { low: 0, ..Depth::default() };
        let (target, window) = (Nanos::ZERO, Nanos::ZERO);
        Self {
            job: Job { depth, ..Job::default() },
            given: Vec::new(),
            base: KbBase::Binary,
            bsrange: PerDirection::default(),
            bssplit: PerDirection::default(),
            thinktime: ThinkTime { pause: Nanos::ZERO, blocks: 1 },
            fsync_on_close: false,
            prioclass: None,
            prio: None,
            cmdprio: CmdPrioDraft::default(),
            latency: LatencyTarget { target, window, percentile: 100.0, run: false },
            flow: Flow { weight: 0, id: 0, sleep: Nanos::ZERO },
            is_strided: false,
            zones: Strided { size: 0, range: 0, skip: 0 },
            gtod_reduce: false,
            files: FileDraft::default(),
            cpus: None,
            splits_cpus: false,
            method: None,
            verify: Verify::new(Method::Null),
            iolog: IologDraft::default(),
            lfsr: false,
            says_kib: false,
        }
    }
}

/// A job, its files, and the CPUs that its threads are bound to.
type Finished = (Job, FileDraft, Option<Cpus>);

impl JobDraft {
    /// Builds the job `name` with number `index`. Appends every adjustment to `notes`.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn finish(
        mut self,
        name: &str,
        index: usize,
        notes: &mut Vec<String>,
    ) -> Result<Finished, UsageError> {
        self.files.job = name.into();
        if let Some(engine) = self.files.engine.filter(|it| it.is_synchronous) {
            let iodepth = &mut self.job.depth.iodepth;
            if *iodepth > 1 {
                notes.push(format!(
                    "ioengine={} has one I/O in flight: iodepth={iodepth} is cut to 1, as in fio",
                    engine.name
                ));
                *iodepth = 1;
            }
            // As in fio: the one call that does the I/O is all completion.
            self.job.latencies.slat = false;
        }
        let depth = depth(self.job.depth, notes);
        let mut job = Job { name: name.into(), index: index as u32, depth, ..self.job.clone() };
        job.end_fsync |= self.fsync_on_close;
        job.direct = self.files.direct == Some(true);
        for direction in Direction::ALL {
            let lengths = self.bssplit[direction].take().or(self.bsrange[direction].take());
            job.bs[direction] = lengths.unwrap_or_else(|| job.bs[direction].clone());
        }
        let kib = if self.says_kib && self.base == KbBase::Binary {
            "; kib is 1000 bytes, as in fio, and k is 1024"
        } else {
            ""
        };
        let is_direct = job.direct && self.files.engine.is_none_or(|engine| engine.is_storage);
        whole_sectors(&mut job, is_direct, kib, notes)?;
        job.thinktime = Some(self.thinktime).filter(|it| it.pause > Nanos::ZERO);
        job.prio = prio(self.prioclass, self.prio);
        job.latency_target = Some(self.latency).filter(|it| it.target > Nanos::ZERO);
        job.flow = Some(self.flow).filter(|flow| flow.weight > 0);
        job.strided = self.strided()?;
        job.cmdprio = self.cmdprio(notes)?;
        if self.gtod_reduce {
            job.latencies = Latencies::NONE;
        }
        job.verify = self.verify(notes);
        self.iolog.finish(&mut job, notes)?;
        whole_blocks(&mut job, notes);
        if self.lfsr && job.norandommap && has_one_size(&job) {
            // fio's register visits all blocks.
            job.norandommap = false;
            notes.push(
                "random_generator=lfsr: each block comes once in a pass, as in fio, so norandommap has no effect".into(),
            );
        }
        self.files.bound(&mut job);
        finish_logs(&mut job, notes)?;
        job.validate().map_err(UsageError::new)?;
        let is_split = self.splits_cpus;
        Ok((job, self.files, self.cpus.map(|cpus| Cpus { is_split, ..cpus })))
    }
}

/// Applies fio's rules: 0 means iodepth where fio says so, and no value exceeds iodepth.
fn depth(given: Depth, notes: &mut Vec<String>) -> Depth {
    let Depth { iodepth, low, batch_submit, batch_complete_min, batch_complete_max } = given;
    let mut cut = |option: &str, count: u32| {
        if count > iodepth {
            notes.push(format!("{option}={count} is cut to iodepth={iodepth}"));
        }
        count.min(iodepth)
    };
    let or_full = |count: u32| if count == 0 { iodepth } else { count };
    let low = cut("iodepth_low", or_full(low));
    let batch_submit = cut("iodepth_batch_submit", or_full(batch_submit));
    let batch_complete_min = cut("iodepth_batch_complete_min", batch_complete_min);
    let max = cut("iodepth_batch_complete_max", batch_complete_max);
    let batch_complete_max = max.max(batch_complete_min).max(1);
    Depth { iodepth, low, batch_submit, batch_complete_min, batch_complete_max }
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
        let mut add = |name: &str, given: String, whole: String| {
            if is_used && given != whole {
                odd.push((format!("{name}={given}"), whole));
            }
        };
        add(name, job.bs[direction].to_string(), size.to_string());
        job.bs[direction] = size;
        if let Some(grid) = &mut job.blockalign[direction] {
            let whole = to_sectors(*grid);
            add("blockalign", grid.to_string(), whole.to_string());
            *grid = whole;
        }
    }
    odd.dedup();
    if let (Some((given, whole)), true) = (odd.first(), is_direct) {
        return Err(UsageError::new(format!(
            "{given}: no whole sectors, which direct=1 needs, as in fio; accepted: multiples of 512, such as {whole}, or \
             direct=0"
        )));
    }
    notes.extend(odd.into_iter().map(|(given, whole)| {
        format!(
            "{given} is rounded up to {whole}, since I/O is in whole sectors; bytes and rates are those of the longer \
             I/Os{kib}"
        )
    }));
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
    notes.push(format!("verify_interval={interval}: {effect}"));
    if let Some(verify) = &mut job.verify {
        verify.interval = blocks;
    }
}

/// Names logs without a prefix after their job. Appends log options without effect to `notes`.
///
/// # Errors
/// If a prefix cannot begin a file name.
fn finish_logs(job: &mut Job, notes: &mut Vec<String>) -> Result<(), UsageError> {
    let Logs { bw, iops, lat, hist, io, .. } = &mut job.logs;
    for prefix in [bw, iops, lat, hist, io].into_iter().flatten() {
        if prefix.is_empty() {
            prefix.clone_from(&job.name);
        }
        if prefix.ends_with('/') {
            let text = format!("log {prefix}: a folder; accepted: what names of files begin with");
            return Err(UsageError::new(text));
        }
    }
    let logs = &job.logs;
    let default = Logs { bw: None, iops: None, lat: None, hist: None, io: None, ..logs.clone() };
    let mut note = |what: &str| notes.push(what.into());
    if !logs.any() && default != Logs::default() {
        note("options of logs: no effect without write_bw_log or one of its like");
    }
    if logs.lat.is_some() && job.latencies == Latencies::NONE {
        note("write_lat_log: no effect, since no latencies are taken");
    }
    if logs.hist.is_some() && logs.hist_window == Nanos::ZERO {
        note("write_hist_log: empty without log_hist_msec");
    }
    Ok(())
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

/// One entry of `cmdprio_bssplit`: a length, a percentage, and its own priority, if it has one.
type Entry = (u32, u8, Option<IoPrio>);

/// The options as given, by direction.
#[derive(Clone, Debug, Default)]
pub struct CmdPrioDraft {
    /// `cmdprio_percentage`.
    pub percentage: PerDirection<Option<u8>>,
    /// `cmdprio_class`.
    pub class: PerDirection<Option<u8>>,
    /// `cmdprio`.
    pub level: PerDirection<Option<u16>>,
    /// `cmdprio_bssplit`.
    pub split: PerDirection<Option<Vec<Entry>>>,
}

/// One direction of `cmdprio_bssplit`: `4k/30:64k/20`, or with a class and a level, `4k/30/1/0:64k/20/2/3`.
pub fn cmdprio_split(value: Value<'_>) -> Result<Vec<Entry>, UsageError> {
    const ACCEPTED: &str =
        "accepted: SIZE/PERCENT or SIZE/PERCENT/CLASS/LEVEL[/HINT], with : between them";
    let entry = |part: &str| {
        let fields = Vec::from_iter(part.split('/'));
        let (size, share, prio) = match fields[..] {
            [size, share] => (size, share, None),
            // No device here supports hints.
            [size, share, class, level] | [size, share, class, level, _] => {
                if let Some(hint) = fields.get(4) {
                    value.of(hint).count(0..=1023u16)?;
                }
                let (class, level) = (value.of(class).count(1..=3)?, value.of(level).count(0..=7)?);
                (size, share, Some(prio(Some(class), Some(level))))
            }
            _ => return Err(UsageError::new(ACCEPTED)),
        };
        Ok((to_sectors(block_size(value.of(size))?), units::percent(share)?, prio))
    };
    value.text.split(':').map(entry).collect()
}

/// The companions of `verify`.
const OF_VERIFY: [&str; 8] = [
    "verify_pattern",
    "verify_interval",
    "do_verify",
    "verify_fatal",
    "verify_backlog",
    "verify_only",
    "verify_state_save",
    "verify_state_load",
];

impl JobDraft {
    fn is_given(&self, option: &str) -> bool {
        self.given.contains(&option)
    }

    /// The priorities of some I/Os. As in fio, the default is the highest priority, and trims have none. Appends
    /// options without effect to `notes`.
    ///
    /// # Errors
    /// If the options contradict each other.
    fn cmdprio(&self, notes: &mut Vec<String>) -> Result<PerDirection<CmdPrio>, UsageError> {
        let CmdPrioDraft { percentage, class, level, split } = &self.cmdprio;
        let has_share = percentage.iter().any(|(_, share)| share.is_some_and(|share| share > 0));
        let has_split = split.iter().any(|(_, split)| split.is_some());
        if has_share && has_split {
            let text = "cmdprio_percentage and cmdprio_bssplit; accepted: one of the two";
            return Err(UsageError::new(text));
        }
        let has_own = self.is_given("cmdprio_class") || self.is_given("cmdprio");
        if has_own && !has_share && !has_split {
            let text =
                "cmdprio_class, cmdprio: no effect without cmdprio_percentage or cmdprio_bssplit";
            notes.push(text.into());
        }
        let mut all = PerDirection::default();
        for direction in [Direction::Read, Direction::Write] {
            let class = class[direction].unwrap_or(1);
            let usual = prio(Some(class), Some(level[direction].unwrap_or(0)));
            all[direction] = match (percentage[direction], &split[direction]) {
                (_, Some(entries)) => {
                    let entry = |(len, share, prio): &Entry| (*len, *share, prio.unwrap_or(usual));
                    CmdPrio::Split(entries.iter().map(entry).collect())
                }
                (Some(share), None) if share > 0 => CmdPrio::Percentage(share, usual),
                _ => CmdPrio::None,
            };
        }
        Ok(all)
    }

    /// The verification of the job. Appends options without effect to `notes`.
    fn verify(&self, notes: &mut Vec<String>) -> Option<Verify> {
        let mut idle = |options: &[&str], why: &str| {
            let options = options.iter().copied().filter(|option| self.is_given(option));
            let options = Vec::from_iter(options).join(", ");
            if !options.is_empty() {
                notes.push(format!("{options}: no effect {why}"));
            }
        };
        let Some(method) = self.method else {
            idle(&OF_VERIFY, "without verify");
            return None;
        };
        let mut verify = Verify { method, ..self.verify.clone() };
        if matches!(self.job.rw, Rw::Read | Rw::RandRead) {
            let why = "on a job that only reads: it checks all that it reads";
            idle(&["do_verify", "verify_backlog", "verify_state_save"], why);
            verify.state_save = false;
        } else if verify.only {
            idle(&["verify_backlog"], "with verify_only: nothing is written");
            verify.backlog = 0;
        } else if !verify.do_verify {
            idle(&["verify_backlog"], "with do_verify=0: nothing is read back");
        }
        if method == Method::Null {
            let why = "with verify=null: contents are not looked at";
            idle(&["verify_pattern", "verify_fatal"], why);
        }
        Some(verify)
    }

    /// The zones, if the job has any. As in fio, `zonesize` and `zonemode` require each other.
    ///
    /// # Errors
    /// If they contradict each other.
    fn strided(&self) -> Result<Option<Strided>, UsageError> {
        let Strided { size, range, skip } = self.zones;
        match (self.is_strided, size) {
            (true, 0) => Err("zonemode=strided without zonesize; accepted: both"),
            (true, _) if range == 0 => Ok(Some(Strided { range: size, ..self.zones })),
            (true, _) => Ok(Some(self.zones)),
            (false, 0) if range == 0 && skip == 0 => Ok(None),
            (false, _) => {
                Err("zonesize, zonerange, zoneskip; accepted with them: zonemode=strided")
            }
        }
        .map_err(UsageError::new)
    }
}

/// A value and the meaning of `k` in it.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// The text as written.
    pub text: &'a str,
    /// The job's `kb_base`.
    pub base: KbBase,
}

/// A value that was read.
pub type Parsed<T> = Result<T, UsageError>;

/// Keeps `value` in `place`.
pub fn put<T, P: From<T>>(place: &mut P, value: Parsed<T>) -> Parsed<()> {
    *place = value?.into();
    Ok(())
}

/// Keeps the values of the directions that have one.
pub fn put_each<T, P: From<T>>(
    places: &mut PerDirection<P>,
    values: Parsed<PerDirection<Option<T>>>,
) -> Parsed<()> {
    let mut values = values?;
    for direction in Direction::ALL {
        if let Some(value) = values[direction].take() {
            places[direction] = value.into();
        }
    }
    Ok(())
}

/// `value`, or `None` for 0.
pub fn unless_zero<T: Default + PartialEq>(value: Parsed<T>) -> Parsed<Option<T>> {
    value.map(|value| Some(value).filter(|value| *value != T::default()))
}

impl<'a> Value<'a> {
    /// Another text with the same meaning of `k`.
    pub fn of(self, text: &'a str) -> Self {
        Self { text, ..self }
    }

    /// The word before the first colon, and the text behind it if there is one.
    fn split(self) -> (&'a str, Option<&'a str>) {
        let split = self.text.split_once(':');
        split.map_or((self.text, None), |(word, rest)| (word, Some(rest)))
    }

    /// A boolean.
    pub fn flag(self) -> Parsed<bool> {
        self.word(&[(true, "1"), (false, "0")], "0, 1, or the option without a value")
    }

    /// The opposite of a boolean.
    pub fn opposite(self) -> Parsed<bool> {
        self.flag().map(|is_set| !is_set)
    }

    /// A number in a range.
    pub fn count<T>(self, range: RangeInclusive<T>) -> Parsed<T>
    where
        T: Copy + PartialOrd + Display + TryFrom<u64>,
    {
        units::count(self.text, range, self.base)
    }

    /// A time, in seconds unless a unit is given.
    pub fn seconds(self) -> Parsed<Nanos> {
        units::time(self.text, TimeUnit::Seconds)
    }

    /// A time, in microseconds unless a unit is given.
    pub fn micros(self) -> Parsed<Nanos> {
        units::time(self.text, TimeUnit::Micros)
    }

    /// Bytes.
    pub fn bytes(self) -> Parsed<u64> {
        units::bytes(self.text, self.base)
    }

    /// A percentage.
    pub fn percent(self) -> Parsed<u8> {
        units::percent(self.text)
    }

    /// Bytes, or a share of the device.
    pub fn amount(self) -> Parsed<Amount> {
        match self.text.strip_suffix('%') {
            Some(share) => units::percent(share).map(Amount::Percent),
            None => self.bytes().map(Amount::Bytes),
        }
    }

    /// Parses one word of a closed set.
    pub fn choice<T: Choice>(self) -> Parsed<T> {
        T::from_word(self.text)
    }

    /// The member that one of `words` stands for.
    pub fn word<T: Copy>(self, words: &[(T, &str)], accepted: &str) -> Parsed<T> {
        let found = words.iter().find(|(_, word)| *word == self.text).map(|(member, _)| *member);
        found.ok_or_else(|| UsageError::new(format!("accepted: {accepted}")))
    }

    /// A text that is not empty.
    pub fn non_empty(self, what: &str) -> Parsed<String> {
        if self.text.is_empty() {
            Err(UsageError::new(format!("no value; accepted: {what}")))
        } else {
            Ok(self.text.into())
        }
    }

    /// The path of a file.
    pub fn path(self) -> Parsed<PathBuf> {
        self.non_empty("the path of a file").map(PathBuf::from)
    }

    /// The values between commas.
    pub fn list(self) -> impl Iterator<Item = Self> {
        self.text.split(',').map(move |text| self.of(text.trim()))
    }

    /// Parses fio's `r,w,t`: a value also applies to the directions after it, an empty position leaves its direction
    /// unchanged (`,8k` sets writes and trims), and a trailing comma leaves the rest unchanged (`8k,` sets reads).
    pub fn directions<T: Clone>(
        self,
        read: impl Fn(Self) -> Parsed<T>,
    ) -> Parsed<PerDirection<Option<T>>> {
        let parts = Vec::from_iter(self.list());
        if parts.len() > 3 || parts.iter().all(|part| part.text.is_empty()) {
            let accepted = "accepted: up to three values, for reads, writes and trims: r,w,t";
            return Err(UsageError::new(accepted));
        }
        let mut values: PerDirection<Option<T>> = PerDirection::default();
        let mut last = None;
        for (at, direction) in Direction::ALL.into_iter().enumerate() {
            if let Some(part) = parts.get(at) {
                last = if part.text.is_empty() { None } else { Some(read(*part)?) };
            }
            values[direction].clone_from(&last);
        }
        Ok(values)
    }

    /// Limits by direction; 0 is none.
    pub fn limits<T: Clone + Default + PartialEq>(
        self,
        read: impl Fn(Self) -> Parsed<T>,
    ) -> Parsed<PerDirection<Option<T>>> {
        let mut limits = self.directions(read)?;
        for direction in Direction::ALL {
            limits[direction] = limits[direction].take().filter(|limit| *limit != T::default());
        }
        Ok(limits)
    }

    /// Rates by direction; 0 is fio's "unlimited".
    pub fn rates(self) -> Parsed<PerDirection<Option<u64>>> {
        self.limits(|value| value.count(0..=u64::MAX))
    }
}

/// A pattern, the sequential I/Os of a run (1 but for `randread:8`), and the bytes between sequential I/Os.
pub fn pattern(value: Value<'_>) -> Parsed<(Rw, u32, i64)> {
    let (name, number) = value.split();
    let rw = Rw::parse(name).ok_or_else(|| {
        let names = Rw::NAMES.iter().flat_map(|(_, names)| names.iter().copied());
        let names = Vec::from_iter(names).join(", ");
        UsageError::new(format!("accepted: {names}"))
    })?;
    let Some(number) = number else { return Ok((rw, 1, 0)) };
    if rw.is_random() {
        return Ok((rw, value.of(number).count(1..=u32::MAX)?, 0));
    }
    let digits = number.strip_prefix('-').unwrap_or(number);
    let hole = i64::try_from(value.of(digits).bytes()?);
    let hole = hole.map_err(|_| UsageError::new("accepted: a hole of up to 7e"))?;
    Ok((rw, 1, if digits == number { hole } else { -hole }))
}

/// Parses a block size in bytes, which need not be a multiple of a sector.
pub fn block_size(value: Value<'_>) -> Parsed<u32> {
    let bytes = value.bytes()?;
    let bs = u32::try_from(bytes).ok().filter(|bs| (1..=BlockSize::MAX).contains(bs));
    bs.ok_or_else(|| UsageError::new(format!("{bytes} bytes; accepted: 1 to 1g")))
}

/// One direction of `bsrange`: two sizes with `-` or `:` between them.
pub fn range(value: Value<'_>) -> Parsed<BlockSize> {
    let refuse = || UsageError::new("accepted: a range of sizes, such as 1k-4k");
    let (min, max) = value.text.split_once(['-', ':']).ok_or_else(refuse)?;
    let [min, max] = [min, max].map(|text| block_size(value.of(text)));
    let range = BlockSize::Range { min: min?, max: max? };
    in_sectors(&range).validate().map_err(UsageError::new)?;
    Ok(range)
}

/// `bytes`, rounded up to whole sectors.
fn to_sectors(bytes: u32) -> u32 {
    bytes.next_multiple_of(SECTOR_SIZE)
}

/// Block sizes, each rounded up to whole sectors.
fn in_sectors(size: &BlockSize) -> BlockSize {
    match size {
        BlockSize::Fixed(bs) => BlockSize::Fixed(to_sectors(*bs)),
        BlockSize::Range { min, max } => {
            BlockSize::Range { min: to_sectors(*min), max: to_sectors(*max) }
        }
        BlockSize::Split(parts) => {
            BlockSize::Split(parts.iter().map(|(bs, share)| (to_sectors(*bs), *share)).collect())
        }
    }
}

const DISTRIBUTIONS: &str = "random, zipf:THETA, pareto:POWER, normal:DEVIATION, each with :CENTRE, \
                             zoned:SHARE/PERCENT:..., zoned_abs:SHARE/SIZE:...";

/// `random_distribution`, with fio's default parameters.
pub fn distribution(value: Value<'_>) -> Parsed<Distribution> {
    let refuse = || UsageError::new(format!("accepted: {DISTRIBUTIONS}"));
    let (kind, rest) = value.split();
    let distribution = match (kind, rest) {
        ("random", None) => Distribution::Uniform,
        ("zoned", Some(list)) => {
            Distribution::Zoned(Zones::Percent(zones(list, 100, units::percent)?))
        }
        ("zoned_abs", Some(list)) => {
            let size = |text| value.of(text).bytes();
            Distribution::Zoned(Zones::Bytes(zones(list, 0, size)?))
        }
        ("zipf" | "pareto" | "normal", rest) => {
            let mut numbers = rest.into_iter().flat_map(|rest| rest.splitn(2, ':'));
            let mut number =
                || numbers.next().map(|n| units::decimal(n, DISTRIBUTIONS)).transpose();
            let (parameter, centre) = (number()?, number()?);
            match kind {
                "zipf" => Distribution::Zipf(parameter.unwrap_or(1.1), centre),
                "pareto" => Distribution::Pareto(parameter.unwrap_or(0.2), centre),
                _ => Distribution::Normal(parameter.ok_or_else(refuse)?, centre),
            }
        }
        _ => return Err(refuse()),
    };
    distribution.validate().map_err(UsageError::new)?;
    Ok(distribution)
}

/// Parses `SHARE/LENGTH:SHARE/LENGTH`. For percentages, zones without a length divide the remainder of `whole` equally.
fn zones<'a, L>(
    list: &'a str,
    whole: u32,
    length: impl Fn(&'a str) -> Parsed<L>,
) -> Parsed<Vec<(u8, L)>>
where
    L: Copy + Into<u64> + TryFrom<u32>,
{
    let refuse = || UsageError::new(format!("accepted: {DISTRIBUTIONS}"));
    let mut zones: Vec<(u8, Option<L>)> = Vec::new();
    for part in list.split(':') {
        let (share, len) = part.split_once('/').ok_or_else(refuse)?;
        let len = if len.is_empty() { None } else { Some(length(len)?) };
        zones.push((units::percent(share)?, len));
    }
    if zones.len() > Zones::MAX {
        let text = format!("{} zones; accepted are up to {}", zones.len(), Zones::MAX);
        return Err(UsageError::new(text));
    }
    let given: u64 = zones.iter().filter_map(|(_, len)| len.map(Into::into)).sum();
    let open = zones.iter().filter(|(_, len)| len.is_none()).count() as u32;
    let rest = u64::from(whole).saturating_sub(given) as u32 / open.max(1);
    let filled = zones.into_iter().map(|(share, len)| {
        let len = match len {
            None if whole > 0 => L::try_from(rest).ok(),
            len => len,
        };
        Ok((share, len.ok_or_else(refuse)?))
    });
    filled.collect()
}

/// Parses one direction of `bssplit`: `4k/60:8k/40`. Sizes without a percentage divide the remainder equally; as in
/// fio, if every size has a percentage, the remainder goes to the last one.
pub fn block_sizes(value: Value<'_>) -> Parsed<BlockSize> {
    let mut parts = Vec::new();
    for part in value.text.split(':') {
        let (size, share) = part.split_once('/').unwrap_or((part, ""));
        let share = if share.is_empty() { None } else { Some(u32::from(units::percent(share)?)) };
        parts.push((block_size(value.of(size))?, share));
    }
    let given: u32 = parts.iter().filter_map(|(_, share)| *share).sum();
    let mut left = 100u32.checked_sub(given).ok_or_else(|| {
        let accepted = "accepted: up to 100, as in 4k/60:8k/40";
        UsageError::new(format!("the shares sum to {given} percent; {accepted}"))
    })?;
    let mut open = parts.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if let (0, Some((_, Some(last)))) = (open, parts.last_mut()) {
        *last += left;
    }
    let filled = parts.into_iter().map(|(bs, share)| {
        let share = share.unwrap_or_else(|| {
            let share = left / open;
            (left, open) = (left - share, open - 1);
            share
        });
        (bs, share as u8)
    });
    Ok(BlockSize::Split(filled.collect()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn directions(text: &str) -> Parsed<[Option<u32>; 3]> {
        let value = Value { text, base: KbBase::Binary };
        let values = value.directions(|value| value.count(0..=99u32))?;
        Ok(Direction::ALL.map(|direction| values[direction]))
    }

    #[test]
    fn three_directions_are_filled_as_in_fio() {
        for (text, expected) in [
            ("8", [Some(8), Some(8), Some(8)]),
            ("8,9", [Some(8), Some(9), Some(9)]),
            ("8,9,7", [Some(8), Some(9), Some(7)]),
            ("8,", [Some(8), None, None]),
            (",9", [None, Some(9), Some(9)]),
            (",9,", [None, Some(9), None]),
            ("8,,7", [Some(8), None, Some(7)]),
        ] {
            assert_eq!(directions(text), Ok(expected), "{text}");
        }
        for text in ["", ",", ",,", "1,2,3,4", "x"] {
            assert!(directions(text).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_bytes_or_shares() {
        let amount = |text| Value { text, base: KbBase::Binary }.amount();
        assert_eq!(amount("20%"), Ok(Amount::Percent(20)));
        assert_eq!(amount("2k"), Ok(Amount::Bytes(2048)));
        assert!(amount("101%").is_err() && amount("%").is_err());
    }

    fn value(text: &str) -> Value<'_> {
        Value { text, base: KbBase::Binary }
    }

    #[test]
    fn the_number_of_a_pattern_is_a_run_or_a_hole() {
        for (text, expected) in [
            ("read", (Rw::Read, 1, 0)),
            ("randread:8", (Rw::RandRead, 8, 0)),
            ("randrw:4k", (Rw::RandRw, 4096, 0)),
            ("read:4k", (Rw::Read, 1, 4096)),
            ("rw:-8k", (Rw::ReadWrite, 1, -8192)),
        ] {
            assert_eq!(pattern(value(text)), Ok(expected), "{text}");
        }
        for text in ["reed", "randread:0", "randread:-1", "read:x", "read:", "read:9e"] {
            assert!(pattern(value(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_is_written_either_way_and_may_be_odd() {
        let odd = BlockSize::Range { min: 512, max: 1 << 20 };
        assert_eq!(range(value("512:1M")), Ok(odd.clone()));
        assert_eq!(range(value("512-1M")), Ok(odd));
        assert_eq!(range(value("4k-30k")), Ok(BlockSize::Range { min: 4096, max: 30720 }));
        let sizes = range(value("700-4000")).expect("a range");
        assert_eq!(in_sectors(&sizes), BlockSize::Range { min: 1024, max: 4096 });
        for text in ["4k", "8k-4k", "0-4k", "4k-2g", ":4k"] {
            assert!(range(value(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn distributions_have_centres_and_zones() {
        let percent = |zones: &[(u8, u8)]| Distribution::Zoned(Zones::Percent(zones.to_vec()));
        let bytes = |zones: &[(u8, u64)]| Distribution::Zoned(Zones::Bytes(zones.to_vec()));
        for (text, expected) in [
            ("zipf", Distribution::Zipf(1.1, None)),
            ("zipf:1.2:0.3", Distribution::Zipf(1.2, Some(0.3))),
            ("pareto:0.3:0", Distribution::Pareto(0.3, Some(0.0))),
            ("normal:25:0.5", Distribution::Normal(25.0, Some(0.5))),
            ("zoned:60/10:30/20:8/30:2/40", percent(&[(60, 10), (30, 20), (8, 30), (2, 40)])),
            ("zoned:50/5:50/", percent(&[(50, 5), (50, 95)])),
            ("zoned_abs:60/1m:40/3m", bytes(&[(60, 1 << 20), (40, 3 << 20)])),
        ] {
            assert_eq!(distribution(value(text)), Ok(expected.clone()), "{text}");
            assert_eq!(distribution(value(&expected.to_string())), Ok(expected), "{text}");
        }
        for text in [
            "normal",
            "zipf:1.2:2",
            "zipf:1:2:3",
            "zoned:",
            "zoned:50/5",
            "zoned:60/10:50/90",
            "zoned",
            "zoned:50/50:50/60",
            "zoned_abs:100/",
            "random:1",
            "x",
        ] {
            assert!(distribution(value(text)).is_err(), "{text}");
        }
    }
}
