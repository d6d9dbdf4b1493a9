//! The commands: a single definition of all of them, and their dispatch.
//!
//! The definition is clap's. Help, completions, manual pages and most error messages are generated from it, and clap
//! parses the command line with it, with one exception: the words after `bench` and `sim` follow fio's grammar, which
//! [`args`](crate::args) parses (decision 14).

use crate::args::{self, Request, quote};
use crate::error::Failure;
use crate::plan::Time;
use crate::{bench, doc, dry_run, experiment, replay, repro, tour, trace};
use blkmq_terminal::output::{print, print_results};
use blkmq_terminal::page::Page;
use blkmq_terminal::screen::{shown, width};
use blkmq_terminal::{UsageError, completions, man, program};
use clap::{ArgMatches, Command};

/// The program name, whatever the executable is called.
const PROGRAM: &str = "blkmq";

const PAGE: Page = Page {
    name: PROGRAM,
    summary: "A multi-queue block layer for user space: compare I/O schedulers",
    description: "",
    examples: &[
        "blkmq bench                 what schedulers cost, and what for, in 20 seconds",
        "blkmq help bench            the options of a command",
        "blkmq doc mq-deadline       the page of a scheduler",
    ],
};

/// The default time of `blkmq sim`.
const SIM: Time = Time::Virtual { seed: 0 };

/// A command that clap reads.
struct Fixed {
    definition: fn() -> Command,
    /// Runs the command with the words after its name.
    run: fn(&ArgMatches, &[String]) -> Result<(), Failure>,
}

const FIXED: &[Fixed] = &[
    Fixed { definition: replay::args::definition, run: replay },
    Fixed { definition: trace::args::definition, run: |found, _| trace::run(found) },
    Fixed { definition: experiment::args::definition, run: |found, _| experiment::run(found) },
    Fixed { definition: repro::args::definition, run: repro },
    Fixed { definition: doc::definition, run: |found, _| Ok(print(&shown(&doc::run(found)))?) },
    Fixed {
        definition: || completions::definition(COMPLETIONS),
        run: |found, _| Ok(print(&completions::script(found, definition()))?),
    },
    Fixed {
        definition: || man::definition("blkmq.1, blkmq-bench.1", MAN),
        run: |found, _| Ok(print(&man::run(found, vec![definition()])?)?),
    },
];

/// Words that are not commands of `blkmq`, and the programs that have them.
const ELSEWHERE: &[(&str, &str)] = &[
    ("serve", "blkmqd serves devices"),
    ("ctl", "blkmqctl looks at a running server and changes it"),
    ("top", "blkmqctl top watches a running server"),
];

/// The examples of `completions`.
const COMPLETIONS: &[&str] = &[
    "blkmq completions bash > ~/.local/share/bash-completion/completions/blkmq",
    "blkmq completions zsh > ~/.zfunc/_blkmq",
    "blkmq completions fish > ~/.config/fish/completions/blkmq.fish",
];

/// The examples of `man`.
const MAN: &[&str] = &["blkmq man | man -l -", "blkmq man --dir=/usr/local/share/man/man1"];

/// Defines all commands and their options.
fn definition() -> Command {
    PAGE.command("")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommands([Time::Real, SIM].map(args::definition))
        .subcommands(FIXED.iter().map(|command| (command.definition)()))
}

/// Runs the command given by the command-line arguments.
///
/// # Errors
/// If they cannot be understood, or the work fails.
pub fn run(words: &[String]) -> Result<(), Failure> {
    let first = words.first().map(String::as_str);
    match [Time::Real, SIM].into_iter().find(|time| first == Some(time.command())) {
        Some(time) => runs(&words[1..], time),
        None => fixed(words),
    }
}

/// The commands `bench` and `sim`.
fn runs(words: &[String], time: Time) -> Result<(), Failure> {
    match args::parse(words, time)? {
        Request::Help => fixed(&["help", time.command()].map(String::from)),
        Request::Command(text) => Ok(print(&text)?),
        Request::Plan(mut plan) => {
            plan.bound();
            plan.add_page();
            if plan.dry_run {
                Ok(print(&shown(&dry_run::render(&plan, width())))?)
            } else if plan.default_matrix {
                tour::run(&plan)
            } else {
                bench::run(&plan)
            }
        }
    }
}

/// Runs all other commands, and help or the version, which may be requested instead of a command.
fn fixed(words: &[String]) -> Result<(), Failure> {
    let asked = words.iter().find(|word| *word != "help");
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| asked.is_some_and(|asked| asked == name));
    if let Some((name, program)) = elsewhere {
        let text = format!("{name}: no command of blkmq: {program}, of the package blkmq-daemon");
        return Err(UsageError::new(text).into());
    }
    let Some(found) = program::understood::<Failure>(&definition, words)? else { return Ok(()) };
    let (name, found) = found.subcommand().expect("clap refuses a line without a command");
    let named = |command: &&Fixed| (command.definition)().get_name() == name;
    let command = FIXED.iter().find(named).expect("clap knows these, and those of fio's grammar");
    (command.run)(found, &words[1..])
}

/// Prints the result before it reports an error.
fn replay(found: &ArgMatches, words: &[String]) -> Result<(), Failure> {
    let Some(wanted) = replay::args::Wanted::of(found)? else {
        return replay::recorded::run(found, words);
    };
    let (text, verdict) = replay::run(wanted, width())?;
    print(&shown(&text))?;
    verdict
}

fn repro(found: &ArgMatches, words: &[String]) -> Result<(), Failure> {
    let wanted = repro::args::Wanted::of(found);
    let (text, verdict) = repro::run(&wanted, quote("repro", words))?;
    print_results(&text)?;
    verdict
}

#[cfg(test)]
mod tests;
