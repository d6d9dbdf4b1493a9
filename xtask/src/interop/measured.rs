//! Figures and logs beside fio's: blkmq counts flushes and the verify phase as fio does, and the tools of
//! fio's package read its logs.

use super::{Outcome, parse};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, is_installed, root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A folder under the build folder, removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let folder = root().join("target/interop").join(name);
        // One that an earlier check left behind would add its files to ours.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is left over is replaced next time.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The first job of fio and of blkmq with these options: fio on a file, blkmq in virtual time.
fn jobs(folder: &Folder, options: &str) -> Result<[Value; 2]> {
    let common = format!("--name=t --bs=4k --output-format=json {options}");
    let file = folder.0.join("file");
    let fio = format!("fio --ioengine=psync --filename={} {common}", file.display());
    let ours = format!("{BLKMQ} sim --device memory,size=64 --scheduler mq-deadline {common}");
    let mut both = [Value::Null, Value::Null];
    for (job, line) in both.iter_mut().zip([fio, ours]) {
        // fio leaves files of its verification in the folder that it is started in.
        let output = Cmd::new(&line).output_in(&folder.0)?;
        *job = parse(&output)?["jobs"][0].take();
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

/// Flushes, by the number of their times: `total_ios` of fio 3.33 leaves those of fdatasync out.
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

/// Logs of both, in a folder each: the same files, with lines of the same form, which the tools read.
pub(super) fn logs() -> Result<Outcome> {
    // It does not know --version, by which other programs are looked for.
    if Cmd::new("fio2gnuplot --help").quiet_code().is_err() {
        return Ok(Outcome::Skipped("fio2gnuplot is not installed".into()));
    }
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
        let file = folder.0.join("file");
        let fio = format!("fio --ioengine=libaio --filename={} {common}", file.display());
        let ours = format!(
            "{BLKMQ} sim --device null,irqmode=2,completion_nsec=200000 --scheduler none {common}"
        );
        let mut forms = Vec::new();
        for (who, line) in [("fio", fio), ("ours", ours)] {
            let place = folder.0.join(who);
            std::fs::create_dir_all(&place)?;
            Cmd::new(&line).output_in(&place)?;
            forms.push(forms_of(&place)?);
        }
        if forms[0] != forms[1] {
            return Err(format!("with {options}: fio {:?}, blkmq {:?}", forms[0], forms[1]).into());
        }
        let ours = folder.0.join("ours");
        plots(&ours)?;
        if name == "bins"
            && let Some(why) = percentiles(&ours)?
        {
            return Ok(Outcome::Skipped(why));
        }
    }
    Ok(Outcome::Passed)
}

/// The logs of a folder: for each the number of words of a line, and the ends of the first one without its figures.
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

/// fio2gnuplot must find as many values in the logs of rates as there are lines.
fn plots(folder: &Path) -> Result<()> {
    for (option, kind) in [("-b", "bw"), ("-i", "iops")] {
        Cmd::new(&format!("fio2gnuplot {option} -o {kind}")).output_in(folder)?;
        let found = std::fs::read_to_string(folder.join(format!("{kind}.global")))?;
        let lines =
            std::fs::read_to_string(folder.join(format!("x_{kind}.1.log")))?.lines().count();
        let count = found.lines().find_map(|line| line.strip_prefix("values_count="));
        // It takes all lines of one second for one value if there are several.
        let count: usize = count.ok_or("fio2gnuplot counted nothing")?.trim().parse()?;
        if count == 0 || count > lines {
            return Err(
                format!("fio2gnuplot found {count} values in {lines} lines of {kind}").into()
            );
        }
    }
    Ok(())
}

/// fio-histo-log-pctiles must find every I/O in the histograms. A reason if it is not there.
fn percentiles(folder: &Path) -> Result<Option<String>> {
    const NAME: &str = "fio-histo-log-pctiles";
    let script = folder.join("pctiles.py");
    let packed = format!("/usr/share/doc/fio/{NAME}.py.gz");
    if !Path::new(&packed).exists() || !is_installed("python3") {
        return Ok(Some(format!("{NAME} or python3 is not installed; the other logs are right")));
    }
    std::fs::write(&script, Cmd::new(&format!("gunzip -c {packed}")).output()?)?;
    let line = "python3 pctiles.py --log-hist-msec 200 --time-quantum 1 x_clat_hist.1.log";
    let output = Cmd::new(line).output_in(folder)?;
    // After the heading: time, I/Os, percentiles.
    let rows = output.lines().skip_while(|line| !line.starts_with("msec-since-start")).skip(1);
    let samples =
        rows.filter_map(|row| row.split(',').nth(1)?.trim().parse::<u64>().ok()).sum::<u64>();
    if samples == 1024 {
        Ok(None)
    } else {
        Err(format!("{NAME} found {samples} of 1024 I/Os").into())
    }
}
