//! The two pipes of a browser: JSON messages, each followed by a zero byte.

use crate::Result;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};

/// A browser that is a child of this process.
pub(super) struct Pipe {
    child: Child,
    /// `None` when it is closed.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// The number of the last call.
    number: u64,
}

impl Pipe {
    /// The child's standard input and output are pipes.
    pub(super) fn new(mut child: Child) -> Self {
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Self { child, to, from, number: 0 }
    }

    /// Sends a call, and returns its number.
    ///
    /// # Errors
    /// If the browser has ended.
    pub(super) fn send(&mut self, session: &str, method: &str, parameters: &Value) -> Result<u64> {
        self.number += 1;
        let mut call = json!({ "id": self.number, "method": method, "params": parameters });
        if !session.is_empty() {
            call["sessionId"] = session.into();
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        self.to.as_mut().ok_or("the browser is closed")?.write_all(&bytes)?;
        Ok(self.number)
    }

    /// The next message: an answer, or an event.
    ///
    /// # Errors
    /// If the browser has ended.
    pub(super) fn receive(&mut self) -> Result<Value> {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes)?;
        if bytes.pop() != Some(0) {
            return Err("the browser has ended".into());
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Ends the browser, and waits for its end. A browser whose pipe is closed ends automatically.
    pub(super) fn close(&mut self) {
        let _ = self.send("", "Browser.close", &json!({}));
        self.to = None;
        let _ = self.child.wait();
    }
}
