//! Public programs that read fio's output, with the output of fio and of blkmq.
//!
//! *Readers*: the parts that each relies on (keys, types, fields and words), for the same command line on the same
//! file. The lists name the parts that the sources of these programs read; none of their sources is here, and no
//! registry has them. Each list is also checked against fio itself, so that a wrong one fails.
//!
//! *Programs* of the Python Package Index are run, unmodified: bench-fio (with fio-plot), cdm (cdmpy) and auto-fio,
//! with fio in the path and with blkmq in its place; and fio-plot itself, with JSON and logs of blkmq. Each must find
//! the same in both: files and rows of the same names, with consistent figures. The speed of the machine does not
//! matter. Each graph of fio-plot is drawn, and its bars and lines show our figures.

use super::{Folder, Outcome};
use crate::shell::{BLKMQ, Cmd, parse_json, target_dir};
use crate::{Result, interop};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The value that a reader can decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A text, which fio and blkmq have alike.
    Same,
    /// Any text.
    Text,
    /// A number without a fraction, as Go's `int64` and shell arithmetic require it.
    Whole,
    /// A number.
    Number,
    /// A number above 0.
    Positive,
}
use Kind::{Number, Positive, Same, Text, Whole};

/// Keys of JSON that a program reads. In a path, `{a,b}` stands for two keys.
struct Reader {
    name: &'static str,
    /// The command line, one of those below.
    line: &'static str,
    keys: &'static [(&'static str, Kind)],
}

const FILE: &str = "--filename=file --ioengine=libaio --direct=1 --randrepeat=0 --verify=0";
const DEPTH: f64 = 4.0;
const BLOCK: f64 = 4096.0;

/// Limited by size, so that counts must agree.
const MIXED: &str = "--name=mix --bs=4k --iodepth=4 --size=16m --rw=randrw --rwmixread=75";
/// Long enough for two samples of rates.
const TIMED: &str = "--time_based --runtime=1200ms --size=16m --bs=4k --iodepth=4 \
                     --name=rr --rw=randread --stonewall --name=rw --rw=randwrite --stonewall";
/// A disk check for etcd, whose block size is not a multiple of a sector.
const FLUSHED: &str =
    "--name=wal --ioengine=sync --direct=0 --rw=write --bs=2300 --size=230000 --fdatasync=1";
/// A run whose status is read before its end.
const LIVE: &str = "--time_based --size=16m --bs=4k --rw=randread --name=first --runtime=2200ms --name=second \
                    --stonewall --runtime=200ms --status-interval=1";
/// Two threads reported as one, with a custom list of percentiles.
const LISTED: &str = "--name=list --numjobs=2 --group_reporting --rw=randread --bs=4k --iodepth=2 --size=8m \
                      --percentile_list=1:5:10:20:25:30:40:50:60:70:75:80:90:95:99:99.5:99.9:99.95:99.99";

const READERS: &[Reader] = &[
    Reader {
        name: "kbench",
        line: TIMED,
        keys: &[
            ("jobs/0/read/{iops_mean,bw_mean}", Positive),
            ("jobs/0/read/lat_ns/mean", Positive),
            ("jobs/1/write/{iops_mean,bw_mean}", Positive),
            ("jobs/1/write/lat_ns/mean", Positive),
        ],
    },
    // Its types are also those of yafio_exporter, which also reads percentiles.
    Reader {
        name: "kubestr",
        line: MIXED,
        keys: &[
            ("{fio version,time}", Text),
            ("{timestamp,timestamp_ms}", Whole),
            ("global options/{randrepeat,verify,ioengine,direct}", Same),
            ("jobs/0/jobname", Same),
            ("jobs/0/{groupid,error,eta,elapsed,job_runtime,ctx,majf,minf}", Whole),
            ("jobs/0/{latency_depth,latency_target,latency_window}", Whole),
            ("jobs/0/{usr_cpu,sys_cpu,latency_percentile}", Number),
            ("jobs/0/job options/{name,bs,iodepth,size,rw}", Same),
            ("jobs/0/{read,write,trim}/{io_bytes,io_kbytes,bw_bytes,bw,runtime,total_ios}", Whole),
            ("jobs/0/{read,write,trim}/{short_ios,drop_ios,bw_min,bw_max,bw_samples}", Whole),
            ("jobs/0/{read,write,trim}/{iops_min,iops_max,iops_samples}", Whole),
            ("jobs/0/{read,write,trim}/{iops,bw_agg,bw_mean,bw_dev,iops_mean,iops_stddev}", Number),
            ("jobs/0/{read,write}/{slat_ns,clat_ns,lat_ns}/{min,max,N}", Whole),
            ("jobs/0/{read,write}/{slat_ns,clat_ns,lat_ns}/{mean,stddev}", Number),
            ("jobs/0/iodepth_level/{1,2,4,8,16,32,>=64}", Number),
            ("jobs/0/{iodepth_submit,iodepth_complete}/{0,4,8,16,32,64,>=64}", Number),
            ("jobs/0/latency_ns/{2,4,10,20,50,100,250,500,750,1000}", Number),
            ("jobs/0/{latency_us,latency_ms}/{2,4,10,20,50,100,250,500,750,1000}", Number),
            ("jobs/0/latency_ms/{2000,>=2000}", Number),
            ("disk_util/0/name", Same),
            ("disk_util/0/{read_ios,write_ios,read_merges,write_merges}", Whole),
            ("disk_util/0/{read_ticks,write_ticks,in_queue}", Whole),
            ("disk_util/0/util", Number),
        ],
    },
    Reader {
        name: "yafio_exporter",
        line: MIXED,
        keys: &[
            ("jobs/0/read/clat_ns/percentile/{1.000000,5.000000,10.000000,20.000000}", Whole),
            ("jobs/0/read/clat_ns/percentile/{30.000000,40.000000,50.000000}", Whole),
            ("jobs/0/read/clat_ns/percentile/{60.000000,70.000000,80.000000}", Whole),
            ("jobs/0/read/clat_ns/percentile/{90.000000,95.000000,99.000000}", Whole),
            ("jobs/0/read/clat_ns/percentile/{99.500000,99.900000,99.950000,99.990000}", Whole),
        ],
    },
    Reader {
        name: "PerfKitBenchmarker",
        line: LISTED,
        keys: &[
            ("jobs/0/jobname", Same),
            ("jobs/0/{read,write,trim}/io_bytes", Whole),
            ("jobs/0/read/{bw,iops,bw_mean,bw_agg}", Number),
            ("jobs/0/read/{bw_min,bw_max,bw_dev}", Number),
            ("jobs/0/read/clat_ns/{min,max,mean,stddev}", Number),
            ("jobs/0/read/clat_ns/percentile/{1.000000,25.000000,50.000000,75.000000}", Positive),
            ("jobs/0/read/clat_ns/percentile/{99.000000,99.500000,99.900000}", Positive),
            ("jobs/0/read/clat_ns/percentile/{99.950000,99.990000}", Positive),
        ],
    },
    // pbench also takes the global options as they are written.
    Reader {
        name: "pbench",
        line: MIXED,
        keys: &[("global options/{filename,ioengine,direct,randrepeat,verify}", Same)],
    },
    Reader {
        name: "lines of jq for etcd",
        line: FLUSHED,
        keys: &[
            ("jobs/0/sync/lat_ns/{min,max,N}", Whole),
            ("jobs/0/sync/lat_ns/mean", Positive),
            ("jobs/0/sync/lat_ns/percentile/{50.000000,99.000000,99.900000}", Positive),
            ("jobs/0/write/{iops,bw_bytes,total_ios}", Positive),
        ],
    },
];

pub(super) fn check() -> Result<Outcome> {
    let folder = Folder::new("fio-readers")?;
    let mut faults = Vec::new();
    for line in [MIXED, TIMED, FLUSHED, LISTED] {
        let [fio, ours] = both(folder.path(), &format!("{line} --output-format=json"))?;
        let [fio, ours] = [parse_json(&fio)?, parse_json(&ours)?];
        for reader in READERS.iter().filter(|reader| reader.line == line) {
            faults.extend(reader.faults(&fio, &ours));
        }
        for (name, report) in [("fio", &fio), ("blkmq", &ours)] {
            faults.extend(figures(report).into_iter().map(|fault| format!("{name}: {fault}")));
        }
        // Rounded up, blocks are fewer.
        if line != TIMED && line != FLUSHED && work(&fio) != work(&ours) {
            faults.push(format!("with {line}: fio {:?}, blkmq {:?}", work(&fio), work(&ours)));
        }
    }
    for (version, fields) in [(3, 121), (4, 162), (5, 180)] {
        // Read by fio_exporter and blktests; yabs and others cut fields out of version 3.
        let line = format!("{MIXED} --group_reporting --minimal --terse-version={version}");
        let [fio, ours] = both(folder.path(), &line)?;
        faults.extend(terse_faults(&fio, &ours, fields));
    }
    // Exporters, which read a run before its end.
    let [fio, ours] =
        both(folder.path(), &format!("{LIVE} --output-format=json"))?.map(|said| live(&said));
    faults.extend(live_faults(&fio?, &ours?));
    let [fio, ours] = both(folder.path(), &format!("{LIVE} --minimal"))?
        .map(|said| said.lines().filter(|line| line.starts_with("3;")).count());
    // Their number depends on how soon a machine lets them begin.
    if fio.min(ours) < 6 || (fio % 2, ours % 2) != (0, 0) {
        faults.push(format!("fio has {fio} terse lines of status, blkmq {ours}"));
    }
    // dbench and most scripts of the shell.
    for (name, text) in ["fio", "blkmq"].iter().zip(both(folder.path(), MIXED)?) {
        faults.extend(text_faults(&text).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    if faults.is_empty() { Ok(Outcome::Passed) } else { Err(faults.join("; ").into()) }
}

/// The outputs of fio and of blkmq for the same words.
fn both(folder: &Path, line: &str) -> Result<[String; 2]> {
    let fio = Cmd::new(&format!("fio {FILE} {line}")).output_in(folder)?;
    let ours = format!("{BLKMQ} bench --scheduler=none {FILE} {line}");
    Ok([fio, Cmd::new(&ours).output_in(folder)?])
}

impl Reader {
    fn faults(&self, fio: &Value, ours: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        for (path, kind) in self.keys.iter().flat_map(|(path, kind)| {
            expanded(path).into_iter().map(move |path| (format!("/{path}"), *kind))
        }) {
            // A file that is not on its own disk, as in a container, has no disk to report.
            if path.starts_with("/disk_util") && fio.pointer("/disk_util/0").is_none() {
                continue;
            }
            let both = [("fio", fio), ("blkmq", ours)].map(|(name, report)| {
                let value = report.pointer(&path).unwrap_or(&Value::Null);
                if !kind.fits(value) {
                    faults.push(format!("{}: {name}'s {path} is {value}", self.name));
                }
                value
            });
            if kind == Same && both[0] != both[1] {
                faults.push(format!("{}: {path} is {}, fio's {}", self.name, both[1], both[0]));
            }
        }
        faults
    }
}

impl Kind {
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Same | Self::Text => value.is_string(),
            Self::Whole => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::Positive => value.as_f64().is_some_and(|number| number > 0.0),
        }
    }
}

/// The documents of a run, one for each status and one for its end.
fn live(said: &str) -> Result<Vec<Value>> {
    let begin = said.find('{').unwrap_or(said.len());
    let documents = serde_json::Deserializer::from_str(&said[begin..]).into_iter();
    Ok(documents.collect::<std::result::Result<_, _>>()?)
}

/// Errors of the two sequences of documents: too few, different names of jobs, or counts that fall.
fn live_faults(fio: &[Value], ours: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    let names = |all: &[Value]| {
        let jobs = all.iter().map(|it| it["jobs"].as_array().map_or(&[][..], Vec::as_slice));
        Vec::from_iter(
            jobs.map(|jobs| Vec::from_iter(jobs.iter().map(|job| job["jobname"].clone()))),
        )
    };
    let all = [names(fio), names(ours)].concat();
    if fio.len().min(ours.len()) < 3 || all.iter().any(|names| *names != all[0]) {
        faults.push(format!("status: fio {:?}, blkmq {:?}", names(fio), names(ours)));
    }
    for (name, all) in [("fio", fio), ("blkmq", ours)] {
        if !all.is_sorted_by(|a, b| {
            work(a) <= work(b) && a["timestamp_ms"].as_u64() <= b["timestamp_ms"].as_u64()
        }) {
            faults.push(format!("{name}'s counts or times fall from one status to the next"));
        }
    }
    faults
}

/// All paths that a path with `{a,b}` in it means.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (choices, after) = rest.split_once('}').unwrap_or((rest, ""));
    let ends = expanded(after);
    choices
        .split(',')
        .flat_map(|choice| ends.iter().map(move |end| format!("{before}{choice}{end}")))
        .collect()
}

/// I/Os and bytes over all jobs and directions.
fn work(report: &Value) -> [u64; 2] {
    let sum = |key: &str| directions(report).map(|of| of[key].as_u64().unwrap_or(0)).sum();
    [sum("total_ios"), sum("io_bytes")]
}

/// The directions of all jobs that did I/O.
fn directions(report: &Value) -> impl Iterator<Item = &Value> {
    let jobs = report["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let all = jobs.iter().flat_map(|job| ["read", "write", "trim"].map(|key| &job[key]));
    all.filter(|of| of["total_ios"].as_u64().is_some_and(|ios| ios > 0))
}

/// Inconsistent figures of one report: a unit other than fio's is off by a thousand.
fn figures(report: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for of in directions(report) {
        let number = |key: &str| of[key].as_f64().unwrap_or(f64::NAN);
        let mut near = |what: &str, a: f64, b: f64, factor: f64| {
            let is_near = a / b <= factor && b / a <= factor;
            if !is_near {
                faults.push(format!("{what}: {a} and {b}"));
            }
        };
        near("io_kbytes, io_bytes", number("io_kbytes") * 1024.0, number("io_bytes"), 1.01);
        near("bw, bw_bytes", number("bw") * 1024.0, number("bw_bytes"), 1.01);
        let block = number("io_bytes") / number("total_ios");
        near("iops, bw_bytes", number("iops") * block, number("bw_bytes"), 1.05);
        let seconds = number("total_ios") / number("iops");
        near("runtime, iops", number("runtime") / 1e3, seconds, 1.1);
        if number("iops_samples") > 0.0 {
            near("iops_mean, iops", number("iops_mean"), number("iops"), 4.0);
            near("bw_mean, bw", number("bw_mean"), number("bw"), 4.0);
        }
        let clat = &of["clat_ns"];
        let percentiles = clat["percentile"].as_object().into_iter().flatten();
        let values = Vec::from_iter(
            percentiles
                .filter_map(|(key, value)| Some((key.parse::<f64>().ok()?, value.as_f64()?))),
        );
        let (min, max) = (clat["min"].as_f64(), clat["max"].as_f64());
        let within = |value: f64| {
            // Both round to buckets.
            min.is_some_and(|min| value >= min * 0.9) && max.is_some_and(|max| value <= max * 1.1)
        };
        let mut sorted = values.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        if values.is_empty()
            || !sorted.iter().all(|(_, value)| within(*value))
            || !sorted.is_sorted_by(|a, b| a.1 <= b.1)
        {
            faults.push(format!("percentiles of {clat}"));
        }
    }
    faults
}

/// Fields of a terse line that readers would find elsewhere than in fio's.
fn terse_faults(fio: &str, ours: &str, fields: usize) -> Vec<String> {
    let [fio, ours] = [fio, ours].map(|text| {
        let line = text.lines().find(|line| line.contains(';')).unwrap_or_default();
        Vec::from_iter(line.split(';'))
    });
    let mut faults = Vec::new();
    for (name, line) in [("fio", &fio), ("blkmq", &ours)] {
        // They are followed by nine for each disk.
        if line.len() < fields || !(line.len() - fields).is_multiple_of(9) {
            faults.push(format!("{name} has {} terse fields, not {fields}", line.len()));
        }
        let rates = [6, 7].map(|at| line.get(at).and_then(|field| field.parse::<f64>().ok()));
        if !rates.iter().all(|rate| rate.is_some_and(|rate| rate > 0.0)) {
            faults.push(format!("{name}'s terse rates are {rates:?}"));
        }
    }
    for (at, (fio, ours)) in fio.iter().zip(&ours).enumerate().take(fields) {
        let is_same = match at {
            0 | 2 => fio == ours,
            1 => ours.starts_with("fio-3"),
            _ => shape(fio).is_some() && shape(fio) == shape(ours),
        };
        if !is_same {
            faults.push(format!("terse field {} is {ours}, fio's {fio}", at + 1));
        }
    }
    faults
}

/// The shape of a field: the name before its value, whether it has a fraction, and the sign after it.
fn shape(field: &str) -> Option<(&str, bool, bool)> {
    let (name, value) = field.split_once('=').unwrap_or(("", field));
    let number = value.trim_end_matches('%');
    number.parse::<f64>().ok()?;
    Some((name, number.contains('.'), value.ends_with('%')))
}

/// Words of the text that scripts search for, and inconsistent figures in it.
fn text_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut in_flight = 0.0;
    let latencies =
        text.lines().filter(|line| line.trim_start().starts_with("lat (") && line.contains("avg="));
    let mut latencies = latencies.map(latency);
    for (name, group) in [("read:", "READ:"), ("write:", "WRITE:")] {
        let iops = field(text, name, "IOPS=")
            .filter(|text| text.chars().all(|c| c.is_ascii_digit() || matches!(c, 'k' | '.')));
        let iops = iops.and_then(|text| match text.strip_suffix('k') {
            Some(thousands) => Some(thousands.parse::<f64>().ok()? * 1e3),
            None => text.parse().ok(),
        });
        let rates = [(name, "BW="), (group, "bw=")]
            .map(|(line, key)| field(text, line, key).and_then(rate));
        let (Some(iops), [Some(rate), Some(sum)]) = (iops, rates) else {
            faults.push(format!("no {name} IOPS=, BW= or {group} bw="));
            continue;
        };
        for rate in [rate, sum] {
            if !(0.95..1.05).contains(&(rate / (iops * BLOCK))) {
                faults.push(format!("{name} {iops} IOPS of 4 KiB are {rate} bytes a second"));
            }
        }
        match latencies.next().flatten() {
            Some(seconds) => in_flight += iops * seconds,
            None => faults.push(format!("no 'lat (UNIT): ... avg=' behind {name}")),
        }
    }
    // Little's law, with room for the time between two I/Os: a wrong unit is off by a thousand.
    if !(DEPTH / 2.0..DEPTH * 1.5).contains(&in_flight) {
        faults.push(format!("{in_flight} I/Os in flight by the latencies, not {DEPTH}"));
    }
    faults
}

/// The word after `key` in the first line that begins with `name`.
fn field<'a>(text: &'a str, name: &str, key: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
    line.split_once(key)?.1.split([',', ' ', '(', ')']).next()
}

/// Bytes per second of `9909KiB/s`.
fn rate(text: &str) -> Option<f64> {
    let amount = text.strip_suffix("B/s")?;
    let units = [("Ki", 1024.0), ("Mi", 1024.0 * 1024.0), ("Gi", 1024.0 * 1024.0 * 1024.0)];
    let unit = units.iter().find_map(|(name, factor)| Some((amount.strip_suffix(name)?, *factor)));
    let (number, factor) = unit.unwrap_or((amount, 1.0));
    Some(number.parse::<f64>().ok()? * factor)
}

/// Seconds of `lat (usec): min=28, max=5386, avg=231.44, stdev=665.79`.
fn latency(line: &str) -> Option<f64> {
    let unit = match line.split_once('(')?.1.split_once(')')?.0 {
        "nsec" => 1e-9,
        "usec" => 1e-6,
        "msec" => 1e-3,
        _ => return None,
    };
    let average = line.split_once("avg=")?.1.split(',').next()?;
    Some(average.trim().parse::<f64>().ok()? * unit)
}

pub(super) fn programs() -> Result<Outcome> {
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
        same_graph("-l", &bars(&axes, "IOPS")?, &iops)?;
        same_graph("-l", &bars(&axes, "Latency")?, &latency)
    }

    /// IOPS by the number of jobs.
    fn jobs(&self) -> Result<()> {
        let axes = self.draw("-N -d 4 -n 1 2 -i none")?;
        let iops =
            JOBS.iter().map(|jobs| self.iops("none", 4, *jobs)).collect::<Result<Vec<_>>>()?;
        same_graph("-N", &bars(&axes, "IOPS")?, &iops)
    }

    /// IOPS by both.
    fn in_space(&self) -> Result<()> {
        let axes = self.draw("-L -t iops -d 1 4 16 -n 1 2 -i none")?;
        let runs = JOBS.iter().flat_map(|jobs| DEPTHS.iter().map(move |depth| (*depth, *jobs)));
        let iops =
            runs.map(|(depth, jobs)| self.iops("none", depth, jobs)).collect::<Result<Vec<_>>>()?;
        let drawn = axes.iter().find(|axes| !axes.space.is_empty()).ok_or("-L: no bars")?;
        same_graph("-L", &drawn.space, &iops)
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
        same_graph("-H", &drawn, &shares)
    }

    /// Two schedulers beside each other.
    fn comparison(&self) -> Result<()> {
        let axes = self.draw("-C -d 4 -n 1 -i none kyber")?;
        let iops = SCHEDULERS.map(|scheduler| self.iops(scheduler, 4, 1));
        let iops = iops.into_iter().collect::<Result<Vec<_>>>()?;
        same_graph("-C", &bars(&axes, "IOPS")?, &iops)
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
        same_graph(&format!("-g {kind}"), &scaled, &values)
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
fn same_graph(graph: &str, drawn: &[f64], ours: &[f64]) -> Result<()> {
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
    fn paths_with_choices_mean_all_of_them() {
        assert_eq!(expanded("a/{b,c}/{d,>=64}"), ["a/b/d", "a/b/>=64", "a/c/d", "a/c/>=64"]);
        assert_eq!(expanded("global options"), ["global options"]);
    }

    #[test]
    fn a_missing_key_and_one_of_another_type_are_found_on_either_side() {
        let reader = Reader { name: "r", line: "", keys: &[("{a,b}", Whole), ("c", Same)] };
        let fio = json!({ "a": 1, "b": 2, "c": "4k" });
        assert!(reader.faults(&fio, &fio).is_empty());
        let ours = json!({ "a": 1.5, "c": "4096" });
        let expected =
            ["r: blkmq's /a is 1.5", "r: blkmq's /b is null", "r: /c is \"4096\", fio's \"4k\""];
        assert_eq!(reader.faults(&fio, &ours), expected);
        assert_eq!(reader.faults(&ours, &fio).len(), 3);
        assert!(
            !Positive.fits(&json!(0)) && Positive.fits(&json!(0.1)) && !Number.fits(&json!("1"))
        );
    }

    #[test]
    fn another_unit_is_found_in_json() {
        let report = |bw: u64, clat_max: u64| {
            json!({ "jobs": [{ "read": {
                "total_ios": 100, "io_bytes": 409_600, "io_kbytes": 400, "bw": bw, "bw_bytes": 409_600,
                "iops": 100.0, "runtime": 1000, "iops_samples": 0,
                "clat_ns": { "min": 10, "max": clat_max, "percentile": { "5.000000": 11, "50.000000": 20 } },
            } }] })
        };
        assert!(figures(&report(400, 30)).is_empty(), "{:?}", figures(&report(400, 30)));
        assert_eq!(figures(&report(409_600, 30)).len(), 1);
        assert_eq!(figures(&report(400, 12)).len(), 1);
        assert_eq!(work(&report(400, 30)), [100, 409_600]);
    }

    #[test]
    fn fields_of_terse_lines_are_compared_by_their_shape() {
        assert_eq!(shape("99.500000%=125"), Some(("99.500000%", false, false)));
        assert_eq!(shape("12.5%"), Some(("", true, true)));
        assert_eq!(shape("none"), None);
        let fio = "3;fio-3.33;x;0;0;16;400;100;0.5";
        assert!(terse_faults(fio, "3;fio-3.33-blkmq-1;x;0;0;1;4;1;7.25\n", 9).is_empty());
        for ours in [
            "3;blkmq;x;0;0;16;400;100;0.5",
            "3;fio-3;x;0;0;16;400;100;1",
            "3;fio-3;x;0;0;16;0;100;0.5",
        ] {
            assert_eq!(terse_faults(fio, ours, 9).len(), 1, "{ours}");
        }
        assert!(!terse_faults(fio, "3;fio-3;x", 9).is_empty());
    }

    #[test]
    fn words_of_text_and_their_units_are_found() {
        let text = "  read: IOPS=3000, BW=11.7MiB/s (12.3MB/s)(12.0MiB/417msec)\n     lat (usec): min=2, max=5, avg=1000.5, stdev=1\n  \
                    write: IOPS=1.00k, BW=4000KiB/s (4.1MB/s)\n     lat (msec): min=1, max=2, avg=1.00, stdev=0\n  \
                    lat (usec)   : 20=0.05%\n   READ: bw=11.7MiB/s (12.3MB/s), io=1\n  WRITE: bw=4000KiB/s (4.1MB/s), io=1\n";
        assert!(text_faults(text).is_empty(), "{:?}", text_faults(text));
        for (old, new) in [
            ("avg=1000.5", "avg=1.00"),
            ("lat (usec): ", "lat: "),
            ("BW=11.7MiB/s", "BW=11.7 MiB/s"),
            ("READ: bw=11.7MiB/s", "READ: bw=11.7KiB/s"),
            ("IOPS=3000", "IOPS=3.00M"),
            ("  WRITE:", "  W:"),
        ] {
            assert!(!text_faults(&text.replace(old, new)).is_empty(), "{new}");
        }
    }

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
        assert!(same_graph("x", &[85.0, 45000.0], &[84.99, 44999.8]).is_ok());
        assert!(same_graph("x", &[85.0], &[87.0]).is_err());
        assert!(same_graph("x", &[85.0], &[85.0, 1.0]).is_err());
        assert!(same_graph("x", &[], &[]).is_err());
    }

    #[test]
    fn axes_are_found_by_their_name() {
        let line = r#"{"axis": "Latency (us)", "bars": [1.0], "lines": [], "space": []}"#;
        let axes: Axes = serde_json::from_str(line).unwrap();
        assert_eq!(bars(&[axes], "Latency").unwrap(), [1.0]);
        assert!(bars(&[], "IOPS").is_err());
    }
}
