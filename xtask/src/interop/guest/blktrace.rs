//! The kernel's own recording of its block layer, made in a guest: `blkmq trace` and `blkmq replay` must read its
//! binary records and blkparse's text as one trace, with the counts of blkparse.

use super::super::Outcome;
use super::super::folder::Folder;
use super::{Kernel, lack};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The records and the text.
const FORMS: [&str; 2] = ["trace.bin", "trace.txt"];
/// The option that selects the counted event, the name of that event in blkparse's totals, and the kinds of I/O that
/// count as writes there.
const EVENTS: [(&str, &str, &[&str]); 2] = [
    ("", "Queued", &["write", "discard", "flush"]),
    // A flush is issued as a request that is not a write.
    ("--issued", "Dispatches", &["write", "discard"]),
];
/// Tenants of the recording: one has a name of two words.
const TENANTS: [&str; 4] = ["dd", "busybox two", "mkfs.ext4", "blkdiscard"];

/// See above.
pub(in crate::interop) fn check() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Cloud)? {
        return Ok(Outcome::Skipped(lack));
    }
    let folder = Folder::new("guest-blktrace")?;
    let place = folder.path();
    let guest = Kernel::Cloud.script("blktrace").env("PROGRAMS", "blktrace");
    guest.env("OUT", place.display().to_string()).run()?;
    let text = Cmd::new("blkparse -i trace -d trace.bin").output_in(place)?;
    fs::write(place.join("trace.txt"), &text)?;
    for (event, word, writes) in EVENTS {
        let ios =
            |form| Cmd::new(&format!("{BLKMQ} trace convert {form} {event}")).output_in(place);
        let [records, lines] = FORMS.map(ios);
        if let Some((record, line)) = records?.lines().zip(lines?.lines()).find(|it| it.0 != it.1) {
            return Err(format!("{record} in the records, {line} in the text").into());
        }
        let [records, lines] = FORMS.map(|form| info(place, form, event));
        let (records, lines) = (records?, lines?);
        if records != lines {
            return Err(format!("{records} of the records, {lines} of the text").into());
        }
        counted(&records, &text, word, writes)?;
    }
    replayed(place)?;
    Ok(Outcome::Passed)
}

/// The facts about a trace, without its format.
fn info(place: &Path, form: &str, event: &str) -> Result<Value> {
    let facts = Cmd::new(&format!("{BLKMQ} trace info {form} --json {event}")).output_in(place)?;
    let mut facts = parse_json(&facts)?;
    if facts["format"].take() != ["blktrace", "blkparse"][usize::from(form == FORMS[1])] {
        return Err(format!("{form} is taken for another format").into());
    }
    Ok(facts)
}

/// The facts must equal blkparse's totals, which are lines such as ` Reads Queued:         244,     3101KiB Writes
/// Queued:         385,    81402KiB`.
fn counted(facts: &Value, text: &str, word: &str, writes: &[&str]) -> Result<()> {
    let totals = text.split("\nTotal ").nth(1).ok_or("blkparse prints no totals")?;
    let line = totals.lines().find(|line| line.contains(word)).ok_or("no line of totals")?;
    let numbers: Vec<u64> = line
        .split(|it: char| !it.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let sum = |of: &str, kinds: &[&str]| -> u64 {
        kinds.iter().map(|kind| facts[of][kind].as_u64().unwrap_or(0)).sum()
    };
    let reads: &[&str] = if writes.contains(&"flush") { &["read"] } else { &["read", "flush"] };
    let of = |kinds| [sum("ios", kinds), sum("bytes", kinds) >> 10];
    let ours = [of(reads), of(writes)].concat();
    println!("{word}: {ours:?} (reads, KiB, writes, KiB)");
    if numbers != ours || line.matches("KiB").count() != 2 || numbers.contains(&0) {
        return Err(format!("{ours:?} of {facts}, blkparse: {line}").into());
    }
    Ok(())
}

/// A replay issues the I/Os of the trace except discards, for its tenants, and is the same for both forms.
fn replayed(place: &Path) -> Result<()> {
    let options = "--scheduler=mq-deadline --device=disk --output-format=json";
    let [records, lines] = FORMS.map(|form| -> Result<Value> {
        let report = Cmd::new(&format!("{BLKMQ} replay {form} {options}")).output_in(place)?;
        parse_json(&report.replace(form, "trace"))
    });
    let report = records?;
    if report != lines? {
        return Err("the text is replayed differently from the records".into());
    }
    let facts = info(place, FORMS[0], "")?;
    let jobs = report["jobs"].as_array().ok_or("a report has jobs")?;
    let sum = |kind: &str, what: &str| -> u64 {
        jobs.iter().map(|job| job[kind][what].as_u64().unwrap_or(0)).sum()
    };
    for (kind, of_trace) in [("read", "read"), ("write", "write"), ("sync", "flush")] {
        let [ios, bytes] = [sum(kind, "total_ios"), sum(kind, "io_bytes")];
        println!("replayed: {ios} {of_trace}, {bytes} bytes");
        if facts["ios"][of_trace] != ios || facts["bytes"][of_trace] != bytes {
            return Err(format!("{ios} {of_trace} of {bytes} bytes are replayed of {facts}").into());
        }
    }
    let tenants = facts["tenants"].as_array().ok_or("a trace has tenants")?;
    let missing = TENANTS.iter().find(|name| tenants.iter().all(|it| it["name"] != **name));
    missing.map_or(Ok(()), |name| Err(format!("no tenant {name} in {facts}").into()))
}
