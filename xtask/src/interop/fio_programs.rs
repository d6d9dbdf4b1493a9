//! Programs of the Python Package Index that run fio and read its output, unmodified: bench-fio (with fio-plot), cdm
//! (cdmpy) and auto-fio, with fio in the path and with blkmq in its place; and fio-plot itself, with JSON and logs of
//! blkmq.
//!
//! Each program must find the same in both: files and rows of the same names, with consistent figures. The speed of the
//! machine does not matter. Each graph of fio-plot is drawn, and its bars and lines show our figures.

use super::{Folder, Outcome};
use crate::shell::{BLKMQ, Cmd, parse_json, target_dir};
use crate::{Result, interop};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(super) fn check() -> Result<Outcome> {
    let programs = match interop::python_programs()? {
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

/// One set of axes, as `drawn.py` prints it.
#[derive(Debug, Deserialize)]
struct Axes {
    axis: String,
    bars: Vec<f64>,
    lines: Vec<Vec<f64>>,
    space: Vec<f64>,
}

/// The data of the graphs.
struct Input {
    python: PathBuf,
    folder: Folder,
}

/// The depths and the numbers of jobs that are measured, with each scheduler of [`SCHEDULERS`].
const DEPTHS: [u32; 3] = [1, 4, 16];
const JOBS: [u32; 2] = [1, 2];
const SCHEDULERS: [&str; 2] = ["none", "kyber"];

pub(super) fn graphs() -> Result<Outcome> {
    let python = match interop::python_programs()? {
        Ok(programs) => programs.join("python3"),
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let input = Input { python, folder: Folder::new("fio-plot")? };
    input.measure()?;
    input.depths()?;
    input.jobs()?;
    input.in_space()?;
    input.histogram()?;
    input.comparison()?;
    for kind in ["bw", "iops", "slat", "clat", "lat"] {
        input.log(kind)?;
    }
    Ok(Outcome::Passed)
}

impl Input {
    fn measure(&self) -> Result<()> {
        for scheduler in SCHEDULERS {
            fs::create_dir_all(self.folder.path().join(scheduler))?;
            for depth in DEPTHS {
                for jobs in JOBS {
                    Cmd::new(&format!(
                        "{BLKMQ} sim --device=flash --scheduler={scheduler} --name=t --rw=randread --bs=4k --size=4m \
                         --numjobs={jobs} --iodepth={depth} --group_reporting --output-format=json \
                         --output={scheduler}/{depth}-{jobs}.json"
                    ))
                    .output_in(self.folder.path())?;
                }
            }
        }
        // fio-plot identifies a log by its name: the pattern, the depth and the number of jobs.
        let prefix = "randread-iodepth-1-numjobs-1";
        fs::create_dir_all(self.folder.path().join("logs"))?;
        Cmd::new(&format!(
            "{BLKMQ} sim --device=flash --scheduler=none --name=t --rw=randread --bs=4k --size=64m --runtime=2 \
             --time_based --log_avg_msec=100 --write_bw_log={prefix} --write_iops_log={prefix} \
             --write_lat_log={prefix}"
        ))
        .output_in(&self.folder.path().join("logs"))?;
        Ok(())
    }

    /// A key of the reads of a run.
    fn measured(&self, scheduler: &str, depth: u32, jobs: u32) -> Result<Value> {
        let file = self.folder.path().join(scheduler).join(format!("{depth}-{jobs}.json"));
        Ok(parse_json(&fs::read_to_string(file)?)?["jobs"][0].take())
    }

    fn iops(&self, scheduler: &str, depth: u32, jobs: u32) -> Result<f64> {
        number(&self.measured(scheduler, depth, jobs)?["read"]["iops"])
    }

    /// Microseconds.
    fn latency(&self, scheduler: &str, depth: u32, jobs: u32) -> Result<f64> {
        Ok(number(&self.measured(scheduler, depth, jobs)?["read"]["lat_ns"]["mean"])? / 1e3)
    }

    /// Draws a graph, and returns its axes.
    fn draw(&self, options: &str) -> Result<Vec<Axes>> {
        let cmd =
            Cmd::new("").arg(self.python.to_string_lossy()).arg("-c").arg(include_str!("drawn.py"));
        let words =
            format!("--title t --rw randread --output-filename graph.png --dpi 60 {options}");
        let cmd = words.split_whitespace().fold(cmd, Cmd::arg).env("MPLBACKEND", "Agg");
        let graph = self.folder.path().join("graph.png");
        let _ = fs::remove_file(&graph);
        let said = cmd.output_in(self.folder.path())?;
        if !is_picture(&graph) {
            return Err(format!("fio-plot {options}: no graph: {said}").into());
        }
        let drawn = said.lines().filter(|line| line.starts_with('{'));
        Ok(drawn.map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
    }

    /// IOPS and mean latencies by depth.
    fn depths(&self) -> Result<()> {
        let axes = self.draw("-l -d 1 4 16 -n 1 -i none")?;
        let iops =
            DEPTHS.iter().map(|depth| self.iops("none", *depth, 1)).collect::<Result<Vec<_>>>()?;
        let latency = DEPTHS
            .iter()
            .map(|depth| self.latency("none", *depth, 1))
            .collect::<Result<Vec<_>>>()?;
        same("-l", &bars(&axes, "IOPS")?, &iops)?;
        same("-l", &bars(&axes, "Latency")?, &latency)
    }

    /// IOPS by the number of jobs.
    fn jobs(&self) -> Result<()> {
        let axes = self.draw("-N -d 4 -n 1 2 -i none")?;
        let iops =
            JOBS.iter().map(|jobs| self.iops("none", 4, *jobs)).collect::<Result<Vec<_>>>()?;
        same("-N", &bars(&axes, "IOPS")?, &iops)
    }

    /// IOPS by both.
    fn in_space(&self) -> Result<()> {
        let axes = self.draw("-L -t iops -d 1 4 16 -n 1 2 -i none")?;
        let runs = JOBS.iter().flat_map(|jobs| DEPTHS.iter().map(move |depth| (*depth, *jobs)));
        let iops =
            runs.map(|(depth, jobs)| self.iops("none", depth, jobs)).collect::<Result<Vec<_>>>()?;
        let drawn = axes.iter().find(|axes| !axes.space.is_empty()).ok_or("-L: no bars")?;
        same("-L", &drawn.space, &iops)
    }

    /// Shares of latencies.
    fn histogram(&self) -> Result<()> {
        let axes = self.draw("-H -d 4 -n 1 -i none")?;
        let job = self.measured("none", 4, 1)?;
        let mut shares = Vec::new();
        for unit in ["latency_ns", "latency_us", "latency_ms"] {
            let of = job[unit].as_object().ok_or("no shares of latencies")?;
            shares.extend(of.values().filter_map(Value::as_f64).filter(|share| *share > 0.0));
        }
        let mut drawn: Vec<f64> = bars(&axes, "Percentage")?;
        drawn.retain(|share| *share > 0.0);
        shares.sort_by(f64::total_cmp);
        drawn.sort_by(f64::total_cmp);
        same("-H", &drawn, &shares)
    }

    /// Two schedulers beside each other.
    fn comparison(&self) -> Result<()> {
        let axes = self.draw("-C -d 4 -n 1 -i none kyber")?;
        let iops = SCHEDULERS.map(|scheduler| self.iops(scheduler, 4, 1));
        let iops = iops.into_iter().collect::<Result<Vec<_>>>()?;
        same("-C", &bars(&axes, "IOPS")?, &iops)
    }

    /// The line of a log: its values in another unit.
    fn log(&self, kind: &str) -> Result<()> {
        let axes = self.draw(&format!("-g -t {kind} -d 1 -n 1 -i logs"))?;
        let file = format!("logs/randread-iodepth-1-numjobs-1_{kind}.1.log");
        let text = fs::read_to_string(self.folder.path().join(file))?;
        let values = text.lines().filter_map(|line| line.split(", ").nth(1)?.parse::<f64>().ok());
        let values: Vec<f64> = values.collect();
        let line = axes.iter().flat_map(|axes| &axes.lines).next().ok_or("-g: no line")?;
        let unit = match (kind, axes[0].axis.as_str()) {
            ("bw", "MB/s") => 1024.0,
            ("iops", "IOPS") | (_, "Latency (ns)") => 1.0,
            (_, "Latency (\u{3bc}s)") => 1e3,
            (_, axis) => return Err(format!("-g {kind}: an axis of '{axis}'").into()),
        };
        let scaled: Vec<f64> = line.iter().map(|value| value * unit).collect();
        same(&format!("-g {kind}"), &scaled, &values)
    }
}

fn number(value: &Value) -> Result<f64> {
    Ok(value.as_f64().ok_or_else(|| format!("{value} is no number"))?)
}

/// The bars of the axes whose name begins with `name`.
fn bars(all: &[Axes], name: &str) -> Result<Vec<f64>> {
    let axes = all.iter().find(|axes| axes.axis.starts_with(name));
    Ok(axes.ok_or_else(|| format!("no axes of {name}: {all:?}"))?.bars.clone())
}

/// Checks that both sides have the same values, rounded to whole ones or to a hundredth.
fn same(graph: &str, drawn: &[f64], ours: &[f64]) -> Result<()> {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= (b / 100.0).max(0.5);
    if !ours.is_empty() && drawn.len() == ours.len() && drawn.iter().zip(ours).all(near) {
        return Ok(());
    }
    Err(format!("fio-plot {graph} drew {drawn:?} of our {ours:?}").into())
}

fn is_picture(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x89PNG") && bytes.len() > 1000)
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

    #[test]
    fn other_figures_and_missing_ones_are_found() {
        assert!(same("x", &[85.0, 45000.0], &[84.99, 44999.8]).is_ok());
        assert!(same("x", &[85.0], &[87.0]).is_err());
        assert!(same("x", &[85.0], &[85.0, 1.0]).is_err());
        assert!(same("x", &[], &[]).is_err());
    }

    #[test]
    fn axes_are_found_by_their_name() {
        let line = r#"{"axis": "Latency (us)", "bars": [1.0], "lines": [], "space": []}"#;
        let axes: Axes = serde_json::from_str(line).unwrap();
        assert_eq!(bars(&[axes], "Latency").unwrap(), [1.0]);
        assert!(bars(&[], "IOPS").is_err());
    }
}
