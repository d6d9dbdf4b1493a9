//! The reasons for which fio and blkmq may differ. A difference without one is a defect.

use super::compare::{Difference, Kind, bytes};
use super::draw::{JobFile, Setting};
use super::{Both, Io};
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
    /// Returns whether blkmq has refused the file with an error that contains `words`.
    fn is_refused(&self, words: &str) -> bool {
        self.kind == Kind::Status
            && self.both.fio.code == Some(0)
            && self.both.ours.said.contains(words)
    }

    /// Returns whether a note of blkmq contains `words`.
    fn is_noted(&self, words: &str) -> bool {
        self.both.ours.report["blkmq"]["notes"].to_string().contains(words)
    }

    /// Returns whether some job has settings for which `is` holds.
    fn has_job(&self, is: impl Fn(&BTreeMap<&'static str, &str>) -> bool) -> bool {
        (0..self.file.jobs.len()).any(|at| is(&self.file.effective(at)))
    }

    /// Returns whether the difference is in the I/Os that were done, not in words or figures.
    fn is_of_ios(&self) -> bool {
        matches!(self.kind, Kind::Work | Kind::Places | Kind::Files | Kind::Syncs)
    }

    /// Returns whether fio has counted short reads.
    fn has_short_reads(&self) -> bool {
        rows(&self.both.fio.report).iter().any(|row| row["read"]["short_ios"].as_u64() > Some(0))
    }

    /// Returns whether some row is of a job with such settings, and has such numbers of I/Os of fio and of blkmq. The
    /// row of a group may be of any of its jobs.
    fn has_row(&self, is: impl Fn(&Settings<'_>, [u64; 2]) -> bool) -> bool {
        let [fio, ours] = [&self.both.fio.report, &self.both.ours.report].map(rows);
        let is_sum = self.file.to_string().contains("group_reporting");
        fio.iter().zip(ours).any(|(fio, ours)| {
            self.file.jobs.iter().enumerate().any(|(at, job)| {
                let is_of_job = is_sum || fio["jobname"] == job.name.as_str();
                let settings = self.file.effective(at);
                let ios = [fio, ours].map(|row| ios_of(row, settings.contains_key("verify")));
                is_of_job && is(&settings, ios)
            })
        })
    }
}

fn rows(report: &Value) -> &[Value] {
    report["jobs"].as_array().map_or(&[], Vec::as_slice)
}

/// The I/Os of a row, without those that verify writes.
fn ios_of(row: &Value, is_verified: bool) -> u64 {
    let ways = ["read", "write", "trim"].map(|way| row[way]["total_ios"].as_u64().unwrap_or(0));
    let [read, write, trim] = ways;
    if is_verified && write > 0 { write + trim } else { read + write + trim }
}

/// The pattern of a job, and the number after its colon.
fn pattern<'a>(settings: &BTreeMap<&'static str, &'a str>) -> (&'a str, Option<&'a str>) {
    let rw = settings.get("rw").copied().unwrap_or("read");
    rw.split_once(':').map_or((rw, None), |(rw, number)| (rw, Some(number)))
}

type Settings<'a> = BTreeMap<&'static str, &'a str>;

fn is(settings: &Settings<'_>, name: &str, values: &[&str]) -> bool {
    settings.get(name).is_some_and(|it| values.contains(it))
}

fn is_strided(settings: &Settings<'_>) -> bool {
    is(settings, "zonemode", &["strided"])
}

/// Returns whether lengths differ by direction.
fn has_other_blocks(settings: &Settings<'_>) -> bool {
    ["bs", "bsrange", "bssplit"]
        .iter()
        .any(|name| settings.get(name).is_some_and(|lengths| lengths.contains(',')))
}

/// Returns whether fio 3.33 may draw an offset for the job that does not exist, or was already used: it ends the pass
/// there.
fn may_draw_no_place(settings: &Settings<'_>) -> bool {
    let (rw, number) = pattern(settings);
    if !rw.starts_with("rand") {
        return false;
    }
    let has = |name: &str| settings.contains_key(name);
    let size = |text: &str| bytes(settings, text);
    // Runs continue to the end, which may not be at a block boundary, or to a block that was already used.
    let has_runs = number.is_some() || has("percentage_random");
    // The map has blocks of the shortest direction, used or not, and the LFSR counts in them.
    let has_other_blocks = has_other_blocks(settings);
    let is_lfsr = is(settings, "random_generator", &["lfsr"])
        && (has("blockalign") || has("random_distribution"));
    // For a distribution, a partial last block counts as a block.
    let block = size(settings.get("bs").copied().unwrap_or("4k")).max(1);
    let is_skewed = settings
        .get("random_distribution")
        .is_some_and(|it| ["zipf", "pareto", "normal"].iter().any(|name| it.starts_with(name)));
    let has_rest = !size(settings["size"]).is_multiple_of(block) || has("nrfiles");
    let has_lengths = has("bsrange") || has("bssplit");
    // Offsets of a distribution are counted in blocks; aligned to a larger unit, they lie beyond the end.
    let is_spread = has_rest || has_lengths || has("blockalign");
    // The last zone may be cut, or the block.
    has_runs || has_other_blocks || is_lfsr || (is_skewed && is_spread) || is_strided(settings)
}

/// The I/Os of a pass that may follow one that ended early, because `io_size` is not reached.
fn ios_of_an_added_pass(settings: &Settings<'_>) -> u64 {
    let block = bytes(settings, settings.get("bs").copied().unwrap_or("4k")).max(1);
    let has_amount = settings.contains_key("io_size");
    if has_amount { bytes(settings, settings["size"]).div_ceil(block) } else { 0 }
}

/// Returns whether passes of the job end before their files: fio 3.33 continues there if its engine is synchronous, and
/// starts again otherwise.
fn has_parts(settings: &Settings<'_>) -> bool {
    let is_part = is_strided(settings)
        || settings.contains_key("filesize")
        || settings.get("io_size").is_some_and(|it| it.ends_with('%'));
    let [has_loops, has_amount] = ["loops", "io_size"].map(|name| settings.contains_key(name));
    let (rw, number) = pattern(settings);
    // Holes that wrap do not end with the file, nor do runs from random offsets.
    let has_holes = number.is_some() && (!rw.starts_with("rand") || has_amount);
    // Each direction has its own offset, so a pass of both ends before the file does for both.
    let is_mixed = ["rw", "readwrite"].contains(&rw);
    let is_synchronous = is(settings, "ioengine", &["sync", "psync", "vsync", "pvsync", "pvsync2"]);
    // With nothing to read back, the first pass is the last one.
    let is_unchecked = is_synchronous && is(settings, "do_verify", &["0"]) && has_amount;
    // Checks that wait for more I/Os than such a pass has are lost with it.
    let is_forgotten = number.is_some() && settings.contains_key("verify_backlog");
    ((is_part || has_holes || (is_mixed && is_synchronous)) && (has_loops || has_amount))
        || is_unchecked
        || is_forgotten
        || is_strided(settings) && number.is_some()
}

/// Returns whether a mix of directions, each with its own offset, decides how many I/Os the rest of a file takes.
fn has_mixed_rest(settings: &Settings<'_>) -> bool {
    let block = bytes(settings, settings.get("bs").copied().unwrap_or("4k")).max(1);
    let has_rest = !bytes(settings, settings["size"]).is_multiple_of(block)
        || settings.contains_key("nrfiles");
    has_rest && ["rw", "readwrite"].contains(&pattern(settings).0)
}

pub(super) const REASONS: &[Reason] = &[
    Reason {
        text: "fio 3.33 does not end, or breaks off: an assertion, a file that was closed or is not there yet, or an LFSR of few \
               blocks",
        explains: |case| {
            let fio = &case.both.fio;
            // If two jobs lay out one file together, one finds it missing.
            let breaks_off = ["Assertion", "func=file close", "func=open("]
                .iter()
                .any(|it| fio.said.contains(it));
            (case.kind == Kind::Status && ([124, 137].map(Some).contains(&fio.code) || breaks_off))
                || (case.is_of_ios() && fio.said.contains("failed initializing LFSR"))
                || (case.is_of_ios()
                    && case.file.jobs.len() > 1
                    && case.has_job(|it| is(it, "create_serialize", &["0"])))
        },
    },
    Reason {
        text: "blkmq refuses, rounds up to sectors, or lays out, what docs/fio-options.md says",
        explains: |case| {
            let sectors =
                |it: &Settings<'_>| is(it, "kb_base", &["1000"]) || is(it, "offset", &["5000"]);
            let is_rounded = case.is_of_ios() && case.is_noted("is rounded up to");
            // In fio, a job that ignores `fill_device` finds an empty file if another job of the file has the option.
            let reads = |it: &Settings<'_>| pattern(it).0.ends_with("read");
            let is_laid_out = case.kind == Kind::Work
                && case.file.jobs.len() > 1
                && case.has_job(|it| is(it, "fill_device", &["1"]))
                && case.has_job(|it| !is(it, "fill_device", &["1"]) || reads(it));
            is_laid_out
                || case.is_refused("fio's, but not built")
                || (is_rounded && case.has_job(sectors))
                || (case.is_refused("accepted are multiples of 512") && case.has_job(sectors))
                || (case.is_refused("no whole sectors, which direct=1 needs")
                    && case.has_job(sectors))
                || (case.is_refused("is smaller than one block") && case.has_job(is_strided))
                || case.is_refused("accepted: parts that do not overlap")
                || case.is_refused("verify of a job that only trims")
                || case.is_refused("keeps nothing of what is written")
        },
    },
    Reason {
        text: "fio 3.33 shows a group with the options of its last job, and mixes rows up if only some jobs report by group",
        explains: |case| {
            let sums = |it: &Settings<'_>| it.get("group_reporting").is_some_and(|it| *it != "0");
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
        text: "fio 3.33 counts flushes as turns of files and as I/O in a zone, those of fdatasync as short reads, and those of engines \
               that flush without waiting once for each try; files that wait to be closed have turns",
        explains: |case| {
            let has_fdatasync = case.has_job(|it| it.contains_key("fdatasync"));
            let is_in_zone = |it: &Settings<'_>| {
                is_strided(it) && (it.contains_key("fsync") || it.contains_key("fdatasync"))
            };
            let is_turn = |it: &Settings<'_>| {
                it.contains_key("nrfiles")
                    && (it.contains_key("fsync") || it.contains_key("fdatasync"))
            };
            let waits_to_be_closed = |it: &Settings<'_>| {
                let number = |name| it.get(name).and_then(|text| text.parse::<u32>().ok());
                let has_more =
                    number("openfiles").is_some() && number("openfiles") < number("nrfiles");
                has_more && it.get("iodepth").is_some_and(|depth| *depth != "1")
            };
            let is_tried_again = |it: &Settings<'_>| {
                let is_batch = is(it, "ioengine", &["libaio"])
                    && ["iodepth_batch", "iodepth_batch_complete", "iodepth_low"]
                        .iter()
                        .any(|name| it.contains_key(name));
                (is(it, "ioengine", &["io_uring", "null", "posixaio"]) || is_batch)
                    && it.get("iodepth").is_some_and(|depth| *depth != "1")
                    && (it.contains_key("fsync") || it.contains_key("fdatasync"))
                    && (case.kind != Kind::Work || it.contains_key("number_ios"))
            };
            case.is_of_ios()
                && ((has_fdatasync && case.has_short_reads())
                    || case.has_job(is_tried_again)
                    || case.has_job(is_in_zone)
                    || case.has_job(is_turn)
                    || (case.kind == Kind::Places && case.has_job(waits_to_be_closed)))
        },
    },
    Reason {
        text: "fio 3.33 refuses an io_size below bs, and fails where an end lies within a sector",
        explains: |case| {
            let refused = case.both.fio.said.contains("blocksize is larger than data set range");
            let failed = case.both.fio.said.contains("err=22");
            let is_back = |it: &Settings<'_>| pattern(it).1.is_some_and(|gap| gap.starts_with('-'));
            let is_odd = |io: &Io| !io.offset.is_multiple_of(512);
            let mut ios = case.both.fio.places.values().flatten();
            let is_odd_size = |it: &Settings<'_>| is(it, "kb_base", &["1000"]);
            (case.kind == Kind::Status && refused && case.has_job(|it| it.contains_key("io_size")))
                || (case.kind == Kind::Status
                    && failed
                    && (case.has_job(is_back) || case.has_job(is_odd_size)))
                || (case.is_of_ios() && ios.any(is_odd) && case.has_job(is_back))
        },
    },
    Reason {
        text: "fio 3.33 ends a pass early where it draws a place that does not exist or is used: in runs, in maps of a shorter \
               direction's blocks, with lfsr and blockalign, in the rest behind the last block, and in the last zone",
        explains: |case| {
            // Another pass may follow: then there are as many I/Os, elsewhere, or a few more.
            let ends_early = |it: &Settings<'_>, [fio, ours]: [u64; 2]| {
                let is_early = fio < ours
                    || (fio == ours && case.kind != Kind::Work)
                    || fio - ours < ios_of_an_added_pass(it);
                is_early && may_draw_no_place(it)
            };
            // The last offsets of such a map are drawn by chance.
            let is_chance = |it: &Settings<'_>, [fio, ours]: [u64; 2]| {
                let is_random = pattern(it).0.starts_with("rand");
                is_random && has_other_blocks(it) && fio.abs_diff(ours) <= 8
            };
            // One of two directions may already be in the next zone.
            let is_apart =
                |it: &Settings<'_>| is_strided(it) && ["rw", "readwrite"].contains(&pattern(it).0);
            let is_wrong = case.both.ours.said.contains("verification failed");
            (case.is_of_ios()
                && (case.has_row(ends_early) || case.has_row(is_chance) || case.has_job(is_apart)))
                || (case.kind == Kind::Status
                    && is_wrong
                    && case.has_row(|it, [fio, _]| fio == 0 && may_draw_no_place(it)))
        },
    },
    Reason {
        text: "where passes end before their files, fio 3.33 continues with a synchronous engine, begins again with another, and \
               forgets what it was to check",
        explains: |case| {
            // The pass begins with the flush that is due.
            let is_flushed = |it: &Settings<'_>| {
                let has = |name: &str| it.contains_key(name);
                (has("loops") || has("io_size")) && (has("fsync") || has("fdatasync"))
            };
            let is_of_flushes = matches!(case.kind, Kind::Syncs | Kind::Places);
            // An I/O for each of the files, which are few.
            let is_rest = |it: &Settings<'_>, [fio, ours]: [u64; 2]| {
                has_mixed_rest(it) && fio.abs_diff(ours) <= 8
            };
            (case.is_of_ios() && (case.has_job(has_parts) || case.has_row(is_rest)))
                || (is_of_flushes && case.has_job(is_flushed))
        },
    },
    Reason {
        text: "fio 3.33 keeps the share of the global section where a job has an offset in bytes",
        explains: |case| {
            let is_share = |text: &&str| text.ends_with('%');
            let keeps = |name: &str| {
                let of = |settings: &[Setting]| {
                    Vec::from_iter(
                        settings.iter().filter(|it| it.name == name).map(|it| it.value.clone()),
                    )
                };
                let global = of(&case.file.global);
                global.iter().any(|it| is_share(&it.as_str()))
                    && case
                        .file
                        .jobs
                        .iter()
                        .any(|job| of(&job.settings).iter().any(|it| !is_share(&it.as_str())))
            };
            case.is_of_ios() && ["offset", "offset_increment"].into_iter().any(keeps)
        },
    },
    Reason {
        text: "fio 3.33 finds blocks wrong that it has itself written again, counts checks in number_ios, and ends a job that checks \
               on its way after a pass",
        explains: |case| {
            let is_counted =
                |it: &Settings<'_>| it.contains_key("verify") && it.contains_key("number_ios");
            let is_once = |it: &Settings<'_>| {
                it.contains_key("verify_backlog")
                    && ["loops", "io_size"].iter().any(|name| it.contains_key(name))
            };
            if case.is_of_ios() && (case.has_job(is_counted) || case.has_job(is_once)) {
                return true;
            }
            let overlaps = |it: &Settings<'_>| it.contains_key("verify");
            case.kind == Kind::Status
                && case.both.fio.said.contains("err=84")
                && case.both.ours.code == Some(0)
                && case.has_job(overlaps)
        },
    },
    Reason {
        text: "fio 3.33 trims and writes apart from each other in zones and files, behind an offset, and where their lengths differ, does \
               not flush between them, and counts number_ios in the last loop alone",
        explains: |case| {
            let is_apart = |it: &Settings<'_>| {
                pattern(it).0.ends_with("trimwrite")
                    && (is_strided(it)
                        || has_other_blocks(it)
                        || it.contains_key("loops") && it.contains_key("number_ios")
                        || [
                            "offset",
                            "offset_increment",
                            "nrfiles",
                            "blockalign",
                            "fsync",
                            "fdatasync",
                        ]
                        .iter()
                        .any(|name| it.contains_key(name)))
            };
            case.is_of_ios() && case.has_job(is_apart)
        },
    },
];

/// The index of the reason for `difference`.
pub(super) fn reason(file: &JobFile, both: &Both, difference: &Difference) -> Option<usize> {
    let case = Case { file, both, kind: difference.kind };
    REASONS.iter().position(|reason| (reason.explains)(&case))
}
