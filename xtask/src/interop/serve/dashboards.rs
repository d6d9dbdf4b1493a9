//! The rules of alerts hold in promtool's tests, and every metric that they and the dashboard name is in a scrape.

use super::super::Outcome;
use crate::Result;
use crate::fio;
use crate::nbd::Server;
use crate::shell::{Cmd, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

const RULES: &str = "contrib/prometheus/blkmq.rules.yml";
const DASHBOARD: &str = "contrib/grafana/blkmq.json";

/// See above.
pub(in crate::interop) fn rules() -> Result<Outcome> {
    Cmd::new(&format!("promtool check rules {RULES}")).run()?;
    Cmd::new("promtool test rules contrib/prometheus/blkmq.test.yml").run()?;
    Ok(Outcome::Passed)
}

/// See above. promtool has nothing to say about the scrape.
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

/// The words of a text that begin as our metrics do.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("blkmq_")).collect()
}

/// The answer of the server's HTTP to a GET.
///
/// # Errors
/// If there is none, or it is not 200.
pub(super) fn get(server: &Server, path: &str) -> Result<String> {
    let log = fs::read_to_string(server.path("log"))?;
    let page = log.lines().find_map(|line| line.strip_prefix("page: http://"));
    let address = page.and_then(|page| page.split('/').next()).ok_or("no page")?;
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
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
