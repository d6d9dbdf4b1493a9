//! fio-plot, from the Python Package Index, with JSON and logs of blkmq: each of its graphs is drawn, and its bars and
//! lines show our figures.

use super::folder::Folder;
use super::{Outcome, python};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

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

pub(super) fn check() -> Result<Outcome> {
    let python = match python::programs()? {
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
