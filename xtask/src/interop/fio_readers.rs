//! Public programs that read fio's output, and the parts that each relies on: keys, types, fields and words, in the
//! output of fio and of blkmq for the same command line on the same file.
//!
//! The lists name the parts that the sources of these programs read; none of their sources is here, and no registry has
//! them. Each list is also checked against fio itself, so that a wrong one fails. Programs that can be installed are
//! run by `fio_programs`.

use super::{Folder, Outcome};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json};
use serde_json::Value;
use std::path::Path;

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
}
