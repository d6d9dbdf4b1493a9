//! The subcommands, in one table from which help, dispatch and error messages come.

use crate::args::{self, Request};
use crate::error::{Failure, UsageError};
use crate::plan::Time;
use crate::{bench, doc, dry_run, replay, repro};
use std::io::{ErrorKind, Write};

/// A subcommand.
struct Command {
    name: &'static str,
    usage: &'static str,
    summary: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
    help: fn() -> String,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "bench",
        usage: "bench [OPTION]... [JOB FILE]...",
        summary: "run fio's workloads against several schedulers and compare them",
        run: |args| runs(args, Time::Real),
        help: || args::help(Time::Real),
    },
    Command {
        name: "sim",
        usage: "sim [OPTION]... [JOB FILE]...",
        summary: "the same in virtual time, repeatable bit for bit from a seed",
        run: |args| runs(args, SIM),
        help: || args::help(SIM),
    },
    Command {
        name: "replay",
        usage: "replay FILE [--scheduler=NAME] [...]",
        summary: "play an elevator log back, to the same scheduler or to another one",
        run: replay,
        help: replay::help,
    },
    Command {
        name: "repro",
        usage: "repro [NAME]... [OPTION]...",
        summary: "measure again what was published about the kernel's schedulers: before, as proposed, ours",
        run: repro,
        help: || repro::args::HELP.into(),
    },
    Command {
        name: "doc",
        usage: "doc [NAME]",
        summary: "print the page of a scheduler or device, or the table of attributes; without a name, list them",
        run: doc,
        help: doc::list,
    },
    Command {
        name: "help",
        usage: "help [COMMAND]",
        summary: "say what a command does and accepts",
        run: help,
        help: overview,
    },
];

/// Runs the subcommand that `args` begins with.
pub fn run(args: &[String]) -> Result<(), Failure> {
    match args.first().map(String::as_str) {
        None => Err(UsageError::new(format!("no command; accepted: {}", names())).into()),
        Some("-h" | "--help") => print(&overview()),
        Some("-V" | "--version") => print(concat!("blkmq ", env!("CARGO_PKG_VERSION"), "\n")),
        Some(name) => {
            let command = find(name)?;
            match args.get(1).map(String::as_str) {
                Some("-h" | "--help") => print(&(command.help)()),
                _ => (command.run)(&args[1..]),
            }
        }
    }
}

fn find(name: &str) -> Result<&'static Command, UsageError> {
    let unknown = || UsageError::new(format!("{name}: no such command; accepted: {}", names()));
    COMMANDS.iter().find(|command| command.name == name).ok_or_else(unknown)
}

fn names() -> String {
    Vec::from_iter(COMMANDS.iter().map(|command| command.name)).join(", ")
}

fn overview() -> String {
    let mut text = String::from("blkmq: a multi-queue block layer for user space\n\n");
    for Command { usage, summary, .. } in COMMANDS {
        text.push_str(&format!("  blkmq {usage:<32}  {summary}\n"));
    }
    text.push_str("\n  blkmq bench                             compare every scheduler, in well under a minute\n");
    text
}

/// The time of `blkmq sim` before a seed is given.
const SIM: Time = Time::Virtual { seed: 0 };

/// The subcommands `bench` and `sim`.
fn runs(args: &[String], time: Time) -> Result<(), Failure> {
    match args::parse(args, time)? {
        Request::Help => print(&args::help(time)),
        Request::Plan(plan) if plan.dry_run => print(&dry_run::render(&plan)),
        Request::Plan(plan) => bench::run(&plan),
    }
}

/// Prints the result before it reports an error.
fn replay(args: &[String]) -> Result<(), Failure> {
    let (text, verdict) = replay::run(args)?;
    print(&text)?;
    verdict
}

fn repro(args: &[String]) -> Result<(), Failure> {
    match repro::args::parse(args)? {
        repro::args::Request::Help => print(repro::args::HELP),
        repro::args::Request::Run(wanted) => {
            let command = format!("blkmq repro {}", args.join(" "));
            print(&repro::run(&wanted, command.trim_end().into())?)
        }
    }
}

fn doc(args: &[String]) -> Result<(), Failure> {
    match args {
        [] => print(&doc::list()),
        [name] => print(&doc::page(name)?),
        [_, more, ..] => Err(surplus("doc", more).into()),
    }
}

fn help(args: &[String]) -> Result<(), Failure> {
    match args {
        [] => print(&overview()),
        [name] => print(&(find(name)?.help)()),
        [_, more, ..] => Err(surplus("help", more).into()),
    }
}

fn surplus(command: &str, arg: &str) -> UsageError {
    UsageError::new(format!("{arg}: one argument too many; accepted: blkmq {command} [NAME]"))
}

/// Writes to standard output. A reader that has closed the pipe is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::Output(e)),
        _ => Ok(()),
    }
}
