//! The alert rules pass promtool's tests and fire in Prometheus itself, every metric that they and the dashboard name
//! is in a scrape, and every expression of the dashboard is valid. No Debian package has Grafana.

use super::super::Outcome;
use crate::Result;
use crate::fio::{self, Fio, pause};
use crate::nbd::Server;
use crate::shell::{Cmd, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const RULES: &str = "contrib/prometheus/blkmq.rules.yml";
const DASHBOARD: &str = "contrib/grafana/blkmq.json";

/// See above.
pub(in crate::interop) fn rules() -> Result<Outcome> {
    Cmd::new(&format!("promtool check rules {RULES}")).run()?;
    Cmd::new("promtool test rules contrib/prometheus/blkmq.test.yml").run()?;
    Ok(Outcome::Passed)
}

/// See above. promtool reports no problem with the scrape.
pub(in crate::interop) fn dashboards() -> Result<Outcome> {
    let more = "--http=tcp:127.0.0.1:0 --export=gold";
    let server = Server::blkmq("dashboards", "memory,size=64", "mq-deadline", more)?;
    // The first scrape begins to count.
    get(&server, "/metrics")?;
    fio::run(&server.uri("gold"), &server.path("fio"), "--rw=randrw --size=4m --fsync=64")?;
    let text = get(&server, "/metrics")?;
    let file = server.path("scrape");
    fs::write(&file, &text)?;
    let check = format!("promtool check metrics <'{}'", file.display());
    Cmd::new("sh -c").arg(check).run()?;
    let there: BTreeSet<&str> = names(&text);
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(root().join(DASHBOARD))?)?;
    let mut texts = Vec::new();
    collect(&dashboard, &mut texts);
    let expressions = file.with_extension("yml");
    fs::write(&expressions, as_rules(&dashboard["panels"])?)?;
    Cmd::new(&format!("promtool check rules {}", expressions.display())).run()?;
    let rules = fs::read_to_string(root().join(RULES))?;
    texts.push(&rules);
    let named: BTreeSet<&str> = texts.iter().copied().flat_map(names).collect();
    let missing: Vec<&&str> = named.iter().filter(|name| !there.contains(**name)).collect();
    println!("{} metrics are named, {} scraped", named.len(), there.len());
    if named.len() < 10 || !missing.is_empty() {
        return Err(format!("not in a scrape: {missing:?}").into());
    }
    Ok(Outcome::Passed)
}

/// The expressions of panels as rules of Prometheus, with values for the variables of Grafana.
fn as_rules(panels: &Value) -> Result<String> {
    let mut texts = Vec::new();
    collect(panels, &mut texts);
    let rule = |(at, text): (usize, &&str)| {
        let text = text.replace("$__rate_interval", "5m").replace("$instance", ".*");
        serde_json::json!({ "record": format!("panel:{at}"), "expr": text.replace("$export", ".*") })
    };
    let rules = Vec::from_iter(texts.iter().enumerate().map(rule));
    // JSON is YAML.
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    Ok(serde_json::to_string(&groups)?)
}

/// Prometheus loads the rules, scrapes a server whose requests fail, and fires only the alert about that.
pub(in crate::interop) fn prometheus() -> Result<Outcome> {
    let more = "--http=tcp:127.0.0.1:0 --export=gold";
    let device = "faults,error=0.2:memory,size=64";
    let server = Server::blkmq("prometheus", device, "mq-deadline", more)?;
    let own = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let config = server.path("prometheus.yml");
    let text = serde_json::json!({
        "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
        "rule_files": [root().join(RULES)],
        "scrape_configs": [{ "job_name": "blkmq", "static_configs": [{ "targets": [address(&server)?] }] }],
    });
    fs::write(&config, text.to_string())?;
    let line = format!(
        "prometheus --config.file={} --storage.tsdb.path={} --web.listen-address={own}",
        config.display(),
        server.path("tsdb").display()
    );
    let log = fs::File::create(server.path("prometheus-log"))?;
    let mut prometheus = Cmd::new(&line).under("timeout 60").start(log)?;
    let load =
        "--rw=randread --size=4m --time_based --runtime=60 --rate_iops=50 --continue_on_error=io";
    let client = Fio::start(&server.uri("gold"), &server.path("fio"), load)?;
    let fired = fires(&own);
    drop(client);
    // A clean shutdown takes time, and it has nothing to save.
    prometheus.kill()?;
    prometheus.wait()?;
    fired.map(|()| Outcome::Passed)
}

fn fires(address: &str) -> Result<()> {
    let mut names = Vec::new();
    for _ in 0..80 {
        pause(0.5)?;
        let Ok(answer) = fetch(address, "/api/v1/alerts") else { continue };
        let answer: Value = serde_json::from_str(&answer)?;
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        names = firing
            .filter_map(|alert| alert["labels"]["alertname"].as_str())
            .map(str::to_owned)
            .collect();
        if !names.is_empty() {
            break;
        }
    }
    println!("firing: {names:?}");
    if names == ["BlkmqErrors"] { Ok(()) } else { Err(format!("firing: {names:?}").into()) }
}

/// Expressions of the panels and the variables.
fn collect<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::Object(all) => {
            for (key, value) in all {
                match value {
                    Value::String(text)
                        if matches!(key.as_str(), "expr" | "query" | "definition") =>
                    {
                        texts.push(text);
                    }
                    other => collect(other, texts),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| collect(value, texts)),
        _ => {}
    }
}

/// The words of a text that begin like our metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("blkmq_")).collect()
}

/// The address of the server's HTTP.
fn address(server: &Server) -> Result<String> {
    let log = fs::read_to_string(server.path("log"))?;
    let page = log.lines().find_map(|line| line.strip_prefix("page: http://"));
    Ok(page.and_then(|page| page.split('/').next()).ok_or("no page")?.to_owned())
}

/// The server's answer to an HTTP GET.
///
/// # Errors
/// If there is none, or its status is not 200.
pub(super) fn get(server: &Server, path: &str) -> Result<String> {
    fetch(&address(server)?, path)
}

fn fetch(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(format!("{path} is answered by {}", answer.lines().next().unwrap_or("")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_found_in_expressions() {
        let found = names("rate(blkmq_a_total{x=~\"y\"}[5m]) / on (blkmq) blkmq_b > 0");
        assert_eq!(Vec::from_iter(found), ["blkmq_a_total", "blkmq_b"]);
    }

    #[test]
    fn expressions_are_those_of_panels_and_variables() {
        let dashboard = json!({ "title": "blkmq_no", "panels": [{ "targets": [{ "expr": "a" }] }],
            "templating": { "list": [{ "query": { "query": "b" }, "definition": "c" }] } });
        let mut texts = Vec::new();
        collect(&dashboard, &mut texts);
        texts.sort_unstable();
        assert_eq!(texts, ["a", "b", "c"]);
    }
}
