//! Maps a request to an answer, or to a change that takes time.

use super::Site;
use super::connection::{Method, Refusal, Reply, Request};
use super::guard::{self, random};
use crate::control::{self, Answer, ExportSettings};
use crate::metrics::{self, Format};
use crate::watch;
use serde::Deserialize;
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
    let found = guard::check(request, site).and_then(|()| match request.method {
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
