//! The reasons for which fio and blkmq may differ. A difference without one is a defect.

use super::compare::{Difference, Kind};
use super::draw::JobFile;
use super::run::Both;
use serde_json::Value;
use std::collections::BTreeMap;

/// A reason, and the differences that it explains.
pub(super) struct Reason {
    pub(super) text: &'static str,
    explains: fn(&Case<'_>) -> bool,
}

/// A difference, and the runs that show it.
struct Case<'a> {
    file: &'a JobFile,
    both: &'a Both,
    kind: Kind,
}

impl Case<'_> {
    /// Returns whether blkmq has refused the file with these words.
    fn is_refused(&self, words: &str) -> bool {
        self.kind == Kind::Status
            && self.both.fio.code == Some(0)
            && self.both.ours.said.contains(words)
    }

    /// Returns whether a note of blkmq has these words.
    fn is_noted(&self, words: &str) -> bool {
        self.both.ours.report["blkmq"]["notes"].to_string().contains(words)
    }

    /// Returns whether a job has such options.
    fn has_job(&self, is: impl Fn(&BTreeMap<&'static str, &str>) -> bool) -> bool {
        (0..self.file.jobs.len()).any(|at| is(&self.file.effective(at)))
    }

    /// Returns whether the difference is about I/Os that were done, and not about words or figures.
    fn is_of_ios(&self) -> bool {
        matches!(self.kind, Kind::Work | Kind::Places | Kind::Files | Kind::Syncs)
    }

    /// Returns whether fio has counted short reads.
    fn has_short_reads(&self) -> bool {
        rows(&self.both.fio.report).iter().any(|row| row["read"]["short_ios"].as_u64() > Some(0))
    }

    /// All I/Os of fio and of blkmq.
    fn ios(&self) -> [u64; 2] {
        let sum = |report: &Value| rows(report).iter().map(ios_of).sum();
        [sum(&self.both.fio.report), sum(&self.both.ours.report)]
    }

    /// I/Os of fio that blkmq has not done, in a row of such a job; negative if there are more.
    fn has_row(&self, is: impl Fn(&BTreeMap<&'static str, &str>, i64) -> bool) -> bool {
        let [fio, ours] = [&self.both.fio.report, &self.both.ours.report].map(rows);
        fio.iter().zip(ours).any(|(fio, ours)| {
            let job = self.file.jobs.iter().position(|job| fio["jobname"] == job.name.as_str());
            let more = ios_of(fio).cast_signed() - ios_of(ours).cast_signed();
            job.is_some_and(|at| is(&self.file.effective(at), more))
        })
    }
}

fn rows(report: &Value) -> &[Value] {
    report["jobs"].as_array().map_or(&[], Vec::as_slice)
}

fn ios_of(row: &Value) -> u64 {
    let ways = [&row["read"], &row["write"], &row["trim"]];
    ways.into_iter().filter_map(|way| way["total_ios"].as_u64()).sum()
}

/// The pattern of a job, and the number behind its colon.
fn pattern<'a>(settings: &BTreeMap<&'static str, &'a str>) -> (&'a str, Option<&'a str>) {
    let rw = settings.get("rw").copied().unwrap_or("read");
    rw.split_once(':').map_or((rw, None), |(rw, number)| (rw, Some(number)))
}

/// All reasons.
pub(super) const REASONS: &[Reason] = &[
    Reason {
        text: "fio 3.33 does not end",
        explains: |case| case.kind == Kind::Status && case.both.fio.code == Some(124),
    },
    Reason {
        text: "docs/fio-options.md names the option as refused",
        explains: |case| case.is_refused("fio's, but not built"),
    },
    Reason {
        text: "blkmq does I/O in whole sectors, and 4k is 4000 with kb_base=1000",
        explains: |case| {
            let is_rounded = case.is_noted("is rounded up to");
            (is_rounded && case.is_of_ios() || case.is_refused("accepted are multiples of 512"))
                && case.has_job(|it| it.get("kb_base") == Some(&"1000"))
        },
    },
    Reason {
        text: "blkmq refuses to verify what it cannot: trims, the null device, what other jobs write",
        explains: |case| {
            case.is_refused("accepted: parts that do not overlap")
                || case.is_refused("verify of a job that only trims")
                || case.is_refused("keeps nothing of what is written")
        },
    },
    Reason {
        text: "fio 3.33 shows a group with the options of its last job, and mixes rows up if only some jobs report by group",
        explains: |case| {
            let sums = |it: &BTreeMap<&'static str, &str>| {
                it.get("group_reporting").is_some_and(|it| *it != "0")
            };
            let jobs = case.file.jobs.len();
            let all = (0..jobs).filter(|at| sums(&case.file.effective(*at))).count();
            let is_mixed = (1..jobs).contains(&all);
            (all > 0 && case.kind == Kind::Options)
                || (is_mixed
                    && matches!(
                        case.kind,
                        Kind::Rows | Kind::Work | Kind::Syncs | Kind::Arithmetic
                    ))
        },
    },
    Reason {
        text: "fio 3.33 counts flushes of fdatasync as short reads, and as turns of files",
        explains: |case| {
            let has_fdatasync = case.has_job(|it| it.contains_key("fdatasync"));
            case.is_of_ios() && has_fdatasync && case.has_short_reads()
        },
    },
    Reason {
        text: "fio 3.33 refuses an io_size below bs, which blkmq rounds up",
        explains: |case| {
            let refused = case.both.fio.said.contains("blocksize is larger than data set range");
            case.kind == Kind::Status && refused && case.has_job(|it| it.contains_key("io_size"))
        },
    },
    Reason {
        text: "fio 3.33 ends a pass early where runs at random places meet the end or a place that is used",
        explains: |case| {
            let [fio, ours] = case.ios();
            let has_runs = |rw: (&str, Option<&str>)| rw.0.starts_with("rand") && rw.1.is_some();
            // The flush behind the last I/O of a pass is done.
            let ends_early = fio < ours || case.kind == Kind::Syncs;
            case.is_of_ios() && ends_early && case.has_job(|it| has_runs(pattern(it)))
        },
    },
    Reason {
        text: "fio 3.33 ends a pass with gaps (rw=read:4k) elsewhere: in zones, with blockalign or a distribution, in several \
               files, or in a file longer than the region, and goes backwards from the end of the file",
        explains: |case| {
            let is_odd = |it: &BTreeMap<&'static str, &str>| {
                let (rw, gap) = pattern(it);
                let has_gaps = !rw.starts_with("rand") && gap.is_some();
                let is_back = gap.is_some_and(|gap| gap.starts_with('-'));
                let options = ["blockalign", "random_distribution", "nrfiles", "filesize"];
                let has_one = options.iter().any(|name| it.contains_key(name));
                let is_strided = it.get("zonemode") == Some(&"strided");
                has_gaps && (is_back || is_strided || has_one || case.file.laid.is_some())
            };
            // Backwards from an end that is no whole block of the device.
            let failed = case.kind == Kind::Status && case.both.fio.said.contains("err=22");
            (case.is_of_ios() || failed) && case.has_job(is_odd)
        },
    },
    Reason {
        text: "in a mix over several files, fio does an I/O more where each share of size ends in a part of a block",
        explains: |case| {
            let is_mix =
                |it: &BTreeMap<&'static str, &str>| matches!(pattern(it).0, "rw" | "readwrite");
            case.kind == Kind::Work
                && case.has_row(|it, more| {
                    is_mix(it) && it.contains_key("nrfiles") && (1..=8).contains(&more)
                })
        },
    },
];

/// The place of the reason for `difference`.
pub(super) fn reason(file: &JobFile, both: &Both, difference: &Difference) -> Option<usize> {
    let case = Case { file, both, kind: difference.kind };
    REASONS.iter().position(|reason| (reason.explains)(&case))
}
