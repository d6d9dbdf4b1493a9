//! A command on a pseudo-terminal, for tests. Nothing here waits for a time: keys are pressed when the screen shows the
//! right moment.

use crate::BIN;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The key that interrupts.
pub const CTRL_C: &[u8] = &[3];
/// A command on a separate terminal.
pub struct Terminal {
    screen: File,
    /// The command.
    pub child: Child,
    /// Everything shown so far.
    shown: String,
}

impl Terminal {
    /// Starts the program under test with the words of `line` on a terminal with `columns` columns.
    pub fn start(line: &str, columns: u16, environment: &[(&str, &str)]) -> Self {
        Self::run(&format!("{BIN} {line}"), columns, environment)
    }

    /// Starts the program named by the first word of `line`.
    pub fn run(line: &str, columns: u16, environment: &[(&str, &str)]) -> Self {
        // `setsid -c` makes this the controlling terminal, whose keys send signals, which a test in the background of a
        // shell would ignore.
        let session = ["--default-signal=INT,QUIT", "setsid", "-c"];
        Self::under(&session, line, columns, environment)
    }

    /// Like [`start`](Self::start), on a terminal that sends no signals, not even on hang-up.
    pub fn without_signals(line: &str, columns: u16) -> Self {
        Self::under(&["--ignore-signal=HUP", "setsid"], &format!("{BIN} {line}"), columns, &[])
    }

    fn under(session: &[&str], line: &str, columns: u16, environment: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a pseudo-terminal");
        // A command that inherited this end would never see the terminal hang up.
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

    /// Reads more of the screen. Returns false when no program uses the terminal any more.
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

    /// Reads until at most `most` seconds are left; on a busy machine the screen may skip some.
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

    /// Presses a key on a terminal that may have gone with its command.
    pub fn try_press(&mut self, keys: &[u8]) {
        let _ = self.screen.write_all(keys);
    }

    /// Waits for the end of the command `line`, and checks that it succeeded and that its lines fit into `columns`,
    /// except for lines that must not be broken.
    pub fn fits(self, line: &str, columns: u16, is_as_it_is: fn(&str) -> bool) {
        let (shown, status) = self.end();
        assert!(status.success(), "{line}: {shown}");
        let wide = lines(&shown).into_iter().filter(|line| !is_as_it_is(line));
        let widest = wide.max_by_key(|line| line.chars().count()).unwrap_or("");
        let count = widest.chars().count();
        assert!((1..=usize::from(columns)).contains(&count), "{line} in {columns}: {widest}");
    }

    /// The whole screen, and the status in which the command ended.
    pub fn end(mut self) -> (String, ExitStatus) {
        while self.look() {}
        (self.shown, self.child.wait().expect("it ends"))
    }
}

/// The lines of a screen without the overwritten parts of a progress bar.
pub fn lines(shown: &str) -> Vec<&str> {
    let start = shown.rfind('\u{1b}').map_or(0, |at| at + 1);
    let rest = &shown[start..];
    rest.lines()
        .map(|line| line.trim_start_matches(|c| c != 's' && line.starts_with('[')))
        .collect()
}
