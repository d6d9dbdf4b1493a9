//! The program `blkmqctl`: the definition of its commands, and their dispatch.
//!
//! [`ctl`] sends most commands to a server as requests; [`top`] watches a server. The commands `completions` and `man`
//! cover `blkmqd`, too.

use crate::error::Failure;
use crate::{ctl, serve, top};
use blkmq_terminal::output::{print, reaches};
use blkmq_terminal::{completions, man, program};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};

/// The examples of `completions`.
const COMPLETIONS: &[&str] = &[
    "blkmqctl completions bash > ~/.local/share/bash-completion/completions/blkmqctl",
    "blkmqctl completions bash blkmqd > ~/.local/share/bash-completion/completions/blkmqd",
    "blkmqctl completions zsh > ~/.zfunc/_blkmqctl",
    "blkmqctl completions fish > ~/.config/fish/completions/blkmqctl.fish",
];

/// The examples of `man`.
const MAN: &[&str] = &[
    "blkmqctl man | man -l -",
    "blkmqctl man blkmqd | man -l -",
    "blkmqctl man --dir=/usr/local/share/man/man1",
];

/// The argument that selects the program for a text.
fn program() -> Arg {
    let names = PossibleValuesParser::new([ctl::args::PROGRAM, serve::args::PROGRAM]);
    let arg = Arg::new("program").value_name("PROGRAM").value_parser(names);
    arg.default_value(ctl::args::PROGRAM).help("the program")
}

/// Defines all commands and their options.
fn definition() -> Command {
    let completions = completions::definition(COMPLETIONS).arg(program());
    let man = man::definition("blkmqd.1, blkmqctl.1", MAN).arg(program());
    ctl::args::definition().subcommands([top::args::definition(), completions, man])
}

/// The definitions of both programs, the selected one first.
fn programs(found: &ArgMatches) -> Vec<Command> {
    let mut all = vec![definition(), serve::args::definition()];
    let named = found.get_one::<String>("program");
    if named.is_some_and(|name| name == serve::args::PROGRAM) {
        all.reverse();
    }
    all
}

/// Runs the command given by the command-line arguments.
///
/// # Errors
/// If the arguments cannot be understood, or the work fails.
pub fn run(words: &[String]) -> Result<(), Failure> {
    let Some(found) = program::understood::<Failure>(&definition, words)? else { return Ok(()) };
    match found.subcommand() {
        Some(("top", of)) => top::run(&top::args::Wanted::of(of)),
        Some(("completions", of)) => {
            let named = programs(of).swap_remove(0);
            Ok(print(&completions::script(of, named))?)
        }
        Some(("man", of)) => Ok(print(&man::run(of, programs(of))?)?),
        _ => ctl::run(&ctl::args::Wanted::of(&found), |text| Ok(reaches(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use clap_complete::Shell;

    /// The text that a command prints.
    fn made(words: &[&str]) -> String {
        let words = [ctl::args::PROGRAM].iter().chain(words);
        let found = definition().try_get_matches_from(words).expect("a line of words");
        match found.subcommand().expect("a command") {
            ("completions", of) => completions::script(of, programs(of).swap_remove(0)),
            ("man", of) => man::run(of, programs(of)).expect("no file is written"),
            (other, _) => panic!("{other}: prints no text of this kind"),
        }
    }

    #[test]
    fn the_definitions_are_consistent() {
        definition().debug_assert();
        serve::args::definition().debug_assert();
    }

    #[test]
    fn every_shell_completes_the_commands_and_options_of_both_programs() {
        for shell in Shell::value_variants() {
            let shell = shell.to_string();
            let script = made(&["completions", &shell]);
            for command in definition().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            let script = made(&["completions", &shell, "blkmqd"]);
            for option in serve::args::definition().get_arguments() {
                let long = option.get_long().unwrap_or_default();
                assert!(script.contains(long), "{shell}: {long}");
            }
        }
    }

    #[test]
    fn the_manual_has_a_page_for_both_programs_and_each_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = format!("--dir={}", folder.path().display());
        assert_eq!(made(&["man", &dir]), "");
        let page = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(format!("{name}.1")));
            text.unwrap_or_else(|error| panic!("{name}: {error}")).replace(r"\-", "-")
        };
        for command in definition().get_subcommands() {
            let name = format!("blkmqctl-{}", command.get_name());
            assert!(page(&name).contains(&format!("\n.TH {name} 1 ")), "{name}");
        }
        let (server, client) = (page("blkmqd"), page("blkmqctl"));
        assert!(server.contains("--tls-certificates") && server.contains("\n.SS Examples\n"));
        assert!(client.contains("\n.SS Examples\n.nf\n  blkmqctl list"), "{client}");
        assert_eq!(made(&["man", "blkmqd"]).replace(r"\-", "-"), server);
        assert_eq!(made(&["man"]).replace(r"\-", "-"), client);
    }
}
