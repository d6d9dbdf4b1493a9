//! The pictures of a server: its live page in a browser, and its dashboard and alert rules in Prometheus.
//!
//! The page shows the server's counts while fio works, its switches take effect, and it contacts no other host. The
//! alert rules pass promtool's tests and fire in Prometheus itself, every metric that they and the dashboard name is in
//! a scrape, and every expression of the dashboard is valid. No Debian package has Grafana.

use crate::Result;
use crate::interop::Outcome;
use crate::interop::browser::{Browser, Scheme};
use crate::measurement::{Fio, pause, run_fio};
use crate::serve::Server;
use crate::shell::{Cmd, root};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Seconds that the clients work; the check takes less.
const SECONDS: u32 = 60;
/// The tolerance for two measurements of the same load at different times.
const TOLERANCE: f64 = 0.35;

/// A server with a page, under load from three exports, and a browser.
struct Scene {
    server: Server,
    clients: Vec<Fio>,
    browser: Browser,
    /// The address with the key.
    address: String,
}

const EXPORTS: [(&str, u32, &str); 3] = [
    ("gold", 300, "--rw=randread --bs=4k --iodepth=16"),
    ("silver", 200, "--rw=randrw --bs=16k --iodepth=8"),
    ("backup", 100, "--rw=read --bs=128k --iodepth=16"),
];

impl Scene {
    fn new(name: &str) -> Result<Self> {
        let exports: String = (0..)
            .zip(EXPORTS)
            .map(|(at, (name, weight, _))| {
                format!(" --export={name},offset={}m,size=64m,weight={weight}", at * 64)
            })
            .collect();
        let scheduler = "bfq:low_latency=0,max_budget=2048";
        let more = format!("--http=tcp:127.0.0.1:0{exports}");
        let server = Server::blkmq(name, "flash,size=192", scheduler, &more)?;
        let clients: Result<Vec<Fio>> = EXPORTS
            .iter()
            .map(|(name, _, load)| {
                let options = format!("{load} --size=64m --time_based --runtime={SECONDS}");
                Fio::start(&server.uri(name), &server.path(&format!("fio-{name}")), &options)
            })
            .collect();
        let clients = clients?;
        server.connected(EXPORTS.len() as u64)?;
        let log = fs::read_to_string(server.path("log"))?;
        let address = log.lines().find_map(|line| line.strip_prefix("page: "));
        let address = address.ok_or("the server says nothing of a page")?.to_owned();
        let browser = Browser::start(name)?;
        Ok(Self { server, clients, browser, address })
    }

    /// The address without the key.
    fn home(&self) -> &str {
        self.address.split('#').next().unwrap_or("")
    }

    fn open(&mut self) -> Result<()> {
        let address = self.address.clone();
        self.browser.open(&address)?;
        self.browser.until("document.querySelectorAll('.export').length === 3").map(drop)
    }

    /// The scheduler of the device, by `blkmqctl`.
    fn scheduler(&self) -> Result<Value> {
        Ok(self.server.ctl("list")?["list"]["devices"][0]["scheduler"].clone())
    }

    /// The weight of an export, by `blkmqctl`.
    fn weight(&self, at: usize) -> Result<Value> {
        Ok(self.server.ctl("list")?["list"]["exports"][at]["weight"].clone())
    }
}

/// See above.
pub(in crate::interop) fn page() -> Result<Outcome> {
    let mut scene = Scene::new("page")?;
    scene.browser.size(1280, 900)?;
    scene.open()?;
    agrees(&mut scene)?;
    switches(&mut scene)?;
    by_keyboard(&mut scene)?;
    fits(&mut scene)?;
    locked(&mut scene)?;
    let home = scene.home().to_owned();
    scene.browser.assert_quiet(&home)?;
    // They are still at work: the whole check was under load.
    for client in &mut scene.clients {
        if client.is_over()? {
            return Err("a client was over before the check was".into());
        }
    }
    Ok(Outcome::Passed)
}

/// The page shows the rates that `blkmqctl stat` counts in nearly the same seconds: on a busy machine, the intervals of
/// the two may differ, so there are three tries.
fn agrees(scene: &mut Scene) -> Result<()> {
    agrees_now(scene).or_else(|_| agrees_now(scene)).or_else(|_| agrees_now(scene))
}

fn agrees_now(scene: &mut Scene) -> Result<()> {
    let before = scene.server.ctl("stat --count=1 --interval=3")?;
    let shown = scene.browser.eval(
        "[...document.querySelectorAll('.export')].map((card) => [card.dataset.key, \
         card.history.points.slice(-3).reduce((a, b) => a + b.iops, 0) / Math.min(3, card.history.points.length)])",
    )?;
    for (name, ..) in EXPORTS {
        let counted =
            before["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == name));
        let counted: f64 = counted
            .and_then(|row| row["ios"].as_array())
            .map_or(0.0, |ios| ios.iter().filter_map(Value::as_f64).sum());
        let page = shown.as_array().and_then(|all| all.iter().find(|one| one[0] == name));
        let page = page.and_then(|one| one[1].as_f64()).unwrap_or(0.0);
        println!("{name}: {counted:.0} I/Os a second by ctl, {page:.0} on the page");
        if counted <= 0.0 || (page / counted - 1.0).abs() > TOLERANCE {
            return Err(format!("{name}: the page has {page} I/Os a second, ctl {counted}").into());
        }
    }
    Ok(())
}

/// Clicks change the scheduler and a weight, the page confirms it, and `blkmqctl` shows them.
fn switches(scene: &mut Scene) -> Result<()> {
    scene.browser.eval("document.querySelector('form.scheduler select').value = 'kyber'")?;
    scene.browser.click("form.scheduler button")?;
    scene
        .browser
        .until("/kyber: in force after/.test(document.querySelector('#answer').textContent)")?;
    if scene.scheduler()? != "kyber" {
        return Err(format!("the page says kyber, ctl {}", scene.scheduler()?).into());
    }
    scene.browser.eval("document.querySelector('form.weight input').value = 77")?;
    scene.browser.click("form.weight button")?;
    scene
        .browser
        .until("/weight 77: in force after/.test(document.querySelector('#answer').textContent)")?;
    if scene.weight(0)? != 77 {
        return Err(format!("the page says weight 77, ctl {}", scene.weight(0)?).into());
    }
    // Another program changes it: the page follows.
    scene.server.ctl("switch bfq")?;
    scene.browser.until("document.querySelector('form.scheduler select').value === 'bfq'").map(drop)
}

/// A user without a pointer reaches every switch, sees where the focus is, and changes a weight.
fn by_keyboard(scene: &mut Scene) -> Result<()> {
    scene.open()?;
    let mut stops = Vec::new();
    for _ in 0..40 {
        scene.browser.key("Tab")?;
        let stop = scene.browser.eval(
            "(() => { const it = document.activeElement; const style = getComputedStyle(it); \
             return { name: `${it.tagName} ${it.dataset.f || it.id || it.textContent}`, \
             ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2, \
             weight: it.dataset.f === 'weight' }; })()",
        )?;
        if stop["name"].as_str().is_some_and(|name| name.starts_with("BODY")) {
            break;
        }
        if stop["ring"] != true {
            return Err(format!("the focus cannot be seen on {}", stop["name"]).into());
        }
        stops.push(stop["name"].as_str().unwrap_or("").to_owned());
        if stop["weight"] == true {
            break;
        }
    }
    for wanted in ["SELECT interval", "BUTTON pause", "SELECT scheduler", "INPUT weight"] {
        if !stops.iter().any(|stop| stop == wanted) {
            return Err(format!("no way to {wanted} by Tab: {stops:?}").into());
        }
    }
    // The focus is in the field of the first weight: its text is replaced, and sent.
    scene.browser.eval("document.activeElement.select()")?;
    for key in ["1", "2", "3", "Enter"] {
        scene.browser.key(key)?;
    }
    scene.browser.until(
        "/weight 123: in force after/.test(document.querySelector('#answer').textContent)",
    )?;
    if scene.weight(0)? == 123 {
        Ok(())
    } else {
        Err("a weight that was typed is not in force".into())
    }
}

/// From a telephone to a wide screen, in both schemes: nothing is wider than the window, and text has enough contrast.
fn fits(scene: &mut Scene) -> Result<()> {
    for scheme in [Scheme::Light, Scheme::Dark] {
        scene.browser.prefer(scheme)?;
        for width in [400, 768, 1280, 1920] {
            scene.browser.size(width, 900)?;
            let found = scene.browser.eval(CONTRAST)?;
            if found["wide"] != json!(0) {
                return Err(
                    format!("{width} pixels: the page is wider by {}", found["wide"]).into()
                );
            }
            if found["poor"] != json!([]) {
                return Err(format!("{scheme:?}: poor contrast: {}", found["poor"]).into());
            }
        }
    }
    Ok(())
}

/// Pixels by which the page is too wide, and texts with a contrast below 4.5 to 1 (WCAG AA), large ones below 3 to 1.
pub(super) const CONTRAST: &str = r"
(() => {
  const parts = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (it) => {
    for (let at = it; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const it of document.body.querySelectorAll('*')) {
    const own = [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || it.disabled || ['SCRIPT', 'STYLE', 'OPTION'].includes(it.tagName) || !it.checkVisibility()) continue;
    const style = getComputedStyle(it);
    const [a, b] = [light(parts(style.color)), light(behind(it))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) poor.push(`${it.tagName} ${it.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return { wide: Math.max(0, document.documentElement.scrollWidth - innerWidth), poor };
})()";

/// Without the key the page is read-only.
fn locked(scene: &mut Scene) -> Result<()> {
    scene.browser.eval("sessionStorage.clear()")?;
    let home = scene.home().to_owned();
    scene.browser.open(&home)?;
    scene.browser.until("document.querySelectorAll('.export').length === 3")?;
    let found = scene.browser.eval(
        "[document.querySelectorAll('.steer :is(button, input, select):not(:disabled)').length, \
         document.querySelector('#locked').checkVisibility()]",
    )?;
    if found == json!([0, true]) { Ok(()) } else { Err(format!("without the key: {found}").into()) }
}

/// `cargo xtask screenshots`: the page as a user sees it, for the documentation.
///
/// # Errors
/// If the server or the browser does not run.
pub(crate) fn screenshots() -> Result<()> {
    let mut scene = Scene::new("screenshots")?;
    let folder = root().join("docs/images");
    fs::create_dir_all(&folder)?;
    scene.browser.size(1280, 900)?;
    scene.open()?;
    // Time for charts of some length.
    pause(25.0)?;
    let views = [
        ("page-light.png", Scheme::Light, 1280, 900),
        ("page-dark.png", Scheme::Dark, 1280, 900),
        ("page-narrow.png", Scheme::Light, 400, 1200),
    ];
    for (name, scheme, width, height) in views {
        scene.browser.size(width, height)?;
        scene.browser.prefer(scheme)?;
        pause(1.2)?;
        scene.browser.screenshot(&folder.join(name))?;
        println!("docs/images/{name}");
    }
    Ok(())
}

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
    run_fio(&server.uri("gold"), &server.path("fio"), "--rw=randrw --size=4m --fsync=64")?;
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
