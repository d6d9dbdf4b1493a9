//! The programs on terminals of different widths, locales and capabilities, with Ctrl-C, and with outputs that fail: a
//! full disk, a closed pipe. `blkmqctl top` on a terminal, on a dumb terminal, and without a terminal.

use crate::pty::{CTRL_C, Terminal};
use crate::{BIN, BLKMQD};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A server with a device that has a long name, and the option by which `blkmqctl` reaches it.
struct Server {
    child: Child,
    socket: String,
    _folder: TempDir,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let mut command = Command::new(BLKMQD);
        command.arg(format!("--listen=unix:{}", socket.display())).args([
            "--device=faults,error=0.000001,seed=7:memory,size=64,cache=1",
            "--scheduler=bfq",
            "--export=gold,size=8m,weight=300,rbps=1g,wbps=1g,riops=100000,wiops=100000",
            "--export=rest,offset=8m",
            "--workers=1",
        ]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready = said.map_while(Result::ok).any(|line| line.starts_with("control: "));
        assert!(ready, "it has a socket for control");
        let socket = format!("--control={}.control", socket.display());
        Self { child, socket, _folder: folder }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The test is over.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command for a line whose first word is a program.
fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).stderr(Stdio::piped());
    command
}

/// A command line for each command that ends without a signal, including help pages.
fn every_command(server: &Server) -> Vec<String> {
    let asked = ["list", "get", "stat --count=1", "diff", "top --once"];
    let mut all = Vec::from(asked.map(|words| format!("{BIN} {} {words}", server.socket)));
    let pages = ["", "stat", "export", "top", "completions", "man"];
    all.extend(pages.map(|page| format!("{BIN} help {page}")));
    all.push(format!("{BLKMQD} --help"));
    all
}

/// Regression test: `blkmqctl` ignored the width.
#[test]
fn no_command_is_wider_than_its_terminal() {
    let server = Server::start();
    for columns in [60, 200] {
        for line in every_command(&server) {
            Terminal::run(&line, columns, &[]).fits(&line, columns, is_as_it_is);
        }
    }
}

/// Returns whether a line is a part of a command that would change its meaning if it were broken.
fn is_as_it_is(line: &str) -> bool {
    !line.trim().trim_end_matches(" \\").contains(' ') && line.contains("--")
}

#[test]
fn a_wide_terminal_is_used() {
    let server = Server::start();
    let line = format!("{} stat --count=1", server.socket);
    let of = |columns| Terminal::start(&line, columns, &[]).end().0.lines().count();
    let (narrow, wide) = (of(60), of(200));
    assert!(wide < narrow, "{wide} lines in 200 columns, {narrow} in 60");
}

#[test]
fn plain_terminals_get_plain_text_from_every_command() {
    let server = Server::start();
    for line in every_command(&server) {
        for plain in [[("LANG", "C")], [("TERM", "dumb")]] {
            let (shown, status) = Terminal::run(&line, 100, &plain).end();
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
    let server = Server::start();
    for line in every_command(&server) {
        let full = File::options().write(true).open("/dev/full").expect("there is one");
        let child = command(&line).stdout(full).spawn().expect("it starts");
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {errors}");
        assert!(errors.starts_with("blkmq"), "{line}: {errors}");
        assert!(errors.contains(": standard output: No space left"), "{line}: {errors}");
    }
}

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let server = Server::start();
    for line in every_command(&server) {
        let mut child = command(&line).stdout(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !errors.contains("panicked"), "{line}: {errors}");
    }
}

/// Regression test: `stat` and `biolatency` continued to query the server after their reader had gone. Without I/O
/// `biolatency` wrote nothing, so that it could not even notice.
#[test]
fn a_closed_pipe_ends_what_goes_on_for_ever() {
    let server = Server::start();
    for words in [
        "stat --interval=1",
        "stat --interval=1 --json",
        "stat --interval=1 --waits",
        "biolatency --interval=1",
    ] {
        let line = format!("{BIN} {} {words}", server.socket);
        let mut child = command(&line).stdout(Stdio::piped()).spawn().expect("it starts");
        // The reader closes the pipe after the first line, like `head`.
        let mut reader = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut first = String::new();
        reader.read_line(&mut first).expect("it writes text");
        assert!(!first.is_empty(), "{line}");
        drop(reader);
        let output = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{line}: {errors}");
    }
}

#[test]
fn ctrl_c_ends_what_goes_on_for_ever() {
    let server = Server::start();
    let mut terminal = Terminal::start(&format!("{} stat --interval=1", server.socket), 100, &[]);
    terminal.until("aqu-sz");
    terminal.press(CTRL_C);
    let (shown, status) = terminal.end();
    // The signal ends the program by its default action: there is no partial work.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{shown}");
    assert!(!shown.contains("panicked"), "{shown}");
}

/// A server with two exports, which ends when this is dropped.
struct Exports {
    child: Child,
    control: PathBuf,
    _folder: TempDir,
}

impl Exports {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let mut child = Command::new(BLKMQD)
            .args(["--device=memory,size=8", "--scheduler=bfq", "--workers=1"])
            .args(["--export=gold,size=4m,weight=300", "--export=rest,offset=4m"])
            .arg(format!("--listen=unix:{}", socket.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let control = folder.path().join("s.control");
        let is_ready = lines.map_while(Result::ok).any(|line| line.starts_with("SIGTERM"));
        assert!(is_ready, "it serves");
        Self { child, control, _folder: folder }
    }

    fn top(&self, words: &str) -> String {
        format!("top --control={} {words}", self.control.display())
    }
}

impl Drop for Exports {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sequences that enter and leave the alternate screen, and show the cursor.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";

#[test]
fn keys_steer_it_and_the_terminal_is_put_back() {
    let server = Exports::start();
    let mut terminal = Terminal::start(&server.top(""), 100, &[]);
    terminal.until("Devices 1, exports 2");
    terminal.until("gold");
    terminal.press(b" ");
    terminal.until("every 1 s, paused");
    terminal.press(b"+");
    terminal.until("every 2 s, paused");
    terminal.press(b">");
    terminal.until("by r/s, largest first");
    terminal.press(b"r");
    terminal.until("by r/s, smallest first");
    // The columns scroll: the first is the one that did not fit by default.
    terminal.press(b"\x1b[C");
    terminal.until("rrqm/s");
    terminal.press(b"q");
    let (shown, status) = terminal.end();
    assert!(status.success(), "{shown}");
    assert!(shown.contains(ENTER) && shown.ends_with(LEAVE), "{shown:?}");
    assert!(shown.contains(CURSOR), "the cursor is back");
}

#[test]
fn every_way_to_end_it_puts_the_terminal_back() {
    let server = Exports::start();
    for end in ["ctrl-c", "TERM"] {
        let mut terminal = Terminal::start(&server.top(""), 60, &[]);
        terminal.until("every 1 s");
        if end == "TERM" {
            let kill = Command::new("kill").arg(terminal.child.id().to_string()).status();
            assert!(kill.expect("kill is everywhere").success());
        } else {
            terminal.press(CTRL_C);
        }
        let (shown, status) = terminal.end();
        assert!(status.success() && shown.ends_with(LEAVE), "{end}: {shown:?}");
    }
}

/// A read from a terminal that has hung up returns end of file, and the library that reads keys retries for ever.
/// Without its own session, or under nohup, `top` gets no SIGHUP. So `top` watches the terminal itself, and another
/// thread ends the program if the main thread cannot.
#[test]
fn it_ends_with_its_terminal() {
    let server = Exports::start();
    for has_signals in [true, false] {
        let line = server.top("");
        let mut terminal = if has_signals {
            Terminal::start(&line, 80, &[])
        } else {
            Terminal::without_signals(&line, 80)
        };
        terminal.until("every 1 s");
        terminal.hang_up();
    }
}

/// Output to a stopped terminal blocks, so that the main thread does not see the flag.
#[test]
fn it_ends_on_a_stopped_terminal() {
    let server = Exports::start();
    for signal in ["-TERM", "-HUP"] {
        let mut terminal = Terminal::start(&server.top("--interval=1"), 80, &[]);
        terminal.until("Devices 1");
        let id = terminal.child.id().to_string();
        // The screen is not read from here on, and each key redraws it, until the terminal's buffer is full.
        for _ in 0..64 {
            terminal.press(b"+-");
        }
        let kill = Command::new("kill").args([signal, &id]).status();
        assert!(kill.expect("kill is everywhere").success());
        terminal.child.wait().expect("it ends");
    }
}

#[test]
fn a_server_that_goes_away_is_said_and_waited_for() {
    let server = Exports::start();
    let mut terminal = Terminal::start(&server.top(""), 80, &[]);
    terminal.until("Devices 1");
    drop(server);
    terminal.until("No answer: ");
    terminal.press(b"q");
    assert!(terminal.end().1.success());
}

#[test]
fn a_dumb_terminal_gets_lines() {
    let server = Exports::start();
    let terminal = Terminal::start(&server.top("--count=1"), 60, &[("TERM", "dumb")]);
    let (shown, status) = terminal.end();
    assert!(status.success() && !shown.contains('\u{1b}'), "{shown:?}");
    assert!(shown.contains("q_p99") && shown.lines().all(|line| line.len() <= 60), "{shown}");
}

#[test]
fn without_a_terminal_there_are_all_columns_or_json() {
    let server = Exports::start();
    let output = |words: &str| {
        let mut command = Command::new(BIN);
        let output = command.args(server.top(words).split(' ')).output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = output("--once --sort=w/s");
    assert!(text.lines().count() == 4 && text.contains("scheduler"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let text = output("--count=2 --json");
    let lines: Vec<Value> =
        text.lines().map(|it| serde_json::from_str(it).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let gold = &lines[0]["rows"][1];
    assert_eq!(
        (&gold["name"], &gold["weight"], &gold["r/s"]),
        (&"gold".into(), &300.into(), &0.0.into())
    );
    assert!(lines[0]["seconds"].as_f64() >= Some(0.9), "{text}");
}

#[test]
fn without_a_server_there_is_a_reason() {
    let mut command = Command::new(BIN);
    let output = command.args(["top", "--control=/nowhere", "--once"]).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("no server"), "{errors}");
}
