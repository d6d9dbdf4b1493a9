//! fio's own example job files: counts how many of them blkmq accepts, and checks that it refuses the others by the
//! name of an option, and that short runs do as much work as fio's.
//!
//! The files are in the source package of the installed fio. It is fetched through the package sources of this machine,
//! into its own folder; where that is not possible, the check is skipped. A checkout of fio's repository, which has
//! more files, is counted as well if `FIO_REPOSITORY` is the path to one.
//!
//! A plain file is one whose engines are for block I/O, and which the installed fio accepts.

use super::{Outcome, work};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json, target_dir};
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
