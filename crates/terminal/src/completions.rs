//! The command `completions`: scripts by which shells complete commands and options.

use crate::page::Page;
use clap::builder::EnumValueParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

/// Defines the command.
#[must_use]
pub fn definition(examples: &'static [&'static str]) -> Command {
    let page = Page {
        name: "completions",
        summary: "print a script by which a shell completes commands and options",
        description: "",
        examples,
    };
    let shell = Arg::new("shell").value_name("SHELL").required(true);
    let shell = shell.value_parser(EnumValueParser::<Shell>::new());
    page.command("").arg(shell.help("the shell that is to read the script"))
}

/// The script for `program`, which is the complete definition.
pub fn script(found: &ArgMatches, program: Command) -> String {
    let shell = *found.get_one::<Shell>("shell").expect("clap refuses a line without it");
    let name = program.get_name().to_owned();
    let mut program = program.mut_subcommands(|command| command.mut_args(without_colons));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    String::from_utf8(script).expect("scripts are text")
}

/// Gives `arg` a value name that zsh understands: colons separate the parts of zsh's descriptions, and the generator
/// does not escape them.
fn without_colons(arg: Arg) -> Arg {
    let has_colon =
        arg.get_value_names().is_some_and(|names| names.iter().any(|it| it.contains(':')));
    if has_colon { arg.value_name("VALUE") } else { arg }
}
