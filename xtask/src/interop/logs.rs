//! Figures and logs compared with fio's: blkmq counts flushes and the verify phase as fio does, its logs have fio's
//! format, and the tools of fio's package read them and JSON of blkmq, and print our figures.
//!
//! `fiologparser` of fio 3.33 reads lines of four words, as older releases of fio wrote them, and fails on the five
//! words of fio 3.33 itself. So it gets the first four words of each line.

use super::{Folder, Outcome};
use crate::shell::{BLKMQ, Cmd, parse_json};
use crate::{Result, interop};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// I/Os of the job: 1 s of reads and writes, whose latencies differ.
const IOS: u64 = 1024;
const JOB: &str = "--name=t --bs=4k --size=4m --rw=randrw --rate_iops=500 --iodepth=4 --log_avg_msec=100 \
                   --log_hist_msec=200 --write_bw_log=x --write_iops_log=x --write_lat_log=x --write_hist_log=x \
                   --output-format=json+ --output=x.json";

/// Where Debian's package has those of fio's tools that are not installed as programs.
const PACKED: &str = "/usr/share/doc/fio";

pub(super) fn check() -> Result<Outcome> {
    let folder = Folder::new("log-tools")?;
    let place = folder.path();
    Cmd::new(&format!("{BLKMQ} sim --device=flash --scheduler=none {JOB}")).output_in(place)?;
    let job = parse_json(&fs::read_to_string(place.join("x.json"))?)?["jobs"][0].take();
    let mut lacking = Vec::new();
    // It does not accept --version, by which the presence of other programs is tested.
    if Cmd::new("fio2gnuplot --help").quiet_code().is_err() {
        lacking.push("fio2gnuplot is not installed".to_owned());
    } else {
        plots(place)?;
        bins(place, &job)?;
    }
    let scripts = ["fio-histo-log-pctiles.py", "fiologparser.py", "fiologparser_hist.py"];
    match scripts.iter().try_for_each(|name| unpack(name, place)) {
        Err(why) => lacking.push(why.to_string()),
        Ok(()) => {
            percentiles(place)?;
            averages(place)?;
            match interop::python_programs()? {
                Ok(programs) => histograms(place, &programs.join("python3"))?,
                Err(why) => lacking.push(format!("fiologparser_hist: {why}")),
            }
        }
    }
    Ok(if lacking.is_empty() { Outcome::Passed } else { Outcome::Skipped(lacking.join("; ")) })
}

fn unpack(name: &str, place: &Path) -> Result<()> {
    let text = Cmd::new(&format!("gunzip -c {PACKED}/{name}.gz")).output();
    Ok(fs::write(place.join(name), text.map_err(|_| format!("{name} is not installed"))?)?)
}

/// The second words of the lines of a log, of one direction or of both.
fn values(place: &Path, kind: &str, direction: Option<&str>) -> Result<Vec<f64>> {
    let text = fs::read_to_string(place.join(format!("x_{kind}.1.log")))?;
    let lines = text.lines().map(|line| line.split(", ").collect::<Vec<_>>());
    let chosen = lines.filter(|words| direction.is_none_or(|it| words.get(2) == Some(&it)));
    let values: Vec<f64> = chosen.filter_map(|words| words.get(1)?.parse().ok()).collect();
    if values.is_empty() { Err(format!("no values of {kind}").into()) } else { Ok(values) }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn near(tool: &str, found: f64, ours: f64, percent: f64) -> Result<()> {
    if (found - ours).abs() <= ours * percent / 100.0 {
        return Ok(());
    }
    Err(format!("{tool} found {found}, our logs have {ours}").into())
}

/// fio2gnuplot averages rates.
fn plots(place: &Path) -> Result<()> {
    for (option, kind) in [("-b", "bw"), ("-i", "iops")] {
        Cmd::new(&format!("fio2gnuplot {option} -o {kind}")).output_in(place)?;
        let found = fs::read_to_string(place.join(format!("{kind}.global")))?;
        let figure = |name: &str| {
            found.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        let average: f64 = figure("avg=").ok_or("fio2gnuplot has no average")?;
        near("fio2gnuplot", average, mean(&values(place, kind, None)?), 1.0)?;
    }
    Ok(())
}

/// fio_jsonplus_clat2csv lists the bins of json+.
fn bins(place: &Path, job: &Value) -> Result<()> {
    Cmd::new("fio_jsonplus_clat2csv x.json bins.csv").output_in(place)?;
    let text = fs::read_to_string(place.join("bins_job0.csv"))?;
    let mut lines = text.lines().map(|line| line.split(", ").collect::<Vec<_>>());
    let head = lines.next().ok_or("fio_jsonplus_clat2csv wrote nothing")?;
    for direction in ["read", "write"] {
        let name = format!("{direction}_clat_ns_count");
        let at = head.iter().position(|word| *word == name).ok_or("no such column")?;
        let counts = lines.clone().filter_map(|words| words.get(at)?.trim().parse::<u64>().ok());
        let (found, ours) = (counts.sum::<u64>(), job[direction]["total_ios"].as_u64());
        if Some(found) != ours {
            return Err(
                format!("fio_jsonplus_clat2csv has {found} of {ours:?} {direction}s").into()
            );
        }
    }
    Ok(())
}

/// fio-histo-log-pctiles finds every I/O in the histograms, and its medians are ours.
fn percentiles(place: &Path) -> Result<()> {
    let line =
        "python3 fio-histo-log-pctiles.py --log-hist-msec 200 --time-quantum 1 x_clat_hist.1.log";
    let output = Cmd::new(line).output_in(place)?;
    // After the heading: time, I/Os, percentiles.
    let rows = output.lines().skip_while(|line| !line.starts_with("msec-since-start")).skip(1);
    let samples = rows.filter_map(|row| row.split(',').nth(1)?.trim().parse::<u64>().ok());
    let samples = samples.sum::<u64>();
    if samples == IOS {
        Ok(())
    } else {
        Err(format!("fio-histo-log-pctiles has {samples} of {IOS} I/Os").into())
    }
}

/// fiologparser averages latencies, weighted by the time for which each is valid.
fn averages(place: &Path) -> Result<()> {
    for kind in ["bw", "iops", "clat"] {
        let (name, direction) = (format!("four_{kind}.log"), "0");
        let text = fs::read_to_string(place.join(format!("x_{kind}.1.log")))?;
        let words = text.lines().map(|line| line.split(", ").collect::<Vec<_>>());
        let reads = words.filter(|words| words.get(2) == Some(&direction));
        let lines: Vec<String> = reads.map(|words| words[..4].join(", ") + "\n").collect();
        fs::write(place.join(&name), lines.concat())?;
        let run = |options: &str| {
            Cmd::new(&format!("python3 fiologparser.py {options} {name}")).output_in(place)
        };
        let found: f64 = run("-i 100")?.trim().parse()?;
        let ours = mean(&values(place, kind, Some(direction))?);
        near("fiologparser", found, ours, 2.0)?;
        for option in ["--sum", "--average", "--full"] {
            let rows = run(&format!("-i 100 {option}"))?.lines().count();
            if rows != lines.len() {
                return Err(
                    format!("fiologparser {option} has {rows} of {} rows", lines.len()).into()
                );
            }
        }
    }
    Ok(())
}

/// fiologparser_hist finds every I/O in the histograms, whose average is ours.
fn histograms(place: &Path, python: &Path) -> Result<()> {
    let script = ["fiologparser_hist.py", "-i", "5000", "x_clat_hist.1.log"];
    let cmd = script.into_iter().fold(Cmd::new("").arg(python.to_string_lossy()), Cmd::arg);
    let output = cmd.output_in(place)?;
    let row = output.lines().nth(1).ok_or("fiologparser_hist printed nothing")?;
    let words: Vec<f64> = row.split(", ").filter_map(|word| word.parse().ok()).collect();
    let [_, samples, least, average, _, _, _, _, most] = words[..] else {
        return Err(format!("fiologparser_hist printed '{row}'").into());
    };
    let report = parse_json(&fs::read_to_string(place.join("x.json"))?)?;
    let mean_of = |direction: &str| {
        let it = &report["jobs"][0][direction]["clat_ns"];
        it["mean"].as_f64().unwrap_or(0.0) * it["N"].as_f64().unwrap_or(0.0)
    };
    let ours = (mean_of("read") + mean_of("write")) / IOS as f64;
    if samples as u64 != IOS || least > average || average > most {
        return Err(format!("fiologparser_hist has '{row}' of {IOS} I/Os").into());
    }
    // It uses the middle of a bin, which is up to 3 % wide.
    near("fiologparser_hist", average, ours, 3.0)
}

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
        let _ = fs::remove_file(folder.path().join("log"));
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
            fs::create_dir_all(&place)?;
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
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".log") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_figure_is_an_error() {
        assert!(near("x", 101.0, 100.0, 1.0).is_ok() && near("x", 102.0, 100.0, 1.0).is_err());
        assert!((mean(&[1.0, 2.0]) - 1.5).abs() < 1e-9);
    }
}
