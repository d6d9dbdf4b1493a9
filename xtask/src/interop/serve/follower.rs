//! A program that prints a line of JSON for each interval, while a load runs.

use crate::Result;
use crate::fio;
use crate::nbd::Server;
use crate::shell::{BLKMQCTL, Cmd};
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;

/// The program, which runs until it is killed; killed when this is dropped.
pub(super) struct Follower {
    child: Child,
    words: &'static str,
    path: PathBuf,
}

impl Follower {
    /// Starts `blkmqctl` with `words` for `server`, and waits for its first interval: from then on it misses nothing.
    ///
    /// # Errors
    /// If it prints nothing.
    pub(super) fn start(server: &Server, words: &'static str) -> Result<Self> {
        let path = server.path(&words.replace([' ', '='], ""));
        let socket = server.path("socket.control");
        let cmd = Cmd::new(&format!("{BLKMQCTL} {words} --socket={}", socket.display()));
        let follower = Self { child: cmd.start(File::create(&path)?)?, words, path };
        follower.lines(1)?;
        Ok(follower)
    }

    /// At least this many lines, after waiting for them.
    fn lines(&self, least: usize) -> Result<Vec<Value>> {
        for _ in 0..200 {
            let text = fs::read_to_string(&self.path)?;
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if whole.lines().count() >= least {
                return whole.lines().map(|line| Ok(serde_json::from_str(line)?)).collect();
            }
            fio::pause(0.05)?;
        }
        Err(format!("{} shows nothing for too long", self.words).into())
    }

    /// The lines of all intervals, up to one that begins from now on: the current one may have ended without being
    /// printed.
    pub(super) fn all(&self) -> Result<Vec<Value>> {
        let shown = self.lines(0)?.len();
        self.lines(shown + 2)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The program does not end until it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
