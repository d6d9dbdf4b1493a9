//! Figures and logs compared with fio's: blkmq counts flushes and the verify phase as fio does, and its logs have fio's
//! format.

use super::Outcome;
use super::folder::Folder;
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The first job of fio and of blkmq with these options: fio on a file, blkmq in virtual time.
fn jobs(folder: &Folder, options: &str) -> Result<[Value; 2]> {
    let common = format!("--name=t --bs=4k --output-format=json {options}");
    let file = folder.path().join("file");
    let fio = format!("fio --ioengine=psync --filename={} {common}", file.display());
    let ours = format!("{BLKMQ} sim --device memory,size=64 --scheduler mq-deadline {common}");
    let mut both = [Value::Null, Value::Null];
    for (job, line) in both.iter_mut().zip([fio, ours]) {
        // fio leaves files of its verification in the folder that it is started in.
        let output = Cmd::new(&line).output_in(folder.path())?;
        *job = parse_json(&output)?["jobs"][0].take();
    }
    Ok(both)
}

/// Runs both with each of these options, and compares the figures that `of` picks.
fn same(name: &str, all: &[&str], of: fn(&Value) -> Vec<u64>) -> Result<Outcome> {
    let folder = Folder::new(name)?;
    for options in all {
        let [fio, ours] = jobs(&folder, options)?.map(|job| of(&job));
        if fio != ours {
            return Err(format!("with {options}: fio {fio:?}, blkmq {ours:?}").into());
        }
    }
    Ok(Outcome::Passed)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(u64::MAX)
}

/// Flushes, counted by their latencies: `total_ios` of fio 3.33 does not include those of fdatasync.
pub(super) fn flushes() -> Result<Outcome> {
    let all = [
        "--rw=write --size=64k --fsync=4",
        "--rw=write --size=60k --fsync=4",
        "--rw=write --size=68k --fsync=4",
        "--rw=write --size=64k --fsync=4 --end_fsync=1",
        "--rw=write --size=64k --end_fsync=1",
        "--rw=write --size=64k --fdatasync=1",
        "--rw=randwrite --size=1m --fsync=16 --verify=crc32c",
        "--rw=write --size=64k --fsync=4 --number_ios=8",
        "--rw=read --size=64k --fsync=4",
    ];
    same("flushes", &all, |job| {
        vec![number(&job["write"]["total_ios"]), number(&job["sync"]["lat_ns"]["N"])]
    })
}

/// I/Os, bytes and times by direction, of jobs that verify.
pub(super) fn verify_phase() -> Result<Outcome> {
    let all = [
        "--rw=randwrite --size=4m --verify=crc32c",
        "--rw=write --size=1m --verify=crc32c",
        "--rw=randwrite --size=1m --verify=crc32c --verify_backlog=16",
        "--rw=randwrite --size=1m --verify=crc32c --do_verify=0",
        "--rw=write --size=1m --verify=crc32c --number_ios=100",
        "--rw=randwrite --size=1m --bs=16k --verify=crc32c --verify_interval=4k",
        "--rw=write --size=256k --verify=crc32c --loops=3",
        "--rw=randwrite --size=256k --verify=crc32c --loops=3 --io_size=128k",
    ];
    let figures = |job: &Value| {
        let of = |direction: &str| {
            let direction = &job[direction];
            [&direction["total_ios"], &direction["io_bytes"], &direction["clat_ns"]["N"]]
                .map(number)
        };
        [of("read"), of("write")].concat()
    };
    same("verify-phase", &all, figures)
}

/// A log of a run's I/Os, replayed by fio and by blkmq, gives as many I/Os and bytes: one log was written by blkmq, one
/// by fio.
fn replayed() -> Result<()> {
    let folder = Folder::new("iolog")?;
    let counts = |command: &str| -> Result<Vec<u64>> {
        let report = parse_json(&Cmd::new(command).output_in(folder.path())?)?;
        let of = |direction: &str| {
            let counts = &report["jobs"][0][direction];
            [number(&counts["total_ios"]), number(&counts["io_bytes"])]
        };
        Ok(["read", "write"].map(of).concat())
    };
    let replay = "--name=a --read_iolog=log --replay_no_stall=1 --output-format=json";
    let options = "--name=a --filename=x:y --direct=1 --rw=randrw --bsrange=4k-16k --size=1m --fsync=4 --write_iolog=log \
                   --output-format=json";
    for (who, line) in [
        ("blkmq", format!("{BLKMQ} bench --scheduler=bfq {options}")),
        ("fio", format!("fio --ioengine=psync {options}")),
    ] {
        let _ = std::fs::remove_file(folder.path().join("log"));
        let first = counts(&line)?;
        let fio = counts(&format!("fio --ioengine=psync {replay}"))?;
        let ours = counts(&format!("{BLKMQ} sim --scheduler=none --device=null {replay}"))?;
        if [&fio, &ours] != [&first; 2] {
            let text = format!("{who} did {first:?}, fio again {fio:?}, blkmq again {ours:?}");
            return Err(text.into());
        }
    }
    Ok(())
}

/// Logs of both, each in its own folder: the same files, with lines of the same format.
pub(super) fn logs() -> Result<Outcome> {
    replayed()?;
    for (name, options) in [
        ("each", "--log_offset=1 --log_prio=1"),
        ("windows", "--log_avg_msec=100 --log_hist_msec=200 --log_hist_coarseness=2"),
        ("bins", "--log_avg_msec=100 --log_hist_msec=200"),
    ] {
        let folder = Folder::new(&format!("logs-{name}"))?;
        let common = format!(
            "--name=t --bs=4k --size=4m --rw=randread --rate_iops=1000 --write_bw_log=x --write_iops_log=x \
             --write_lat_log=x --write_hist_log=x {options}"
        );
        let file = folder.path().join("file");
        let fio = format!("fio --ioengine=libaio --filename={} {common}", file.display());
        let ours = format!(
            "{BLKMQ} sim --device null,irqmode=2,completion_nsec=200000 --scheduler none {common}"
        );
        let mut forms = Vec::new();
        for (who, line) in [("fio", fio), ("ours", ours)] {
            let place = folder.path().join(who);
            std::fs::create_dir_all(&place)?;
            Cmd::new(&line).output_in(&place)?;
            forms.push(forms_of(&place)?);
        }
        if forms[0] != forms[1] {
            return Err(format!("with {options}: fio {:?}, blkmq {:?}", forms[0], forms[1]).into());
        }
    }
    Ok(Outcome::Passed)
}

/// The logs of a folder: for each file, the number of words in a line, and whether the last word is decimal or
/// hexadecimal.
fn forms_of(folder: &Path) -> Result<BTreeMap<String, (usize, String)>> {
    let mut forms = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".log") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let words = Vec::from_iter(text.lines().map(|line| line.split(", ").count()));
        if words.iter().any(|count| *count != words[0]) {
            return Err(format!("{name}: lines of different lengths").into());
        }
        let last = text.lines().next().and_then(|line| line.rsplit(", ").next()).unwrap_or("");
        let kind = if last.starts_with("0x") { "hexadecimal" } else { "decimal" };
        forms.insert(name, (words.first().copied().unwrap_or(0), kind.to_owned()));
    }
    Ok(forms)
}
