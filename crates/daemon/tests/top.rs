//! `blkmqctl top` on a terminal, on a dumb terminal, and without a terminal.

use crate::pty::{CTRL_C, Terminal};
use crate::{BIN, BLKMQD};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A server with two exports, which ends when this is dropped.
struct Server {
    child: Child,
    control: PathBuf,
    _folder: TempDir,
}

impl Server {
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
        format!("top --socket={} {words}", self.control.display())
    }
}

impl Drop for Server {
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
    let server = Server::start();
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
    let server = Server::start();
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
    let server = Server::start();
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
    let server = Server::start();
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
    let server = Server::start();
    let mut terminal = Terminal::start(&server.top(""), 80, &[]);
    terminal.until("Devices 1");
    drop(server);
    terminal.until("No answer: ");
    terminal.press(b"q");
    assert!(terminal.end().1.success());
}

#[test]
fn a_dumb_terminal_gets_lines() {
    let server = Server::start();
    let terminal = Terminal::start(&server.top("--count=1"), 60, &[("TERM", "dumb")]);
    let (shown, status) = terminal.end();
    assert!(status.success() && !shown.contains('\u{1b}'), "{shown:?}");
    assert!(shown.contains("q_p99") && shown.lines().all(|line| line.len() <= 60), "{shown}");
}

#[test]
fn without_a_terminal_there_are_all_columns_or_json() {
    let server = Server::start();
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
    let output = command.args(["top", "--socket=/nowhere", "--once"]).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("no server"), "{errors}");
}
