//! Collects the files of all jobs of a run, and lays them out consecutively on one device, as on an otherwise empty
//! file system.
//!
//! Pure: [`target`](super::target) checks whether files exist, and their lengths.

use super::file_draft::FileDraft;
use blkmq_lab::workload::{Amount, Direction, File, Files, Job};
use blkmq_terminal::UsageError;
use std::collections::BTreeMap;

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

/// The paths of a thread's files.
pub fn paths(draft: &FileDraft, thread: u32) -> Result<Option<Vec<String>>, UsageError> {
    draft.paths(thread)
}

/// The names of a thread's files if it has several that are ranges of a given device.
pub fn stretches(draft: &FileDraft, thread: u32) -> Result<Option<Vec<String>>, UsageError> {
    if draft.is_of_several() { draft.names(thread).map(Some) } else { Ok(None) }
}

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
            let of_thread = if thread == 0 { Some(first.clone()) } else { names(draft, thread)? };
            self.named += each;
            if self.named > MAX_NAMES {
                let text =
                    format!("nrfiles: jobs name more than {MAX_NAMES} files; accepted: fewer");
                return Err(draft.at(text));
            }
            for (at, name) in of_thread.unwrap_or_default().into_iter().enumerate() {
                let number = self.number(name).map_err(|e| draft.at(e))?;
                let needed = needed(draft, job, thread, (at, each));
                let file = &mut self.files[number];
                file.needed = file.needed.max(needed);
                file.is_written |= *job.rw.directions() != [Direction::Read];
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

/// The bytes that file `at` of `each` must have for a thread of `job`; `None` if no option determines it.
fn needed(draft: &FileDraft, job: &Job, thread: u32, (at, each): (usize, usize)) -> Option<u64> {
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

    const MIB: u64 = 1 << 20;

    fn draft(filename: Option<&str>, nrfiles: u32) -> FileDraft {
        let filename = filename.map(str::to_owned);
        FileDraft { job: "a".into(), filename, nrfiles, ..FileDraft::default() }
    }

    fn job(numjobs: u32, size: u64) -> Job {
        Job { numjobs, size: Some(Amount::Bytes(size)), ..Job::default() }
    }

    fn roster(drafts: &[FileDraft], jobs: &[Job]) -> Roster {
        Roster::new(drafts, jobs, |job| job.numjobs, stretches).expect("possible")
    }

    #[test]
    fn files_that_several_jobs_name_are_one() {
        let drafts = [draft(Some("x:y"), 1), draft(Some("y:z"), 1), draft(Some("y"), 1)];
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
        let (drafts, mut jobs) = ([draft(None, 2)], [job(3, 2 * MIB)]);
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
        let sized = FileDraft { filesize: Some(4 * MIB), ..draft(Some("x:y"), 1) };
        let mut jobs = [job(1, MIB)];
        let roster = roster(std::slice::from_ref(&sized), &jobs);
        assert_eq!(roster.files[1].needed, Some(4 * MIB));
        roster.assign(&mut jobs, &[sized], &[16 * MIB, 4 * MIB]);
        let files = jobs[0].files.as_ref().expect("files");
        assert!(files.is_sized && files.of(0).iter().all(|file| file.bytes == 4 * MIB));
    }
}
