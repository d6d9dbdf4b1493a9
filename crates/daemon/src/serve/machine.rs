//! `blkmqd vhost-user-blk`: serves the disk of one virtual machine. The options follow QEMU's conventions for
//! vhost-user back-end programs, so that a program that starts other back ends can start this one.
//!
//! The option `--fd`, the number of an inherited socket, is not supported: the number could be that of another
//! descriptor of this process.

use super::wanted::{self, Control, DiskChoice, Listen, Wanted};
use blkmq_engine::DeviceDepth;
use blkmq_server::{Bounds, Counting, Export, GuestIoprio, Rights, VhostUser};
use blkmq_terminal::page::Page;
use blkmq_terminal::{SchedulerChoice, UsageError};
use clap::{Arg, ArgAction, ArgMatches, Command};
use tracing_subscriber::filter::LevelFilter;

/// The word that selects this mode.
pub const WORD: &str = "vhost-user-blk";

/// The answer to `--print-capabilities`.
const CAPABILITIES: &str =
    "{\n  \"type\": \"block\",\n  \"features\": [\n    \"read-only\",\n    \"blk-file\"\n  ]\n}\n";

const PAGE: Page = Page {
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

/// The task given by a command line.
pub enum Machine {
    /// Print the capabilities of this program.
    Capabilities,
    /// Serve with these settings.
    Serve(Box<Wanted>),
}

/// The program.
pub fn definition() -> Command {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    PAGE.command("").version(env!("CARGO_PKG_VERSION")).args([
        option("socket-path", "PATH").help("the socket of the virtual machine monitor"),
        option("blk-file", "PATH").help("the file or block device, or a device of blkmqd (memory,size=64)"),
        Arg::new("read-only")
            .long("read-only")
            .action(ArgAction::SetTrue)
            .help("the guest may not write"),
        option("num-queues", "N").help("queues that the guest may use, 1 to 64 (default: 4)"),
        option("guest-ioprio", "USE").value_parser(|text: &str| text.parse::<GuestIoprio>()).help(
            "the use of the guest's priorities: off (default), clamp (none above best-effort), or trust",
        ),
        option("scheduler", "NAME[:KEY=VALUE,...]")
            .value_parser(wanted::scheduler)
            .help("the scheduler (default: as Linux)"),
        option("log", "LEVEL")
            .value_parser(wanted::level)
            .help("error, warn, info or debug, on standard error (default: info)"),
        Arg::new("print-capabilities")
            .long("print-capabilities")
            .action(ArgAction::SetTrue)
            .help("say what this program can do, as JSON, and end"),
    ])
}

impl Machine {
    /// Converts the arguments that clap has parsed.
    ///
    /// # Errors
    /// If a path is missing, or the device is unknown.
    pub fn of(found: &ArgMatches) -> Result<Self, UsageError> {
        if found.get_flag("print-capabilities") {
            return Ok(Self::Capabilities);
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
            machine.queues = queues
                .ok_or_else(|| UsageError::new(format!("--num-queues: '{text}'; {accepted}")))?;
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
        Ok(Self::Serve(Box::new(Wanted {
            disks: vec![disk],
            exports: vec![export],
            listen: Listen::Nowhere,
            workers: 1,
            control: Control::None,
            http: None,
            log: found.get_one("log").copied().unwrap_or(LevelFilter::INFO),
            log_format: super::process::LogFormat::default(),
            bounds: Bounds::default(),
            tls: None,
            allow: None,
            rights: Rights::default(),
            counting: Counting::default(),
            slow: blkmq_core::Nanos::ZERO,
        })))
    }

    /// The answer to `--print-capabilities`.
    pub fn capabilities() -> &'static str {
        CAPABILITIES
    }
}

/// Returns whether the command-line arguments select this mode.
pub fn is_asked(words: &[String]) -> bool {
    words.first().is_some_and(|word| word == WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(line: &str) -> Result<Machine, String> {
        let words = [WORD].into_iter().chain(line.split_whitespace());
        let found = definition().try_get_matches_from(words).map_err(|e| e.to_string())?;
        Machine::of(&found).map_err(|e| e.to_string())
    }

    fn wanted(line: &str) -> Wanted {
        match machine(line) {
            Ok(Machine::Serve(wanted)) => *wanted,
            _ => panic!("{line} serves"),
        }
    }

    #[test]
    fn a_file_is_served_by_the_options_of_such_programs() {
        let wanted = wanted("--socket-path=/run/a --blk-file=/data/x.img --read-only");
        assert_eq!(wanted.disks[0].device, "uring:/data/x.img,readonly=1");
        let export = &wanted.exports[0];
        assert!(export.read_only && wanted.listen == Listen::Nowhere);
        assert_eq!(export.vhost_user, Some(VhostUser::new("/run/a".into())));
    }

    #[test]
    fn a_device_is_served_as_it_is() {
        let wanted = wanted("--socket-path=/a --blk-file=memory,size=4 --num-queues=2");
        assert_eq!(wanted.disks[0].device, "memory,size=4");
        assert_eq!(wanted.exports[0].vhost_user.as_ref().map(|it| it.queues), Some(2));
    }

    #[test]
    fn capabilities_are_those_of_the_convention() {
        assert!(matches!(machine("--print-capabilities"), Ok(Machine::Capabilities)));
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
