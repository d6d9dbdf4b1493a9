//! HTTP access to a running server: a web page, figures for programs, and a few switches.
//!
//! One thread answers all requests, separately from the data: it waits for sockets and timeouts, and blocks nowhere
//! else. A change of a setting may wait for the I/Os in flight, so each change has a thread, and ends with its
//! connection. This implements HTTP/1.1 with one request for each connection, and only the features that browsers, curl
//! and Prometheus need: decision 16 says why no library is used. One connection, its request and the answer, as bytes,
//! are in `connection.rs`, with all limits. HTTP is off unless a listener is given.
//!
//! | path | |
//! |---|---|
//! | `/` | the page, one file that loads nothing from any other host |
//! | `/metrics` | the same counts for [Prometheus](crate::Format) |
//! | `/stat.json`, `/waits.json`, `/list.json` | the answers of [control](crate::control) to `stat`, `stat --waits` and `list` |
//! | `/schedulers.json` | the names of the schedulers, and `auto` |
//! | `/healthz` | 200, or 503 once the server drains |
//! | `/readyz` | 200, or 503 if it accepts no further client, or a device is stuck |
//! | POST `/api/scheduler`, `/api/export` | a change, for requests with the key |
//!
//! A request is mapped to an answer, or to a change that takes time. Requests that pages of other sites make through a
//! user's browser are refused, and changes without the key:
//!
//! - If a page's host name is made to resolve to this machine (DNS rebinding), the browser sees the same origin. The
//!   name is in `Host`, so only IP addresses, `localhost` and configured names are served.
//! - A page of another site cannot read answers, since none permits that, but it could cause changes. A browser sends
//!   the page's site in `Origin` and `Sec-Fetch-Site`, and sends JSON across sites only after a preflight, which is
//!   refused, too.
//! - Other users of the machine can reach its ports without a browser, but lack the key.

mod connection;

use crate::clients::Guests;
use crate::control::{self, Answer, ExportSettings};
use crate::listener::Listener;
use crate::log::Rarely;
use crate::metrics::{self, Format};
use crate::threads::Bell;
use crate::watch;
use crate::worker::Shared;
use blkmq::{Clock, Instant};
use connection::{Connection, JSON, Method, Reply, Request, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use std::{fmt, io};

/// The server, shared by all requests.
#[derive(Debug)]
struct Site {
    shared: Arc<Shared>,
    guests: Arc<Guests>,
    /// Host names of the server, besides those of this machine and IP addresses.
    names: Vec<String>,
    key: Key,
    draining: AtomicBool,
}

/// HTTP of a server; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Http {
    site: Arc<Site>,
    stop: Arc<AtomicBool>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Answers on `listener`. `names` are accepted host names, besides `localhost` and IP addresses.
    ///
    /// # Errors
    /// If the system cannot provide random numbers, descriptors or threads.
    pub(crate) fn start(
        listener: Listener,
        names: Vec<String>,
        shared: Arc<Shared>,
        guests: Arc<Guests>,
    ) -> io::Result<Self> {
        let draining = AtomicBool::new(false);
        let site = Arc::new(Site { shared, guests, names, key: Key(random()?), draining });
        let (stop, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(Bell::new()?));
        let (done, changed) = mpsc::channel();
        let serving = Serving {
            listener,
            site: Arc::clone(&site),
            stop: Arc::clone(&stop),
            bell: Arc::clone(&bell),
            clock: Clock::start(),
            connections: Vec::new(),
            next: 0,
            done,
            changed,
            refused: Rarely::default(),
        };
        let thread = Builder::new().name("http".to_owned()).spawn(move || {
            if let Err(error) = serving.run() {
                tracing::error!("HTTP has ended: {error}");
            }
        })?;
        Ok(Self { site, stop, bell, thread: Some(thread) })
    }

    /// The key that changes need.
    pub(crate) fn key(&self) -> &str {
        &self.site.key.0
    }

    /// Notes that the server accepts no more clients.
    pub(crate) fn drain(&self) {
        self.site.draining.store(true, Ordering::Relaxed);
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// The pause after a connection could not be accepted.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

struct Serving {
    listener: Listener,
    site: Arc<Site>,
    stop: Arc<AtomicBool>,
    bell: Arc<Bell>,
    clock: Clock,
    /// Oldest first.
    connections: Vec<Connection>,
    next: u64,
    /// The answers to changes, with the numbers of their connections.
    done: mpsc::Sender<(u64, Reply)>,
    changed: mpsc::Receiver<(u64, Reply)>,
    refused: Rarely,
}

impl Serving {
    /// Answers requests until it is asked to stop.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    fn run(mut self) -> io::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let ready = self.wait()?;
            let now = self.clock.now();
            self.bell.quiet();
            self.take_changed(now);
            // Ready connections are identified by number: their indexes change.
            for number in ready {
                self.visit(number, now, |connection| connection.step(now));
            }
            let is_late = |it: &&Connection| it.deadline.is_some_and(|at| at <= now);
            let late: Vec<u64> =
                self.connections.iter().filter(is_late).map(|it| it.number).collect();
            for number in late {
                self.visit(number, now, |connection| connection.expire(now));
            }
            self.accept(now);
        }
        Ok(())
    }

    /// Sleeps until there is an event, and returns the numbers of the connections that have one.
    fn wait(&self) -> io::Result<Vec<u64>> {
        let soonest = self.connections.iter().filter_map(|it| it.deadline).min();
        let left = soonest.map(|at| (at - self.clock.now()).0);
        let left = left.map(|left| Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        });
        let mut watched = vec![
            PollFd::new(&*self.bell, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        watched.extend(self.connections.iter().map(|it| PollFd::new(it, it.interest())));
        match poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = watched.iter().skip(2).zip(&self.connections);
        let ready = events.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, connection)| connection.number).collect())
    }

    /// Lets the connection with this number take a step, and handles the outcome.
    fn visit(&mut self, number: u64, now: Instant, step: impl FnOnce(&mut Connection) -> Step) {
        let Some(at) = self.connections.iter().position(|it| it.number == number) else { return };
        let connection = &mut self.connections[at];
        let step = match step(connection) {
            Step::Asked(request) => match action(&request, &self.site) {
                Action::Reply(reply) => connection.answer(reply, request.method, now),
                Action::Change(change) => self.change(at, &request, change, now),
            },
            other => other,
        };
        if matches!(step, Step::Over) {
            self.connections.remove(at);
        }
    }

    /// Begins a change.
    fn change(
        &mut self,
        at: usize,
        request: &Request,
        change: control::Request,
        now: Instant,
    ) -> Step {
        let connection = &mut self.connections[at];
        let by = connection.client();
        let (site, bell) = (Arc::clone(&self.site), Arc::clone(&self.bell));
        let (stop, is_open) = (Arc::clone(&self.stop), connection.watch());
        let (number, done) = (connection.number, self.done.clone());
        let started = Builder::new().name("http change".to_owned()).spawn(move || {
            let goes_on = || is_open.strong_count() > 0 && !stop.load(Ordering::Relaxed);
            let origin = control::Origin { way: "HTTP", by: &by };
            let answer = control::audited(change, &site.shared, None, &goes_on, origin);
            let reply = changed(&answer);
            // The loop may have ended.
            let _ = done.send((number, reply));
            bell.ring();
        });
        match started {
            Ok(_) => Step::Stay,
            Err(error) => {
                let why = Reply::text(503, error);
                connection.answer(why, request.method, now)
            }
        }
    }

    /// Answers the clients of completed changes.
    fn take_changed(&mut self, now: Instant) {
        while let Ok((number, reply)) = self.changed.try_recv() {
            self.visit(number, now, |connection| connection.answer(reply, Method::Post, now));
        }
    }

    /// Accepts the waiting connections.
    fn accept(&mut self, now: Instant) {
        for _ in 0..connection::CONNECTIONS {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.refused.log(now, |before| {
                        tracing::warn!(before, "a connection for HTTP cannot be accepted: {error}");
                    });
                    let mut bell = [PollFd::new(&*self.bell, PollFlags::IN)];
                    let _ = poll(&mut bell, Some(&PAUSE));
                    return;
                }
            };
            if self.connections.len() >= connection::CONNECTIONS {
                let oldest = self.connections.iter().position(Connection::is_hearing);
                // If no connection can be replaced, this one is closed.
                let Some(oldest) = oldest else { continue };
                self.connections.remove(oldest);
            }
            if let Ok(connection) = Connection::new(stream, self.next, now) {
                self.next += 1;
                self.connections.push(connection);
            }
        }
    }
}

/// The page: one file, assembled from its parts.
const PAGE: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/style.css"),
    include_str!("page/body.html"),
    include_str!("page/rates.js"),
    include_str!("page/draw.js"),
    include_str!("page/pictures.js"),
    include_str!("page/live.js"),
    "</script>\n</body>\n</html>\n"
);
/// The placeholder for the nonce of an answer in the page.
const NONCE: &str = "%NONCE%";
const HTML: &str = "text/html; charset=utf-8";

/// The outcome of a request.
#[derive(Debug)]
enum Action {
    /// Send this answer.
    Reply(Reply),
    /// Make a change, and answer when it takes effect.
    Change(control::Request),
}

/// The body of `/api/scheduler`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scheduler {
    /// The number of the device, from 1.
    device: usize,
    scheduler: String,
}

/// The body of `/api/export`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Export {
    name: String,
    #[serde(default)]
    weight: Option<u32>,
    /// As [`ExportSettings::max`].
    #[serde(default)]
    max: Option<String>,
    /// As [`ExportSettings::promise`].
    #[serde(default)]
    promise: Option<String>,
}

fn action(request: &Request, site: &Site) -> Action {
    let found = check(request, site).and_then(|()| match request.method {
        Method::Get | Method::Head => get(request, site).map(Action::Reply),
        Method::Post => post(request).map(Action::Change),
    });
    found.unwrap_or_else(Action::Reply)
}

fn changed(answer: &Answer) -> Reply {
    let status = if matches!(answer, Answer::Refused(_)) { 422 } else { 200 };
    Reply::json(status, answer)
}

fn get(request: &Request, site: &Site) -> Result<Reply, Reply> {
    let asked = |what| match control::respond(what, &site.shared, None, &|| true) {
        Answer::Refused(why) => Reply::text(503, why),
        answer => Reply::json(200, &answer),
    };
    match request.path.as_str() {
        "/" => page(),
        "/stat.json" => Ok(asked(control::Request::Stat)),
        "/waits.json" => Ok(asked(control::Request::Waits)),
        "/list.json" => Ok(asked(control::Request::List)),
        "/schedulers.json" => Ok(Reply::json(200, &schedulers())),
        "/metrics" => Ok(scrape(request, site)),
        "/healthz" => Ok(health(site)),
        "/readyz" => Ok(readiness(site)),
        _ => Err(Reply::text(
            404,
            "accepted: /, /metrics, /stat.json, /waits.json, /list.json, /healthz, /readyz",
        )),
    }
}

/// The names of all schedulers, in the order of lists, and the word for the automatic choice.
fn schedulers() -> Vec<&'static str> {
    let names = blkmq::sched::registry::ALL.iter().map(|factory| factory.name);
    names.chain([blkmq::AUTO]).collect()
}

fn page() -> Result<Reply, Reply> {
    let nonce = random().map_err(|error| Reply::text(503, error))?;
    let mut reply = Reply::new(200, HTML, PAGE.replace(NONCE, &nonce).into_bytes());
    reply.policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    .into();
    Ok(reply)
}

/// The counts in the format that the client prefers.
fn scrape(request: &Request, site: &Site) -> Reply {
    let format = Format::wanted_by(&request.accept);
    match metrics::text(&site.shared, format) {
        Ok(text) => Reply::new(200, format.content_type(), text.into_bytes()),
        Err(why) => Reply::text(503, why),
    }
}

fn health(site: &Site) -> Reply {
    if site.draining.load(Ordering::Relaxed) {
        Reply::text(503, "draining")
    } else {
        Reply::text(200, "serving")
    }
}

fn readiness(site: &Site) -> Reply {
    let most = site.shared.bounds.connections;
    for disk in &site.shared.disks {
        if let Some((count, age)) = disk.stuck(watch::OLD) {
            let (name, seconds) = (disk.name(), age.0 / 1_000_000_000);
            return Reply::text(
                503,
                format!("{name}: {count} requests at the device for {seconds} s"),
            );
        }
    }
    match site.guests.total() {
        _ if site.draining.load(Ordering::Relaxed) => Reply::text(503, "draining"),
        all if all >= most => Reply::text(503, format!("all {most} connections are taken")),
        all => Reply::text(200, format!("ready, {all} of {most} connections")),
    }
}

fn post(request: &Request) -> Result<control::Request, Reply> {
    match request.path.as_str() {
        "/api/scheduler" => body(request).map(|Scheduler { device, scheduler: value }| {
            control::Request::Set { device, path: "queue/scheduler".to_owned(), value }
        }),
        "/api/export" => body(request).map(|Export { name, weight, max, promise }| {
            control::Request::Export { name, settings: ExportSettings { weight, max, promise } }
        }),
        _ => Err(Reply::text(404, "accepted: /api/scheduler, /api/export")),
    }
}

fn body<'a, T: Deserialize<'a>>(request: &'a Request) -> Result<T, Reply> {
    serde_json::from_slice(&request.body).map_err(|error| Reply::text(400, error))
}

/// Checks a request before it is handled.
///
/// # Errors
/// The answer, if the request is refused.
fn check(request: &Request, site: &Site) -> Result<(), Reply> {
    if !is_known(name(&request.host), &site.names) {
        let why = "this host name is not known; accepted: an IP address, localhost, and names of --http-name";
        return Err(Reply::text(421, why));
    }
    if let Some(origin) = &request.origin
        && !is_own(origin, &request.host)
    {
        return Err(Reply::text(403, "a page of another site asks"));
    }
    // A link from another site may lead to the page, but not to figures or switches.
    let foreign = matches!(request.fetch_site.as_deref(), Some("cross-site" | "same-site"));
    if foreign && (request.method == Method::Post || request.path != "/") {
        return Err(Reply::text(403, "a page of another site asks"));
    }
    if request.method != Method::Post {
        return Ok(());
    }
    let kind = request.content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(JSON) {
        return Err(Reply::text(415, format_args!("accepted: {JSON}")));
    }
    match &request.key {
        Some(key) if site.key.is(key) => Ok(()),
        _ => Err(Reply::text(401, "a change needs the key that the server printed as it started")),
    }
}

/// A host without its port.
fn name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

fn is_known(name: &str, names: &[String]) -> bool {
    let is_address = name.parse::<IpAddr>().is_ok() || name.parse::<Ipv6Addr>().is_ok();
    is_address || name == "localhost" || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns whether `origin` is the site of the page served by `host`. A proxy may have terminated TLS.
fn is_own(origin: &str, host: &str) -> bool {
    let origin = origin.to_ascii_lowercase();
    ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
}

/// 128 random bits, in hexadecimal.
///
/// All users of this machine can reach its ports, and are not trusted to change settings.
struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Returns whether `text` is this key. The duration does not reveal the position of the first difference.
    fn is(&self, text: &str) -> bool {
        let different = self.0.bytes().zip(text.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == text.len() && std::hint::black_box(different) == 0
    }
}

/// 128 random bits, in hexadecimal.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    // Up to 256 bytes are returned completely, or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_and_names_that_are_known() {
        let known = |host: &str| is_known(name(host), &["disks.example".to_owned()]);
        for host in ["127.0.0.1:10810", "[::1]:10810", "10.0.0.7", "localhost:1", "DISKS.example"] {
            assert!(known(host), "{host}");
        }
        for host in ["evil.example:10810", "", "localhost.evil.example", "127.0.0.1.nip.io", "[]"] {
            assert!(!known(host), "{host}");
        }
    }

    #[test]
    fn an_origin_is_own_with_the_same_host_and_port() {
        assert!(is_own("http://localhost:1", "localhost:1"));
        assert!(is_own("https://disks.example", "disks.example"));
        for origin in ["http://localhost:2", "null", "http://evil.example", "localhost:1", ""] {
            assert!(!is_own(origin, "localhost:1"), "{origin}");
        }
    }

    #[test]
    fn only_the_key_is_the_key() {
        let key = random().map(Key).expect("the system has random numbers");
        assert_eq!(key.0.len(), 32);
        assert!(key.is(&key.0));
        let other = random().map(Key).expect("again");
        let short = &key.0[..31];
        assert!(![other.0.as_str(), "", short].iter().any(|text| key.is(text)));
        assert_eq!(format!("{key:?}"), "Key(..)", "it is not logged by accident");
    }
}
