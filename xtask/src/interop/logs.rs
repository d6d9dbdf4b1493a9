//! Logs and traces, and the tools that read them.
//!
//! Figures and logs are compared with fio's: blkmq counts flushes and the verify phase as fio does, its logs have fio's
//! format, and the tools of fio's package read them and JSON of blkmq, and print our figures. `fiologparser` of fio
//! 3.33 reads lines of four words, as older releases of fio wrote them, and fails on the five words of fio 3.33 itself.
//! So it gets the first four words of each line.
//!
//! The real blkparse and btt read traces of `blkmq bench` and, from a pipe, of a running server, and their counts are
//! those of the run, of fio and of `blkmqctl stat`. `blkmq trace` and `blkmq replay` read the kernel's own recording,
//! made in a guest: its binary records and blkparse's text as one trace. Logs of the server's scheduler are replayed
//! with the same decisions, and show the priorities of a guest's processes as they arrive.

use super::guest::{DEVICE, Kernel, lack, run};
use super::{Folder, Outcome};
use crate::measurement::run_fio;
use crate::serve::Server;
use crate::shell::{BLKMQ, BLKMQCTL, Cmd, is_installed, parse_json};
use crate::{Result, interop};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, read_to_string};
use std::path::Path;
use std::process::Child;

/// I/Os of the job: 1 s of reads and writes, whose latencies differ.
const IOS: u64 = 1024;
const JOB: &str = "--name=t --bs=4k --size=4m --rw=randrw --rate_iops=500 --iodepth=4 --log_avg_msec=100 \
                   --log_hist_msec=200 --write_bw_log=x --write_iops_log=x --write_lat_log=x --write_hist_log=x \
                   --output-format=json+ --output=x.json";

/// Where Debian's package has those of fio's tools that are not installed as programs.
const PACKED: &str = "/usr/share/doc/fio";

pub(super) fn log_tools() -> Result<Outcome> {
    let folder = Folder::new("log-tools")?;
    let place = folder.path();
    Cmd::new(&format!("{BLKMQ} sim --device=flash --scheduler=none {JOB}")).output_in(place)?;
    let job = parse_json(&read_to_string(place.join("x.json"))?)?["jobs"][0].take();
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
    let text = read_to_string(place.join(format!("x_{kind}.1.log")))?;
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
        let found = read_to_string(place.join(format!("{kind}.global")))?;
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
    let text = read_to_string(place.join("bins_job0.csv"))?;
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
        let text = read_to_string(place.join(format!("x_{kind}.1.log")))?;
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
    let report = parse_json(&read_to_string(place.join("x.json"))?)?;
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
        let text = read_to_string(&path)?;
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
pub(super) fn of_bench() -> Result<Outcome> {
    if !is_installed("btt") {
        return Ok(Outcome::Skipped("btt is not installed".into()));
    }
    let folder = std::env::temp_dir().join(format!("blkmq-interop-{}", std::process::id()));
    for (number, run) in RUNS.iter().enumerate() {
        let folder = folder.join(number.to_string());
        fs::create_dir_all(&folder)?;
        check_run(run, &folder).map_err(|e| format!("{run}: {e}"))?;
    }
    fs::remove_dir_all(&folder)?;
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
pub(super) fn of_guest() -> Result<Outcome> {
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
    replayed_recording(place)?;
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
fn replayed_recording(place: &Path) -> Result<()> {
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

const SERVED: &str = "null,irqmode=2,completion_nsec=200000,gb=1";
/// The load of each export, its I/Os, and the bytes of one.
const SERVED_LOADS: [(&str, &str, u64, u64); 2] = [
    ("gold", "--rw=randread --bs=4k --iodepth=8 --number_ios=6000", 6000, 4096),
    ("rest", "--rw=write --bs=8k --iodepth=16 --number_ios=4000", 4000, 8192),
];

fn ctl(server: &Server, words: &str) -> Cmd {
    Cmd::new(&format!("{BLKMQCTL} --control={} {words}", server.path("socket.control").display()))
}

/// Runs the loads, with a switch of the scheduler between them if there is one.
fn load(server: &Server, switch: Option<&str>) -> Result<()> {
    for (number, (export, load, ios, _)) in (0..).zip(SERVED_LOADS) {
        if let Some(scheduler) = switch.filter(|_| number == 1) {
            server.ctl(&format!("switch {scheduler}"))?;
        }
        let options = format!("{load} --size=64m --norandommap");
        let figures = run_fio(&server.uri(export), &server.path(export), &options)?;
        if figures.ios != ios {
            return Err(format!("fio did {} I/Os for {ios}", figures.ios).into());
        }
    }
    Ok(())
}

/// Ends a recording as Ctrl-C does, and returns its output.
fn interrupt(server: &Server, mut child: Child) -> Result<String> {
    Cmd::new("kill -INT").arg(child.id().to_string()).output()?;
    let status = child.wait()?;
    let said = read_to_string(server.path("said"))?;
    if status.success() { Ok(said) } else { Err(format!("{status}: {said}").into()) }
}

/// Begins an elevator log. It has begun when a second request is refused; a log in its way gets a second to end.
fn begin_log(server: &Server, file: &str) -> Result<Child> {
    for _ in 0..20 {
        let log = ctl(server, "elevator-log -o").arg(file);
        let mut log = log.piped(File::create(server.path("said"))?)?;
        Cmd::new("sleep 0.2").output()?;
        let other =
            ctl(server, "elevator-log -w 1 -o").arg(server.path("other").display().to_string());
        let is_busy = other.output().is_err_and(|error| error.to_string().contains("busy"));
        if is_busy && log.try_wait()?.is_none() {
            return Ok(log);
        }
        log.kill()?;
        log.wait()?;
    }
    Err("the elevator log does not begin".into())
}

/// The events of one letter in a trace as blkparse prints them: (count, bytes).
fn letter_count(text: &str, letter: &str) -> (u64, u64) {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of = lines.filter(|words| words.get(5) == Some(&letter));
    of.fold((0, 0), |(count, bytes), words| {
        let sectors: u64 = words.get(9).and_then(|word| word.parse().ok()).unwrap_or(0);
        (count + 1, bytes + sectors * 512)
    })
}

/// See above.
pub(super) fn traced() -> Result<Outcome> {
    if !is_installed("btt") {
        return Ok(Outcome::Skipped("btt is not installed".into()));
    }
    let more = "--stats=always --export=gold,weight=300 --export=rest";
    let server = Server::blkmq("serve-trace", SERVED, "mq-deadline", more)?;
    let folder = server.path("log").parent().ok_or("the server has a folder")?.to_owned();
    let mut trace = ctl(&server, "trace -o -").piped(File::create(server.path("said"))?)?;
    let pipe = trace.stdout.take().ok_or("it has a pipe")?;
    let parser = Cmd::new("blkparse -q -i - -d").arg(folder.join("t.bin").display().to_string());
    let parser = parser.start_on(pipe, File::create(server.path("parsed"))?)?;
    load(&server, Some("bfq"))?;
    let fields = server.ctl("stat --sys")?[0].clone();
    let said = interrupt(&server, trace)?;
    parser.wait_with_output()?;
    let text = read_to_string(server.path("parsed"))?;
    Cmd::new("btt -i t.bin").silent_output_in(&folder)?;
    let field = |at: usize| fields[at].as_u64().ok_or("no number");
    let done = field(0)? + field(4)?;
    let bytes = SERVED_LOADS.iter().map(|(_, _, ios, bytes)| ios * bytes).sum::<u64>();
    let ios = SERVED_LOADS.iter().map(|(_, _, ios, _)| ios).sum::<u64>();
    if (field(2)? + field(6)?) * 512 != bytes {
        return Err("stat has other bytes than fio".into());
    }
    for (letter, want) in [("Q", ios), ("D", done), ("C", done)] {
        let found = letter_count(&text, letter);
        println!("{letter}: {found:?}");
        if found != (want, bytes) {
            return Err(format!(
                "{letter}: {found:?} in the trace, {want} and {bytes} bytes in fact"
            )
            .into());
        }
    }
    if !said.contains("(dropped 0)") || !text.contains("[gold]") || !text.contains("[rest]") {
        return Err(format!("dropped events, or no names: {said}").into());
    }
    logged(&server)
}

/// A log of two schedulers, one after another, is replayed with the same decisions.
fn logged(server: &Server) -> Result<Outcome> {
    let file = server.path("run.log").display().to_string();
    let log = begin_log(server, &file)?;
    load(server, Some("mq-deadline"))?;
    interrupt(server, log)?;
    let report = Cmd::new(&format!("{BLKMQ} replay {file}")).output()?;
    let same: Vec<&str> = report.lines().filter(|line| line.contains("all the same")).collect();
    same.iter().for_each(|line| println!("{line}"));
    let all = ["(bfq", "(mq-deadline"].iter().all(|name| same.iter().any(|it| it.contains(name)));
    if all { Ok(Outcome::Passed) } else { Err(format!("replayed: {report}").into()) }
}

/// (priority as `blkmq replay` names it, the least number of requests that the script's processes send with it, how
/// many more there may be). The last is `None` where other processes send some, too.
const ARRIVE: [(&str, u64, Option<u64>); 6] = [
    ("reads, realtime 2", 20, Some(0)),
    ("reads, best-effort 6", 30, Some(0)),
    ("reads, idle", 40, Some(20)),
    ("reads, best-effort 4", 10, None),
    // Of a direct write. A write through the page cache is the kernel's, and best-effort 4.
    ("others, idle", 50, Some(0)),
    // The journal of ext4.
    ("others, best-effort 3", 1, Some(100)),
];

/// An elevator log of the server has the requests of each process with its class and its level.
pub(super) fn arrivals() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Cloud)? {
        return Ok(Outcome::Skipped(lack));
    }
    let disk = "--export=disk,vhost-user=SOCKET.disk,queues=2,guest-ioprio=trust";
    let server = Server::blkmq("guest-arrivals", DEVICE, "mq-deadline", disk)?;
    let file = server.path("log-of-calls").display().to_string();
    let log = begin_log(&server, &file)?;
    run(Kernel::Cloud, "arrivals", &server.path("socket.disk"))?;
    interrupt(&server, log)?;
    let replayed = Cmd::new(&format!("{BLKMQ} replay")).arg(file).output()?;
    for (name, least, further) in ARRIVE {
        let rows = replayed.lines().filter(|line| line.trim_start().starts_with(name));
        let counts = rows.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        let count: u64 = counts.sum();
        println!("{name}: {count} requests");
        if count < least || further.is_some_and(|further| count > least + further) {
            return Err(format!("{name}: {count} requests, not {least}:\n{replayed}").into());
        }
    }
    Ok(Outcome::Passed)
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
