//! A command on a pseudo-terminal, for tests. Nothing here waits for a time: a key is pressed when the screen shows that it
//! is time for it.

use crate::BIN;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The key that interrupts.
pub const CTRL_C: &[u8] = &[3];
/// A command on a terminal of its own.
pub struct Terminal {
    screen: File,
    /// The command.
    pub child: Child,
    /// Everything that has been shown so far.
    shown: String,
}

impl Terminal {
    /// Starts the program under test with the words of `line` on a terminal with so many columns.
    pub fn start(line: &str, columns: u16, environment: &[(&str, &str)]) -> Self {
        Self::run(&format!("{BIN} {line}"), columns, environment)
    }

    /// Starts the program that is the first word of `line`.
    pub fn run(line: &str, columns: u16, environment: &[(&str, &str)]) -> Self {
        // `setsid -c` makes the terminal the one whose keys send signals, which a test in the background of a shell
        // would ignore.
        let session = ["--default-signal=INT,QUIT", "setsid", "-c"];
        Self::under(&session, line, columns, environment)
    }

    /// The same, on a terminal that sends no signals, not even when it hangs up.
    pub fn without_signals(line: &str, columns: u16) -> Self {
        Self::under(&["--ignore-signal=HUP", "setsid"], &format!("{BIN} {line}"), columns, &[])
    }

    fn under(session: &[&str], line: &str, columns: u16, environment: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a pseudo-terminal");
        // A command that had this end as well would never see the terminal hang up.
        fcntl(&master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("it is open");
        let end = || Stdio::from(slave.try_clone().expect("another descriptor"));
        let mut command = Command::new("env");
        command.args(session).args(line.split_whitespace());
        for name in ["COLUMNS", "LC_ALL", "LC_CTYPE", "NO_COLOR"] {
            command.env_remove(name);
        }
        command.env("LANG", "C.UTF-8").env("TERM", "xterm");
        command.envs(environment.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts");
        Self { screen: File::from(master), child, shown: String::new() }
    }

    /// Reads more of the screen. False at the end: when no program has the terminal any more.
    fn look(&mut self) -> bool {
        let mut bytes = [0; 4096];
        // The end of a pseudo-terminal is an error.
        let read = self.screen.read(&mut bytes).unwrap_or(0);
        self.shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }

    /// Reads until the screen has shown `text`.
    pub fn until(&mut self, text: &str) {
        while !self.shown.contains(text) {
            assert!(self.look(), "'{text}' never came:\n{}", self.shown);
        }
    }

    /// Until no more than so many seconds are left; on a busy machine the screen may skip some of them.
    pub fn until_left(&mut self, most: u32) {
        let says = |shown: &str| {
            (most - 20..=most).any(|left| shown.contains(&format!("(about {left} s left)")))
        };
        while !says(&self.shown) {
            assert!(self.look(), "there was always more than {most} s left:\n{}", self.shown);
        }
    }

    /// Takes the terminal away, waits for the end of the command, and returns its status.
    pub fn hang_up(self) -> ExitStatus {
        let Self { screen, mut child, .. } = self;
        drop(screen);
        child.wait().expect("it ends")
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.screen.write_all(keys).expect("the terminal is there");
    }

    /// Presses a key on a terminal that may be gone with its command.
    pub fn try_press(&mut self, keys: &[u8]) {
        let _ = self.screen.write_all(keys);
    }

    /// The whole screen, and the status in which the command ended.
    pub fn end(mut self) -> (String, ExitStatus) {
        while self.look() {}
        (self.shown, self.child.wait().expect("it ends"))
    }
}

/// The lines of a screen without what a progress bar draws over itself.
pub fn lines(shown: &str) -> Vec<&str> {
    let start = shown.rfind('\u{1b}').map_or(0, |at| at + 1);
    let rest = &shown[start..];
    rest.lines()
        .map(|line| line.trim_start_matches(|c| c != 's' && line.starts_with('[')))
        .collect()
}
