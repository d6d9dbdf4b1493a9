//! The tools of fio's package read logs and JSON of blkmq, and print our figures.
//!
//! `fiologparser` of fio 3.33 reads lines of four words, as older releases of fio wrote them, and fails on the five
//! words of fio 3.33 itself. So it gets the first four words of each line.

use super::folder::Folder;
use super::{Outcome, python};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json};
use serde_json::Value;
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
            match python::programs()? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_figure_is_an_error() {
        assert!(near("x", 101.0, 100.0, 1.0).is_ok() && near("x", 102.0, 100.0, 1.0).is_err());
        assert!((mean(&[1.0, 2.0]) - 1.5).abs() < 1e-9);
    }
}
