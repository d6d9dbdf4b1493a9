//! Tests of the whole definition: every generated text contains every command and every option.

use super::*;
use crate::args::options::{self, Meaning, Opt};
use clap::ValueEnum;
use clap_complete::Shell;

/// The text that the program prints for these words.
fn made(words: &[&str]) -> String {
    let words = [PROGRAM].iter().chain(words);
    let found = definition().try_get_matches_from(words).expect("a line of words");
    match found.subcommand().expect("a command") {
        ("completions", found) => completions::script(found, definition()),
        ("man", found) => man::run(found, vec![definition()]).expect("no file is written"),
        (other, _) => panic!("{other}: prints no text of this kind"),
    }
}

/// Returns whether `text` contains `word`, not only as the beginning of a longer word.
fn has_word(text: &str, word: &str) -> bool {
    let goes_on = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    text.match_indices(word).any(|(at, _)| !text[at + word.len()..].starts_with(goes_on))
}

fn is_refused(option: &Opt) -> bool {
    matches!(option.meaning, Meaning::Unsupported(_))
}

#[test]
fn the_definition_is_consistent() {
    definition().debug_assert();
}

#[test]
fn every_shell_completes_every_command_and_every_option_that_is_accepted() {
    for shell in Shell::value_variants() {
        let script = made(&["completions", &shell.to_string()]);
        for command in definition().get_subcommands() {
            assert!(has_word(&script, command.get_name()), "{shell}: {}", command.get_name());
        }
        for option in options::all() {
            for name in [&option.name].into_iter().chain(option.aliases) {
                if is_elsewhere(name) {
                    continue;
                }
                let spelled = match shell {
                    Shell::Fish => format!(" -l {name}"),
                    _ => format!("--{name}"),
                };
                assert_eq!(has_word(&script, &spelled), !is_refused(option), "{shell}: {name}");
            }
        }
    }
}

/// Returns whether a command outside of fio's grammar has an option of this name. If so, a script contains it, whatever
/// fio's option means.
fn is_elsewhere(name: &str) -> bool {
    let definition = definition();
    let others =
        definition.get_subcommands().filter(|it| !["bench", "sim"].contains(&it.get_name()));
    others.into_iter().any(|it| it.get_arguments().any(|arg| arg.get_long() == Some(name)))
}

/// zsh splits a description at its colons, and clap_complete does not escape those in a value's name.
#[test]
fn no_name_of_a_value_has_a_colon_in_a_script() {
    let script = made(&["completions", "zsh"]);
    assert!(
        script.contains(
            "[schedulers to compare, auto (as the groups ask for), or all (default)]:VALUE:"
        ),
        "{script}"
    );
    assert!(!script.contains(":KEY="), "{script}");
}

#[test]
fn the_manual_has_a_page_for_each_command_with_every_option_of_the_table() {
    let pages = man::pages(definition());
    let files = Vec::from_iter(pages.iter().map(|page| page.file.as_str()));
    let expected = [
        "",
        "-bench",
        "-sim",
        "-replay",
        "-trace",
        "-experiment",
        "-repro",
        "-doc",
        "-completions",
        "-man",
    ];
    assert_eq!(files, expected.map(|name| format!("blkmq{name}.1")));
    for page in &pages {
        let text = page.text.replace(r"\-", "-");
        assert!(text.contains(&format!("\n.TH {} 1 ", page.file.trim_end_matches(".1"))), "{text}");
        assert!(text.contains("\n.SS Examples\n.nf\n  blkmq "), "{text}");
        if !matches!(page.file.as_str(), "blkmq-bench.1" | "blkmq-sim.1") {
            continue;
        }
        for option in options::all() {
            let spelled = match option.meaning {
                Meaning::NoOp(_) | Meaning::Unsupported(_) => format!(" {}", option.name),
                _ => format!("--{}", option.name),
            };
            let is_missing = page.file == "blkmq-bench.1" && option.name == "seed";
            assert_eq!(has_word(&text, &spelled), !is_missing, "{}: {spelled}", page.file);
            for alias in option.aliases.iter().filter(|_| option.group != options::Group::Foreign) {
                assert!(has_word(&text, alias), "{}: {alias}", page.file);
            }
        }
    }
    assert_eq!(made(&["man"]), pages[0].text);
}

#[test]
fn commands_of_the_server_name_their_program() {
    for (line, program) in [
        ("serve --device=null", "blkmqd serves"),
        ("ctl list", "blkmqctl looks"),
        ("help top", "blkmqctl top watches"),
    ] {
        let words = Vec::from_iter(line.split(' ').map(String::from));
        let refused = run(&words).expect_err(line);
        assert!(matches!(refused, Failure::Usage(_)), "{line}: {refused:?}");
        let text = refused.to_string();
        assert!(text.contains(program) && text.contains("blkmq-daemon"), "{line}: {text}");
    }
}
