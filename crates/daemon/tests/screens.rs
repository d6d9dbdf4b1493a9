//! The programs on terminals of different widths, locales and capabilities, with Ctrl-C, and with outputs that fail: a
//! full disk, a closed pipe.

use crate::pty::{CTRL_C, Terminal, lines};
use crate::{BIN, BLKMQD};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server with a device that has a long name, and the option by which `blkmqctl` reaches it.
struct Server {
    child: Child,
    socket: String,
    _folder: tempfile::TempDir,
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
        let socket = format!("--socket={}.control", socket.display());
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
            let (shown, status) = Terminal::run(&line, columns, &[]).end();
            assert!(status.success(), "{line}: {shown}");
            let wide = lines(&shown).into_iter().filter(|line| !is_as_it_is(line));
            let widest = wide.max_by_key(|line| line.chars().count()).unwrap_or("");
            let count = widest.chars().count();
            assert!((1..=usize::from(columns)).contains(&count), "{line} in {columns}: {widest}");
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
