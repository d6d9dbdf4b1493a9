//! Traces: the real blkparse and btt must read blkmq's without an error message, and their counts must match the run's.

use super::Outcome;
use crate::Result;
use crate::shell::{BLKMQ, Cmd, is_installed, parse_json};
use std::path::Path;

/// Runs to trace, each with a special feature.
const RUNS: &[&str] = &[
    // Merges in plugs and elevators.
    "sim --scheduler mq-deadline --device null --rw=write --numjobs=4 --iodepth=32 --iodepth_batch_submit=16 \
     --size=2m --offset_increment=2m",
    // Requeues, and a device that is slower than its clients.
    "sim --scheduler mq-deadline --device null,irqmode=2,completion_nsec=50000,hw_queue_depth=4,requeue=3:20:0:50 \
     --rw=randrw --numjobs=2 --iodepth=8 --size=2m",
    // Cuts.
    "sim --scheduler none --device null,max_sectors=64 --rw=write --bs=256k --size=4m --iodepth=4",
    // Discards.
    "sim --scheduler mq-deadline --device null,discard=1 --rw=randtrimwrite --size=1m --iodepth=4",
    // Real threads, flushes and FUA.
    "bench --scheduler mq-deadline --device memory,size=64,cache_size=8 --rw=randwrite --numjobs=2 --iodepth=8 \
     --size=1m --fsync=8 --offset_increment=1m --pump=threads",
];

/// See [`RUNS`].
///
/// # Errors
/// If blkparse or btt prints an error, or its counts differ from the run's.
pub(super) fn check() -> Result<Outcome> {
    if !is_installed("btt") {
        return Ok(Outcome::Skipped("btt is not installed".into()));
    }
    let folder = std::env::temp_dir().join(format!("blkmq-interop-{}", std::process::id()));
    for (number, run) in RUNS.iter().enumerate() {
        let folder = folder.join(number.to_string());
        std::fs::create_dir_all(&folder)?;
        check_run(run, &folder).map_err(|e| format!("{run}: {e}"))?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(Outcome::Passed)
}

fn check_run(run: &str, folder: &Path) -> Result<()> {
    let prefix = folder.join("t");
    let prefix = prefix.display();
    let report = Cmd::new(&format!("{BLKMQ} {run} --output-format=json --trace={prefix}"));
    let report = parse_json(&report.output()?)?;
    let counters = &report["jobs"][0]["blkmq"];
    // Both report errors on standard error.
    let text = Cmd::new("blkparse -q -i t -d t.bin").silent_output_in(folder)?;
    Cmd::new("btt -i t.bin").silent_output_in(folder)?;
    let count = |letter: &str| {
        let is = |line: &&str| line.split_whitespace().nth(5) == Some(letter);
        text.lines().filter(is).count() as u64
    };
    let counted = |name: &str| counters[name].as_u64().unwrap_or(u64::MAX);
    let merges: u64 =
        counters["merges"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
    for (what, traced, expected) in [
        ("Q, I/Os submitted", count("Q"), counted("submitted") - counted("splits")),
        ("X, cuts", count("X"), counted("splits")),
        ("M and F, merges", count("M") + count("F"), merges),
        ("D, requests dispatched", count("D"), counted("dispatches")),
        ("R, requeues", count("R"), counted("requeues")),
        ("C, requests completed", count("C"), counted("requests_completed")),
    ] {
        if traced != expected {
            return Err(format!("{what}: {traced} in the trace, {expected} in the run").into());
        }
    }
    if count("Q") == 0 || report["jobs"][0]["error"] != 0 {
        return Err("nothing was done".into());
    }
    Ok(())
}
