//! Programs of the Python Package Index that run fio and read its output: bench-fio (with fio-plot), cdm (cdmpy) and
//! auto-fio, unmodified, with fio in the path and with blkmq in its place.
//!
//! Each must find the same in both: files and rows of the same names, with consistent figures. The speed of the machine
//! does not matter.

use super::folder::Folder;
use super::{Outcome, python};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json, target_dir};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(super) fn check() -> Result<Outcome> {
    let programs = match python::programs()? {
        Ok(programs) => programs,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let folder = Folder::new("fio-programs")?;
    let stand_in = stand_in(folder.path())?;
    let mut found = Vec::new();
    for (name, in_front) in [("fio", None), ("blkmq", Some(&stand_in))] {
        let files = folder.path().join(name);
        fs::create_dir_all(&files)?;
        let machine =
            Machine { programs: &programs, in_front: in_front.map(PathBuf::as_path), files };
        let result =
            machine.bench_fio().and_then(|files| Ok([files, machine.cdm()?, machine.auto_fio()?]));
        found.push(result.map_err(|error| format!("with {name}: {error}"))?);
    }
    for (fio, ours) in found[0].iter().zip(&found[1]) {
        if fio != ours {
            let (missing, more) = (fio.difference(ours), ours.difference(fio));
            let [missing, more] = [Vec::from_iter(missing), Vec::from_iter(more)];
            return Err(format!("with blkmq {missing:?} are missing, {more:?} are new").into());
        }
    }
    Ok(Outcome::Passed)
}

/// A folder with a program that is called fio and is blkmq.
fn stand_in(folder: &Path) -> Result<PathBuf> {
    let in_front = folder.join("in-front");
    fs::create_dir_all(&in_front)?;
    let program = target_dir().join(BLKMQ.trim_start_matches("target/"));
    let script = format!("#!/bin/sh\nexec '{}' bench --scheduler=none \"$@\"\n", program.display());
    let fio = in_front.join("fio");
    fs::write(&fio, script)?;
    fs::set_permissions(&fio, fs::Permissions::from_mode(0o755))?;
    Ok(in_front)
}

/// One side of the comparison.
struct Machine<'a> {
    programs: &'a Path,
    in_front: Option<&'a Path>,
    files: PathBuf,
}

/// The names of a program's results.
type Names = BTreeSet<String>;

impl Machine<'_> {
    fn run(&self, program: &str, options: &str) -> Result<String> {
        let path = std::env::var("PATH")?;
        let path = match self.in_front {
            Some(folder) => format!("{}:{path}", folder.display()),
            None => path,
        };
        let program = Cmd::new("").arg(self.programs.join(program).to_string_lossy());
        let words = options.split_whitespace().fold(program, Cmd::arg);
        words.env("PATH", path).env("PYTHONIOENCODING", "utf-8").output_in(&self.files)
    }

    /// Results and logs. bench-fio treats any output on standard error as a failure, which it reports on standard
    /// output.
    fn bench_fio(&self) -> Result<Names> {
        let said = self.run(
            "bench-fio",
            "--target bench.bin --type file --create --size 4m --mode randread randrw --rwmixread 75 --iodepth 4 \
             --numjobs 1 2 --block-size 4k --runtime 1 --output results --destructive --quiet",
        )?;
        if said.contains("error occurred") {
            return Err(format!("bench-fio: {said}").into());
        }
        let mut names = Names::new();
        self.collect(&self.files.join("results"), &mut names)?;
        if names.is_empty() { Err("bench-fio left no results".into()) } else { Ok(names) }
    }

    /// Adds the files below `folder`; results must have I/O in each job. The log of a run that ends before its first
    /// sample is empty.
    fn collect(&self, folder: &Path, names: &mut Names) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                self.collect(&path, names)?;
                continue;
            }
            let text = fs::read_to_string(&path)?;
            let is_json = path.extension().is_some_and(|ending| ending == "json");
            if is_json && !has_io(&parse_json(&text)?) {
                return Err(format!("bench-fio: {} has no figures", path.display()).into());
            }
            names.insert(path.strip_prefix(&self.files)?.display().to_string());
        }
        Ok(())
    }

    /// The rows of its table.
    fn cdm(&self) -> Result<Names> {
        rows(&self.run("cdm", ". -n 1 -s 4m -x 75 -a rnd,4,2 -a seq,1,1")?)
    }

    /// The sizes of blocks that it has tried.
    fn auto_fio(&self) -> Result<Names> {
        tried(&parse_json(&self.run("auto-fio", "--backend fio --file-size 4194304 --json .")?)?)
    }
}

fn has_io(report: &Value) -> bool {
    let jobs = report["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let does = |job: &Value| job["read"]["total_ios"].as_u64().is_some_and(|ios| ios > 0);
    !jobs.is_empty() && jobs.iter().all(does)
}

/// The names of the rows of cdm's tables: `|RND4K Q4 T2 |  67.38|  16.36|  50.12|`, of which IOPS and latencies stand
/// in the two below.
fn rows(said: &str) -> Result<Names> {
    let mut table = Vec::new();
    for line in said.lines().filter(|line| line.starts_with('|') && !line.starts_with("|-")) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap_or_default().to_owned();
        if name != "Name" {
            let figures = cells.map(str::parse).collect::<std::result::Result<Vec<f64>, _>>();
            table.push((name, figures.map_err(|_| format!("cdm: {line}"))?));
        }
    }
    for rows in table.windows(3).filter(|rows| rows[1].0 == ". IOPS") {
        for at in 0..2 {
            let (rate, iops, micros) = (rows[0].1[at], rows[1].1[at], rows[2].1[at]);
            let is_near = (0.98..1.02).contains(&(iops * 4096.0 / 1e6 / rate));
            // MB, not MiB. Two threads have four in flight each; a wrong unit is off by a thousand.
            if !is_near || !(0.8..16.0).contains(&(iops * micros / 1e6)) {
                return Err(format!("cdm: {rate} MB/s, {iops} IOPS, {micros} us").into());
            }
        }
    }
    let is_filled = |(_, figures): &(String, Vec<f64>)| figures.iter().all(|figure| *figure > 0.0);
    if table.is_empty() || !table.iter().all(is_filled) {
        return Err(format!("cdm has found no figures: {said}").into());
    }
    Ok(table.into_iter().map(|(name, _)| name).collect())
}

fn tried(found: &Value) -> Result<Names> {
    let samples = found["samples"].as_array().map_or(&[][..], Vec::as_slice);
    let is_filled =
        |sample: &Value| sample["throughput_mbps"].as_f64().is_some_and(|rate| rate > 0.0);
    if samples.is_empty() || !samples.iter().all(is_filled) {
        return Err(format!("auto-fio has found no rates: {found}").into());
    }
    Ok(samples.iter().map(|sample| sample["block_size"].to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_of_a_table_are_named_and_their_figures_compared() {
        let said = "tests: 1\n|Name        |  Read(MB/s)| Write(MB/s)|\n|------------|------------|------------|\n\
                    |RND4K Q4 T2 |       40.96|       20.48|\n|. IOPS      |    10000.00|     5000.00|\n\
                    |. latency us|      790.00|     1590.00|\n|SEQ1M Q1 T1 |      466.03|      236.30|\n";
        let names = rows(said).unwrap();
        assert_eq!(Vec::from_iter(names), [". IOPS", ". latency us", "RND4K Q4 T2", "SEQ1M Q1 T1"]);
        for (old, new) in
            [("790.00", "790000.00"), ("40.96", "39.06"), ("236.30", "0.00"), ("236.30", "fast")]
        {
            assert!(rows(&said.replace(old, new)).is_err(), "{new}");
        }
        assert!(rows("tests: 1\n").is_err());
    }

    #[test]
    fn results_without_io_and_samples_without_a_rate_are_found() {
        let with = |ios: u64| json!({ "jobs": [{ "read": { "total_ios": ios } }] });
        assert!(has_io(&with(1)) && !has_io(&with(0)) && !has_io(&json!({ "jobs": [] })));
        let sample =
            |rate: f64| json!({ "samples": [{ "block_size": 4096, "throughput_mbps": rate }] });
        assert_eq!(Vec::from_iter(tried(&sample(1.0)).unwrap()), ["4096"]);
        assert!(tried(&sample(0.0)).is_err() && tried(&json!({})).is_err());
    }
}
