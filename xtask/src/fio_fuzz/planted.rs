//! Faults that the comparison must find: blkmq gets another job file, or its outcome is changed.

use super::draw::JobFile;
use super::run::Both;
use serde_json::{Value, json};

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
    use super::super::compare::{Kind, compare};
    use super::super::draw::{Job, Setting};
    use super::super::run::{Io, Outcome};
    use super::*;

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
