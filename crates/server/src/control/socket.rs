//! The control socket, the thread that accepts clients, and a thread for each client.
//!
//! Clients do not wait for each other, unless they change the same device. A client that disconnects withdraws its
//! request.

use super::answer::{Origin, audited};
use super::recording::{self, Kind, Wanted};
use super::{Answer, Program, Request};
use crate::listener::{Rights, listen_on};
use crate::log::Rarely;
use crate::worker::Shared;
use blkmq::Clock;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::Duration;

/// The longest request in bytes.
const LONGEST: u64 = 64 << 10;
/// The maximum wait for a request, or for a client to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum number of clients. A further one replaces the oldest that has not sent its request.
const MOST: usize = 64;
/// The maximum number of recordings: a trace and a log of each of many devices.
const RECORDINGS: usize = 32;
/// The pause after a client could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// Control of a server; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The server, shared by all clients.
struct Site {
    shared: Arc<Shared>,
    program: Box<dyn Program>,
    stopped: Arc<AtomicBool>,
    recordings: AtomicUsize,
}

/// A client as known by the accepting thread.
struct Place {
    /// Closed when the thread of the client ends.
    client: Weak<UnixStream>,
    /// Whether its request has arrived.
    has_asked: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Control {
    /// Listens on `path`; `program` handles requests that the server cannot.
    ///
    /// # Errors
    /// See [`listen_on`]; also if no thread can be started.
    pub(crate) fn start(
        path: &Path,
        shared: Arc<Shared>,
        program: Box<dyn Program>,
    ) -> io::Result<Self> {
        let listener = listen_on(path, &Rights::default())?;
        let stopped = Arc::new(AtomicBool::new(false));
        let recordings = AtomicUsize::new(0);
        let site = Arc::new(Site { shared, program, stopped: Arc::clone(&stopped), recordings });
        let serve = move || {
            let (clock, mut refused) = (Clock::start(), Rarely::default());
            let mut places: Vec<Place> = Vec::new();
            for client in listener.incoming() {
                if site.stopped.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = client.and_then(|it| welcome(it, &site, &mut places)) {
                    refused.log(clock.now(), |before| {
                        tracing::warn!(before, "a client of control cannot be accepted: {error}");
                    });
                    park_timeout(PAUSE);
                }
            }
            // The other clients get their answers, and then end.
            let idle = places.iter().filter(|place| !place.has_asked.load(Ordering::Relaxed));
            idle.for_each(|place| place.hang_up(Shutdown::Read));
            // A panic in the thread has already been reported.
            places.into_iter().for_each(|place| drop(place.thread.join()));
        };
        let thread = Builder::new().name("control".to_owned()).spawn(serve)?;
        Ok(Self { path: path.to_owned(), stopped, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The thread waits for a client, so this connection wakes it.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Place {
    /// Shuts the connection down in these directions, if it still exists.
    fn hang_up(&self, how: Shutdown) {
        if let Some(client) = self.client.upgrade() {
            let _ = client.shutdown(how);
        }
    }
}

/// Starts a thread for the client.
fn welcome(client: UnixStream, site: &Arc<Site>, places: &mut Vec<Place>) -> io::Result<()> {
    places.retain(|place| !place.thread.is_finished());
    if places.len() >= MOST {
        let idle = places.iter().position(|place| !place.has_asked.load(Ordering::Relaxed));
        let Some(idle) = idle else {
            let busy = Answer::Refused(format!("busy: {MOST} requests are under way"));
            return (&client).write_all(busy.line().as_bytes());
        };
        // Its thread then reads end of file, and ends.
        places.remove(idle).hang_up(Shutdown::Both);
    }
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (client, has_asked) = (Arc::new(client), Arc::new(AtomicBool::new(false)));
    let (asked, site) = (Arc::clone(&has_asked), Arc::clone(site));
    let place = Arc::downgrade(&client);
    let serve = move || {
        if let Err(error) = serve(&client, &site, &asked) {
            tracing::info!("a client of control had no answer: {error}");
        }
    };
    let thread = Builder::new().name("control client".to_owned()).spawn(serve)?;
    places.push(Place { client: place, has_asked, thread });
    Ok(())
}

/// Returns whether the client's connection is open in at least one direction.
fn is_there(client: &UnixStream) -> bool {
    let mut watched = [PollFd::new(client, PollFlags::empty())];
    let polled = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_err() || !watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Receives a request, and answers it.
fn serve(mut client: &UnixStream, site: &Site, has_asked: &AtomicBool) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(client).take(LONGEST).read_line(&mut line)?;
    has_asked.store(true, Ordering::Relaxed);
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) if !is_there(client) => {
            let left = format!("it left before {request:?} was carried out");
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, left));
        }
        Ok(request) => {
            tracing::debug!(?request, "control");
            match recording(&request) {
                Some(wanted) => match record(client, site, wanted) {
                    Ok(recorded) => return recorded,
                    Err(why) => Answer::Refused(why),
                },
                None => {
                    let (program, by) = (Some(&*site.program), by(client));
                    let goes_on = || is_there(client) && !site.stopped.load(Ordering::Relaxed);
                    let origin = Origin { way: "control", by: &by };
                    audited(request, &site.shared, program, &goes_on, origin)
                }
            }
        }
        Err(error) => Answer::Refused(format!("the request is not understood: {error}")),
    };
    client.write_all(answer.line().as_bytes())
}

/// The user and the process of a client.
fn by(client: &UnixStream) -> String {
    getsockopt(client, PeerCredentials).map_or_else(
        |_| "unknown".to_owned(),
        |it| format!("uid:{} process {}", it.uid(), it.pid()),
    )
}

/// Records for the client until the recording is over. An outer error is the answer for the client.
fn record(client: &UnixStream, site: &Site, wanted: Wanted) -> Result<io::Result<()>, String> {
    recording::check(&site.shared, wanted)?;
    let more = |count| (count < RECORDINGS).then_some(count + 1);
    let count = &site.recordings;
    if count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
        return Err(format!("busy: there are {RECORDINGS} recordings already"));
    }
    let recorded = recording::run(client, &site.shared, wanted, &site.stopped);
    count.fetch_sub(1, Ordering::Relaxed);
    Ok(recorded)
}

/// The recording that a client requests, if any.
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
