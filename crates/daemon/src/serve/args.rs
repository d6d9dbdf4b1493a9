//! The help pages of `blkmqd`: its options and their parsing, also for `blkmqd vhost-user-blk`, which serves the disk
//! of one virtual machine.
//!
//! The options of that mode follow QEMU's conventions for vhost-user back-end programs, so that a program that starts
//! other back ends can start this one. The option `--fd`, the number of an inherited socket, is not supported: the
//! number could be that of another descriptor of this process.

use super::access::{self, Ways};
use super::process::LogFormat;
use super::wanted::{self, Control, DiskChoice, Http, Listen, Wanted};
use super::{config, export, model};
use crate::{option, switch};
use blkmq_engine::DeviceDepth;
use blkmq_server::{
    Address, Allow, Bounds, Counting, Export, GuestIoprio, Rights, Rule, VhostUser,
};
use blkmq_terminal::page::Page;
use blkmq_terminal::{SchedulerChoice, UsageError};
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use std::path::PathBuf;
use tracing_subscriber::filter::LevelFilter;

/// The program name, whatever the executable is called.
pub const PROGRAM: &str = "blkmqd";

const PAGE: Page = Page {
    name: PROGRAM,
    summary: "serve devices over NBD: one disk, scheduled and shared",
    description: "\
Serves devices to QEMU, libnbd, fio, the kernel's NBD client and whatever else speaks NBD. All clients of a device go \
through one queue, so a scheduler orders and merges the I/O of all of them, and shares the device by the weights of the \
exports if it is mclock, as it is by default once there are two, or bfq. Limits of an export hold under every scheduler. A flush on any connection covers the writes of \
all.",
    examples: &[
        "blkmqd",
        "blkmqd --device=uring:disk.img,size=1g --scheduler=mq-deadline",
        "blkmqd --device=uring:/dev/nvme0n1 --scheduler=bfq \\\n      \
         --export=gold,size=100g,weight=300 --export=rest,offset=100g,wbps=50m",
        "blkmqd --device=disk --listen=tcp:127.0.0.1 --export=slow,read-only=1",
        "blkmqd --listen=tcp:0.0.0.0 --tls-certificates=/etc/pki/blkmq",
        "blkmqd --listen=tcp:0.0.0.0 --tls-certificates=/etc/pki/blkmq \\\n      \
         --export=gold,size=100g,allow=cn:gold.example --export=rest,offset=100g,allow=cn:rest.example",
        "blkmqd --check serve.toml --open && blkmqd serve.toml",
    ],
};

/// The forms of an export's settings, for the page.
const NOTES: &str = "\
An export is NAME, or NAME and settings of the form KEY=VALUE behind commas:
  device=N        the Nth --device (1)
  offset=BYTES    where it begins on the device (0)
  size=BYTES      how long it is (the rest of the device)
  read-only=1     clients may not write
  weight=N        its share of the device under mclock and bfq, 1 to 1000 (100)
  rbps=, wbps=    the most bytes read and written in a second
  riops=, wiops=  the most reads and writes in a second
  bps=, iops=     the most of both together
  burst=N, burst_length=TIME
                  after a time of less use, N times these limits for so long (1, 1s)
  reserve_iops=, reserve_bps=, reserve_percent=
                  its floor under mclock, in I/Os of 4 KiB or bytes a second, or percent of the device; added up
  limit_iops=, limit_bps=, limit_percent=
                  its ceiling under mclock, which an idle device does not lift
  p99_read=TIME, p99_write=TIME, p99_sync=TIME
                  99 of 100 of its reads, its writes, or its flushes take no longer, if exports without such a goal can be
                  slowed down for it; without p99_sync, flushes are among the writes
  goal_takes_at_most=PERCENT
                  how much of its share such an export may lose for that, 0 to 100 (90)
  overcommit=1    floors may exceed what the device can keep; then all fall short
  class=C         the priority class of its I/Os, for schedulers that have classes: rt, be (default) or idle
  cache=C         when a write is answered: writeback, once the device has it (default), or writethrough, once it is
                  durable
  vhost-user=PATH a socket on which it is a disk of a virtual machine, with queues=N of them, 1 to 64 (4), and
                  guest-ioprio= the use of the guest's priorities: off (default), clamp (none above class=), or trust
  ublk=N          it is the block device /dev/ublkbN of this machine, with queues= of them, up to one for each processor (1)
  allow=RULE      a client that may use it, and to which alone it exists: cn:NAME or san:NAME in its certificate, uid:N or
                  gid:N of its process on a socket in the file system, or net:ADDRESS[/BITS]; several for several
                  (all clients)
  description=T   a text for the lists of clients; nothing can follow it

Without --export there is one called 'disk' of each device, or 'disk1' and so on of several. Without --listen it serves \
on the sockets that systemd, or another program, hands over (LISTEN_FDS), or else on a socket blkmq.sock in the runtime \
directory of the user. A socket that is made here is open to its user only, unless --socket-mode says \
otherwise; a TCP port is open to everything that reaches it, unless certificates are asked for.

A file has the same settings and the bounds against clients that ask for too much; examples/serve.toml shows all of \
them. SIGHUP, or blkmqctl reload, reads it again: weights, limits, schedulers with their attributes, and the log level \
change at once, exports come and go, and the log says what needs a restart.";

/// The task given by the command line.
pub enum Asked {
    /// Serve with these settings, from the file at the path if there is one.
    Serve(Box<Wanted>, Option<String>),
    /// Report the faults of the file at this path.
    Check(String),
    /// As above, and the faults found by opening its devices, certificates and folders.
    CheckOpen(String),
    /// Print the commands that try the promises, on this model in place of real devices.
    Simulate(String, Option<String>),
}

/// The options that check a file.
fn checking(settings: &[Id]) -> [Arg; 3] {
    [
        option("check", "CONFIG")
            .conflicts_with_all(settings)
            .conflicts_with("CONFIG")
            .help("say what is wrong in a file, with line and column, and serve nothing"),
        switch("open", "with --check: open devices for reading, and certificates, and say what is wrong with them; lays out no file")
            .requires("check"),
        option("simulate", "MODEL")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .value_parser(model)
            .requires("check")
            .conflicts_with("open")
            .help("with --check: print the commands of blkmq that try the promises in virtual time, on MODEL in place of devices that are no models"),
    ]
}

/// The options that a configuration file has as settings.
fn settings() -> [Arg; 17] {
    let list = |name, value| option(name, value).action(ArgAction::Append);
    [
        list("device", "DEVICE")
            .help("a device to serve; several for several (default: memory,size=1024)"),
        list("scheduler", "NAME[:KEY=VALUE,...]")
            .value_parser(wanted::scheduler)
            .help("the scheduler of all devices, or of each in turn (default: auto, mclock where exports compete and else as Linux)"),
        list("device-depth", "N")
            .value_parser(wanted::device_depth)
            .help("the most requests that each device may hold, or each in turn (default: 0, as many as it takes)"),
        list("export", "NAME[,KEY=VALUE]...").help("what clients see; several for several"),
        list("listen", "ADDRESS")
            .value_parser(|text: &str| text.parse::<Address>())
            .help("unix:PATH or tcp:IP[:PORT]; several for several"),
        option("workers", "N")
            .value_parser(wanted::workers)
            .help("threads that serve (default: one for each CPU)"),
        option("control", "PATH").help(
            "the socket of blkmqctl; empty for none (default: that of --listen, with .control)",
        ),
        option("http", "ADDRESS")
            .value_parser(wanted::http_address)
            .help("a live page, figures and health over HTTP, at unix:PATH or tcp:IP[:PORT] (default: off)"),
        switch("http-public", "an address of --http that other machines reach: they see all figures, without encryption"),
        list("http-name", "HOST")
            .value_parser(wanted::host_name)
            .help("a host name that browsers have for --http, besides localhost; several for several"),
        option("tls-certificates", "DIR").value_parser(clap::value_parser!(PathBuf)).help(
            "TLS for all clients, with server-cert.pem and server-key.pem, and ca-cert.pem if clients need certificates",
        ),
        list(access::KEY, "RULE")
            .value_parser(|text: &str| text.parse::<Rule>())
            .help("a client that may use the server, by a rule as of exports; several for several (default: all)"),
        option("socket-mode", "OCTAL")
            .help("the mode of sockets in the file system (default: 0600)"),
        option("socket-owner", "USER").help("their owner (default: the user of the server)"),
        option("socket-group", "GROUP").help("their group (default: that of the server)"),
        option("stats", "WHEN").value_parser(wanted::counting).help(
            "count requests and their times: asked (once a client asks; default), always or never",
        ),
        option("slow-io", "TIME")
            .value_parser(wanted::seconds)
            .help("log I/Os that take longer, with the stages that took the time"),
    ]
}

fn log_level() -> Arg {
    option("log", "LEVEL")
        .value_parser(wanted::level)
        .help("error, warn, info or debug, on standard error (default: info)")
}

/// The program.
pub fn definition() -> Command {
    let settings = settings();
    let named = settings.each_ref().map(|setting| setting.get_id().clone());
    let config = Arg::new("CONFIG").help("a file with all settings, instead of options");
    let log_format = option("log-format", "FORM").value_parser(wanted::log_format);
    PAGE.command(NOTES)
        .version(env!("CARGO_PKG_VERSION"))
        .arg(config.conflicts_with_all(&named))
        .args(checking(&named))
        .args(settings)
        .arg(log_level())
        .arg(
            log_format
                .help("text, json, or journald, with priorities for the journal (default: text)"),
        )
}

impl Asked {
    /// Converts the arguments that clap has parsed.
    ///
    /// # Errors
    /// If an export or a file is invalid, or there are more schedulers than devices.
    pub fn of(found: &ArgMatches) -> Result<Self, UsageError> {
        if let Some(path) = found.get_one::<String>("check") {
            if let Some(model) = found.get_one::<String>("simulate") {
                let model = Some(model.clone()).filter(|model| !model.is_empty());
                return Ok(Self::Simulate(path.clone(), model));
            }
            let checked = if found.get_flag("open") { Self::CheckOpen } else { Self::Check };
            return Ok(checked(path.clone()));
        }
        let Some(path) = found.get_one::<String>("CONFIG") else {
            return options(found).map(|wanted| Self::Serve(Box::new(wanted), None));
        };
        let mut wanted = config::read(path).map_err(|faults| config::first(&faults, path))?;
        if let Some(level) = found.get_one::<LevelFilter>("log") {
            wanted.log = *level;
        }
        if let Some(form) = found.get_one::<LogFormat>("log-format") {
            wanted.log_format = *form;
        }
        Ok(Self::Serve(Box::new(wanted), Some(path.clone())))
    }
}

/// The options of a command line without a file.
fn options(found: &ArgMatches) -> Result<Wanted, UsageError> {
    let all = |name| found.get_many::<String>(name).into_iter().flatten().cloned();
    let mut devices: Vec<String> = all("device").collect();
    if devices.is_empty() {
        devices.push("memory,size=1024".to_owned());
    }
    let schedulers: Vec<SchedulerChoice> =
        found.get_many("scheduler").into_iter().flatten().cloned().collect();
    let depths = Vec::from_iter(found.get_many("device-depth").into_iter().flatten().copied());
    let disks = disks(devices, &schedulers, &depths)?;
    let mut exports: Vec<Export> = Vec::new();
    let mut export_names = export::Names::default();
    for text in all("export") {
        let export = export::parse(&text, disks.len())?;
        export_names.add(&export).map_err(|e| e.at("--export"))?;
        exports.push(export);
    }
    if exports.is_empty() {
        exports = wanted::by_default(disks.len());
    }
    let mut rights = Rights::default();
    for key in wanted::RIGHTS_KEYS {
        if let Some(text) = found.get_one::<String>(key) {
            wanted::set_right(&mut rights, key, text).map_err(|e| e.at(format!("--{key}")))?;
        }
    }
    let rules = Vec::from_iter(found.get_many::<Rule>(access::KEY).into_iter().flatten().cloned());
    let allow = if rules.is_empty() { None } else { Some(Allow::new(rules)) };
    let allow = allow.transpose().map_err(|e| UsageError::new(e.to_string()).at("--allow"))?;
    let listen = Vec::from_iter(found.get_many("listen").into_iter().flatten().cloned()).into();
    let tls: Option<PathBuf> = found.get_one("tls-certificates").cloned();
    Ways::new(&listen, tls.is_some()).check_all(allow.as_ref(), &exports)?;
    let workers = found.get_one("workers").copied();
    let http = Http::new(
        found.get_one("http").cloned(),
        found.get_flag("http-public"),
        found.get_many("http-name").into_iter().flatten().cloned().collect(),
    );
    Ok(Wanted {
        disks,
        exports,
        control: Control::named(found.get_one::<String>("control").map(String::as_str)),
        listen,
        allow,
        http: http.map_err(|e| e.at("--http".to_owned()))?,
        workers: workers.unwrap_or_else(blkmq_runtime::available_cpus),
        log: found.get_one("log").copied().unwrap_or(LevelFilter::INFO),
        log_format: found.get_one("log-format").copied().unwrap_or_default(),
        bounds: Bounds::default(),
        tls,
        rights,
        counting: found.get_one("stats").copied().unwrap_or_default(),
        slow: found.get_one("slow-io").copied().unwrap_or_default(),
    })
}

/// The devices with their schedulers and depths, given once for all or once for each.
fn disks(
    devices: Vec<String>,
    schedulers: &[SchedulerChoice],
    depths: &[DeviceDepth],
) -> Result<Vec<DiskChoice>, UsageError> {
    for (option, given) in [("scheduler", schedulers.len()), ("device-depth", depths.len())] {
        if given > 1 && given != devices.len() {
            return Err(UsageError::new(format!(
                "--{option} is given {given} times for {} devices; accepted: once, or once for each device",
                devices.len()
            )));
        }
    }
    let of = |at: usize| schedulers.get(at).or(schedulers.first()).cloned();
    let depth = |at: usize| depths.get(at).or(depths.first()).copied();
    let choice = |(at, device): (usize, String)| DiskChoice {
        name: device.clone(),
        device,
        scheduler: of(at).unwrap_or_else(SchedulerChoice::auto),
        device_depth: depth(at).unwrap_or_default(),
    };
    Ok((0..).zip(devices).map(choice).collect())
}

/// The word that selects this mode.
const WORD: &str = "vhost-user-blk";

/// The answer to `--print-capabilities`.
pub const CAPABILITIES: &str =
    "{\n  \"type\": \"block\",\n  \"features\": [\n    \"read-only\",\n    \"blk-file\"\n  ]\n}\n";

const MACHINE_PAGE: Page = Page {
    name: "blkmqd vhost-user-blk",
    summary: "a file or device as the disk of one virtual machine",
    description: "\
Waits on a socket for a virtual machine monitor (QEMU, cloud-hypervisor, crosvm) and serves its guest. With several \
machines, or clients of NBD beside them, a configuration file has the same as settings of exports.",
    examples: &[
        "blkmqd vhost-user-blk --socket-path=/run/vm.sock --blk-file=disk.img",
        "blkmqd vhost-user-blk --socket-path=/run/vm.sock --blk-file=/dev/nvme0n1 --scheduler=mq-deadline",
    ],
};

/// The program.
pub fn machine_definition() -> Command {
    MACHINE_PAGE.command("").version(env!("CARGO_PKG_VERSION")).args([
        option("socket-path", "PATH").help("the socket of the virtual machine monitor"),
        option("blk-file", "PATH").help("the file or block device, or a device of blkmqd (memory,size=64)"),
        switch("read-only", "the guest may not write"),
        option("num-queues", "N").help("queues that the guest may use, 1 to 64 (default: 4)"),
        option("guest-ioprio", "USE").value_parser(|text: &str| text.parse::<GuestIoprio>()).help(
            "the use of the guest's priorities: off (default), clamp (none above best-effort), or trust",
        ),
        option("scheduler", "NAME[:KEY=VALUE,...]")
            .value_parser(wanted::scheduler)
            .help("the scheduler (default: as Linux)"),
        log_level(),
        switch("print-capabilities", "say what this program can do, as JSON, and end"),
    ])
}

/// Converts the arguments that clap has parsed. `None` asks for the [`CAPABILITIES`].
///
/// # Errors
/// If a path is missing, or the device is unknown.
pub fn machine(found: &ArgMatches) -> Result<Option<Wanted>, UsageError> {
    if found.get_flag("print-capabilities") {
        return Ok(None);
    }
    let path = |name: &str| {
        let missing = || UsageError::new(format!("no --{name}; accepted: --{name}=PATH"));
        found.get_one::<String>(name).cloned().ok_or_else(missing)
    };
    let (socket, file) = (path("socket-path")?, path("blk-file")?);
    let read_only = found.get_flag("read-only");
    let device = if wanted::check_device(&file).is_ok() {
        file.clone()
    } else {
        format!("uring:{file}{}", if read_only { ",readonly=1" } else { "" })
    };
    let mut machine = VhostUser::new(socket.into());
    if let Some(text) = found.get_one::<String>("num-queues") {
        let queues = text.parse().ok().filter(|n| (1..=blkmq_server::MOST_QUEUES).contains(n));
        let accepted = format!("accepted: 1 to {}", blkmq_server::MOST_QUEUES);
        machine.queues =
            queues.ok_or_else(|| UsageError::new(format!("--num-queues: '{text}'; {accepted}")))?;
    }
    machine.guest_ioprio = found.get_one("guest-ioprio").copied().unwrap_or_default();
    let scheduler = found.get_one("scheduler").cloned();
    let disk = DiskChoice {
        name: file,
        device,
        scheduler: scheduler.unwrap_or_else(SchedulerChoice::auto),
        device_depth: DeviceDepth::default(),
    };
    let export = Export { read_only, vhost_user: Some(machine), ..Export::new("disk", 0) };
    Ok(Some(Wanted {
        disks: vec![disk],
        exports: vec![export],
        listen: Listen::Nowhere,
        workers: 1,
        control: Control::None,
        http: None,
        log: found.get_one("log").copied().unwrap_or(LevelFilter::INFO),
        log_format: LogFormat::default(),
        bounds: Bounds::default(),
        tls: None,
        allow: None,
        rights: Rights::default(),
        counting: Counting::default(),
        slow: blkmq_core::Nanos::ZERO,
    }))
}

/// Returns whether the command-line arguments select this mode.
pub fn is_asked(words: &[String]) -> bool {
    words.first().is_some_and(|word| word == WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str) -> Result<Wanted, String> {
        let words = [PROGRAM].into_iter().chain(line.split_whitespace());
        let found = definition().try_get_matches_from(words).map_err(|e| e.to_string())?;
        match Asked::of(&found).map_err(|e| e.to_string())? {
            Asked::Serve(wanted, None) => Ok(*wanted),
            Asked::Serve(_, Some(_))
            | Asked::Check(_)
            | Asked::CheckOpen(_)
            | Asked::Simulate(..) => Err("a file".to_owned()),
        }
    }

    #[test]
    fn without_arguments_memory_is_served() {
        let wanted = wanted("").expect("it works at once");
        assert_eq!(wanted.disks[0].device, "memory,size=1024");
        assert_eq!(wanted.exports, [Export::new("disk", 0)]);
        assert_eq!((wanted.listen, wanted.control), (Listen::Default, Control::Beside));
        assert!(wanted.workers > 0);
    }

    #[test]
    fn schedulers_are_for_all_devices_or_for_each() {
        let names = |line: &str| {
            wanted(line).map(|wanted| {
                let name = |disk: DiskChoice| disk.scheduler.word();
                Vec::from_iter(wanted.disks.into_iter().map(name)).join(" ")
            })
        };
        assert_eq!(names("--device=null --device=disk"), Ok("auto auto".into()));
        assert_eq!(names("--device=null --device=disk --scheduler=bfq"), Ok("bfq bfq".into()));
        assert_eq!(names("--device=null --scheduler=auto"), Ok("auto".into()));
        let each =
            names("--device=null --device=disk --scheduler=none --scheduler=bfq:low_latency=0");
        assert_eq!(each, Ok("none bfq".into()));
        let many = names("--device=null --scheduler=none --scheduler=bfq").expect_err("too many");
        assert!(many.contains("2 times for 1 devices"), "{many}");
        assert!(
            names("--scheduler=none,bfq").expect_err("two").contains("accepted: one scheduler")
        );
    }

    #[test]
    fn http_is_off_and_then_for_this_machine() {
        assert_eq!(wanted("").expect("possible").http, None);
        let http =
            wanted("--http=tcp:127.0.0.1 --http-name=a --http-name=b").expect("possible").http;
        let http = http.expect("it was asked for");
        assert_eq!((http.address.to_string(), http.names.len()), ("tcp:127.0.0.1:10810".into(), 2));
        let refused = wanted("--http=tcp:0.0.0.0").err().expect("it is open to other machines");
        assert!(refused.contains("--http: ") && refused.contains("http-public"), "{refused}");
        assert!(wanted("--http=tcp:0.0.0.0 --http-public").is_ok());
        assert!(wanted("--http-public").is_err());
    }

    #[test]
    fn several_devices_have_an_export_each() {
        let wanted = wanted("--device=null --device=disk").expect("possible");
        let exports = wanted.exports.iter().map(|it| (it.name.as_str(), it.disk));
        assert_eq!(exports.collect::<Vec<_>>(), [("disk1", 0), ("disk2", 1)]);
    }

    fn machine(line: &str) -> Result<Option<Wanted>, String> {
        let words = [WORD].into_iter().chain(line.split_whitespace());
        let found = machine_definition().try_get_matches_from(words).map_err(|e| e.to_string())?;
        super::machine(&found).map_err(|e| e.to_string())
    }

    fn wanted_by_machine(line: &str) -> Wanted {
        match machine(line) {
            Ok(Some(wanted)) => wanted,
            _ => panic!("{line} serves"),
        }
    }

    #[test]
    fn a_file_is_served_by_the_options_of_such_programs() {
        let wanted = wanted_by_machine("--socket-path=/run/a --blk-file=/data/x.img --read-only");
        assert_eq!(wanted.disks[0].device, "uring:/data/x.img,readonly=1");
        let export = &wanted.exports[0];
        assert!(export.read_only && wanted.listen == Listen::Nowhere);
        assert_eq!(export.vhost_user, Some(VhostUser::new("/run/a".into())));
    }

    #[test]
    fn a_device_is_served_as_it_is() {
        let wanted = wanted_by_machine("--socket-path=/a --blk-file=memory,size=4 --num-queues=2");
        assert_eq!(wanted.disks[0].device, "memory,size=4");
        assert_eq!(wanted.exports[0].vhost_user.as_ref().map(|it| it.queues), Some(2));
    }

    #[test]
    fn capabilities_are_those_of_the_convention() {
        assert!(matches!(machine("--print-capabilities"), Ok(None)));
        assert!(CAPABILITIES.contains("\"blk-file\"") && CAPABILITIES.contains("\"block\""));
    }

    #[test]
    fn an_error_says_what_is_missing() {
        let error = |line: &str| machine(line).err().expect("it is an error");
        assert_eq!(error("--blk-file=x"), "no --socket-path; accepted: --socket-path=PATH");
        assert!(error("--socket-path=/a --blk-file=x --num-queues=0").contains("1 to 64"));
        assert!(error("--fd=3").contains("--fd"));
    }
}
