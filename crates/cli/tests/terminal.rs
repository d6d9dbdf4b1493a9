//! The commands on a terminal: Ctrl-C, and different widths, locales and capabilities; and with outputs that fail: a
//! full disk, a closed pipe. First `blkmq bench`, then the other commands.

use crate::BIN;
use crate::pty::{CTRL_C, Terminal, lines};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Two runs that end only if they are ended.
const LONG: &str =
    "--scheduler=none,mq-deadline --rw=randread --iodepth=4 --runtime=600 --time_based";

/// A nonexistent path in cargo's folder for integration tests.
fn fresh(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn no_progress_is_shown_if_it_is_not_wanted() {
    let line = "bench --scheduler=none --device=null --rw=read --runtime=500ms --time_based --name=a --eta=";
    let shown = |eta: &str| Terminal::start(&format!("{line}{eta}"), 100, &[]).end().0;
    assert!(shown("auto").contains("0/1"));
    let silent = shown("never");
    assert!(!silent.contains("0/1") && silent.contains("IOPS="), "{silent}");
}

#[test]
fn ctrl_c_ends_the_runs_and_prints_what_was_measured() {
    let (json, csv, page) = (fresh("cut.json"), fresh("cut.csv"), fresh("cut.html"));
    // Twice 49 s, of which more than one second has passed: then the first run counts.
    let long = "--scheduler=none,mq-deadline --rw=randread --iodepth=4 --runtime=49 --time_based";
    let press = |line: &str| {
        let mut terminal = Terminal::start(line, 100, &[]);
        terminal.until_left(96);
        terminal.press(CTRL_C);
        let (shown, status) = terminal.end();
        assert_eq!(status.code(), Some(128), "{shown}");
        assert!(shown.contains("blkmq: ended by signal 2; 0 of 2 runs are whole"), "{shown}");
        shown
    };
    let shown = press(&format!("bench {long} --report={}", page.display()));
    assert!(shown.contains("Partial: ended by signal 2 after 0 of 2 runs."), "{shown}");
    assert!(shown.contains("IOPS=") && shown.contains("cut short by a signal"), "{shown}");
    let (output, report) = (json.display(), csv.display());
    press(&format!("bench {long} --output={output} --output-format=json --report={report}"));
    let text = |path| std::fs::read_to_string(path).expect("it is written");
    assert!(text(&page).contains("Partial: ended by signal 2 after 0 of 2 runs."));
    let (head, line) = (text(&csv), text(&csv));
    assert!(head.lines().next().is_some_and(|head| head.ends_with(",partial")), "{head}");
    assert!(line.lines().nth(1).is_some_and(|line| line.ends_with(",run")), "{line}");
    let json: Value = serde_json::from_str(&text(&json)).expect("JSON");
    let partial = serde_json::json!({ "runs": 0, "planned": 2, "signal": 2 });
    assert_eq!(
        (&json["blkmq"]["partial"], json["jobs"].as_array().map(Vec::len)),
        (&partial, Some(1))
    );
    let job = &json["jobs"][0];
    assert_eq!(job["blkmq"]["partial"], true);
    let (ios, ms) = (&job["read"]["total_ios"], &job["job_runtime"]);
    assert!(ios.as_u64() > Some(0) && (1..49_000).contains(&ms.as_u64().unwrap_or(0)), "{job}");
}

#[test]
fn ctrl_c_ends_a_simulation_and_a_claim() {
    let sim = format!("sim --device=flash {LONG}");
    for (line, shows) in [(sim.as_str(), "none"), ("repro batch --runtime=600", "batch")] {
        let mut terminal = Terminal::start(line, 100, &[]);
        terminal.until(shows);
        terminal.press(CTRL_C);
        let (shown, status) = terminal.end();
        assert_eq!(status.code(), Some(128), "{shown}");
        assert!(shown.contains("Partial: ended by signal 2 after 0 of"), "{shown}");
    }
}

/// Regression test: `timeout` sends its signal twice, which is not a second Ctrl-C: the results were lost.
#[test]
fn a_signal_that_is_sent_twice_is_one() {
    let mut command = Command::new("timeout");
    let output = command.args(["-s", "INT", "3", BIN, "bench"]).args(LONG.split(' ')).output();
    let output = output.expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("Partial: ended by signal 2 after 0 of 2 runs."), "{text}");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(errors.ends_with("blkmq: ended by signal 2; 0 of 2 runs are whole\n"), "{errors}");
}

/// The queue waits for I/Os that never complete, for a second or two.
#[test]
fn a_second_ctrl_c_ends_the_command_at_once() {
    let stuck = "bench --scheduler=none --rw=randread --runtime=99 --device=faults,timeout=1,timeout_nsec=600000000000:null";
    let mut terminal = Terminal::start(stuck, 100, &[]);
    terminal.until_left(97);
    while terminal.child.try_wait().expect("its status").is_none() {
        terminal.try_press(CTRL_C);
        std::thread::yield_now();
    }
    let (shown, status) = terminal.end();
    assert_eq!(status.code(), Some(128), "{shown}");
    assert!(!shown.contains("Partial"), "{shown}");
}

/// Four runs with every column that a table can have.
const TABLE: &str = "bench --scheduler=none,mq-deadline --access=combining,spin --scope=queue --rw=randwrite \
    --bs=4k --size=1m --iodepth=32 --device=memory,size=64,submit_queues=1 --verify=crc32c";

#[test]
fn nothing_is_wider_than_the_terminal() {
    for columns in [60, 200] {
        for line in
            [TABLE, "bench --scheduler=none --rw=read --size=1m --iodepth=8", "bench --help"]
        {
            let (shown, status) = Terminal::start(line, columns, &[]).end();
            assert!(status.success(), "{shown}");
            let lines = lines(&shown);
            let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(lines.len() > 5 && widest <= usize::from(columns), "{columns}: {shown}");
        }
        let (shown, _) = Terminal::start(TABLE, columns, &[]).end();
        let tables = lines(&shown).iter().filter(|line| line.starts_with("---")).count();
        assert_eq!(tables > 1, columns == 60, "{shown}");
    }
}

#[test]
fn columns_win_over_the_terminal() {
    let (shown, _) = Terminal::start(TABLE, 200, &[("COLUMNS", "72")]).end();
    let widest = lines(&shown).iter().map(|line| line.chars().count()).max();
    assert!((60..=72).contains(&widest.expect("lines")), "{shown}");
}

#[test]
fn plain_terminals_get_plain_text() {
    let named = "bench --scheduler=none --rw=read --size=1m --iodepth=8 --name=caf\u{e9}";
    let (rich, _) = Terminal::start(named, 100, &[]).end();
    assert!(rich.contains("caf\u{e9}"), "{rich}");
    for plain in [[("LANG", "C")], [("TERM", "dumb")]] {
        let (shown, status) = Terminal::start(named, 100, &plain).end();
        assert!(status.success() && shown.contains("IOPS"), "{shown}");
        assert!(shown.is_ascii(), "{plain:?}: {shown}");
        if plain[0].0 == "TERM" {
            assert!(!shown.contains('\u{1b}'), "it knows no escapes: {shown}");
        }
    }
}

const SMALL: &str = "bench --scheduler=none --rw=read --size=1m --iodepth=8 --output-format=json";

fn output(line: &str, stdout: Stdio) -> (Option<i32>, String, String) {
    let output = run(line, stdout);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn is_report(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|json| json["jobs"].is_array())
}

#[test]
fn a_full_disk_loses_no_results() {
    let (code, printed, errors) = output(&format!("{SMALL} --output=/dev/full"), Stdio::piped());
    assert_eq!(code, Some(1), "{errors}");
    assert!(is_report(&printed), "{printed}");
    assert!(errors.contains("cannot write the report to '/dev/full': No space left"), "{errors}");
    let full = File::options().write(true).open("/dev/full").expect("there is one");
    let (code, _, errors) = output(SMALL, full.into());
    assert_eq!(code, Some(1));
    let (report, complaint) = errors.rsplit_once("blkmq: ").expect("a complaint at the end");
    assert!(is_report(report), "the results go to standard error: {errors}");
    assert!(complaint.starts_with("standard output: No space left"), "{complaint}");
}

/// A file system of a few pages, mounted for one test.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=8k", "none"]).arg(dir.path());
        mount.output().is_ok_and(|it| it.status.success()).then_some(Self(dir))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        // A leftover mount is harmless; the test has ended.
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn files_that_did_not_fit_are_removed_or_emptied() {
    let Some(tiny) = Tiny::new() else {
        println!("SKIP files_that_did_not_fit_are_removed_or_emptied: no right to mount a tmpfs");
        return;
    };
    let old = tiny.path("old.html");
    std::fs::write(&old, "old").expect("it fits");
    let new = tiny.path("new.html");
    let with = |report: &Path| format!("{SMALL} --report={}", report.display());
    let (code, printed, errors) = output(&with(&new), Stdio::piped());
    assert!(code == Some(1) && is_report(&printed), "{errors}");
    assert!(errors.contains("; the file is removed") && !new.exists(), "{errors}");
    let (code, printed, errors) = output(&with(&old), Stdio::piped());
    assert!(code == Some(1) && is_report(&printed), "{errors}");
    assert!(errors.contains("; the file is empty now"), "{errors}");
    assert_eq!(std::fs::read(&old).expect("it is there"), b"");
    let trace = format!("{SMALL} --trace={}", tiny.path("trace").display());
    let (code, printed, errors) = output(&trace, Stdio::piped());
    assert!(code == Some(1) && is_report(&printed), "{errors}");
    assert!(!tiny.path("trace.blktrace.0").exists(), "half a trace stays");
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    for line in [SMALL, "bench --scheduler=none --rw=read --size=1m --output=/dev/stdout"] {
        let mut child = Command::new(BIN)
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    }
    // Without a reader of standard error, a refusal is still a refusal and not a panic.
    let mut child =
        Command::new(BIN).arg("bensh").stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
}

/// Creates an elevator log in a separate folder.
fn log() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("run.log").display().to_string();
    let line = format!(
        "sim --scheduler=mq-deadline:fifo_batch=8 --rw=randrw --size=256k --iodepth=8 --name=caf\u{e9} --device=disk \
         --elevator-log={log}"
    );
    let output = run(&line, Stdio::piped());
    assert!(output.status.success(), "{output:?}");
    (folder, log)
}

fn run(line: &str, stdout: Stdio) -> Output {
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
            Terminal::start(&line, columns, &[]).fits(&line, columns, is_as_it_is);
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
        let output = run(&line, full.into());
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
