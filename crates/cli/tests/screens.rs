//! The commands other than `blkmq bench` on terminals of different widths, locales and capabilities, and with outputs
//! that fail: a full disk, a closed pipe.

use crate::BIN;
use crate::pty::{Terminal, lines};
use std::fs::File;
use std::process::{Child, Command, Output, Stdio};

/// Creates an elevator log in a separate folder.
fn log() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("run.log").display().to_string();
    let line = format!(
        "sim --scheduler=mq-deadline:fifo_batch=8 --rw=randrw --size=256k --iodepth=8 --name=caf\u{e9} --device=disk \
         --elevator-log={log}"
    );
    let output = output(&line, Stdio::piped());
    assert!(output.status.success(), "{output:?}");
    (folder, log)
}

fn output(line: &str, stdout: Stdio) -> Output {
    let mut command = Command::new(BIN);
    let child = command.args(line.split_whitespace()).stdout(stdout).stderr(Stdio::piped()).spawn();
    child.and_then(Child::wait_with_output).expect("it starts")
}

/// Four runs, one of which has a name longer than a narrow screen.
const RUNS: &str = "--scheduler=none,mq-deadline:fifo_batch=8,read_expire=100,write_expire=1000,writes_starved=4 \
    --access=combining,spin --rw=randrw --size=256k --iodepth=8 --name=caf\u{e9} --device=flash";
const CLAIM: &str = "repro order --runtime=20ms --threads=1";

/// A command line for each command, with its log.
fn every_command(log: &str) -> Vec<String> {
    let mut all = vec![
        format!("sim {RUNS}"),
        format!("bench --dry-run {RUNS}"),
        CLAIM.to_owned(),
        format!("replay {log}"),
        format!("replay {log} --scheduler=bfq"),
    ];
    let pages = ["", "sim", "replay", "repro", "doc", "completions", "man"];
    all.extend(pages.map(|page| format!("help {page}")));
    all.extend(["doc", "doc kyber", "doc disk", "doc uring", "doc attributes"].map(String::from));
    all
}

/// Regression test: `replay` and `bench --dry-run` ignored the width, and documentation pages had none.
#[test]
fn no_command_is_wider_than_its_terminal() {
    let (_folder, log) = log();
    for columns in [60, 200] {
        for line in every_command(&log) {
            let (shown, status) = Terminal::start(&line, columns, &[]).end();
            assert!(status.success(), "{line}: {shown}");
            let wide = lines(&shown).into_iter().filter(|line| !is_as_it_is(line));
            let widest = wide.max_by_key(|line| line.chars().count()).unwrap_or("");
            let count = widest.chars().count();
            assert!((1..=usize::from(columns)).contains(&count), "{line} in {columns}: {widest}");
        }
    }
}

/// Returns whether a line would change its meaning if it were broken: of a job file, of code on a page, or a single
/// word of a command.
fn is_as_it_is(line: &str) -> bool {
    let name = |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let is_pair = !line.contains(' ') && line.split_once('=').is_some_and(|(key, _)| name(key));
    let is_word = !line.trim().trim_end_matches(" \\").contains(' ') && line.contains("--");
    is_pair || is_word || line.starts_with("blkmq ")
}

#[test]
fn a_wide_terminal_is_used() {
    let (_folder, log) = log();
    for line in [format!("bench --dry-run {RUNS}"), format!("replay {log}")] {
        let of = |columns| {
            let (shown, _) = Terminal::start(&line, columns, &[]).end();
            shown.lines().count()
        };
        let (narrow, wide) = (of(60), of(200));
        assert!(wide < narrow, "{line}: {wide} lines in 200 columns, {narrow} in 60");
    }
}

#[test]
fn plain_terminals_get_plain_text_from_every_command() {
    let (_folder, log) = log();
    let rich = Terminal::start(&format!("bench --dry-run {RUNS}"), 100, &[]).end().0;
    assert!(rich.contains("caf\u{e9}"), "{rich}");
    for line in every_command(&log) {
        for plain in [[("LANG", "C")], [("TERM", "dumb")]] {
            let (shown, status) = Terminal::start(&line, 100, &plain).end();
            assert!(status.success() && shown.is_ascii(), "{line} with {plain:?}: {shown}");
            assert!(
                plain[0].0 == "LANG" || !shown.contains('\u{1b}'),
                "{line}: it knows no escapes: {shown}"
            );
        }
    }
}

#[test]
fn a_full_disk_is_an_error_of_every_command() {
    let (_folder, log) = log();
    for line in every_command(&log) {
        let full = File::options().write(true).open("/dev/full").expect("there is one");
        let output = output(&line, full.into());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {errors}");
        assert!(errors.contains("blkmq: standard output: No space left"), "{line}: {errors}");
        // Nothing that took time to measure is lost.
        if line.starts_with("sim") || line.starts_with("repro") {
            assert!(errors.lines().count() > 5, "{line}: {errors}");
        }
    }
}

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let (_folder, log) = log();
    for line in every_command(&log) {
        let mut command = Command::new(BIN);
        command.args(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !errors.contains("panicked"), "{line}: {errors}");
    }
}
