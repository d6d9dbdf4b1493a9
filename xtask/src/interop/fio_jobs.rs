//! The I/Os of jobs, compared with fio's.
//!
//! For options of a command line, fio and blkmq get the same ones, and their counts, bytes, rates and depths are
//! compared. The coverage of blocks is compared through verification: a block that was written once is compared once.
//!
//! Of fio's own example job files, those that blkmq accepts are counted; it must refuse the others by the name of an
//! option, and short runs must do as much work as fio's. The files are in the source package of the installed fio. It
//! is fetched through the package sources of this machine, into its own folder; where that is not possible, the check
//! is skipped. A checkout of fio's repository, which has more files, is counted as well if `FIO_REPOSITORY` is the path
//! to one. A plain file is one whose engines are for block I/O, and which the installed fio accepts.

use super::{Folder, Outcome, work};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json, target_dir};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// fio's engines for plain block I/O. A file without an engine means psync.
const PLAIN: [&str; 9] =
    ["libaio", "io_uring", "sync", "psync", "vsync", "pvsync", "pvsync2", "posixaio", "null"];

/// Options about the location, the time and the contents of I/O, which have no use in a short run on the null device.
const DROPPED: [&str; 43] = [
    "ioengine",
    "io_submit_mode",
    "filename",
    "directory",
    "filesize",
    "nrfiles",
    "nr_files",
    "openfiles",
    "size",
    "offset",
    "offset_increment",
    "io_size",
    "runtime",
    "timeout",
    "time_based",
    "ramp_time",
    "startdelay",
    "rate",
    "rate_iops",
    "rate_process",
    "ratemin",
    "thinktime",
    "verify",
    "do_verify",
    "verify_pattern",
    "verify_interval",
    "verify_fatal",
    "verify_dump",
    "verify_backlog",
    "loops",
    "gtod_reduce",
    "disable_lat",
    "disable_clat",
    "disable_slat",
    "write_bw_log",
    "write_iops_log",
    "write_lat_log",
    "write_hist_log",
    "log_avg_msec",
    "log_offset",
    "log_prio",
    "log_max_value",
    "per_job_logs",
];

/// The least that is expected of a set of files. A change that lowers it loses users.
struct Least {
    /// Files that are accepted.
    accepted: usize,
    /// The number of files whose short runs do as many I/Os of as many bytes as fio's.
    equal: usize,
    /// The number of files whose short runs also reach as many different sectors.
    covered: usize,
}

/// The expected counts for fio 3.33's source package, which has 65 plain files,
const OF_PACKAGE: Least = Least { accepted: 57, equal: 30, covered: 30 };
/// and of fio's repository, of whose plain files fio 3.33 reads 78.
const OF_REPOSITORY: Least = Least { accepted: 68, equal: 30, covered: 30 };

/// The variable with the path to a checkout of fio's repository.
const REPOSITORY: &str = "FIO_REPOSITORY";

pub(super) fn check() -> Result<Outcome> {
    let folder = target_dir().join("interop/fio-source");
    let repository = std::env::var_os(REPOSITORY).map(PathBuf::from);
    if let Some(checkout) = &repository {
        fs::create_dir_all(&folder)?;
        count("fio's repository", job_files(checkout)?, &folder, &OF_REPOSITORY)?;
    }
    match (sources(&folder), repository) {
        (Ok(files), _) => count("fio's source package", files, &folder, &OF_PACKAGE)?,
        (Err(_), Some(_)) => {}
        (Err(why), None) => {
            let text =
                format!("fio's source package: {why}; {REPOSITORY} names a checkout instead");
            return Ok(Outcome::Skipped(text));
        }
    }
    Ok(Outcome::Passed)
}

/// Tests all of `files`, of the collection called `name`.
fn count(name: &str, files: Vec<PathBuf>, folder: &Path, least: &Least) -> Result<()> {
    let known = options()?;
    let (mut plain, mut accepted, mut equal, mut same_blocks) = (0, 0, 0, 0);
    for file in files {
        let text = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
        let parsed = Cmd::new("fio --parse-only").arg(file.display().to_string());
        if !is_plain(&text) || parsed.quiet_code()? != Some(0) {
            continue;
        }
        plain += 1;
        if let Err(why) = dry_run(&file) {
            println!("  refused: {}", named(&file, &why.to_string(), &known)?);
            continue;
        }
        accepted += 1;
        match compare(folder, &text)? {
            Compared::Same => (equal, same_blocks) = (equal + 1, same_blocks + 1),
            Compared::Blocks(ours, fio) => {
                equal += 1;
                println!("  differs: {}: {ours} sectors, with fio {fio}", file.display());
            }
            Compared::Differs(how) => println!("  differs: {}: {how}", file.display()),
        }
    }
    println!(
        "  {name}: {plain} plain job files: {accepted} accepted; short runs of {equal} of them do as many I/Os of as \
         many bytes as with fio, and of {same_blocks} reach as many sectors"
    );
    let Least { accepted: a, equal: e, covered: c } = *least;
    if accepted < a || equal < e || same_blocks < c {
        return Err(
            format!("{name}: expected: {a} accepted, {e} equal, {c} with equal sectors").into()
        );
    }
    Ok(())
}

/// The job files of the source package, which is put into `folder`.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    // Files of an earlier run would be counted twice.
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder.join("lists/partial"))?;
    let mut list = String::new();
    for entry in fs::read_dir("/etc/apt/sources.list.d")? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "sources") {
            list.push_str(&fs::read_to_string(&path)?.replace("Types: deb\n", "Types: deb-src\n"));
            list.push('\n');
        }
    }
    fs::write(folder.join("private.sources"), list)?;
    let script = "cd \"$1\" && apt=\"apt-get -q -o Dir::Etc::sourcelist=$1/private.sources \
                  -o Dir::Etc::sourceparts=- -o Dir::State::lists=$1/lists\" && \
                  $apt update && $apt source --download-only fio && rm -f -- *.asc && tar xf fio_*.orig.tar.*";
    let fetch = Cmd::new("sh -c").arg(script).arg("fetch").arg(folder.display().to_string());
    fetch.output()?;
    for entry in fs::read_dir(folder)? {
        let package = entry?.path();
        if package.join("examples").is_dir() {
            return job_files(&package);
        }
    }
    Err("it has no job files".into())
}

/// The job files of fio's sources at `sources`.
fn job_files(sources: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for part in ["examples", "t/jobs"].map(|part| sources.join(part)) {
        let all = fs::read_dir(&part).map_err(|e| format!("{}: {e}", part.display()))?;
        files.extend(all.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.retain(|path| path.extension().is_some_and(|it| it == "fio"));
    files.sort();
    if files.is_empty() { Err("no job files".into()) } else { Ok(files) }
}

/// The key and the value of a line of a job file; `None` for headers, comments and empty lines.
fn pair(line: &str) -> Option<(&str, &str)> {
    let line = line.split([';', '#']).next().unwrap_or_default().trim();
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    (!line.is_empty() && !line.starts_with('[')).then_some((key.trim(), value.trim()))
}

fn is_plain(text: &str) -> bool {
    let engines = text.lines().filter_map(pair).filter(|(key, _)| *key == "ioengine");
    engines.into_iter().all(|(_, engine)| PLAIN.contains(&engine))
}

/// Succeeds if the file is accepted unchanged, or on a device that keeps its data.
fn dry_run(file: &Path) -> Result<()> {
    let accepted = |device: &str| {
        let command = format!("{BLKMQ} bench --dry-run {device}");
        Cmd::new(&command).arg(file.display().to_string()).silent_output_in(&target_dir()).map(drop)
    };
    accepted("").or_else(|first| accepted("--device=memory,gb=400").map_err(|_| first))
}

/// The names of fio's options.
fn options() -> Result<BTreeSet<String>> {
    let help = Cmd::new("fio --cmdhelp=all").output()?;
    let names = help.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    let aliases =
        ["ss", "ratemin", "readwrite", "cmdprio_percentage", "cmdprio_bssplit", "cmdprio_class"];
    Ok(names.chain(aliases.map(str::to_owned)).collect())
}

/// The error for `file`, if it names an option of fio and does not call it unknown.
fn named(file: &Path, why: &str, known: &BTreeSet<String>) -> Result<String> {
    let reason = why.rsplit_once("blkmq: ").map_or(why, |(_, reason)| reason);
    let names_one = || {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        reason.split(|c| !is_word(c)).any(|word| known.contains(word))
    };
    if reason.contains("unknown option") || !names_one() {
        return Err(
            format!("{}: refused without the name of an option: {reason}", file.display()).into()
        );
    }
    Ok(reason.to_owned())
}

/// The job file for a short run on the null device, which logs the offset of each I/O.
fn short(text: &str) -> String {
    let kept =
        text.lines().filter(|line| pair(line).is_none_or(|(key, _)| !DROPPED.contains(&key)));
    let head = ["[global]", "ioengine=null", "size=1m", "write_lat_log=short", "log_offset=1"];
    head.into_iter().chain(kept).map(|line| format!("{line}\n")).collect()
}

/// How a short run differs from fio's.
enum Compared {
    Same,
    /// In the number of different sectors: (ours, fio's).
    Blocks(usize, usize),
    /// In other figures.
    Differs(String),
}

/// Runs `text` with fio and with blkmq.
fn compare(folder: &Path, text: &str) -> Result<Compared> {
    let run = |name: &str, command: &str| {
        let place = folder.join(name);
        // Logs of another file would be counted.
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place)?;
        fs::write(place.join("short.fio"), short(text))?;
        let output = Cmd::new(command).arg("short.fio").output_in(&place)?;
        Ok((work(&parse_json(&output)?), covered(&place)?))
    };
    // Some combinations of options make fio 3.33 hang.
    let fio: Result<_> = run("short-fio", "timeout 20 fio --output-format=json");
    let ours = format!("{BLKMQ} bench --device=null --scheduler=none --output-format=json");
    let ours: Result<_> = run("short-blkmq", &ours);
    Ok(match (fio, ours) {
        (Ok((fio, there)), Ok((ours, here))) if fio == ours && there == here => Compared::Same,
        (Ok((fio, there)), Ok((ours, here))) if fio == ours => Compared::Blocks(here, there),
        (Ok((fio, _)), Ok((ours, _))) => {
            Compared::Differs(format!("I/Os and bytes are {ours:?}, with fio {fio:?}"))
        }
        (fio, ours) => {
            let said =
                [fio.err(), ours.err()].map(|it| it.map_or(String::new(), |e| e.to_string()));
            Compared::Differs(said.concat().lines().take(2).collect())
        }
    })
}

const SECTOR: u64 = 512;

/// The number of different sectors in the latency logs in `folder`.
pub(super) fn covered(folder: &Path) -> Result<usize> {
    let mut sectors = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains("_lat.") && name.ends_with(".log") {
            fs::read_to_string(&path)?.lines().for_each(|line| add(line, &mut sectors));
        }
    }
    Ok(sectors.len())
}

/// Adds the sectors of one I/O: time, latency, direction, length, offset. A flush has none.
fn add(line: &str, sectors: &mut BTreeSet<u64>) {
    let fields = Vec::from_iter(line.split(',').map(|field| field.trim().parse::<u64>()));
    if let [_, _, Ok(0..=2), Ok(bytes), Ok(offset), ..] = fields[..] {
        sectors.extend(offset / SECTOR..(offset + bytes).div_ceil(SECTOR));
    }
}

/// Options with which both must do the same number of I/Os and move the same number of bytes.
const SAME: &[&str] = &[
    "--rw=read --size=1m --io_size=33%",
    "--rw=randread --bs=64k --size=1m --io_size=10%",
    "--rw=randread:8 --size=1m",
    "--rw=randwrite:3 --size=1m --number_ios=10",
    "--rw=read:4k --size=1m",
    "--rw=read:3k --size=1m",
    "--rw=write:8k --size=1m",
    "--rw=write:8k --size=1m --loops=2",
    "--rw=write:8k --size=1m --io_size=2m",
    "--rw=read:-8k --size=1m",
    "--rw=read:-12k --size=1m",
    "--rw=trim:4k --size=1m",
    "--rw=read --bssplit=4k/50:6k/50 --size=1m",
    "--rw=randread --bssplit=4k/50:6k/50 --size=1m",
    "--rw=randread --norandommap --bssplit=4k/50:64k/50 --size=64k",
    "--rw=read --bs=8k --size=100k",
    // Several files.
    "--rw=read --nrfiles=4 --size=1m",
    "--rw=read --nrfiles=3 --size=100k",
    "--rw=randwrite --nrfiles=4 --size=104k --file_service_type=random",
    "--rw=randread --nrfiles=4 --size=1m --bs=8k --file_service_type=sequential",
    "--rw=randread --nrfiles=4 --size=1m --norandommap",
    "--rw=read --nrfiles=4 --filesize=64k --size=96k",
    "--rw=randread --nrfiles=4 --filesize=64k",
    "--rw=write --nrfiles=4 --size=1m --io_size=300k",
    "--rw=read --nrfiles=4 --size=1m --loops=3 --number_ios=100",
    "--rw=read:4k --nrfiles=4 --size=1m",
    "--rw=read --nrfiles=8 --size=1m --openfiles=2 --file_service_type=roundrobin:4",
    "--rw=read --filename=a:b:c --size=768k",
    "--rw=trimwrite --nrfiles=4 --size=1m",
    "--rw=randread --norandommap --random_generator=lfsr --size=1m --loops=2",
    "--rw=randread --norandommap --random_generator=lfsr --bssplit=4k/100 --nrfiles=2 --size=1m",
];

/// Like [`SAME`], but on files, which each lays out in its own folder.
const ON_FILES: &[&str] = &[
    "--filename=a:b --rw=randwrite --size=64k --loops=3 --verify=crc32c --iodepth=4",
    "--filename=a:b --rw=randwrite --size=64k --fsync=4",
    "--filename=a --rw=randwrite --size=64k --name=second --filename=b --rw=read --size=128k",
    "--directory=. --nrfiles=3 --numjobs=2 --rw=write --size=96k --verify=md5",
    "--filename_format=x.$filenum --nrfiles=3 --filesize=64k --size=100k --rw=randread",
    "--filename=a --rw=randwrite --size=64k --norandommap --iodepth=8 --serialize_overlap=1",
    "--filename=a --rw=randwrite --size=64k --filesize=256k --loops=2",
];

/// Options with several block sizes: bytes are the same, and the number of I/Os is within these bounds, which hold
/// for any seed.
const COVERED: &[(&str, u64, u64)] = &[
    ("--rw=randread --size=16m --bssplit=4k/50:64k/50", 650, 980),
    ("--rw=randread --size=16m --bsrange=4k-64k", 620, 800),
    ("--rw=randread --size=16m --bsrange=512:1M", 35, 90),
    ("--rw=randread --size=1m --loops=2 --bssplit=4k:8k", 340, 440),
];

/// Rates of reads and writes, which are reached for any mix.
const RATES: &[(&str, [f64; 2])] = &[
    ("--rw=randrw --rate_iops=1000,200", [1000.0, 200.0]),
    ("--rw=rw --rate=1m,2m", [256.0, 512.0]),
    ("--rw=randrw --rwmixread=80 --rate_iops=1000,200", [1000.0, 200.0]),
    ("--rw=randrw --rwmixread=20 --rate_iops=1000,200", [1000.0, 200.0]),
];

/// Portions, and the share of I/Os at each depth.
const DEPTHS: &[&str] = &[
    "--iodepth=16 --iodepth_batch=16 --iodepth_batch_complete=16",
    "--iodepth=32 --iodepth_batch=8 --iodepth_batch_complete=8",
    "--iodepth=8",
];

fn fio(options: &str) -> Result<Value> {
    parse_json(&Cmd::new(&format!("fio --name=check --output-format=json {options}")).output()?)
}

fn ours(options: &str) -> Result<Value> {
    let line = format!(
        "{BLKMQ} sim --scheduler=none --ioengine=null --output-format=json --name=check {options}"
    );
    parse_json(&Cmd::new(&line).output()?)
}

/// I/Os and bytes of reads, writes and trims.
fn work_of_options(report: &Value) -> [(u64, u64); 3] {
    work_of(&report["jobs"][0])
}

fn work_of(job: &Value) -> [(u64, u64); 3] {
    ["read", "write", "trim"].map(|direction| {
        let counts = &job[direction];
        let count = |key: &str| counts[key].as_u64().unwrap_or(0);
        (count("total_ios"), count("io_bytes"))
    })
}

fn differ(options: &str, fio: impl std::fmt::Debug, ours: impl std::fmt::Debug) -> Result<()> {
    Err(format!("with {options}: fio {fio:?}, blkmq {ours:?}").into())
}

/// See the tables above.
///
/// # Errors
/// If fio and blkmq differ.
pub(super) fn workload() -> Result<Outcome> {
    let null = "--ioengine=null";
    for options in SAME {
        let (fio, ours) = (
            work_of_options(&fio(&format!("{null} {options}"))?),
            work_of_options(&ours(options)?),
        );
        if fio != ours {
            differ(options, fio, ours)?;
        }
    }
    on_files()?;
    for (options, least, most) in COVERED {
        let ([fio, ..], [ours, ..]) = (
            work_of_options(&fio(&format!("{null} {options}"))?),
            work_of_options(&ours(options)?),
        );
        let bounded = |ios: u64| (*least..=*most).contains(&ios);
        if fio.1 != ours.1 || !bounded(fio.0) || !bounded(ours.0) {
            differ(options, fio, ours)?;
        }
    }
    for (options, expected) in RATES {
        let options = format!("{options} --size=64m --time_based --runtime=1");
        // fio measures in real time, and other programs may hold it up.
        let both = [(fio(&format!("{null} {options}"))?, 0.2), (ours(&options)?, 0.03)];
        for (report, tolerance) in both {
            let job = &report["jobs"][0];
            let rates = ["read", "write"].map(|d| job[d]["iops"].as_f64().unwrap_or(0.0));
            let is_off = |(rate, wanted): (&f64, &f64)| (rate / wanted - 1.0).abs() > tolerance;
            if rates.iter().zip(expected).any(is_off) {
                differ(&options, expected, rates)?;
            }
        }
    }
    depths()?;
    shape()?;
    verified()
}

/// I/Os, bytes, and the remaining files with their lengths.
fn on_files() -> Result<()> {
    let common = "--direct=1 --ioengine=libaio --bs=4k --output-format=json --name=check";
    let ours = format!("{BLKMQ} bench --scheduler=mq-deadline {common}");
    for options in ON_FILES {
        let mut both = Vec::new();
        for command in [&format!("fio {common}"), &ours] {
            let folder = Folder::new("workload")?;
            let words = options.split(' ');
            let command = words.fold(Cmd::new(command), Cmd::arg);
            let report = parse_json(&command.output_in(folder.path())?)?;
            let jobs = report["jobs"].as_array().map_or(0, Vec::len);
            let work = Vec::from_iter((0..jobs).map(|job| work_of(&report["jobs"][job])));
            both.push((work, lengths(folder.path())?));
        }
        if both[0] != both[1] {
            differ(options, &both[0], &both[1])?;
        }
    }
    Ok(())
}

/// The files of a folder with their lengths. Files with fio's verification state are skipped.
fn lengths(folder: &Path) -> Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".state") {
            files.push((name, entry.metadata()?.len()));
        }
    }
    files.sort();
    Ok(files)
}

/// A device that keeps I/Os for a while shows the depths; fio's null engine does not.
fn depths() -> Result<()> {
    let device =
        "--device=null,irqmode=2,completion_nsec=50000,hw_queue_depth=64 --size=4m --rw=randread";
    let file = std::env::temp_dir().join(format!("blkmq-workload-{}", std::process::id()));
    for options in DEPTHS {
        let engine =
            format!("--ioengine=libaio --filename={} --size=4m --rw=randread", file.display());
        let [fio, ours] =
            [fio(&format!("{engine} {options}"))?, ours(&format!("{device} {options}"))?]
                .map(|report| report["jobs"][0]["iodepth_level"].clone());
        for key in ["1", "2", "4", "8", "16", "32", ">=64"] {
            let share = |report: &Value| report[key].as_f64().unwrap_or(-1.0);
            // The first I/Os fill the queue; on a file, completions sometimes come in other batches.
            if (share(&fio) - share(&ours)).abs() > 5.0 {
                let _ = fs::remove_file(&file);
                return differ(options, fio, ours);
            }
        }
    }
    fs::remove_file(&file)?;
    Ok(())
}

/// The share of the I/Os that go to the most used fifth of the blocks, with fio's normal distribution of each width.
/// The number of blocks is a power of two, for which fio scatters without collisions.
fn shape() -> Result<()> {
    let folder = std::env::temp_dir();
    for (deviation, expected) in [(5, 77.0), (10, 75.5), (25, 64.0), (50, 40.0)] {
        let log = folder.join(format!("blkmq-iolog-{}", std::process::id()));
        let options = format!(
            "--ioengine=null --rw=randread --size=4m --io_size=400m --random_distribution=normal:{deviation}"
        );
        fio(&format!("{options} --write_iolog={}", log.display()))?;
        let text = fs::read_to_string(&log)?;
        fs::remove_file(&log)?;
        let mut counts = vec![0u32; 1024];
        for line in text.lines().filter(|line| line.contains(" read ")) {
            let offset =
                line.split_whitespace().nth_back(1).and_then(|word| word.parse::<usize>().ok());
            if let Some(count) = offset.and_then(|offset| counts.get_mut(offset / 4096)) {
                *count += 1;
            }
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let sum = |counts: &[u32]| f64::from(counts.iter().sum::<u32>());
        let share = 100.0 * sum(&counts[..205]) / sum(&counts).max(1.0);
        // The unit test of blkmq's own shape has the same formula.
        if (share - expected).abs() > 2.5 {
            differ(&options, share, expected)?;
        }
    }
    Ok(())
}

/// All that was written with several block sizes is compared, once.
fn verified() -> Result<Outcome> {
    let options = "--rw=randwrite --bssplit=4k/50:64k/50 --size=4m --verify=crc32c";
    let line = format!(
        "{BLKMQ} sim --scheduler=none --device=memory,size=64 --output-format=json --name=check {options}"
    );
    let report = parse_json(&Cmd::new(&line).output()?)?;
    let verify = &report["jobs"][0]["blkmq"]["verify"];
    if verify["verified"] != 4 << 20 || verify["errors"] != 0 {
        return Err(format!("with {options}: {verify}, expected 4 MiB").into());
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "; a comment\n[global]\nioengine=libaio # the engine\nbs = 8k\n[a]\nruntime=10\nrw=randread\n";

    #[test]
    fn a_short_run_goes_nowhere_and_keeps_the_pattern() {
        let expected = "[global]\nioengine=null\nsize=1m\nwrite_lat_log=short\nlog_offset=1\n; a comment\n[global]\nbs = 8k\n[a]\nrw=randread\n";
        assert_eq!(short(TEXT), expected);
    }

    #[test]
    fn engines_tell_which_files_are_plain() {
        assert!(is_plain(TEXT) && is_plain("[a]\nrw=read\n"));
        assert!(!is_plain("[a]\nioengine=rbd\n") && !is_plain(&format!("{TEXT}ioengine=cpuio\n")));
    }

    #[test]
    fn a_refusal_must_name_an_option() {
        let known = BTreeSet::from(["flow", "wait_for"].map(str::to_owned));
        let of = |why: &str| named(Path::new("x.fio"), why, &known);
        let text = "blkmq bench: exit status: 2: blkmq: x.fio:3: flow=2: fio's, but not built";
        assert_eq!(of(text).unwrap(), "x.fio:3: flow=2: fio's, but not built");
        assert!(of("blkmq: x.fio:3: flow: unknown option; nearest: log").is_err());
        assert!(of("blkmq: something went wrong").is_err());
    }

    #[test]
    fn sectors_count_once_and_flushes_not_at_all() {
        let mut sectors = BTreeSet::new();
        for line in ["1, 20, 0, 1024, 512", "2, 20, 1, 1024, 1024, 0", "3, 9, 3, 4096, 0", "?"] {
            add(line, &mut sectors);
        }
        assert_eq!(sectors, BTreeSet::from([1, 2, 3]));
    }
}
