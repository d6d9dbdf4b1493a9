//! `blkmq replay` of another program's trace: each of its tenants becomes a job of a bench or a simulation, under every
//! scheduler and on every device requested. The result has a row for each tenant, device and scheduler, and its page a
//! latency curve for each.

use super::quantile;
use crate::args::{self, Request};
use crate::plan::{Plan, Time, quote};
use crate::report::job::{JobResult, Latency};
use crate::report::model::{Report, Run};
use crate::report::svg::{Looks, distributions};
use crate::report::{Format, html, render, table};
use crate::trace::tapes::{Loaded, Scaling};
use crate::trace::{self, Source};
use crate::{Failure, bench};
use blkmq_recording::Layout;
use blkmq_terminal::UsageError;
use blkmq_terminal::output::{print_results, shown, width};
use blkmq_terminal::paper::{Align, Paper, TextTable};
use blkmq_terminal::program::Stop;
use clap::builder::ValueHint;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use std::path::PathBuf;
use std::sync::Arc;

/// All schedulers, as `--scheduler` lists them.
const SCHEDULERS: &str = "none,mq-deadline,kyber,bfq,mclock";
/// Models with an adjustable size.
const SIZED: [&str; 4] = ["null", "disk", "flash", "cloud"];

/// The options of a replay that do not apply to elevator logs.
pub fn options() -> Vec<Arg> {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    let flag = |name| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let factor = |text: &str| match text.parse::<f64>() {
        Ok(factor) if (1e-6..=1e6).contains(&factor) => Ok(factor),
        _ => Err(UsageError::new(format!("{text}; accepted: 0.000001 to 1000000"))),
    };
    let layout = |text: &str| {
        let known = Layout::NAMES.into_iter().find(|(_, name)| *name == text);
        known
            .map(|it| it.0)
            .ok_or_else(|| UsageError::new(format!("{text}; accepted: concat, hash")))
    };
    let mut options = trace::options();
    options.extend([
        flag("real").help("replay a trace in real time (default: in virtual time)"),
        option("speed", "FACTOR").value_parser(factor).help("arrivals of a trace come so many times as fast (default: 1)"),
        option("scale-space", "FACTOR").value_parser(factor).help("places of a trace are multiplied by this (default: 1)"),
        flag("think").help(
            "closed loop: an I/O that came after the answers of its tenant waits for them, and then for as long as it did in \
             the trace; without latencies in the trace, each one does (default: open loop, by the clock)",
        ),
        option("layout", "WAY").value_parser(layout).help(
            "how volumes share the device: concat, one behind the other, or hash, anywhere (default: concat)",
        ),
        option("weight", "TENANT=WEIGHT").action(ArgAction::Append).value_parser(weight).help(
            "the weight of a tenant's group, 1 to 1000; may be repeated (default: 100)",
        ),
        option("tenants", "N").value_parser(value_parser!(u16).range(1..=64)).help(
            "tenants that are jobs of their own; all others are one (default: 8)",
        ),
        option("most", "N").value_parser(value_parser!(u64).range(1..)).help("the first so many I/Os only"),
        option("iodepth", "N").value_parser(value_parser!(u32).range(1..=65_536)).help(
            "the most I/Os of a tenant in flight; further ones are late (default: 4096, in real time 128)",
        ),
        option("align", "BYTES").value_parser(value_parser!(u64).range(512..=1 << 20)).help(
            "places and lengths become multiples of this power of two (default: 512)",
        ),
        option("runtime", "TIME").help("the end of a replay, such as 10s, if the trace is longer"),
        option("seed", "NUMBER").value_parser(value_parser!(u64)).help("the source of all chance in virtual time (default: 0)"),
        option("output-format", "FORMAT")
            .value_parser(|text: &str| text.parse::<Format>())
            .help("normal, json, json+, csv, html or terse, as of blkmq bench (default: normal)"),
        option("page", "FILE.html").value_hint(ValueHint::FilePath).help(
            "a page with the latencies of each tenant under each scheduler as well",
        ),
    ]);
    options
}

/// Parses `name=weight`.
fn weight(text: &str) -> Result<(String, u32), UsageError> {
    let parsed = text
        .rsplit_once('=')
        .and_then(|(name, weight)| Some((name.to_owned(), weight.parse().ok()?)));
    match parsed {
        Some((name, weight @ 1..=1000)) => Ok((name, weight)),
        _ => Err(UsageError::new(format!(
            "{text}; accepted: TENANT=WEIGHT, a weight from 1 to 1000"
        ))),
    }
}

/// Replays the trace.
///
/// # Errors
/// If it cannot be read, a run is impossible, or a result cannot be written.
pub fn run(found: &ArgMatches, words: &[String]) -> Result<(), Failure> {
    let mut plan = planned(found)?;
    plan.command = quote("replay", words);
    let stop = Stop::on_signals();
    let report = bench::report(&plan, &stop)?;
    if let Some(path) = found.get_one::<String>("page").map(PathBuf::from) {
        let written = std::fs::write(&path, render_page(&Source::of(found).file, &report));
        written.map_err(|e| Failure::Results(format!("{}: {e}", path.display())))?;
    }
    if plan.format == Format::Normal {
        print_results(&shown(&render_text(&report, width())))?;
        print_results(&shown(&format!("\n{}", table::render(&report, width()))))?;
    } else {
        print_results(&render(&report, plan.format))?;
    }
    Failure::of_partial(report.partial)
}

/// The plan for the arguments that clap has parsed.
///
/// # Errors
/// If they cannot be understood, or the trace cannot be read.
pub fn planned(found: &ArgMatches) -> Result<Plan, Failure> {
    let scaling = scaling(found)?;
    let loaded = Loaded::read(&Source::of(found), &scaling)?;
    let mut plan = plan(found, &loaded, &scaling)?;
    plan.notes.extend(loaded.notes.iter().cloned());
    plan.format = found.get_one("output-format").copied().unwrap_or(Format::Normal);
    Ok(plan)
}

fn scaling(found: &ArgMatches) -> Result<Scaling, UsageError> {
    let align = found.get_one("align").copied().unwrap_or(512);
    if !u64::is_power_of_two(align) {
        return Err(UsageError::new(format!("--align: {align}; accepted: a power of two")));
    }
    Ok(Scaling {
        speed: found.get_one("speed").copied().unwrap_or(1.0),
        space: found.get_one("scale-space").copied().unwrap_or(1.0),
        think: found.get_flag("think"),
        tenants: found.get_one::<u16>("tenants").copied().unwrap_or(8).into(),
        most: found.get_one("most").copied().unwrap_or(u64::MAX),
        layout: found.get_one("layout").copied().unwrap_or_default(),
        align,
    })
}

/// The plan of the runs: that of `bench` or `sim`, with a job for each tenant, which replays the tenant's tape.
fn plan(found: &ArgMatches, loaded: &Loaded, scaling: &Scaling) -> Result<Plan, Failure> {
    let real = found.get_flag("real");
    let seed = found.get_one::<u64>("seed").copied();
    let time = match (real, seed) {
        (true, Some(_)) => {
            let text = "--seed: chance in real time has no seed; accepted without --real";
            return Err(UsageError::new(text).into());
        }
        (true, None) => Time::Real,
        (false, seed) => Time::Virtual { seed: seed.unwrap_or(0) },
    };
    let devices: Vec<String> = match found.get_many::<String>("device") {
        Some(devices) => devices.map(|text| sized(text, loaded.reach(scaling))).collect(),
        None => vec![sized("disk", loaded.reach(scaling))],
    };
    let scheduler = found.get_one::<String>("scheduler").map_or(SCHEDULERS, String::as_str);
    let common = devices.iter().map(|device| format!("--device={device}"));
    let common: Vec<String> =
        common.chain([format!("--scheduler={scheduler}"), "--direct=1".into()]).collect();
    let end = found.get_one::<String>("runtime").map(|end| format!("--runtime={end}"));
    // In fio's formats, percentiles are of the relevant times, from the moment an I/O was due.
    let is_fio = found.contains_id("output-format");
    let total = is_fio.then(|| "--lat_percentiles=1".to_owned());
    let common: Vec<String> = common.into_iter().chain(end).chain(total).collect();
    // The first plan is for the sizes of the devices.
    let probe = parsed(
        common.iter().cloned().chain(["--rw=randread", "--bs=512"].map(String::from)),
        time,
    )?;
    let room = probe.devices.iter().map(|device| device.size_bytes).min().unwrap_or(0);
    let tenants = loaded.tenants(scaling, room).map_err(|e| e.at("--device"))?;
    let weights: Vec<(String, u32)> =
        found.get_many("weight").into_iter().flatten().cloned().collect();
    if let Some((name, _)) =
        weights.iter().find(|(name, _)| tenants.iter().all(|it| it.name != *name))
    {
        let names = Vec::from_iter(tenants.iter().map(|it| it.name.as_str())).join(", ");
        return Err(
            UsageError::new(format!("--weight: no tenant {name}; accepted: {names}")).into()
        );
    }
    let depth = found.get_one::<u32>("iodepth").copied().unwrap_or(if real { 128 } else { 4096 });
    let grouped = tenants.len() > 1;
    let jobs = tenants.iter().flat_map(|tenant| {
        let name = &tenant.name;
        let mut words = vec![format!("--name={name}"), "--rw=randrw".into()];
        words.extend([format!("--bs={}", tenant.longest), format!("--iodepth={depth}")]);
        let weight =
            weights.iter().find(|(known, _)| known == name).map_or(100, |(_, weight)| *weight);
        if grouped {
            words.extend([format!("--cgroup={name}"), format!("--cgroup_weight={weight}")]);
        }
        words
    });
    let mut plan = parsed(common.into_iter().chain(jobs), time)?;
    for (job, tenant) in plan.jobs.iter_mut().zip(tenants) {
        job.tape = Some(Arc::new(tenant.tape));
    }
    Ok(plan)
}

/// The description of a device, with a size if it is a model without one.
fn sized(device: &str, bytes: u64) -> String {
    let name = device.split(',').next().unwrap_or_default();
    let has_size =
        device.split(',').skip(1).any(|it| it.starts_with("size=") || it.starts_with("gb="));
    if SIZED.contains(&name) && !has_size {
        format!("{device},size={}", bytes.div_ceil(1 << 20).max(1024))
    } else {
        device.into()
    }
}

fn parsed(words: impl Iterator<Item = String>, time: Time) -> Result<Plan, Failure> {
    match args::parse(&Vec::from_iter(words), time)? {
        Request::Plan(plan) => Ok(*plan),
        Request::Help | Request::Command(_) => unreachable!("no word asks for help"),
    }
}

const COLUMNS: [(&str, Align); 10] = [
    ("device", Align::Left),
    ("tenant", Align::Left),
    ("scheduler", Align::Left),
    ("I/Os", Align::Right),
    ("read p50", Align::Right),
    ("p99", Align::Right),
    ("write p50", Align::Right),
    ("p99", Align::Right),
    ("late p99", Align::Right),
    ("longest", Align::Right),
];

/// The cells of all rows: by device, then by tenant, then by scheduler.
fn cells(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (device, tenant) in pairs(report) {
        for run in report.runs.iter().filter(|run| run.device.text == device) {
            for job in run.jobs.iter().filter(|job| job.name == tenant) {
                rows.push(row(run, job));
            }
        }
    }
    rows
}

/// Devices and the tenants on them.
fn pairs(report: &Report) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for run in &report.runs {
        for job in &run.jobs {
            let pair = (run.device.text.clone(), job.name.clone());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    pairs
}

fn row(run: &Run, job: &JobResult) -> Vec<String> {
    let at = |times: Option<&Latency>, percent: u64| {
        times.map_or_else(|| "-".into(), |times| quantile(&times.0, percent))
    };
    let (reads, writes, late) =
        (job.read.lat.as_ref(), job.write.lat.as_ref(), job.lateness.as_ref());
    let ios = job.read.total_ios + job.write.total_ios + job.trim.total_ios + job.sync.total_ios;
    let scheduler = match run.scheduler_options.as_str() {
        "" => run.scheduler.clone(),
        options => format!("{}:{options}", run.scheduler),
    };
    let figures =
        [at(reads, 50), at(reads, 99), at(writes, 50), at(writes, 99), at(late, 99), at(late, 100)];
    let words = [run.device.text.clone(), job.name.clone(), scheduler, ios.to_string()];
    words.into_iter().chain(figures).collect()
}

/// Formats the rows as text of at most `width` columns, where that is possible.
fn render_text(report: &Report, width: usize) -> String {
    let mut out = Paper::new(width);
    let columns = COLUMNS.map(|(name, align)| (name.to_owned(), align)).to_vec();
    let mut table = TextTable::new(columns);
    cells(report).iter().for_each(|row| table.row(row));
    out.table(&table);
    out.finish()
}

/// The page.
fn render_page(name: &str, report: &Report) -> String {
    let title = format!("blkmq replay: {name}");
    html::page(&title, |m| {
        m.leaf("h1", &[], &title);
        m.leaf("p", &[("class", &"soft")], &report.command);
        let notes: Vec<String> = report.notes.iter().map(|note| format!("Note: {note}")).collect();
        html::list(m, "notes", &notes);
        let looks = Looks::of(report);
        html::looks_legend(m, &looks);
        for (device, tenant) in pairs(report) {
            let part = part(report, &device, &tenant);
            for (kind, whose) in html::kinds(&part) {
                m.leaf("h2", &[], &format!("Latency of {tenant} on {device}{whose}"));
                let says = "Which share of the I/Os took no longer; further left is better.";
                m.leaf("p", &[("class", &"soft")], says);
                distributions(m, &part, &looks, kind);
            }
        }
        m.leaf("h2", &[], "All figures");
        html::table(m, &COLUMNS.map(|(name, align)| (name, "", align)), &cells(report));
    })
}

/// The runs on `device` with only the job of `tenant`.
fn part(report: &Report, device: &str, tenant: &str) -> Report {
    let runs =
        report.runs.iter().filter(|run| run.device.text == device).cloned().map(|mut run| {
            run.jobs.retain(|job| job.name == tenant);
            run
        });
    Report {
        runs: runs.collect(),
        machine: report.machine.clone(),
        seed: report.seed,
        ..Report::default()
    }
}
