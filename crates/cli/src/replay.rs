//! `blkmq replay`: plays back an elevator log, exactly to the same scheduler, or as a workload to another one.
//!
//! Of another program's trace, each tenant becomes a job of a bench or a simulation, under every scheduler and on every
//! device requested. The result has a row for each tenant, device and scheduler, and its page a latency curve for each.

use crate::args::{self, Request};
use crate::plan::{Plan, Time, quote};
use crate::report::job::{JobResult, Latency};
use crate::report::model::{Report, Run};
use crate::report::svg::{Looks, distributions};
use crate::report::wording::nanos;
use crate::report::{Format, html, render, table};
use crate::trace::tapes::{Loaded, Scaling};
use crate::trace::{self, Source};
use crate::{Failure, bench, devices};
use blkmq_core::{Class, Histogram, Nanos, SECTOR_SIZE};
use blkmq_device::{Device, MachineShape, registry};
use blkmq_engine::{AUTO, Config, PolicyChoice};
use blkmq_lab::elevator_log::{
    ElevatorLog, Instance, Log, LogError, Summary, Workload, replay, rerun, summary,
};
use blkmq_lab::observe::Observation;
use blkmq_recording::Layout;
use blkmq_sched::registry as schedulers;
use blkmq_terminal::output::{print_results, shown, width};
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Align, Paper, TextTable, push_command, push_line};
use blkmq_terminal::program::{self, Stop};
use blkmq_terminal::{SchedulerChoice, UsageError, bounded};
use clap::builder::ValueHint;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// The longest log that is read; it is held as a whole.
const MAX_BYTES: u64 = 1 << 30;

/// Plays back a log. Returns the output as text of at most `width` columns, and whether the answers equal the recorded
/// ones.
///
/// # Errors
/// If the log is invalid, or the simulation is impossible.
pub fn run(wanted: Wanted, width: usize) -> Result<(String, Result<(), Failure>), Failure> {
    let bytes = bounded::read(&wanted.file, "an elevator log", MAX_BYTES)?;
    let broken = |e: LogError| UsageError::new(e.to_string()).at(&wanted.file);
    let log = Log::parse(&bytes).map_err(broken)?;
    let recorded = summary(&log).map_err(broken)?;
    let mut out = Paper::new(width);
    push_line(&mut out, 0, &format!("{}:", wanted.file));
    push_command(&mut out, 2, log.command);
    let same = |choice: &SchedulerChoice| log.instances.iter().all(|it| is_of(it, choice));
    match wanted.scheduler.filter(|choice| !same(choice)) {
        None if wanted.device.is_some() => {
            let text = "--device: an exact replay has no device; accepted with another --scheduler";
            Err(UsageError::new(text).into())
        }
        None => {
            let verdict = exact(&log, &mut out)?;
            out.push('\n');
            out.table(&table(&[("recorded", &recorded)]));
            Ok((out.finish(), verdict))
        }
        Some(choice) => {
            let workload = Workload::of(&log).map_err(broken)?;
            let device = device(wanted.device.as_deref(), &log, &workload, &recorded)?;
            let again = simulate(&log, &workload, &choice, &device)?;
            let log = Log::parse(&again).expect("it was written just now");
            let simulated = summary(&log).expect("it was written just now");
            let arrive =
                format!("{} I/Os arrive again; simulated with {}", workload.len(), choice.text);
            push_line(&mut out, 0, &arrive);
            if workload.unknown() > 0 {
                let unknown = workload.unknown();
                let left_out =
                    format!("{unknown} discards are left out: their places are not in the log");
                push_line(&mut out, 0, &left_out);
            }
            out.push('\n');
            out.table(&table(&[("recorded", &recorded), (&choice.text, &simulated)]));
            Ok((out.finish(), Ok(())))
        }
    }
}

/// Returns the plan of a replay with these words, which is for a trace and writes no page.
///
/// # Errors
/// If they cannot be understood, or the trace cannot be read.
pub fn plan_of(words: &[String]) -> Result<Plan, Failure> {
    let Some(found) = program::understood::<Failure>(&definition, words)? else {
        return Err(UsageError::new("--help: prints something; accepted: options of a run").into());
    };
    if found.contains_id("page") {
        return Err(UsageError::new("--page: of a single replay").into());
    }
    let plan = planned(&found)?;
    Ok(Plan { command: quote("replay", words), ..plan })
}

/// Returns whether the policy is that of `choice`, with the same options.
fn is_of(instance: &Instance<'_>, choice: &SchedulerChoice) -> bool {
    let factory = choice.factory;
    let given = |name| choice.options.given(name);
    let recorded = |name| instance.options.iter().find(|(known, _)| *known == name).map(|it| it.1);
    instance.policy == factory.name
        && factory
            .attributes
            .iter()
            .all(|it| given(it.name).is_none_or(|_| given(it.name) == recorded(it.name)))
}

fn exact(log: &Log<'_>, out: &mut Paper) -> Result<Result<(), Failure>, Failure> {
    let mut verdict = Ok(());
    for (number, instance) in log.instances.iter().enumerate() {
        let options = instance.options.iter().map(|(name, value)| format!(" {name}={value}"));
        let name =
            format!("elevator {number} ({}{})", instance.policy, options.collect::<String>());
        let replayed = replay(instance).map_err(|e| Failure::Replay(format!("{name}: {e}")))?;
        let counts = format!("{name}: {} calls, {} answers", replayed.calls, replayed.answers);
        match &replayed.difference {
            None => push_line(out, 0, &format!("{counts}, all the same")),
            Some(difference) => {
                push_line(out, 0, &counts);
                difference.to_string().lines().for_each(|line| push_line(out, 0, line));
                verdict = Err(Failure::Replay(format!(
                    "{name}: call {} is answered differently",
                    difference.call
                )));
            }
        }
        if instance.missed > 0 {
            let missed = instance.missed;
            let full = format!("the log was full then; {missed} more calls are not in it");
            push_line(out, 2, &full);
        }
    }
    Ok(verdict)
}

fn device(
    given: Option<&str>,
    log: &Log<'_>,
    workload: &Workload,
    recorded: &Summary,
) -> Result<Device, Failure> {
    let time = Time::Virtual { seed: 0 };
    let device = match given {
        Some(text) => devices::open_virtual(text, time).map_err(|e| e.at("--device"))?,
        None => {
            let mut served: Histogram = recorded.reads.served.clone();
            served.merge(&recorded.writes.served);
            let depth = log.instances.iter().map(|instance| instance.shape.hw_depth).max();
            let queues = workload.hw_queues();
            let text = format!(
                "null,irqmode=2,completion_nsec={},submit_queues={queues},hw_queue_depth={},size={},discard=1",
                served.quantile(1, 2).max(1),
                depth.unwrap_or(1).max(1),
                (workload.end() * u64::from(SECTOR_SIZE)).div_ceil(1 << 20).max(1),
            );
            let machine = MachineShape { cpus: queues.max(1), nodes: 1 };
            registry::parse(&text, &machine).map_err(|e| UsageError::new(e.to_string()))?
        }
    };
    if device.shape.limits.capacity < workload.end() {
        let (has, wants) = (device.shape.limits.capacity, workload.end());
        let text = format!(
            "--device: it has {has} sectors and the log goes up to {wants}; accepted: a larger one"
        );
        return Err(UsageError::new(text).into());
    }
    Ok(device)
}

/// The elevator log of the workload under another scheduler.
fn simulate(
    log: &Log<'_>,
    workload: &Workload,
    choice: &SchedulerChoice,
    device: &Device,
) -> Result<Vec<u8>, Failure> {
    let again = ElevatorLog::new(usize::MAX);
    let observation = Observation { log: Some(again.clone()), ..Observation::default() };
    // The depth of the recorded queue; `none` has as many tags as its device.
    let depth = log.instances.first().map(|instance| instance.shape.nr_requests);
    let config =
        Config { nr_requests: depth.filter(|_| choice.factory.name != "none"), ..device.config() };
    let options = choice.options.clone();
    let config = Config { options, ..config.scheduler(choice.factory) };
    rerun(workload, config, &observation).map_err(|e| Failure::Simulation(e.to_string()))?;
    Ok(again.bytes(log.command))
}

/// Selects a histogram of times.
type Times = fn(&Summary) -> &Histogram;

const TIMES: [(&str, Times); 4] = [
    ("reads waited", |s| &s.reads.waited),
    ("reads at the device", |s| &s.reads.served),
    ("writes waited", |s| &s.writes.waited),
    ("writes at the device", |s| &s.writes.served),
];

/// The figures side by side.
fn table(columns: &[(&str, &Summary)]) -> TextTable {
    let heading = columns.iter().map(|(name, _)| ((*name).to_owned(), Align::Right));
    let mut table =
        TextTable::new([(String::new(), Align::Left)].into_iter().chain(heading).collect());
    let mut row = |name: &str, cell: &dyn Fn(&Summary) -> String| {
        let cells = columns.iter().map(|(_, summary)| cell(summary));
        table.row(&[name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    };
    row("requests inserted", &|s| s.inserted.to_string());
    let priorities = columns.iter().flat_map(|(_, summary)| summary.priorities.keys());
    for key in priorities.copied().collect::<BTreeSet<_>>() {
        let count = |s: &Summary| s.priorities.get(&key).copied().unwrap_or(0).to_string();
        row(&priority(key), &count);
    }
    row("  joined or fused", &|s| s.merged.to_string());
    row("  requeued", &|s| s.requeued.to_string());
    row("  taken back", &|s| s.withdrawn.to_string());
    row("picked", &|s| s.picked.to_string());
    row("  right behind the one before", &|s| s.sequential.to_string());
    row("  backwards", &|s| s.backwards.to_string());
    row("  ahead of an older one", &|s| s.overtaken.to_string());
    row("sectors passed between picks", &|s| s.distance.to_string());
    row("from the first call to the last", &|s| time(s.lasted));
    for (what, times) in TIMES {
        row(&format!("{what}, median"), &|s| quantile(times(s), 50));
        row(&format!("{what}, 99 %"), &|s| quantile(times(s), 99));
        row(&format!("{what}, longest"), &|s| quantile(times(s), 100));
    }
    table
}

/// The row name of a priority.
fn priority((class, level, is_read): (Class, u16, bool)) -> String {
    let what = if is_read { "reads" } else { "others" };
    let class = match class {
        Class::None => "none",
        Class::Realtime => "realtime",
        Class::BestEffort => "best-effort",
        Class::Idle => "idle",
    };
    format!("  {what}, {class} {level}")
}

fn time(span: Nanos) -> String {
    nanos(span.0 as f64)
}

fn quantile(times: &Histogram, percent: u64) -> String {
    match times.count() {
        0 => "-".into(),
        _ if percent == 100 => nanos(times.max() as f64),
        _ => nanos(times.quantile(percent, 100) as f64),
    }
}

const PAGE: Page = Page {
    name: "replay",
    summary: "replay a trace under all schedulers, or an elevator log call by call",
    description: "\
Replays a trace of another program: each of its tenants is a job in a group of its own, on each device and under each \
scheduler, in virtual time or with --real in real time. Latencies count from the time at which an I/O was due.

An elevator log, which --elevator-log of blkmq bench or blkmq sim, or blkmqctl elevator-log, has written, is played call by \
call. Without --scheduler, or with the one of the \
log, every call is made again, at the same times, and every answer is compared; the first one that differs is shown with \
what came before it, and the exit code is 1. With another scheduler, or other options, the I/Os of the log arrive when \
they did, at a device that is simulated, and both are compared: how requests were ordered and how long they waited. \
Answers are a simulation then; that I/Os would have come at other times, had they been served at other times, is not \
in it.",
    examples: &[
        "blkmq sim --scheduler=mq-deadline --rw=randrw --size=64m --elevator-log=run.log",
        "blkmq replay trace.csv --device=disk --device=flash --page=trace.html",
        "blkmq replay trace.csv --scheduler=mclock --weight=a=300 --speed=10",
        "blkmq replay run.log",
        "blkmq replay run.log --scheduler=none",
        "blkmq replay run.log --scheduler=mq-deadline:fifo_batch=1 \\\n      \
         --device=null,irqmode=2,hw_queue_depth=4",
    ],
};

/// The log to play back, and its target.
pub struct Wanted {
    /// The path of the log.
    pub file: String,
    /// The scheduler; `None` is that of the log.
    pub scheduler: Option<SchedulerChoice>,
    /// The description of a virtual device for another scheduler; `None` is one like that of the log.
    pub device: Option<String>,
}

/// The command.
pub fn definition() -> Command {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    PAGE.command("").args([
        Arg::new("file")
            .value_name("FILE")
            .required(true)
            .value_hint(ValueHint::FilePath)
            .help("a trace, or an elevator log; - is a trace on standard input"),
        option("scheduler", "NAME[:KEY=VALUE,...]").value_parser(known).help(
            "the schedulers, in a list, or all (default: all five); for an elevator log one (default: that of the log)",
        ),
        option("device", "DEVICE").action(ArgAction::Append).help(
            "a device; may be repeated (default: disk). For an elevator log, a virtual device for another scheduler \
             (default: a null device with as many hardware queues and tags, and the median service time of the log)",
        ),
    ])
    .args(trace_options())
}

impl Wanted {
    /// Converts the arguments that clap has parsed; `None` if the file is not an elevator log.
    ///
    /// # Errors
    /// If an option does not apply to an elevator log.
    pub fn of(found: &ArgMatches) -> Result<Option<Self>, UsageError> {
        let file = found.get_one::<String>("file").expect("clap refuses a line without it");
        if !is_elevator_log(file) {
            return Ok(None);
        }
        let is_given = |name: &str| found.value_source(name) == Some(ValueSource::CommandLine);
        let mut others = trace_options().into_iter().map(|it| it.get_id().to_string());
        if let Some(name) = others.find(|name| is_given(name)) {
            let text = format!(
                "--{name}: for traces, and {file} is an elevator log; accepted: --scheduler, --device"
            );
            return Err(UsageError::new(text));
        }
        let devices: Vec<&String> = found.get_many("device").into_iter().flatten().collect();
        let scheduler = found.get_one::<String>("scheduler").map(|text| scheduler(text));
        Ok(Some(Self {
            file: file.clone(),
            scheduler: scheduler.transpose().map_err(|e| e.at("--scheduler"))?,
            device: devices.last().map(|text| (*text).clone()),
        }))
    }
}

/// Returns whether the file begins like an elevator log.
fn is_elevator_log(path: &str) -> bool {
    let mut head = Vec::new();
    let file = std::fs::File::open(path);
    file.is_ok_and(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head).is_ok())
        && head == MAGIC
}

/// The first bytes of an elevator log.
const MAGIC: &[u8] = b"blkmqelv";

/// A list of schedulers, as it was written.
fn known(text: &str) -> Result<String, UsageError> {
    SchedulerChoice::parse(text).map(|_| text.to_owned())
}

fn scheduler(text: &str) -> Result<SchedulerChoice, UsageError> {
    let choices = SchedulerChoice::parse(text)?;
    let [one] = <[_; 1]>::try_from(choices)
        .map_err(|_| UsageError::new("one at a time; accepted: one NAME"))?;
    if one.choice == PolicyChoice::Auto {
        let names = Vec::from_iter(schedulers::ALL.iter().map(|factory| factory.name)).join(", ");
        let text =
            format!("{AUTO} is for queues, and a log is played to a policy; accepted: {names}");
        return Err(UsageError::new(text));
    }
    Ok(one)
}

/// All schedulers, as `--scheduler` lists them.
const SCHEDULERS: &str = "none,mq-deadline,kyber,bfq,mclock";

/// The options of a replay that do not apply to elevator logs.
fn trace_options() -> Vec<Arg> {
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
pub fn run_trace(found: &ArgMatches, words: &[String]) -> Result<(), Failure> {
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
    let is_sized = registry::find(name).is_some_and(|factory| {
        // A device that stores takes memory, as much as its user chooses.
        factory.name != "memory" && factory.parameters.iter().any(|it| it.name == "size")
    });
    if is_sized && !has_size {
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
    report.of_runs(runs.collect())
}
