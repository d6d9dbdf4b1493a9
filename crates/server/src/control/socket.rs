//! The socket of control, and the thread behind it.

use super::Program;
use super::answer;
use super::message::{Answer, Request};
use super::recording::{Kind, Recorders, Wanted};
use crate::rights::{Rights, listen_on};
use crate::worker::Shared;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest request in bytes.
const LONGEST: u64 = 64 << 10;
/// The longest wait for a request, or for a client to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Control of a server; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens on `path`; `program` does what the server cannot.
    ///
    /// # Errors
    /// As [`listen_on`], or if there is no thread left.
    pub(crate) fn start(
        path: &Path,
        shared: Arc<Shared>,
        program: Box<dyn Program>,
    ) -> io::Result<Self> {
        let listener = listen_on(path, &Rights::default())?;
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let serve = move || {
            let mut recorders = Recorders::new(Arc::clone(&shared));
            for client in listener.incoming() {
                if is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let answered =
                    client.and_then(|client| answer(client, (&shared, &*program), &mut recorders));
                if let Err(error) = answered {
                    tracing::info!("a client of control had no answer: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(serve)?;
        Ok(Self { path: path.to_owned(), stopped, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The thread waits for a client: this one.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic there has been reported.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(
    client: UnixStream,
    (shared, program): (&Shared, &dyn Program),
    recorders: &mut Recorders,
) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(&client).take(LONGEST).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) => {
            tracing::debug!(?request, "control");
            if let Some(wanted) = recording(&request) {
                let begun = client.try_clone().map(|client| recorders.start(client, wanted))?;
                let Err(why) = begun else { return Ok(()) };
                Answer::Refused(why)
            } else {
                let change = is_change(&request).then(|| format!("{request:?}"));
                let answer = answer::to(request, shared, Some(program));
                if let (Some(change), Answer::Done(_)) = (change, &answer) {
                    tracing::info!("control: {change}");
                }
                answer
            }
        }
        Err(error) => Answer::Refused(format!("the request is not understood: {error}")),
    };
    let mut client = client;
    client.write_all(answer.line().as_bytes())
}

/// Returns whether the request changes the server.
fn is_change(request: &Request) -> bool {
    matches!(request, Request::Set { .. } | Request::Export { .. })
}

/// The recording that a client asks for.
fn recording(request: &Request) -> Option<Wanted> {
    let (device, seconds, kind) = match *request {
        Request::Trace { device, seconds, buffer_kib: kib, bytes } => {
            (device, seconds, Kind::Trace { kib, bytes })
        }
        Request::ElevatorLog { device, seconds, bytes } => {
            (device, seconds, Kind::ElevatorLog { bytes })
        }
        _ => return None,
    };
    Some(Wanted { device, seconds, kind })
}
