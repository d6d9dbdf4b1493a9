//! The help page of `blkmqctl`: its commands and options, and their parsing.

use super::stat::Choice;
use crate::serve::wanted::default_control;
use crate::{option, switch};
use blkmq_server::control::{ExportSettings, Request};
use blkmq_terminal::page::Page;
use clap::{Arg, ArgGroup, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use std::time::Duration;

/// The program name, whatever the executable is called.
pub const PROGRAM: &str = "blkmqctl";

const PAGE: Page = Page {
    name: PROGRAM,
    summary: "look at a running server, and change it",
    description: "\
Talks to a server, blkmqd, over its socket for control. Changes take effect under load; \
no connection notices more than a pause.",
    examples: &[
        "blkmqctl list",
        "blkmqctl clients",
        "blkmqctl disconnect --identity=cn:gold",
        "blkmqctl switch bfq",
        "blkmqctl set queue/nr_requests 64",
        "blkmqctl add gold,ublk=0,weight=300",
        "blkmqctl remove gold",
        "blkmqctl export gold --weight=300 --max='wbps=52428800 riops=max'",
        "blkmqctl diff",
        "blkmqctl stat --interval=2",
        "blkmqctl stat --waits --interval=10 --count=1",
        "blkmqctl biolatency -Q -F --count=1",
        "blkmqctl top",
        "blkmqctl trace -w 10 -o - | blkparse -i -",
        "blkmqctl elevator-log -w 10 -o run.log",
        "blkmqctl --json get",
    ],
};

/// A request to a server, and how to show the answer.
pub struct Wanted {
    /// The path of the control socket.
    pub socket: PathBuf,
    /// Whether to show the answer as JSON.
    pub json: bool,
    /// The request.
    pub asked: Asked,
}

/// The kinds of request.
pub enum Asked {
    /// A single request.
    One(Request),
    /// Save the current settings to the configuration file.
    Save {
        /// The output file, or `None` to rewrite the configuration file.
        output: Option<String>,
    },
    /// A recording, over a separate connection.
    Recording(Recording),
    /// The present counts, in a format of the kernel.
    Kernel(KernelForm),
    /// Histograms of intervals.
    Biolatency(Intervals, Choice),
    /// Rates over intervals.
    Stat(Intervals),
    /// Which export waited behind which, over intervals.
    Waits(Intervals),
}

/// Intervals that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Intervals {
    /// The length of each.
    pub every: Duration,
    pub count: u32,
}

/// A recording and its destination.
pub struct Recording {
    /// The request.
    pub request: Request,
    /// For a trace, the prefix of its file names; for a log, the file. `-` is standard output.
    pub output: String,
}

/// A format in which the kernel shows the counts of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelForm {
    /// `/sys/block/X/stat`.
    Stat,
    /// `/proc/diskstats`.
    Diskstats,
    /// `/sys/block/X/inflight`.
    Inflight,
}

/// The options of commands that show intervals.
fn intervals() -> [Arg; 2] {
    [
        option("interval", "SECONDS")
            .value_parser(value_parser!(u32).range(1..=86400))
            .default_value("1")
            .help("the length of an interval"),
        option("count", "N")
            .value_parser(value_parser!(u32).range(1..))
            .help("how many intervals (default: until it is interrupted)"),
    ]
}

/// The commands that record, with the options of blktrace.
fn recordings() -> [Command; 2] {
    let device = || device().short('d');
    let seconds = || {
        let seconds = option("stopwatch", "SECONDS").short('w');
        let help = "end after this time (default: when interrupted)";
        seconds.value_parser(value_parser!(u32).range(1..)).help(help)
    };
    let most = |range| option("max-bytes", "N").value_parser(range);
    let output = |value| option("output", value).short('o');
    [
        command("trace", "trace a device, as blktrace does").args([
            device(),
            output("NAME").help(
                "the files are NAME.blktrace.CPU; - is standard output, for blkparse -i - (default: deviceN)",
            ),
            seconds(),
            option("buffer-size", "KIB")
                .short('b')
                .help("memory for each elevator; what does not fit is dropped")
                .value_parser(value_parser!(u32).range(1..=160 << 10))
                .default_value("8192"),
            most(value_parser!(u64).range(1..)).help("end with so many bytes of records"),
        ]),
        command("elevator-log", "log a scheduler's decisions, for blkmq replay").args([
            device(),
            output("FILE").required(true).help("the file; - is standard output"),
            seconds(),
            most(value_parser!(u64).range(4096..=256 << 20))
                .default_value("67108864")
                .help("end with so many bytes, which the server keeps in memory"),
        ]),
    ]
}

/// The commands about connections.
fn of_clients() -> [Command; 2] {
    [
        command("clients", "the connections that have agreed on an export"),
        command("disconnect", "end connections once their requests are answered")
            .args([
                Arg::new("NUMBER")
                    .value_parser(value_parser!(u64).range(1..))
                    .help("of a client, as blkmqctl clients shows it"),
                option("export", "NAME").help("all of an export"),
                option("identity", "RULE")
                    .help("all of an identity, as blkmqctl clients shows it: cn:gold, uid:1001"),
            ])
            .group(ArgGroup::new("which").args(["NUMBER", "export", "identity"]).required(true)),
    ]
}

/// The commands about exports.
fn of_exports() -> [Command; 3] {
    [
            command("export", "change the settings of an export").args([
                value("NAME", "of the export"),
                option("weight", "N")
                    .value_parser(value_parser!(u32).range(1..=1000))
                    .help("its share of the device under mclock and bfq"),
                option("max", "LIMITS")
                    .help("limits to change, as cgroup v2 spells io.max: 'rbps=1048576 wiops=max iops=500 burst=2 burst_length=10'"),
                option("promise", "RATES")
                    .help("its floor and ceiling under mclock, and its latency goals: 'reserve_iops=200 limit_percent=0 p99_read=2ms'"),
            ]),
            command("add", "add an export, with its block device if it has one").arg(
                value("EXPORT", "as --export of blkmqd: gold,ublk=0,weight=300")
                    .value_name("NAME[,KEY=VALUE]..."),
            ),
            command("remove", "remove an export, and its block device").arg(value("NAME", "of the export")),
    ]
}

/// The command that saves the current settings.
fn save() -> Command {
    let output = option("output", "FILE").short('o');
    command("save", "write the settings in force into the server's configuration file")
        .arg(output.help("write it there instead; - is standard output"))
}

/// The options of every command.
pub fn everywhere() -> [Arg; 2] {
    [
        option("control", "PATH")
            .value_parser(value_parser!(PathBuf))
            .global(true)
            .help("the server's socket for control (default: that of blkmqd without --listen)"),
        switch("json", "answers for scripts").global(true),
    ]
}

fn command(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about)
}

/// A word that must be given.
fn value(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name(name).required(true).help(help)
}

fn device() -> Arg {
    let device = option("device", "N").value_parser(value_parser!(u16).range(1..));
    device.default_value("1").help("the number of the device")
}

/// The program, with the commands that are requests to a server.
pub fn definition() -> Command {
    PAGE.command("")
        .version(env!("CARGO_PKG_VERSION"))
        .args(everywhere())
        .subcommand_required(true)
        .subcommands(of_clients())
        .subcommands([
            command("list", "devices and exports"),
            command("get", "an attribute of a device, or all of them").args([
                device(),
                Arg::new("PATH").help("as queue/scheduler; without it, all with their values"),
            ]),
            command("set", "set an attribute of a device").args([
                device(),
                value("PATH", "as queue/scheduler; blkmqctl get lists them"),
                value("VALUE", "as written to sysfs: kyber, 64"),
            ]),
            command("switch", "give a device another scheduler, or auto, as its exports ask for")
                .args([device(), value("SCHEDULER", "such as mq-deadline or auto")]),
        ])
        .subcommands(of_exports())
        .subcommands([
            command("stat", "rates of devices and exports, as iostat computes them")
                .args(intervals())
                .args([
                    switch("sys", "the 17 fields of /sys/block/X/stat, a line for each device"),
                    switch("diskstats", "lines of /proc/diskstats"),
                    switch("inflight", "reads and writes in flight, as /sys/block/X/inflight"),
                    switch("waits", "which export waited behind which, and for how long"),
                ])
                .group(ArgGroup::new("form").args(["sys", "diskstats", "inflight", "waits"])),
            command("biolatency", "histograms of latencies, as biolatency prints them")
                .args(intervals())
                .args([
                    switch("queued", "with the time before the device").short('Q'),
                    switch("flags", "reads, writes, discards and flushes apart").short('F'),
                ]),
        ])
        .subcommands(recordings())
        .subcommands([
            command("reload", "read the server's configuration file again, as SIGHUP does"),
            command("diff", "the settings in force that differ from the configuration"),
            save(),
            command("drain", "end the server once the requests in flight are answered"),
        ])
}

impl Wanted {
    /// Converts the arguments that clap has parsed.
    pub fn of(found: &ArgMatches) -> Self {
        let socket = found.get_one::<PathBuf>("control").cloned().unwrap_or_else(default_control);
        let (name, of) = found.subcommand().expect("clap refuses a line without one");
        let text = |name| of.get_one::<String>(name).cloned();
        let given = |name| text(name).expect("clap refuses a line without it");
        let device = || of.get_one::<u16>("device").copied().unwrap_or(1).into();
        let request = match name {
            "get" => Request::Get { device: device(), path: text("PATH") },
            "set" => Request::Set { device: device(), path: given("PATH"), value: given("VALUE") },
            "switch" => {
                let path = "queue/scheduler".to_owned();
                Request::Set { device: device(), path, value: given("SCHEDULER") }
            }
            "export" => {
                let weight = of.get_one::<u32>("weight").copied();
                let settings =
                    ExportSettings { weight, max: text("max"), promise: text("promise") };
                Request::Export { name: given("NAME"), settings }
            }
            "add" => Request::Add { export: given("EXPORT") },
            "remove" => Request::Remove { name: given("NAME") },
            "clients" => Request::Clients,
            "disconnect" => Request::Disconnect {
                number: of.get_one::<u64>("NUMBER").copied(),
                export: text("export"),
                identity: text("identity"),
            },
            "reload" => Request::Reload,
            "diff" => Request::Diff,
            "drain" => Request::Drain,
            _ => Request::List,
        };
        let asked = match name {
            "save" => Asked::Save { output: text("output") },
            "trace" | "elevator-log" => Asked::Recording(Recording::of(name, of, device())),
            "stat" | "biolatency" => Asked::counts(name, of),
            _ => Asked::One(request),
        };
        Self { socket, json: found.get_flag("json"), asked }
    }
}

impl Recording {
    fn of(name: &str, of: &ArgMatches, device: usize) -> Self {
        let seconds = of.get_one::<u32>("stopwatch").copied();
        let bytes = of.get_one::<u64>("max-bytes").copied();
        let output = of.get_one::<String>("output").cloned();
        let request = if name == "trace" {
            let buffer_kib = of.get_one::<u32>("buffer-size").copied().expect("it has a default");
            Request::Trace { device, seconds, buffer_kib, bytes }
        } else {
            Request::ElevatorLog { device, seconds, bytes: bytes.expect("it has a default") }
        };
        Self { request, output: output.unwrap_or_else(|| format!("device{device}")) }
    }
}

impl Asked {
    /// Converts the options of `stat` or `biolatency`.
    fn counts(name: &str, of: &ArgMatches) -> Self {
        let seconds = of.get_one::<u32>("interval").copied().unwrap_or(1);
        let count = of.get_one::<u32>("count").copied().unwrap_or(u32::MAX);
        let intervals = Intervals { every: Duration::from_secs(seconds.into()), count };
        if name == "biolatency" {
            let choice = Choice { queued: of.get_flag("queued"), by_op: of.get_flag("flags") };
            return Self::Biolatency(intervals, choice);
        }
        if of.get_flag("waits") {
            return Self::Waits(intervals);
        }
        let forms = [
            ("sys", KernelForm::Stat),
            ("diskstats", KernelForm::Diskstats),
            ("inflight", KernelForm::Inflight),
        ];
        match forms.iter().find(|(name, _)| of.get_flag(name)) {
            Some((_, form)) => Self::Kernel(*form),
            None => Self::Stat(intervals),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Request {
        let words = [PROGRAM].into_iter().chain(line.split_whitespace());
        let found = definition().try_get_matches_from(words).expect(line);
        match Wanted::of(&found).asked {
            Asked::One(request) => request,
            _ => panic!("{line} is asked once"),
        }
    }

    #[test]
    fn words_are_requests() {
        assert_eq!(asked("list"), Request::List);
        assert_eq!(asked("clients"), Request::Clients);
        let (number, identity) = (Some(7), Some("cn:gold".to_owned()));
        let end = |number, identity| Request::Disconnect { number, export: None, identity };
        assert_eq!(asked("disconnect 7"), end(number, None));
        assert_eq!(asked("disconnect --identity=cn:gold"), end(None, identity));
        let (path, value) = ("queue/scheduler".to_owned(), "bfq".to_owned());
        assert_eq!(asked("switch bfq --device=2"), Request::Set { device: 2, path, value });
        assert_eq!(asked("get"), Request::Get { device: 1, path: None });
        let settings = ExportSettings { weight: Some(3), ..ExportSettings::default() };
        let name = "a".to_owned();
        assert_eq!(asked("export a --weight=3"), Request::Export { name, settings });
        let export = "a,ublk=0".to_owned();
        assert_eq!(asked("add a,ublk=0"), Request::Add { export });
        assert_eq!(asked("remove a"), Request::Remove { name: "a".to_owned() });
    }

    #[test]
    fn a_socket_can_be_named_before_the_command_and_behind_it() {
        for line in [
            "blkmqctl --control=x --json stat --count=3 --interval=2",
            "blkmqctl stat --count=3 --interval=2 --json --control=x",
        ] {
            let found = definition().try_get_matches_from(line.split(' '));
            let wanted = Wanted::of(&found.expect(line));
            assert!(wanted.json && wanted.socket.as_os_str() == "x", "{line}");
            let three = Intervals { every: Duration::from_secs(2), count: 3 };
            assert!(matches!(wanted.asked, Asked::Stat(intervals) if intervals == three));
        }
    }

    #[test]
    fn counts_have_several_forms() {
        let asked = |line: &str| {
            let found = definition().try_get_matches_from(line.split(' '));
            found.map(|found| Wanted::of(&found).asked)
        };
        assert!(matches!(asked("blkmqctl stat --sys"), Ok(Asked::Kernel(KernelForm::Stat))));
        assert!(matches!(
            asked("blkmqctl stat --inflight"),
            Ok(Asked::Kernel(KernelForm::Inflight))
        ));
        assert!(asked("blkmqctl stat --sys --diskstats").is_err(), "one of them");
        assert!(matches!(
            asked("blkmqctl stat --waits --count=2"),
            Ok(Asked::Waits(Intervals { count: 2, .. }))
        ));
        assert!(asked("blkmqctl stat --sys --waits").is_err(), "one of them");
        let choice = Choice { queued: true, by_op: true };
        let found = asked("blkmqctl biolatency -QF --count=1");
        assert!(
            matches!(found, Ok(Asked::Biolatency(Intervals { count: 1, .. }, is)) if is == choice)
        );
    }

    #[test]
    fn recordings_have_the_options_of_blktrace() {
        let recording = |line: &str| {
            let found = definition().try_get_matches_from(line.split(' '));
            match found.map(|found| Wanted::of(&found).asked) {
                Ok(Asked::Recording(Recording { request, output })) => Some((request, output)),
                _ => None,
            }
        };
        let trace = |device, seconds, buffer_kib, bytes| Request::Trace {
            device,
            seconds,
            buffer_kib,
            bytes,
        };
        let named = |name: &str| name.to_owned();
        assert_eq!(
            recording("blkmqctl trace -d 2 -w 10 -b 512 -o -"),
            Some((trace(2, Some(10), 512, None), named("-")))
        );
        assert_eq!(
            recording("blkmqctl trace --max-bytes=4096"),
            Some((trace(1, None, 8192, Some(4096)), named("device1")))
        );
        let log = Request::ElevatorLog { device: 1, seconds: None, bytes: 64 << 20 };
        assert_eq!(recording("blkmqctl elevator-log -o run.log"), Some((log, named("run.log"))));
        for refused in
            ["trace -b 0", "trace -w 0", "elevator-log", "elevator-log -o x --max-bytes=1"]
        {
            assert_eq!(recording(&format!("blkmqctl {refused}")), None, "{refused}");
        }
    }
}
