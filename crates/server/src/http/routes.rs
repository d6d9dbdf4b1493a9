//! Maps a request to an answer, or to a change that takes time. Refuses requests that pages of other sites make through
//! a user's browser, and changes without the key.
//!
//! - If a page's host name is made to resolve to this machine (DNS rebinding), the browser sees the same origin. The
//!   name is in `Host`, so only IP addresses, `localhost` and configured names are served.
//! - A page of another site cannot read answers, since none permits that, but it could cause changes. A browser sends
//!   the page's site in `Origin` and `Sec-Fetch-Site`, and sends JSON across sites only after a preflight, which is
//!   refused, too.
//! - Other users of the machine can reach its ports without a browser, but lack the key.

use super::Site;
use super::connection::{JSON, Method, Refusal, Reply, Request};
use crate::control::{self, Answer, ExportSettings};
use crate::metrics::{self, Format};
use crate::watch;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;

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
pub(super) enum Action {
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

pub(super) fn action(request: &Request, site: &Site) -> Action {
    let found = check(request, site).and_then(|()| match request.method {
        Method::Get | Method::Head => get(request, site).map(Action::Reply),
        Method::Post => post(request).map(Action::Change),
    });
    found.unwrap_or_else(|refusal| Action::Reply(refusal.into()))
}

pub(super) fn changed(answer: &Answer) -> Reply {
    let status = if matches!(answer, Answer::Refused(_)) { 422 } else { 200 };
    Reply::json(status, answer)
}

fn get(request: &Request, site: &Site) -> Result<Reply, Refusal> {
    let asked = |what| match control::respond(what, &site.shared, None, &|| true) {
        Answer::Refused(why) => Reply::text(503, &why),
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
        _ => Err(Refusal::new(
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

fn page() -> Result<Reply, Refusal> {
    let nonce = random().map_err(|error| Refusal::new(503, error.to_string()))?;
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
        Err(why) => Reply::text(503, &why),
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
                &format!("{name}: {count} requests at the device for {seconds} s"),
            );
        }
    }
    match site.guests.total() {
        _ if site.draining.load(Ordering::Relaxed) => Reply::text(503, "draining"),
        all if all >= most => Reply::text(503, &format!("all {most} connections are taken")),
        all => Reply::text(200, &format!("ready, {all} of {most} connections")),
    }
}

fn post(request: &Request) -> Result<control::Request, Refusal> {
    match request.path.as_str() {
        "/api/scheduler" => body(request).map(|Scheduler { device, scheduler: value }| {
            control::Request::Set { device, path: "queue/scheduler".to_owned(), value }
        }),
        "/api/export" => body(request).map(|Export { name, weight, max, promise }| {
            control::Request::Export { name, settings: ExportSettings { weight, max, promise } }
        }),
        _ => Err(Refusal::new(404, "accepted: /api/scheduler, /api/export")),
    }
}

fn body<'a, T: Deserialize<'a>>(request: &'a Request) -> Result<T, Refusal> {
    serde_json::from_slice(&request.body).map_err(|error| Refusal::new(400, error.to_string()))
}

/// Checks a request before it is handled.
///
/// # Errors
/// The answer, if the request is refused.
fn check(request: &Request, site: &Site) -> Result<(), Refusal> {
    if !is_known(name(&request.host), &site.names) {
        let why = "this host name is not known; accepted: an IP address, localhost, and names of --http-name";
        return Err(Refusal::new(421, why));
    }
    if let Some(origin) = &request.origin
        && !is_own(origin, &request.host)
    {
        return Err(Refusal::new(403, "a page of another site asks"));
    }
    // A link from another site may lead to the page, but not to figures or switches.
    let foreign = matches!(request.fetch_site.as_deref(), Some("cross-site" | "same-site"));
    if foreign && (request.method == Method::Post || request.path != "/") {
        return Err(Refusal::new(403, "a page of another site asks"));
    }
    if request.method != Method::Post {
        return Ok(());
    }
    let kind = request.content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(JSON) {
        return Err(Refusal::new(415, format!("accepted: {JSON}")));
    }
    match &request.key {
        Some(key) if site.key.is(key) => Ok(()),
        _ => Err(Refusal::new(401, "a change needs the key that the server printed as it started")),
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
pub(super) struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Generates a key.
    ///
    /// # Errors
    /// If the system cannot provide random numbers.
    pub(super) fn new() -> io::Result<Self> {
        random().map(Self)
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

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
        let key = Key::new().expect("the system has random numbers");
        assert_eq!(key.text().len(), 32);
        assert!(key.is(key.text()));
        let other = Key::new().expect("again");
        let short = &key.text()[..31];
        assert!(![other.text(), "", short].iter().any(|text| key.is(text)));
        assert_eq!(format!("{key:?}"), "Key(..)", "it is not logged by accident");
    }
}
