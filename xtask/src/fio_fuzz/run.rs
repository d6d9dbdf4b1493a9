//! Runs a job file with fio and with `blkmq bench`, each in its own folder, and collects the outcomes. Nothing is
//! judged here. A planted [`Fault`], which the comparison must find, gives blkmq another job file or changes its
//! outcome.

use super::draw::{DATA, JobFile};
use crate::Result;
use crate::shell::Cmd;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

/// Seconds after which a run is killed: some combinations of options make fio 3.33 hang.
const LIMIT: u32 = 30;
/// The exit code of a program that took too long; higher codes mean that a signal ended it.
const TIMED_OUT: i32 = 124;
const SECTOR: usize = 512;
/// The bytes of a file that exists beforehand. Neither program writes such a sector.
const BACKGROUND: u8 = 0x5a;

#[derive(Clone, Default, Debug)]
pub(super) struct Outcome {
    /// `None`: it was ended by a signal.
    pub(super) code: Option<i32>,
    pub(super) report: Value,
    /// Standard error, and the output before the report.
    pub(super) said: String,
    /// The I/Os of each log, as they were issued, or as they were completed if a job has several threads.
    pub(super) places: BTreeMap<String, Vec<Io>>,
    /// The remaining files.
    pub(super) files: BTreeMap<String, Left>,
}

/// An I/O of a log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Io {
    /// `read`, `write`, `trim` or `sync`.
    pub(super) action: &'static str,
    /// The file, if the log names one.
    pub(super) file: String,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A remaining file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Left {
    pub(super) bytes: u64,
    /// The sectors that are not as they were; of a file that was there beforehand.
    pub(super) changed: Vec<u64>,
}

/// The outcomes of fio and of `blkmq bench`.
#[derive(Clone, Default, Debug)]
pub(super) struct Both {
    pub(super) fio: Outcome,
    pub(super) ours: Outcome,
}

/// The programs, and the folder in which they run.
pub(super) struct Programs {
    pub(super) blkmq: String,
    pub(super) folder: PathBuf,
}

/// Runs that were started.
pub(super) struct Running {
    sides: [(Child, PathBuf); 2],
}

impl Programs {
    /// Starts both programs in folders named after `name`; `theirs` and `ours` are equal unless a fault is planted.
    ///
    /// # Errors
    /// If a file cannot be written or a program cannot be started.
    pub(super) fn start(&self, name: &str, theirs: &JobFile, ours: &JobFile) -> Result<Running> {
        let place = self.folder.join(name);
        // Files of an earlier run would be counted.
        let _ = fs::remove_dir_all(&place);
        let fio = format!("timeout -k 5 {LIMIT} fio");
        let blkmq = format!("timeout {LIMIT} {} bench --scheduler=none", self.blkmq);
        Ok(Running {
            sides: [
                start(&place.join("fio"), &fio, theirs)?,
                start(&place.join("ours"), &blkmq, ours)?,
            ],
        })
    }
}

fn start(folder: &Path, program: &str, file: &JobFile) -> Result<(Child, PathBuf)> {
    fs::create_dir_all(folder)?;
    if let Some(bytes) = file.laid {
        fs::write(folder.join(DATA), vec![BACKGROUND; bytes as usize])?;
    }
    fs::write(folder.join("job.fio"), with_logs(file))?;
    let [out, said] = ["out.json", "said.txt"].map(|name| File::create(folder.join(name)));
    let line = format!("{program} --output-format=json job.fio");
    Ok((Cmd::new(&line).start_in(folder, out?, said?)?, folder.to_owned()))
}

/// Returns whether the I/Os of the job at `at` are logged when they complete. Threads would share a log of I/Os as they
/// are issued, and fio's null engine issues some twice.
pub(super) fn by_completion(file: &JobFile, at: usize) -> bool {
    let settings = file.effective(at);
    let is_above_one = |name: &str| settings.get(name).is_some_and(|value| *value != "1");
    is_above_one("numjobs")
        || (settings.get("ioengine") == Some(&"null") && is_above_one("iodepth"))
}

/// The job file with logs of the offsets: by job as they are issued, or by thread if there are several.
fn with_logs(file: &JobFile) -> String {
    let mut text = file.to_string();
    for (at, job) in file.jobs.iter().enumerate() {
        let name = &job.name;
        let logs = if !by_completion(file, at) {
            format!("write_iolog={name}.iolog")
        } else {
            format!("write_lat_log={name}\nlog_offset=1")
        };
        let header = format!("[{name}]\n");
        text = text.replacen(&header, &format!("{header}{logs}\n"), 1);
    }
    text
}

impl Running {
    /// Waits for the end of both, and removes the files they leave.
    ///
    /// # Errors
    /// If the kernel does not report how a program ended, or a file cannot be read.
    pub(super) fn finish(self) -> Result<Both> {
        let [fio, ours] = self.sides.map(|(mut child, folder)| -> Result<Outcome> {
            let code = code(child.wait()?);
            if code.is_some_and(|code| code >= TIMED_OUT) {
                end_those_in(&folder)?;
            }
            let outcome = collect(&folder, code)?;
            fs::remove_dir_all(&folder)?;
            Ok(outcome)
        });
        Ok(Both { fio: fio?, ours: ours? })
    }
}

/// The exit code as a shell has it: 128 and the number of the signal that ended the program.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

/// Kills the programs whose working directory is `folder`: the jobs of a fio that was killed.
fn end_those_in(folder: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder)?;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        if fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == folder)
            && let Some(id) = path.file_name()
        {
            // It may have ended in the meantime.
            let _ = Cmd::new("kill -9").arg(id.to_string_lossy()).run();
        }
    }
    Ok(())
}

fn collect(folder: &Path, code: Option<i32>) -> Result<Outcome> {
    let text = |name: &str| -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(folder.join(name))?).into_owned())
    };
    let (out, mut said) = (text("out.json")?, text("said.txt")?);
    // fio puts its remarks in front of the report.
    let at = out.find("{\n").unwrap_or(out.len());
    said += &out[..at];
    let report = serde_json::from_str(&out[at..]).unwrap_or_default();
    let mut outcome = Outcome { code, report, said, ..Outcome::default() };
    let is_laid = text("job.fio")?.starts_with(';');
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ["out.json", "said.txt", "job.fio"].contains(&name.as_str()) || name.ends_with(".state")
        {
            continue;
        }
        if name.ends_with(".iolog") {
            outcome.places.insert(name.clone(), text(&name)?.lines().filter_map(issued).collect());
        } else if name.ends_with(".log") {
            if let Some(name) = name.strip_suffix(".log").filter(|name| name.contains("_lat.")) {
                let lines = text(&format!("{name}.log"))?;
                outcome
                    .places
                    .insert(name.to_owned(), lines.lines().filter_map(completed).collect());
            }
        } else {
            let left = if is_laid && name == DATA {
                compared(&fs::read(entry.path())?)
            } else {
                Left { bytes: entry.metadata()?.len(), changed: Vec::new() }
            };
            outcome.files.insert(name, left);
        }
    }
    // Logs of submission and completion latencies repeat the same I/Os.
    outcome.places.retain(|name, _| !name.contains("_slat.") && !name.contains("_clat."));
    Ok(outcome)
}

fn compared(bytes: &[u8]) -> Left {
    let is_changed = |(_, sector): &(usize, &[u8])| sector.iter().any(|byte| *byte != BACKGROUND);
    let changed = bytes.chunks(SECTOR).enumerate().filter(is_changed).map(|(at, _)| at as u64);
    Left { bytes: bytes.len() as u64, changed: changed.collect() }
}

const ACTIONS: [&str; 4] = ["read", "write", "trim", "sync"];

/// A line of an iolog: time, file, action, offset, length.
fn issued(line: &str) -> Option<Io> {
    let words = Vec::from_iter(line.split(' '));
    let [_, file, action, offset, bytes] = words[..] else { return None };
    // fio says `datasync` for fdatasync. Both flush.
    let action = if action == "datasync" { "sync" } else { action };
    let action = ACTIONS.into_iter().find(|known| *known == action)?;
    // The programs name the files of the null engine and of a folder differently.
    let file = file.rsplit('/').next().unwrap_or_default().to_owned();
    let is_sync = action == "sync";
    let [offset, bytes] = [offset, bytes].map(|word| word.parse().ok().filter(|_| !is_sync));
    let io = Io { action, file, offset: offset.unwrap_or(0), bytes: bytes.unwrap_or(0) };
    Some(io)
}

/// A line of a latency log: time, latency, direction, length, offset. A flush has none.
fn completed(line: &str) -> Option<Io> {
    let fields = Vec::from_iter(line.split(',').map(|field| field.trim().parse::<u64>().ok()));
    let [_, _, Some(direction), Some(bytes), Some(offset), ..] = fields[..] else { return None };
    let action = *ACTIONS[..3].get(usize::try_from(direction).ok()?)?;
    Some(Io { action, file: String::new(), offset, bytes })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// An option is missing in blkmq.
    OptionDropped,
    /// Each offset is a block too far.
    BlockOff,
    /// The row of a group has the I/Os of one thread.
    OneThread,
}

pub(super) const FAULTS: [Fault; 3] = [Fault::OptionDropped, Fault::BlockOff, Fault::OneThread];

/// Options that change the I/Os in every section.
const DROPPED: [&str; 4] = ["io_size", "number_ios", "bs", "loops"];
const BLOCK: u64 = 4096;

impl Fault {
    /// The job file that blkmq gets.
    pub(super) fn in_file(self, file: &JobFile) -> JobFile {
        let mut changed = file.clone();
        if self == Self::OptionDropped {
            for job in &mut changed.jobs {
                job.settings.retain(|it| !DROPPED.contains(&it.name));
            }
        }
        changed
    }

    /// Changes the outcome of blkmq.
    pub(super) fn in_outcome(self, file: &JobFile, both: &mut Both) {
        match self {
            Self::OptionDropped => {}
            Self::BlockOff => {
                both.ours.places.values_mut().flatten().for_each(|io| io.offset += BLOCK);
            }
            Self::OneThread => {
                let threads = |at: usize| -> u64 {
                    file.effective(at).get("numjobs").and_then(|it| it.parse().ok()).unwrap_or(1)
                };
                let all = (0..file.jobs.len()).map(threads).max().unwrap_or(1);
                let is_sum = (0..file.jobs.len()).any(|at| {
                    file.effective(at).get("group_reporting").is_some_and(|it| *it != "0")
                });
                if is_sum {
                    divide(&mut both.ours.report, all);
                }
            }
        }
    }
}

/// Leaves the share of one of `threads` in each row.
fn divide(report: &mut Value, threads: u64) {
    for row in report["jobs"].as_array_mut().into_iter().flatten() {
        for direction in ["read", "write", "trim"] {
            for key in ["total_ios", "io_bytes"] {
                let count = row[direction][key].as_u64().unwrap_or(0);
                row[direction][key] = json!(count / threads);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio_fuzz::compare::{Kind, compare};
    use crate::fio_fuzz::draw::{Job, Setting};

    #[test]
    fn logs_are_read() {
        let io =
            |action, file: &str, offset, bytes| Io { action, file: file.to_owned(), offset, bytes };
        assert_eq!(issued("151 data write 98304 16384"), Some(io("write", "data", 98_304, 16_384)));
        assert_eq!(issued("9 ./data datasync 0 0"), Some(io("sync", "data", 0, 0)));
        assert_eq!(issued("0 data add"), None);
        assert_eq!(issued("fio version 3 iolog"), None);
        assert_eq!(completed("1, 20, 1, 1024, 512, 0"), Some(io("write", "", 512, 1_024)));
        assert_eq!(completed("1, 20, 3, 0, 0"), None);
    }

    #[test]
    fn changed_sectors_are_found() {
        let mut bytes = vec![BACKGROUND; 2_000];
        assert_eq!(compared(&bytes), Left { bytes: 2_000, changed: Vec::new() });
        (bytes[512], bytes[1_999]) = (0, 1);
        assert_eq!(compared(&bytes).changed, [1, 3]);
    }

    #[test]
    fn each_job_has_a_log_of_its_own() {
        let mut file = JobFile::draw(1);
        file.global.retain(|it| it.name != "numjobs");
        file.jobs.truncate(1);
        file.jobs[0].settings.retain(|it| it.name != "numjobs");
        assert!(with_logs(&file).contains("[first]\nwrite_iolog=first.iolog\n"));
        file.jobs[0].settings.push(Setting { name: "numjobs", value: "2".to_owned() });
        assert!(with_logs(&file).contains("[first]\nwrite_lat_log=first\nlog_offset=1\n"));
    }

    /// 16 reads of each of two threads, and a log of one of them.
    fn both() -> (JobFile, Both) {
        let setting = |name, value: &str| Setting { name, value: value.to_owned() };
        let settings = vec![setting("rw", "read"), setting("number_ios", "16")];
        let job = Job { name: "first".to_owned(), settings };
        let global = vec![setting("numjobs", "2"), setting("group_reporting", "")];
        let file = JobFile { laid: None, global, jobs: vec![job] };
        let read = json!({ "total_ios": 32, "io_bytes": 131_072, "short_ios": 0, "drop_ios": 0 });
        let row = json!({ "jobname": "first", "groupid": 0, "error": 0, "read": read });
        let io =
            |at: u64| Io { action: "read", file: String::new(), offset: at * BLOCK, bytes: BLOCK };
        let outcome = Outcome {
            code: Some(0),
            report: json!({ "jobs": [row] }),
            places: [("first_lat.1".to_owned(), (0..16).map(io).collect())].into(),
            ..Outcome::default()
        };
        (file, Both { fio: outcome.clone(), ours: outcome })
    }

    #[test]
    fn equal_outcomes_do_not_differ() {
        let (file, both) = both();
        assert_eq!(compare(&file, &both), []);
    }

    #[test]
    fn each_planted_fault_is_found() {
        let kinds = |fault: Fault| {
            let (file, mut both) = both();
            fault.in_outcome(&file, &mut both);
            Vec::from_iter(compare(&file, &both).into_iter().map(|it| it.kind))
        };
        assert_eq!(kinds(Fault::BlockOff), [Kind::Places]);
        assert_eq!(kinds(Fault::OneThread), [Kind::Work]);
        let (file, _) = both();
        let dropped = Fault::OptionDropped.in_file(&file);
        assert_eq!((file.len() - dropped.len(), dropped.jobs[0].settings.len()), (1, 1));
        assert_eq!(Fault::BlockOff.in_file(&file), file);
    }

    #[test]
    fn a_side_that_refuses_or_leaves_something_else_is_found() {
        let kinds = |change: fn(&mut Outcome)| {
            let (file, mut both) = both();
            change(&mut both.ours);
            Vec::from_iter(compare(&file, &both).into_iter().map(|it| it.kind))
        };
        assert_eq!(kinds(|it| it.code = Some(2)), [Kind::Status]);
        assert_eq!(kinds(|it| it.report["jobs"][0]["jobname"] = json!("second")), [Kind::Rows]);
        assert_eq!(kinds(|it| it.report["jobs"][0]["sync"]["total_ios"] = json!(3)), [Kind::Syncs]);
        assert_eq!(
            kinds(|it| it.report["global options"] = json!({ "bs": "4k" })),
            [Kind::Options]
        );
        assert_eq!(
            kinds(|it| drop(it.files.insert("x".to_owned(), Default::default()))),
            [Kind::Files]
        );
        assert_eq!(kinds(|it| drop(it.places.remove("first_lat.1"))), [Kind::Places; 2]);
    }
}
