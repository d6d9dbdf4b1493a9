//! Five scenes that an operator has to recognise at a glance: idle, all backlogged, one starved by a goal, a device
//! that is stuck, and errors.
//!
//! Each is created by real clients. Its words are on the first screen of the page and of `blkmqctl top` at 80x24, and
//! in the metrics; the figures of page, `top`, `stat` and metrics agree; and the page is checked in both schemes, on a
//! wide and a narrow screen, without an error in the console.

use super::figures::{CONTRAST, get, value};
use crate::Result;
use crate::interop::Outcome;
use crate::interop::browser::{Browser, Scheme};
use crate::measurement::{Fio, pause};
use crate::serve::Server;
use crate::shell::{BLKMQCTL, Cmd, parse_json, target_dir};
use serde_json::{Value, json};
use std::fs;

/// Seconds within which a scene must be visible.
const PATIENCE: u32 = 60;
/// (tolerance for rates of the same seconds, I/Os a second that are ignored): measurements begin and end at different
/// times.
const TOLERANCE: f64 = 0.25;
const LITTLE: f64 = 4.0;
/// The percentage points by which shares may differ.
const POINTS: f64 = 8.0;
/// The seconds of an interval.
const INTERVAL: u32 = 3;

/// An export: its name, its options, the load of its client, the expected state, and words of the reason.
type Tenant = (&'static str, &'static str, &'static str, &'static str, &'static str);

struct Scene {
    name: &'static str,
    device: &'static str,
    scheduler: &'static str,
    /// The MiB of an export: seeks make a disk slow.
    size: u32,
    tenants: &'static [Tenant],
}

const SCENES: [Scene; 5] = [
    Scene {
        name: "idle",
        device: "memory,size=192",
        scheduler: "mclock",
        size: 64,
        tenants: &[
            ("gold", "weight=300", "", "idle", ""),
            ("silver", "weight=100", "", "idle", ""),
        ],
    },
    Scene {
        name: "backlogged",
        device: "cloud",
        scheduler: "mclock",
        size: 64,
        tenants: &[
            ("gold", "weight=300", "--rw=randread --bs=4k --iodepth=32", "served", ""),
            ("silver", "weight=100", "--rw=randread --bs=16k --iodepth=32", "served", ""),
        ],
    },
    Scene {
        name: "starved",
        device: "disk",
        scheduler: "bfq:low_latency=0",
        size: 10240,
        tenants: &[
            (
                "gold",
                "weight=300,p99_read=100ms,goal_takes_at_most=100",
                "--rw=randread --bs=4k --iodepth=4",
                "",
                "",
            ),
            (
                "silver",
                "weight=100",
                "--rw=randwrite --bs=128k --iodepth=16",
                "starved",
                "the latency goal of gold holds them back",
            ),
        ],
    },
    Scene {
        name: "stuck",
        device: "nbd",
        scheduler: "mq-deadline",
        size: 64,
        tenants: &[
            (
                "gold",
                "",
                "--rw=randread --bs=4k --iodepth=8 --rate_iops=200",
                "stuck",
                "answers none",
            ),
            ("silver", "", "", "idle", ""),
        ],
    },
    Scene {
        name: "errors",
        device: "faults,error=0.2:memory,size=192",
        scheduler: "mq-deadline",
        size: 64,
        tenants: &[
            (
                "gold",
                "",
                "--rw=randread --bs=4k --rate_iops=100 --continue_on_error=io",
                "errors",
                " failed in ",
            ),
            ("silver", "", "", "idle", ""),
        ],
    },
];

struct Played {
    server: Server,
    /// The storage of a device that gets stuck.
    back: Option<Server>,
    clients: Vec<Fio>,
    home: String,
}

impl Scene {
    fn play(&self) -> Result<Played> {
        let back = match self.device {
            "nbd" => Some(Server::start("scene-back", "nbdkit -f -U SOCKET memory 192M")?),
            _ => None,
        };
        let device = back.as_ref().map_or_else(|| self.device.to_owned(), |back| back.uri(""));
        let exports = (0..).zip(self.tenants).map(|(at, (name, options, ..))| {
            let comma = if options.is_empty() { "" } else { "," };
            let size = self.size;
            format!(" --export={name},offset={}m,size={size}m{comma}{options}", at * size)
        });
        let more = format!("--http=tcp:127.0.0.1:0 --stats=always{}", String::from_iter(exports));
        let server =
            Server::blkmq(&format!("scene-{}", self.name), &device, self.scheduler, &more)?;
        let start = |(name, _, load, ..): &Tenant| {
            let options = format!("{load} --size={}m --time_based --runtime=300", self.size);
            Fio::start(&server.uri(name), &server.path(&format!("fio-{name}")), &options)
        };
        let loads = self.tenants.iter().filter(|(_, _, load, ..)| !load.is_empty());
        let clients = loads.map(start).collect::<Result<Vec<Fio>>>()?;
        server.connected(clients.len() as u64)?;
        let log = fs::read_to_string(server.path("log"))?;
        let address = log.lines().find_map(|line| line.strip_prefix("page: "));
        let home = address.and_then(|it| it.split('#').next()).ok_or("no page")?.to_owned();
        Ok(Played { server, back, clients, home })
    }

    /// The expression that is true once the page has the states and reasons of this scene on its first screen.
    fn is_shown(&self) -> String {
        let wanted = self.tenants.iter().filter(|(_, _, _, state, _)| !state.is_empty());
        let seen = wanted.map(|(name, _, _, state, why)| {
            let (name, state, why) = (json!(name), json!(state), json!(why));
            format!(
                "[...document.querySelectorAll('.shares li')].some((row) => row.dataset.key === {name} \
                 && row.querySelector('.state').textContent === {state} \
                 && row.getBoundingClientRect().bottom < innerHeight) \
                 && [...document.querySelectorAll('.export')].some((card) => card.dataset.key === {name} \
                 && card.querySelector('.why').textContent.includes({why}))"
            )
        });
        Vec::from_iter(seen).join(" && ")
    }
}

/// See above.
pub(in crate::interop) fn scenes() -> Result<Outcome> {
    for scene in &SCENES {
        let mut played = scene.play()?;
        let signal =
            |back: &Server, signal: &str| Cmd::new(&format!("kill -{signal} {}", back.pid())).run();
        if let Some(back) = &played.back {
            pause(1.5)?;
            signal(back, "STOP")?;
        }
        let found = found(scene, &mut played);
        if let Some(back) = &played.back {
            signal(back, "CONT")?;
        }
        found.map_err(|error| format!("{}: {error}", scene.name))?;
        println!("{}: recognised", scene.name);
    }
    Ok(Outcome::Passed)
}

fn found(scene: &Scene, played: &mut Played) -> Result<()> {
    let mut browser = Browser::start(&format!("scene-{}", scene.name))?;
    browser.size(1280, 900)?;
    browser.open(&played.home)?;
    for _ in 0..PATIENCE / 20 {
        if browser.until(&scene.is_shown()).is_ok() {
            break;
        }
    }
    browser.until(&scene.is_shown())?;
    on_a_terminal(scene, &played.server)?;
    agrees(scene, &played.server, &mut browser)
        .or_else(|_| agrees(scene, &played.server, &mut browser))?;
    looks(scene, &mut browser)?;
    browser.assert_quiet(&played.home)?;
    for client in &mut played.clients {
        if client.is_over()? {
            return Err("a client has ended".into());
        }
    }
    Ok(())
}

/// `top` on a terminal of 80x24 shows the states and reasons, and truncates nothing.
fn on_a_terminal(scene: &Scene, server: &Server) -> Result<()> {
    let socket = server.path("socket.control").display().to_string();
    let line = format!("stty cols 80 rows 24; {BLKMQCTL} top --once --control={socket}");
    let screen = Cmd::new("script -qec").arg(line).arg("/dev/null").output()?;
    let lines = Vec::from_iter(screen.lines().map(|line| line.trim_end_matches('\r')));
    if lines.len() > 24 || lines.iter().any(|line| line.chars().count() > 80) {
        return Err(format!("beyond 80x24:\n{screen}").into());
    }
    // Words that are broken over two lines.
    let text = lines.join(" ");
    let text = Vec::from_iter(text.split_whitespace()).join(" ");
    for (name, _, _, state, why) in scene.tenants {
        let row = lines.iter().find(|line| line.trim_start().starts_with(name));
        if !row.is_some_and(|row| {
            row.split_whitespace().any(|word| word == *state) || state.is_empty()
        }) || !text.contains(why)
        {
            return Err(format!("{name} is not '{state}: {why}' in\n{screen}").into());
        }
    }
    Ok(())
}

/// The figures of an export: I/Os a second, failures a second, percent of the device's time, requests outstanding, and
/// the state.
type Shown = (f64, f64, f64, f64, String);

/// The figures of page, `top`, `stat` and metrics over the same seconds agree.
fn agrees(scene: &Scene, server: &Server, browser: &mut Browser) -> Result<()> {
    let socket = server.path("socket.control").display().to_string();
    let both = format!(
        "{BLKMQCTL} --json --control={socket} top --once --interval={INTERVAL} & \
         {BLKMQCTL} --json --control={socket} stat --count=1 --interval={INTERVAL}; wait"
    );
    let before = get(server, "/metrics")?;
    let lines = Cmd::new("sh -c").arg(both).output()?;
    let after = get(server, "/metrics")?;
    let page = browser.eval(
        "Object.fromEntries([...document.querySelectorAll('.export')].map((card) => { \
         const last = card.history.points.slice(-3); \
         const one = live.now.exports.find((it) => it.name === card.dataset.key); \
         return [one.name, [last.reduce((sum, it) => sum + it.iops, 0) / last.length, one.failed, \
         100 * one.share, one.flight + one.waiting, one.state]]; }))",
    )?;
    let answers: Vec<Value> = lines.lines().map(parse_json).collect::<Result<_>>()?;
    let rows = answers.iter().filter_map(|answer| answer["rows"].as_array()).flatten();
    let rows = Vec::from_iter(rows);
    let row = |name: &str, is_top: bool| {
        let mut all = rows.iter().filter(|row| row["r/s"].is_number() == is_top);
        let found = all.find(|row| row["name"] == name).ok_or_else(|| format!("no row of {name}"));
        found.map(|row| if is_top { of_top(row) } else { of_stat(row) })
    };
    let mut sum = 0.0;
    for (name, ..) in scene.tenants {
        sum += Scrapes { before: &before, after: &after }.charged(name)?;
    }
    for (name, ..) in scene.tenants {
        let top = row(name, true)?;
        let others = [
            ("stat", row(name, false)?),
            ("page", of_page(&page[name])),
            ("metrics", Scrapes { before: &before, after: &after }.of(name, sum)?),
        ];
        println!("{name}: top {top:?}, {others:?}");
        for (place, other) in &others {
            is_alike(scene, &top, other).map_err(|what| format!("{name}, {place}: {what}"))?;
        }
    }
    Ok(())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

fn of_top(row: &Value) -> Shown {
    let of = |key: &str| number(&row[key]);
    let held = of("flight") + of("waiting");
    (of("r/s") + of("w/s"), of("err/s"), of("share%"), held, text(&row["state"]))
}

fn of_stat(row: &Value) -> Shown {
    let ios = row["ios"].as_array().into_iter().flatten().map(number).sum();
    let of = |key: &str| number(&row[key]);
    (ios, of("errors"), of("share"), of("held"), text(&row["state"]))
}

fn of_page(shown: &Value) -> Shown {
    let of = |at: usize| number(&shown[at]);
    (of(0), of(1), of(2), of(3), text(&shown[4]))
}

/// The metrics at both ends of an interval.
struct Scrapes<'a> {
    before: &'a str,
    after: &'a str,
}

impl Scrapes<'_> {
    fn grown(&self, series: &str) -> Result<f64> {
        Ok(value(self.after, series)? - value(self.before, series)?)
    }

    /// The device time of an export.
    fn charged(&self, export: &str) -> Result<f64> {
        self.grown(&format!("blkmq_export_device_seconds_total{{export=\"{export}\"}}"))
    }

    /// The figures of an export, if all exports have had `sum` of device time.
    fn of(&self, export: &str, sum: f64) -> Result<Shown> {
        let rate = |family: &str| -> Result<f64> {
            let of = |op: &str| self.grown(&format!("{family}{{export=\"{export}\",op=\"{op}\"}}"));
            Ok((of("read")? + of("write")?) / f64::from(INTERVAL))
        };
        let held = |place: &str| {
            let labels = format!("{{export=\"{export}\",place=\"{place}\"}}");
            value(self.after, &format!("blkmq_export_outstanding{labels}"))
        };
        let state = format!("blkmq_export_state{{export=\"{export}\",state=\"");
        let is = |line: &str| Some(line.strip_prefix(&state)?.strip_suffix("\"} 1")?.to_owned());
        let state = self.after.lines().find_map(is).unwrap_or_default();
        let share = if sum > 0.0 { 100.0 * self.charged(export)? / sum } else { 0.0 };
        let rates = (rate("blkmq_export_requests_total")?, rate("blkmq_errors_total")?);
        Ok((rates.0, rates.1, share, held("device")? + held("queue")?, state))
    }
}

fn is_alike(scene: &Scene, one: &Shown, other: &Shown) -> std::result::Result<(), String> {
    let rates = |a: f64, b: f64| (a - b).abs() <= LITTLE.max(TOLERANCE * a.max(b));
    // A page shows the last second.
    let failures = |a: f64, b: f64| (a - b).abs() <= 4.0 * LITTLE.max(TOLERANCE * a.max(b));
    // Nothing moves there.
    let held = scene.name != "stuck" || one.3 == other.3;
    let fine = rates(one.0, other.0)
        && failures(one.1, other.1)
        && (one.2 - other.2).abs() <= POINTS
        && held
        && one.4 == other.4;
    if fine { Ok(()) } else { Err(format!("{one:?} beside {other:?}")) }
}

/// Checks the page on a wide and a narrow screen, in both schemes: it fits, its text has contrast, and a picture of it
/// is taken.
fn looks(scene: &Scene, browser: &mut Browser) -> Result<()> {
    let folder = target_dir().join("scenes");
    fs::create_dir_all(&folder)?;
    for scheme in [Scheme::Light, Scheme::Dark] {
        browser.prefer(scheme)?;
        for width in [1280, 400] {
            browser.size(width, 900)?;
            let seen = browser.eval(CONTRAST)?;
            if seen["wide"] != json!(0) || seen["poor"] != json!([]) {
                return Err(format!("{scheme:?}, {width} pixels: {seen}").into());
            }
            let name = format!("{}-{scheme:?}-{width}.png", scene.name).to_lowercase();
            browser.screenshot(&folder.join(&name))?;
            if !fs::read(folder.join(&name))?.starts_with(b"\x89PNG") {
                return Err(format!("{name} is no picture").into());
            }
        }
    }
    browser.size(1280, 900)
}
