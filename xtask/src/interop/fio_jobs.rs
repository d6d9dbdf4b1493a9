//! fio's own example job files: how many of them blkmq accepts, that it refuses the others by the name of an option,
//! and that short runs of them do as much work as fio's.
//!
//! The files are in the source package of the fio that is installed. It is fetched through the package sources of
//! this machine, into a folder of its own; where that is not possible, the check is skipped.

use super::{Outcome, parse, work};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, target_dir};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// fio's engines for plain block I/O. A file without an engine means psync.
const PLAIN: [&str; 9] =
    ["libaio", "io_uring", "sync", "psync", "vsync", "pvsync", "pvsync2", "posixaio", "null"];

/// Options about the place, the time and the contents of I/O: a short run on the null device has no use for them.
const DROPPED: [&str; 30] = [
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
];

/// The least of the plain files that are accepted. A change that lowers it loses users.
const ACCEPTED: usize = 42;
/// The least of them whose short runs do as many I/Os of as many bytes as fio's.
const EQUAL: usize = 30;

/// The check.
pub(super) fn check() -> Result<Outcome> {
    let folder = target_dir().join("interop/fio-source");
    let files = match sources(&folder) {
        Ok(files) => files,
        Err(why) => return Ok(Outcome::Skipped(format!("fio's source package: {why}"))),
    };
    let known = options()?;
    let (mut plain, mut accepted, mut equal) = (0, 0, 0);
    for file in files {
        let text = fs::read_to_string(&file)?;
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
        match compare(&folder, &text)? {
            None => equal += 1,
            Some(how) => println!("  differs: {}: {how}", file.display()),
        }
    }
    println!(
        "  {plain} plain job files: {accepted} accepted, {equal} of them do as much work as with fio"
    );
    if accepted < ACCEPTED || equal < EQUAL {
        return Err(format!("expected: {ACCEPTED} accepted, {EQUAL} equal").into());
    }
    Ok(Outcome::Passed)
}

/// The job files of the source package, which is put into `folder`.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    // Files of an earlier run would count twice.
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
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let package = entry?.path();
        for part in
            ["examples", "t/jobs"].map(|part| package.join(part)).iter().filter(|it| it.is_dir())
        {
            files.extend(fs::read_dir(part)?.filter_map(|entry| Some(entry.ok()?.path())));
        }
    }
    files.retain(|path| path.extension().is_some_and(|it| it == "fio"));
    files.sort();
    if files.is_empty() { Err("it has no job files".into()) } else { Ok(files) }
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

/// Accepted as it is, or on a device that keeps what is written.
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

/// The refusal of `file`, if it names an option of fio and does not call it unknown.
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

/// The job file for a short run on the null device.
fn short(text: &str) -> String {
    let kept =
        text.lines().filter(|line| pair(line).is_none_or(|(key, _)| !DROPPED.contains(&key)));
    let head = ["[global]", "ioengine=null", "size=1m"];
    head.into_iter().chain(kept).map(|line| format!("{line}\n")).collect()
}

/// Runs `text` with fio and with blkmq; how the work differs, if it does.
fn compare(folder: &Path, text: &str) -> Result<Option<String>> {
    let file = folder.join("short.fio");
    fs::write(&file, short(text))?;
    let run = |command: &str| {
        let output = Cmd::new(command).arg(file.display().to_string()).output_in(folder)?;
        Ok(work(&parse(&output)?))
    };
    // Some combinations of options make fio 3.33 wait for ever.
    let fio: Result<_> = run("timeout 20 fio --output-format=json");
    let ours: Result<_> =
        run(&format!("{BLKMQ} bench --device=null --scheduler=none --output-format=json"));
    Ok(match (fio, ours) {
        (Ok(fio), Ok(ours)) if fio == ours => None,
        (Ok(fio), Ok(ours)) => Some(format!("I/Os and bytes are {ours:?}, with fio {fio:?}")),
        (fio, ours) => {
            let said = [fio, ours].map(|it| it.err().map_or(String::new(), |e| e.to_string()));
            Some(said.concat().lines().take(2).collect())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "; a comment\n[global]\nioengine=libaio # the engine\nbs = 8k\n[a]\nruntime=10\nrw=randread\n";

    #[test]
    fn a_short_run_goes_nowhere_and_keeps_the_pattern() {
        let expected =
            "[global]\nioengine=null\nsize=1m\n; a comment\n[global]\nbs = 8k\n[a]\nrw=randread\n";
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
}
