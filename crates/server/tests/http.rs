//! HTTP access to a running server: figures, changes, and refusals.

use crate::rig::{Rig, serve, serve_on, until};
use blkmq_nbd::{Command, CommandFlags};
use blkmq_server::{Address, Bounds, Export, Listener, Rights, Settings};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// A server with HTTP on a port of this machine.
struct Site {
    rig: Rig,
    at: SocketAddr,
    key: String,
}

impl Site {
    fn new(mut rig: Rig) -> Self {
        let local: Address = "tcp:127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&local, &Rights::default()).expect("a port is free");
        let &Address::Tcp(at) = listener.address() else { panic!("it is a port") };
        let key = rig.server.http(listener, vec!["disks.example".to_owned()]).expect("it starts");
        Self { rig, at, key }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).expect("it listens")
    }

    /// Sends these bytes, and returns the status and the body of the answer.
    fn send(&self, text: &str) -> (u16, String) {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).expect("it reads");
        answer(stream)
    }

    /// Sends a request from this machine, with these fields in addition to the host.
    fn ask(&self, line: &str, fields: &str, body: &str) -> (u16, String) {
        let host = format!("Host: localhost:{}", self.at.port());
        let length = format!("Content-Length: {}", body.len());
        self.send(&format!("{line} HTTP/1.1\r\n{host}\r\n{fields}{length}\r\n\r\n{body}"))
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path}"), "", "")
    }

    /// The fields of a permitted change.
    fn allowed(&self) -> String {
        let origin = format!("Origin: http://localhost:{}", self.at.port());
        format!(
            "{origin}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
            self.key
        )
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.ask(&format!("POST {path}"), &self.allowed(), body)
    }
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    // A reset connection gives no answer, and no test expects one.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).expect("text");
    let status = text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

#[test]
fn figures_are_those_of_control_and_the_page_allows_nothing_from_elsewhere() {
    let site = Site::new(serve(&[Export::new("gold", 0), Export::new("rest", 0)]));
    let (status, stat) = site.get("/stat.json");
    assert!(status == 200 && stat.starts_with("{\"stat\":{\"at\":"), "{status} {stat}");
    let (_, list) = site.get("/list.json?anything");
    assert!(list.contains("\"scheduler\":\"mq-deadline\"") && list.contains("gold"), "{list}");
    assert_eq!(
        site.get("/schedulers.json").1,
        "[\"none\",\"mq-deadline\",\"kyber\",\"bfq\",\"mclock\",\"auto\"]"
    );
    let (status, metrics) = site.get("/metrics");
    assert!(status == 200 && metrics.contains("blkmq_export_weight{export=\"gold\"} 100\n"));
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    assert!(site.ask("GET /metrics", accept, "").1.ends_with("# EOF\n"));
    assert_eq!(site.get("/nothing").0, 404);
    let (status, empty) = site.ask("HEAD /stat.json", "", "");
    assert_eq!((status, empty.as_str()), (200, ""));
    let (_, page) = site.get("/");
    let mut stream = site.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let policy = text.lines().find(|line| line.starts_with("Content-Security-Policy: "));
    let policy = policy.expect("a policy");
    let nonce = policy.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next());
    let nonce = nonce.expect("scripts have a nonce");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert!(text.contains(&format!("<script nonce=\"{nonce}\">")), "the page has the nonce");
    assert!(!page.contains(nonce) && !page.contains("%NONCE%"), "each answer has its own");
}

#[test]
fn a_change_needs_the_key_and_takes_effect() {
    let site = Site::new(serve(&[Export::new("gold", 0)]));
    let (status, done) = site.post("/api/scheduler", "{\"device\":1,\"scheduler\":\"bfq\"}");
    assert!(status == 200 && done.starts_with("{\"done\":"), "{status} {done}");
    let weight = "{\"name\":\"gold\",\"weight\":7,\"max\":\"wiops=50\"}";
    assert_eq!(site.post("/api/export", weight).0, 200);
    let (_, list) = site.get("/list.json");
    for part in ["\"scheduler\":\"bfq\"", "\"weight\":7", "wiops=50"] {
        assert!(list.contains(part), "{list}");
    }
    let (status, refused) = site.post("/api/export", "{\"name\":\"gold\",\"weight\":0}");
    assert!(status == 422 && refused.starts_with("{\"refused\":"), "{status} {refused}");
    assert_eq!(site.post("/api/export", "{\"name\":\"gold\",\"wieght\":9}").0, 400);
    assert_eq!(site.post("/api/drain", "{}").0, 404);
    let wrong = site.allowed().replace(&site.key, &"0".repeat(32));
    let none = site.allowed().replace("Authorization", "X-Authorization");
    for fields in [wrong, none] {
        assert_eq!(site.ask("POST /api/export", &fields, weight).0, 401);
    }
}

/// Regression test: only one change at a time was possible on all devices. While one waited for a stuck device, others
/// were answered with 409, and the first took effect long after its client had disconnected. The first request for
/// counts waited, too, and with it every HTTP client.
#[test]
fn a_change_of_a_stuck_device_keeps_no_other_client_waiting() {
    let stuck = "null,irqmode=2,completion_nsec=3600000000000";
    let exports = [Export::new("stuck", 0), Export::new("good", 1)];
    let rig = Rig::start_on(&[stuck, "memory,size=16"], &exports, &Settings::default());
    let site = Site::new(rig);
    let mut reader = site.rig.client("stuck");
    reader.send(Command::Read, CommandFlags::NONE, 0, 4096, &[]);
    let queue = site.rig.server.disks()[0].service().queue();
    until(|| queue.tags_in_use(blkmq::core::HwQueue(0)) == 1);
    let body = "{\"device\":1,\"scheduler\":\"kyber\"}";
    let mut switch = site.connect();
    let head = format!("POST /api/scheduler HTTP/1.1\r\nHost: localhost:{}", site.at.port());
    let text = format!("{head}\r\n{}Content-Length: {}\r\n\r\n{body}", site.allowed(), body.len());
    switch.write_all(text.as_bytes()).expect("it reads");
    let changes = || queue.edit(|_| Err(())).is_err_and(|e| e != blkmq::EditError::Edit(()));
    until(changes);
    let (status, stat) = site.get("/stat.json");
    assert!(status == 200 && stat.contains("\"good\""), "{status} {stat}");
    assert_eq!(site.post("/api/export", "{\"name\":\"good\",\"weight\":7}").0, 200);
    assert_eq!(site.get("/healthz").0, 200);
    assert!(changes(), "the switch waited meanwhile");
    drop(switch);
    until(|| !changes());
    assert_eq!(queue.plan().scheduler.name, "mq-deadline", "nobody waits for the change");
}

#[test]
fn pages_of_other_sites_are_refused() {
    let site = Site::new(serve(&[Export::new("gold", 0)]));
    let rebound = "GET /stat.json HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    assert_eq!(site.send(rebound).0, 421);
    assert_eq!(site.send(&rebound.replace("evil", "disks")).0, 200, "a name that was given");
    let weight = "{\"name\":\"gold\",\"weight\":7}";
    let own = site.allowed();
    let foreign = [
        (own.replace("http://localhost", "http://evil.example"), 403),
        (own.replace("Origin: http://localhost", "Origin: http://127.0.0.1"), 403),
        (format!("{own}Sec-Fetch-Site: cross-site\r\n"), 403),
        // A form can send these without a preflight.
        (own.replace("application/json", "text/plain"), 415),
        (own.replace("application/json", "application/x-www-form-urlencoded"), 415),
    ];
    for (fields, expected) in foreign {
        assert_eq!(site.ask("POST /api/export", &fields, weight).0, expected, "{fields}");
    }
    let elsewhere = "Sec-Fetch-Site: cross-site\r\n";
    assert_eq!(site.ask("GET /stat.json", elsewhere, "").0, 403);
    assert_eq!(site.ask("GET /", elsewhere, "").0, 200, "a link leads to the page");
    assert_eq!(site.ask("OPTIONS /api/export", "", "").0, 405, "a browser that asks first");
    assert!(site.get("/list.json").1.contains("\"weight\":100"), "nothing has changed");
}

#[test]
fn requests_that_never_end_keep_no_other_one_waiting() {
    let site = Site::new(serve(&[Export::new("gold", 0)]));
    let mut slow: Vec<TcpStream> = (0..40).map(|_| site.connect()).collect();
    for stream in &mut slow {
        // Connections that had to make room are closed.
        let _ = stream.write_all(b"GET / HT");
    }
    assert_eq!(site.get("/healthz"), (200, "serving\n".to_owned()));
    let mut half = site.connect();
    half.write_all(b"GET /").expect("it reads");
    half.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(answer(half), (0, String::new()), "there is no request");
    let huge = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(20_000));
    assert_eq!(site.send(&huge).0, 431, "and the answer is not lost");
}

#[test]
fn readiness_ends_with_the_places_for_clients() {
    let bounds = Bounds { connections: 1, ..Bounds::default() };
    let site = Site::new(serve_on("memory,size=16", &[Export::new("gold", 0)], bounds));
    assert_eq!(site.get("/readyz"), (200, "ready, 0 of 1 connections\n".to_owned()));
    let client = site.rig.client("gold");
    assert_eq!(site.get("/readyz").0, 503);
    assert_eq!(site.get("/healthz").0, 200);
    drop(client);
    until(|| site.get("/readyz").0 == 200);
}

#[test]
fn health_ends_with_the_drain_and_http_with_the_server() {
    let Site { rig, at, .. } = Site::new(serve(&[Export::new("gold", 0)]));
    let ask = || {
        let mut stream = TcpStream::connect(at).ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        Some(answer(stream).0)
    };
    // The client does not disconnect by itself, so the drain waits for the idle timeout.
    let _client = rig.client("gold");
    let server = rig.server;
    let drained = std::thread::spawn(move || server.drain());
    until(|| ask() == Some(503));
    drained.join().expect("it does not panic").expect("it ends well");
    assert_eq!(ask(), None, "nothing listens");
}
