//! The engine and the files of a job, as its options name them; and the trace that a job replays in place of a pattern
//! (`read_iolog`). [`run_draft`](super::run_draft) makes a device of the files.
//!
//! fio's I/O engines have equivalents here, I/O to a file, or none. The system calls that fio would use are irrelevant:
//! I/O to files goes through io_uring. Engines that do no block I/O, or use a network or a library, are refused.
//!
//! A [`Roster`] has the files of all jobs of a run, and lays them out consecutively on one device, as on an otherwise
//! empty file system. Nothing here checks whether files exist.

use crate::trace::Source;
use crate::trace::tapes::{Loaded, Scaling};
use blkmq_core::{Op, SECTOR_SIZE};
use blkmq_lab::workload::{
    Amount, BlockSize, Direction, File, FileService, Files, Job, PerDirection, Rw, Tape, Taped,
};
use blkmq_recording::Layout;
use blkmq_terminal::UsageError;
use blkmq_terminal::table::nearest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// fio's default `filename_format`.
const FORMAT: &str = "$jobname.$jobnum.$filenum";
/// The variables in it.
const VARIABLES: [&str; 3] = ["$jobname", "$jobnum", "$filenum"];

/// The options about files of one job.
#[derive(Clone, Debug)]
pub struct FileDraft {
    /// The name of the job, for messages and file names.
    pub job: String,
    /// `ioengine`.
    pub engine: Option<Engine>,
    /// `filename`.
    pub filename: Option<String>,
    /// `directory`.
    pub directory: Option<String>,
    /// `filesize`, in bytes.
    pub filesize: Option<u64>,
    /// `nrfiles`.
    pub nrfiles: u32,
    /// `file_service_type`, and the I/Os of a file's turn.
    pub service: (FileService, u32),
    /// `openfiles`.
    pub openfiles: Option<u32>,
    /// `filename_format`.
    pub format: Option<String>,
    /// `allow_file_create`.
    pub may_create: bool,
    /// `direct` or `buffered`, if given.
    pub direct: Option<bool>,
}

impl Default for FileDraft {
    fn default() -> Self {
        Self {
            job: String::new(),
            engine: None,
            filename: None,
            directory: None,
            filesize: None,
            nrfiles: 1,
            service: (FileService::RoundRobin, 1),
            openfiles: None,
            format: None,
            may_create: true,
            direct: None,
        }
    }
}

impl FileDraft {
    /// The paths of the files of thread `thread` of the job, or `None` if the options name none, or the engine is
    /// `null`.
    ///
    /// # Errors
    /// If one of them is not supported as a file.
    pub fn paths(&self, thread: u32) -> Result<Option<Vec<String>>, UsageError> {
        let names_none = self.filename.is_none() && self.directory.is_none();
        let is_storage = self.engine.is_none_or(|engine| engine.is_storage);
        if !is_storage || names_none && self.format.is_none() {
            return Ok(None);
        }
        let folder = match &self.directory {
            None => String::new(),
            Some(folder) => format!("{}/", single(folder, "directory")?),
        };
        let paths = self.names(thread)?.into_iter().map(|name| format!("{folder}{name}"));
        let paths = Vec::from_iter(paths);
        match paths.iter().find(|path| path.contains(',')) {
            Some(path) => {
                Err(self.at(format!("filename={path}: accepted: a path without a comma")))
            }
            None => Ok(Some(paths)),
        }
    }

    /// The file names of thread `thread` without their folder: those in `filename`, or else those generated from
    /// `nrfiles` and `filename_format`.
    ///
    /// # Errors
    /// If `filename` contains an empty name.
    pub fn names(&self, thread: u32) -> Result<Vec<String>, UsageError> {
        if let Some(list) = &self.filename {
            return split(list, "filename");
        }
        let format = self.format.as_deref().unwrap_or(FORMAT);
        let values = |file: u32| [self.job.clone(), thread.to_string(), file.to_string()];
        let name = |file: u32| {
            let pairs = VARIABLES.iter().zip(values(file));
            pairs.fold(format.to_owned(), |name, (variable, value)| name.replace(variable, &value))
        };
        Ok((0..self.nrfiles).map(name).collect())
    }

    /// The names of the files of thread `thread` if these are several, as ranges of a given device.
    ///
    /// # Errors
    /// See [`names`](Self::names).
    pub fn stretches(&self, thread: u32) -> Result<Option<Vec<String>>, UsageError> {
        if self.is_of_several() { self.names(thread).map(Some) } else { Ok(None) }
    }

    /// Returns whether a thread of the job has several files.
    pub fn is_of_several(&self) -> bool {
        match &self.filename {
            None => self.nrfiles > 1,
            Some(list) => split(list, "filename").is_ok_and(|names| names.len() > 1),
        }
    }

    /// Limits the region of `job` to its file; percentages then refer to the limited region. As in fio, `filesize`
    /// bounds `size`, and becomes the region if it is larger. With several files, the limit is applied when they are
    /// placed.
    pub fn bound(&self, job: &mut Job) {
        let Some(filesize) = self.filesize.filter(|_| !self.is_of_several()) else { return };
        let block = job.rw.directions().iter().map(|way| job.bs[*way].min()).min().unwrap_or(1);
        let bytes = |amount: Amount| amount.bytes(filesize, block.into());
        let place = |amount: Amount| amount.place(filesize, block.into());
        job.offset = Amount::Bytes(place(job.offset));
        job.offset_increment = Amount::Bytes(place(job.offset_increment));
        let room = filesize.saturating_sub(place(job.offset));
        let size = job.size.map_or(room, bytes).min(room);
        // As in fio, all of the file is the region then, and `size` is an amount of I/O in it.
        let amount = Some(Amount::Bytes(size)).filter(|_| size < room);
        let alone = job.strided.is_none() && job.offset_increment == Amount::ZERO;
        let amount = amount.filter(|_| alone);
        job.size = Some(Amount::Bytes(if amount.is_some() { room } else { size }));
        job.io_size = match job.io_size {
            Some(Amount::Percent(_)) => {
                job.io_size.map(|share| Amount::Bytes(share.bytes(size, 1)))
            }
            given => given.or(amount),
        };
    }

    /// An error prefixed with the name of the job.
    pub fn at(&self, text: String) -> UsageError {
        UsageError::new(text).at(format!("job '{}'", self.job))
    }
}

/// The only path in fio's list of paths.
fn single(list: &str, option: &str) -> Result<String, UsageError> {
    let mut paths = split(list, option)?;
    match (paths.pop(), paths.is_empty()) {
        (Some(path), true) => Ok(path),
        _ => {
            let text = format!(
                "{option}={list} names several: not built; accepted: one, with '\\:' for a colon in its name"
            );
            Err(UsageError::new(text))
        }
    }
}

/// Splits fio's list of paths at colons that are not escaped by a backslash.
fn split(list: &str, option: &str) -> Result<Vec<String>, UsageError> {
    let mut paths = vec![String::new()];
    let mut rest = list.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('\\', Some(':')) => paths.last_mut().expect("there is one").extend(rest.next()),
            (':', _) => paths.push(String::new()),
            (c, _) => paths.last_mut().expect("there is one").push(c),
        }
    }
    if paths.iter().any(String::is_empty) {
        let text =
            format!("{option}={list} has an empty path; accepted: paths with one ':' between two");
        return Err(UsageError::new(text));
    }
    Ok(paths)
}

/// Parses `file_service_type`, optionally followed by a colon and the I/Os of a turn.
///
/// # Errors
/// If the type is not supported.
pub fn service(text: &str) -> Result<(FileService, u32), UsageError> {
    let (word, turn) = text.split_once(':').unwrap_or((text, "1"));
    let names = FileService::NAMES.map(|(_, name)| name).join(", ");
    let accepted = format!("accepted: {names}, each with :COUNT");
    if ["zipf", "pareto", "normal", "gauss"].contains(&word) {
        let text = format!("files are not visited by popularity: not built; {accepted}");
        return Err(UsageError::new(text));
    }
    let found = FileService::NAMES.iter().find(|(_, name)| *name == word);
    let turn = turn.parse().ok().filter(|turn| *turn > 0);
    match (found, turn) {
        (Some((service, _)), Some(turn)) => Ok((*service, turn)),
        _ => Err(UsageError::new(accepted)),
    }
}

/// Parses `filename_format`.
///
/// # Errors
/// If it contains an unsupported variable.
pub fn format(text: &str) -> Result<Option<String>, UsageError> {
    let rest = VARIABLES.iter().fold(text.to_owned(), |rest, name| rest.replace(name, ""));
    if rest.contains('$') {
        let names = VARIABLES.join(", ");
        return Err(UsageError::new(format!("accepted: a name with {names} in it")));
    }
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty() && *text != FORMAT))
}

/// An engine that has a meaning here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Engine {
    /// The name, as fio spells it.
    pub name: &'static str,
    /// Whether the engine moves data of files. If false, it is `null`.
    pub is_storage: bool,
    /// Whether the engine has at most one I/O in flight. If so, `iodepth` is 1, as in fio.
    pub is_synchronous: bool,
}

const fn engine(name: &'static str, is_synchronous: bool) -> Engine {
    Engine { name, is_storage: true, is_synchronous }
}

const ENGINES: [Engine; 9] = [
    engine("libaio", false),
    engine("io_uring", false),
    engine("posixaio", false),
    engine("sync", true),
    engine("psync", true),
    engine("vsync", true),
    engine("pvsync", true),
    engine("pvsync2", true),
    Engine { name: "null", is_storage: false, is_synchronous: false },
];

/// fio's engines without a meaning here, so that they are not called unknown.
const OTHERS: &str = "\
    cpuio mmap splice net netsplice ftruncate filecreate filestat filedelete exec falloc \
    e4defrag gfapi gfapi_async mtd sg io_uring_cmd nbd rdma rados rbd pmemblk dev-dax \
    libpmem http libhdfs libiscsi libzbc nfs dfs ime_psync ime_psyncv ime_aio xnvme \
    libcufile librpma_apm_client librpma_apm_server librpma_gpspm_client \
    librpma_gpspm_server libblkio cpp_null external guasi solarisaio windowsaio \
    filedircreate";

impl Engine {
    /// The engine called `name`.
    ///
    /// # Errors
    /// If it has no equivalent here, or is unknown to fio.
    pub fn named(name: &str) -> Result<Self, UsageError> {
        // As fio does.
        let name = if name == "aio" { "libaio" } else { name };
        if let Some(found) = ENGINES.iter().find(|engine| engine.name == name) {
            return Ok(*found);
        }
        let accepted = Vec::from_iter(ENGINES.iter().map(|engine| engine.name)).join(", ");
        let kind = name.split(':').next().unwrap_or_default();
        if OTHERS.split(' ').any(|other| other == kind) {
            let text = format!("this engine of fio's has no meaning here; accepted: {accepted}");
            return Err(UsageError::new(text));
        }
        let near = nearest(name, ENGINES.iter().map(|engine| engine.name));
        let near = near.first().map_or(String::new(), |near| format!("nearest: {near}; "));
        Err(UsageError::new(format!("no engine '{name}'; {near}accepted: {accepted}")))
    }
}

/// `read_iolog` and its companions.
#[derive(Clone, PartialEq, Debug)]
pub struct IologDraft {
    /// `read_iolog`.
    pub file: Option<String>,
    /// `replay_no_stall`.
    pub no_stall: bool,
    /// `replay_time_scale`, in percent of the rate.
    pub time_scale: u32,
    /// `replay_scale`.
    pub scale: u32,
    /// `replay_align`, in bytes; a power of two.
    pub align: u32,
    /// `replay_skip`.
    pub skip: Vec<Op>,
}

impl Default for IologDraft {
    fn default() -> Self {
        let (file, no_stall, skip) = (None, false, Vec::new());
        Self { file, no_stall, time_scale: 100, scale: 1, align: SECTOR_SIZE, skip }
    }
}

impl IologDraft {
    /// Replaces the pattern of `job` by the I/Os of its trace, if it has one. Appends options that lose their effect to
    /// `notes`.
    ///
    /// # Errors
    /// If the trace cannot be read, or the job checks contents.
    pub fn finish(self, job: &mut Job, notes: &mut Vec<String>) -> Result<(), UsageError> {
        let Some(file) = &self.file else {
            if self != Self::default() {
                notes.push("replay options: no effect without read_iolog".into());
            }
            return Ok(());
        };
        if job.verify.is_some() {
            let text = "verify: a trace has no contents; accepted: read_iolog without it";
            return Err(UsageError::new(text));
        }
        let scaling = Scaling {
            speed: f64::from(self.time_scale) / 100.0,
            space: 1.0 / f64::from(self.scale),
            think: false,
            tenants: 1,
            most: u64::MAX,
            layout: Layout::Concat,
            align: SECTOR_SIZE.into(),
        };
        let mut loaded = Loaded::read(&Source::in_file(file), &scaling)?;
        loaded.leave_out(&self.skip);
        // A device that is too small is found with the device.
        let tenants = loaded.tenants(&scaling, u64::MAX)?;
        let ios = tenants.iter().flat_map(|it| it.tape.ios());
        let tape = Tape::new(ios.map(|taped| self.aligned(*taped)).collect());
        notes.append(&mut loaded.notes);
        let idle = [
            (job.loops > 1, "loops"),
            (job.time_based, "time_based"),
            (job.io_size.is_some(), "io_size"),
            (job.number_ios.is_some(), "number_ios"),
        ];
        for (_, option) in idle.iter().filter(|(given, _)| *given) {
            notes.push(format!(
                "{option}: no effect with read_iolog, which is replayed once, as in fio"
            ));
        }
        let is_timed = !self.no_stall && !loaded.is_untimed();
        // Buffers must fit the longest I/O.
        let longest = tenants.iter().map(|it| it.longest).max().unwrap_or(0);
        let longest = u32::try_from(longest).expect("readers refuse lengths above 1 GiB");
        job.bs = PerDirection::all(BlockSize::Fixed(longest.max(SECTOR_SIZE)));
        (job.rw, job.loops, job.time_based) = (Rw::RandRw, 1, false);
        (job.io_size, job.number_ios) = (None, None);
        job.tape = Some(Arc::new(if is_timed { tape } else { tape.without_times() }));
        Ok(())
    }

    fn aligned(&self, mut taped: Taped) -> Taped {
        taped.io.sector -= taped.io.sector % u64::from(self.align / SECTOR_SIZE);
        taped
    }
}

/// The alignment of files in bytes. Each is preceded by a gap, so that no request merges I/Os to two files.
const ALIGNMENT: u64 = 1 << 20;
/// The most files of a run.
const MAX_FILES: usize = 65_536;
/// The maximum number of times that jobs may name files in total.
const MAX_NAMES: usize = 1 << 20;

/// A file of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The path, or only the name.
    pub name: String,
    /// The size in bytes that jobs need; `None` if no option determines it.
    pub needed: Option<u64>,
    /// Whether a job writes to the file.
    pub is_written: bool,
}

/// The files of the run, in the order in which they are first named, and the files of each job.
#[derive(Default, Debug)]
pub struct Roster {
    pub files: Vec<Wanted>,
    numbers: BTreeMap<String, usize>,
    /// The number of times that jobs have named a file.
    named: usize,
    jobs: Vec<Option<OfJob>>,
}

/// The files of a job, by number: separately for each thread, or shared by all threads.
#[derive(Debug)]
struct OfJob {
    list: Vec<usize>,
    each: usize,
}

/// Returns the file names of a thread; `None` if it has none of its own.
pub type Names = fn(&FileDraft, u32) -> Result<Option<Vec<String>>, UsageError>;

impl Roster {
    /// Collects the files of `jobs`, each of which has at most `threads` threads.
    ///
    /// # Errors
    /// If a name is invalid, or there are too many.
    pub fn new(
        drafts: &[FileDraft],
        jobs: &[Job],
        threads: impl Fn(&Job) -> u32,
        names: Names,
    ) -> Result<Self, UsageError> {
        let mut roster = Self::default();
        for (draft, job) in drafts.iter().zip(jobs) {
            let of_job = roster.add(draft, job, threads(job).max(1), names)?;
            roster.jobs.push(of_job);
        }
        Ok(roster)
    }

    fn add(
        &mut self,
        draft: &FileDraft,
        job: &Job,
        threads: u32,
        names: Names,
    ) -> Result<Option<OfJob>, UsageError> {
        let Some(first) = names(draft, 0)? else { return Ok(None) };
        let each = first.len();
        let is_shared = threads == 1 || names(draft, 1)?.is_some_and(|second| second == first);
        let mut list = Vec::new();
        for thread in 0..threads {
            // Among threads that share files, the last one reaches furthest.
            if is_shared && thread > 0 && thread + 1 < threads {
                continue;
            }
            let of_thread = names(draft, thread)?.unwrap_or_default();
            self.named += each;
            if self.named > MAX_NAMES {
                let text =
                    format!("nrfiles: jobs name more than {MAX_NAMES} files; accepted: fewer");
                return Err(draft.at(text));
            }
            for (at, name) in of_thread.into_iter().enumerate() {
                let number = self.number(name).map_err(|e| draft.at(e))?;
                let needed = needed(draft, job, thread, (at, each));
                let file = &mut self.files[number];
                file.needed = file.needed.max(needed);
                file.is_written |= writes(job);
                if thread == 0 || !is_shared {
                    list.push(number);
                }
            }
        }
        Ok(Some(OfJob { list, each }))
    }

    /// The number of the file called `name`.
    fn number(&mut self, name: String) -> Result<usize, String> {
        if let Some(number) = self.numbers.get(&name) {
            return Ok(*number);
        }
        let number = self.files.len();
        if number == MAX_FILES {
            return Err(format!("nrfiles: more than {MAX_FILES} files in a run; accepted: fewer"));
        }
        self.numbers.insert(name.clone(), number);
        self.files.push(Wanted { name, needed: None, is_written: false });
        Ok(number)
    }

    /// The job with files and the job without, if there are both.
    pub fn mixed(&self) -> Option<(usize, usize)> {
        let with = self.jobs.iter().position(Option::is_some)?;
        let without = self.jobs.iter().position(Option::is_none)?;
        Some((with, without))
    }

    /// The bytes at which files of these lengths begin, and the end of the last one.
    pub fn place(lengths: &[u64]) -> (Vec<u64>, u64) {
        let (mut starts, mut end) = (Vec::with_capacity(lengths.len()), 0u64);
        for length in lengths {
            let next = end.saturating_add(1).checked_next_multiple_of(ALIGNMENT);
            let start = if starts.is_empty() { 0 } else { next.unwrap_or(u64::MAX) };
            starts.push(start);
            end = start.saturating_add(*length);
        }
        (starts, end)
    }

    /// The length of each of `count` files that divide a device of `bytes` equally.
    pub fn even(bytes: u64, count: usize) -> u64 {
        let each = bytes / count.max(1) as u64;
        // Room for the gap.
        (each - each % ALIGNMENT).saturating_sub(ALIGNMENT / 256)
    }

    /// Tells `jobs` where their files, of `lengths`, are.
    pub fn assign(&self, jobs: &mut [Job], drafts: &[FileDraft], lengths: &[u64]) {
        let (starts, _) = Self::place(lengths);
        for ((job, draft), files) in jobs.iter_mut().zip(drafts).zip(&self.jobs) {
            let Some(OfJob { list, each }) = files else { continue };
            // As in fio, `filesize` is the length also where the file is longer.
            let sized = draft.filesize.filter(|_| *each > 1);
            let file = |number: &usize| File {
                start: starts[*number],
                bytes: sized.map_or(lengths[*number], |bytes| bytes.min(lengths[*number])),
            };
            let (service, turn) = draft.service;
            job.files = Some(Files {
                list: list.iter().map(file).collect(),
                each: *each,
                service,
                turn,
                open: draft.openfiles.map_or(*each, |open| open as usize),
                is_sized: sized.is_some(),
            });
        }
    }
}

/// Returns whether the job writes or trims.
pub fn writes(job: &Job) -> bool {
    job.rw.directions() != [Direction::Read]
}

/// The bytes that file `at` of `each` must have for a thread of `job`; `None` if no option determines it.
pub fn needed(
    draft: &FileDraft,
    job: &Job,
    thread: u32,
    (at, each): (usize, usize),
) -> Option<u64> {
    if each > 1 && draft.filesize.is_some() {
        return draft.filesize;
    }
    let bytes = |amount| match amount {
        Amount::Bytes(bytes) => Some(bytes),
        Amount::Percent(_) => None,
    };
    let step = bytes(job.offset_increment)?.saturating_mul(thread.into());
    let start = bytes(job.offset)?.saturating_add(step);
    let share = Files::share(at, each, bytes(job.size?)?, job.smallest_block());
    Some(start.saturating_add(share).max(draft.filesize.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> FileDraft {
        FileDraft { job: "a".into(), ..FileDraft::default() }
    }

    fn named(filename: Option<&str>, directory: Option<&str>) -> FileDraft {
        let text = |text: Option<&str>| text.map(str::to_owned);
        FileDraft { filename: text(filename), directory: text(directory), ..draft() }
    }

    fn paths(draft: &FileDraft, thread: u32) -> Vec<String> {
        draft.paths(thread).expect("possible").expect("named")
    }

    #[test]
    fn names_are_made_as_in_fio() {
        let path = |name, folder| paths(&named(name, folder), 0).join(" ");
        assert_eq!(named(None, None).paths(0), Ok(None));
        assert_eq!(path(Some("/dev/sdb"), None), "/dev/sdb");
        assert_eq!(path(Some("x"), Some("/tmp")), "/tmp/x");
        assert_eq!(path(None, Some("/tmp")), "/tmp/a.0.0");
        assert_eq!(path(Some(r"pci-0\:1f"), None), "pci-0:1f");
        assert_eq!(path(Some(r"x:y\:z:w"), Some("/t")), "/t/x /t/y:z /t/w");
        let several = FileDraft { nrfiles: 3, ..named(None, Some("/t")) };
        assert_eq!(paths(&several, 2), ["/t/a.2.0", "/t/a.2.1", "/t/a.2.2"]);
        let of_list = FileDraft { nrfiles: 3, ..named(Some("x"), None) };
        assert_eq!(paths(&of_list, 0), ["x"], "the list wins over nrfiles");
        let formatted = FileDraft { format: format("f.$filenum").expect("a format"), ..several };
        assert_eq!(paths(&formatted, 2), paths(&formatted, 0), "shared by the threads");
        assert_eq!(paths(&formatted, 0), ["/t/f.0", "/t/f.1", "/t/f.2"]);
        assert!(formatted.is_of_several() && !of_list.is_of_several());
    }

    #[test]
    fn what_is_no_file_here_is_refused_and_null_has_none() {
        let refusal = |draft: FileDraft| draft.paths(0).expect_err("refused").to_string();
        assert!(refusal(named(None, Some("a:b"))).starts_with("directory=a:b names several"));
        assert!(refusal(named(Some("a::b"), None)).starts_with("filename=a::b has an empty path"));
        assert!(refusal(named(Some("a,b"), None)).contains("a path without a comma"));
        let engine = Engine::named("null").ok();
        assert_eq!(FileDraft { engine, ..named(Some("a:b"), None) }.paths(0), Ok(None));
        let refused = format("x.$clientuid").expect_err("refused").to_string();
        assert!(refused.contains("$jobname, $jobnum, $filenum"), "{refused}");
    }

    #[test]
    fn files_are_visited_in_one_of_three_ways() {
        assert_eq!(service("random"), Ok((FileService::Random, 1)));
        assert_eq!(service("roundrobin:8"), Ok((FileService::RoundRobin, 8)));
        assert_eq!(service("sequential"), Ok((FileService::Sequential, 1)));
        for text in ["zipf:1.2", "random:0", "random:x", "any", ""] {
            let refused = service(text).expect_err(text).to_string();
            assert!(refused.contains("accepted: roundrobin, random, sequential"), "{refused}");
        }
    }

    #[test]
    fn the_size_of_a_file_bounds_the_region_in_it() {
        let bytes = |n| Some(Amount::Bytes(n));
        let sized = |size, offset| {
            let mut job = Job { size, offset, ..Job::default() };
            FileDraft { filesize: Some(65_536), ..draft() }.bound(&mut job);
            job.io_size.or(job.size)
        };
        assert_eq!(sized(None, Amount::ZERO), bytes(65_536));
        assert_eq!(sized(bytes(1 << 20), Amount::ZERO), bytes(65_536));
        assert_eq!(sized(bytes(32_768), Amount::ZERO), bytes(32_768));
        // As with fio 3.33, the I/Os are anywhere in the file.
        let mut job = Job { size: bytes(32_768), ..Job::default() };
        FileDraft { filesize: Some(65_536), ..draft() }.bound(&mut job);
        assert_eq!((job.size, job.io_size), (bytes(65_536), bytes(32_768)));
        assert_eq!(sized(None, Amount::Bytes(16_384)), bytes(49_152));
        assert_eq!(sized(Some(Amount::Percent(50)), Amount::Percent(25)), bytes(32_768));
    }

    #[test]
    fn engines_without_a_meaning_are_told_from_engines_that_do_not_exist() {
        assert!(Engine::named("libaio").is_ok_and(|engine| engine.is_storage));
        assert_eq!(Engine::named("aio"), Engine::named("libaio"));
        assert!(Engine::named("psync").is_ok_and(|engine| engine.is_synchronous));
        assert!(Engine::named("null").is_ok_and(|engine| !engine.is_storage));
        let message = |name| Engine::named(name).expect_err(name).to_string();
        for name in ["ftruncate", "libhdfs", "libiscsi", "rbd", "http", "net", "external:./mine.o"]
        {
            let text = message(name);
            assert!(text.starts_with(
                "this engine of fio's has no meaning here; accepted: libaio, io_uring"
            ));
        }
        assert!(message("foo").starts_with("no engine 'foo'; accepted: libaio, "));
        assert!(message("liboai").starts_with("no engine 'liboai'; nearest: libaio; accepted: "));
    }

    const MIB: u64 = 1 << 20;

    fn draft_of(filename: Option<&str>, nrfiles: u32) -> FileDraft {
        let filename = filename.map(str::to_owned);
        FileDraft { job: "a".into(), filename, nrfiles, ..FileDraft::default() }
    }

    fn job(numjobs: u32, size: u64) -> Job {
        Job { numjobs, size: Some(Amount::Bytes(size)), ..Job::default() }
    }

    fn roster(drafts: &[FileDraft], jobs: &[Job]) -> Roster {
        Roster::new(drafts, jobs, |job| job.numjobs, FileDraft::stretches).expect("possible")
    }

    #[test]
    fn files_that_several_jobs_name_are_one() {
        let drafts = [draft_of(Some("x:y"), 1), draft_of(Some("y:z"), 1), draft_of(Some("y"), 1)];
        let mut jobs = [job(2, 2 * MIB), job(1, 6 * MIB), job(1, MIB)];
        let roster = roster(&drafts, &jobs);
        let found = roster.files.iter().map(|file| (file.name.as_str(), file.needed));
        let expected = [("x", Some(MIB)), ("y", Some(3 * MIB)), ("z", Some(3 * MIB))];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!(roster.mixed(), Some((0, 2)));
        roster.assign(&mut jobs, &drafts, &[MIB, 3 * MIB, 3 * MIB]);
        let starts = |job: &Job, thread: u32| {
            let files = job.files.as_ref().expect("files");
            Vec::from_iter(files.of(thread).iter().map(|file| file.start / MIB))
        };
        assert_eq!((starts(&jobs[0], 0), starts(&jobs[0], 1)), (vec![0, 2], vec![0, 2]));
        assert_eq!((starts(&jobs[1], 0), &jobs[2].files), (vec![2, 6], &None));
    }

    #[test]
    fn each_thread_has_its_own_where_names_differ() {
        let (drafts, mut jobs) = ([draft_of(None, 2)], [job(3, 2 * MIB)]);
        let roster = roster(&drafts, &jobs);
        assert_eq!(roster.files.len(), 6);
        assert_eq!(roster.files[3].name, "a.1.1");
        roster.assign(&mut jobs, &drafts, &[MIB; 6]);
        let files = jobs[0].files.as_ref().expect("files");
        assert_eq!(files.of(2).iter().map(|it| it.start / MIB).collect::<Vec<_>>(), [8, 10]);
    }

    #[test]
    fn no_two_files_touch() {
        assert_eq!(Roster::place(&[512, MIB, MIB + 1]), (vec![0, MIB, 3 * MIB], 4 * MIB + 1));
        let even = Roster::even(64 * MIB, 3);
        let (_, end) = Roster::place(&[even; 3]);
        assert!(end <= 64 * MIB && even > 20 * MIB, "{end} {even}");
    }

    #[test]
    fn filesize_is_the_size_of_each_file() {
        let sized = FileDraft { filesize: Some(4 * MIB), ..draft_of(Some("x:y"), 1) };
        let mut jobs = [job(1, MIB)];
        let roster = roster(std::slice::from_ref(&sized), &jobs);
        assert_eq!(roster.files[1].needed, Some(4 * MIB));
        roster.assign(&mut jobs, &[sized], &[16 * MIB, 4 * MIB]);
        let files = jobs[0].files.as_ref().expect("files");
        assert!(files.is_sized && files.of(0).iter().all(|file| file.bytes == 4 * MIB));
    }
}
