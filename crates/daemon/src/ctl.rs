//! The program `blkmqctl`: the definition of its commands, their dispatch, and answers as text.
//!
//! Most commands are sent to a running server as requests, which query and change it; [`top`] watches a server. The
//! commands `completions` and `man` cover `blkmqd`, too.

pub mod args;
mod recording;
pub mod stat;

use crate::top::rates::promised;
use crate::{Failure, serve, top};
use args::{Asked, Intervals, KernelForm, Wanted};
use blkmq_engine::{IoMax, Promise};
use blkmq_server::control::{
    Answer, ClientState, DeviceState, ExportState, Request, Saved, Stat, Waits, call,
};
use blkmq_terminal::output::{self, print, reaches};
use blkmq_terminal::paper::{Align, Paper, TextTable, push_line};
use blkmq_terminal::{completions, man, program};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;
use stat::{Choice, between};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

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
    let names = PossibleValuesParser::new([args::PROGRAM, serve::args::PROGRAM]);
    let arg = Arg::new("program").value_name("PROGRAM").value_parser(names);
    arg.default_value(args::PROGRAM).help("the program")
}

/// Defines all commands and their options.
fn definition() -> Command {
    let completions = completions::definition(COMPLETIONS).arg(program());
    let man = man::definition("blkmqd.1, blkmqctl.1", MAN).arg(program());
    args::definition().subcommands([top::definition(), completions, man])
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
        Some(("top", of)) => top::run(&top::Wanted::of(of)),
        Some(("completions", of)) => {
            let named = programs(of).swap_remove(0);
            Ok(print(&completions::script(of, named))?)
        }
        Some(("man", of)) => Ok(print(&man::run(of, programs(of))?)?),
        _ => query(&Wanted::of(&found), |text| Ok(reaches(text)?)),
    }
}

/// Sends the request and shows the answer. Continuous output ends when `say` returns false, because its reader has
/// gone.
///
/// # Errors
/// If no server answers, or it refuses.
fn query(wanted: &Wanted, say: impl Fn(&str) -> Result<bool, Failure>) -> Result<(), Failure> {
    match &wanted.asked {
        Asked::One(request) => say(&tabled(wanted, &ask(wanted, request)?, answer_text)).map(drop),
        Asked::Save { output } => save(wanted, output.as_deref(), say),
        Asked::Kernel(form) => say(&in_kernel_form(wanted, *form)?).map(drop),
        Asked::Biolatency(intervals, choice) => {
            let shown = |before: &_, now: &_| biolatency(wanted, *choice, before, now);
            each_interval(*intervals, || counts(wanted), shown, say)
        }
        Asked::Recording(recorded) => recording::run(&wanted.socket, recorded, wanted.json, say),
        Asked::Stat(intervals) => {
            let shown = |before: &_, now: &_| tabled(wanted, &between(before, now), stat::text);
            each_interval(*intervals, || counts(wanted), shown, say)
        }
        Asked::Waits(intervals) => {
            let shown = |before: &_, now: &_| {
                tabled(wanted, &stat::waited_between(before, now), stat::waits_text)
            };
            each_interval(*intervals, || waits(wanted), shown, say)
        }
    }
}

fn ask(wanted: &Wanted, request: &Request) -> Result<Answer, Failure> {
    let answer = call(&wanted.socket, request);
    match answer.map_err(|e| Failure::Server(format!("{}: {e}", wanted.socket.display())))? {
        Answer::Refused(why) => Err(Failure::Server(why)),
        answer => Ok(answer),
    }
}

/// Rewrites the server's file. The replacement is atomic: readers see the old or the new text, also after a crash.
fn save(
    wanted: &Wanted,
    output: Option<&str>,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let Answer::Saved(saved) = ask(wanted, &Request::Save)? else {
        return Err(Failure::Server("the server is of another version".to_owned()));
    };
    let Some(Saved { path, text }) = saved else { return say("nothing differs\n").map(drop) };
    if output == Some("-") {
        return say(&text).map(drop);
    }
    let path = output.map_or(path, PathBuf::from);
    let failed = |e: io::Error| Failure::Server(format!("{}: {e}", path.display()));
    replace(&path, &text).map_err(failed)?;
    say(&format!("{}: written\n", path.display())).map(drop)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = File::create(&beside)?;
    let mut written = || {
        if let Ok(old) = path.metadata() {
            file.set_permissions(old.permissions())?;
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    written().inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

/// The present counts.
fn counts(wanted: &Wanted) -> Result<Stat, Failure> {
    match ask(wanted, &Request::Stat)? {
        Answer::Stat(stat) => Ok(stat),
        other => Err(Failure::Server(format!("the server is of another version: {other:?}"))),
    }
}

/// A line for each device, or its fields as JSON.
fn in_kernel_form(wanted: &Wanted, form: KernelForm) -> Result<String, Failure> {
    let devices = counts(wanted)?.devices;
    if wanted.json {
        let fields = devices.iter().map(|device| match form {
            KernelForm::Stat | KernelForm::Diskstats => stat::fields(device).to_vec(),
            KernelForm::Inflight => device.in_flight.to_vec(),
        });
        return Ok(json_line(&fields.collect::<Vec<_>>()));
    }
    let lines = (1..).zip(&devices).map(|(number, device)| match form {
        KernelForm::Stat => stat::sysfs_stat(device),
        KernelForm::Diskstats => stat::diskstats(number, device),
        KernelForm::Inflight => stat::inflight(device),
    });
    Ok(lines.collect())
}

/// Returns which export has waited behind which so far.
fn waits(wanted: &Wanted) -> Result<Waits, Failure> {
    match ask(wanted, &Request::Waits)? {
        Answer::Waits(waits) => Ok(waits),
        other => Err(Failure::Server(format!("the server is of another version: {other:?}"))),
    }
}

/// Shows the difference between the counts at the ends of each interval.
fn each_interval<T>(
    Intervals { every, count }: Intervals,
    counts: impl Fn() -> Result<T, Failure>,
    shown: impl Fn(&T, &T) -> String,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut before = counts()?;
    for _ in 0..count {
        std::thread::park_timeout(every);
        let now = counts()?;
        if !say(&shown(&before, &now))? {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Histograms of devices.
fn biolatency(wanted: &Wanted, choice: Choice, before: &Stat, now: &Stat) -> String {
    let pairs = before.devices.iter().zip(&now.devices);
    let all: Vec<_> = pairs
        .flat_map(|(old, new)| stat::histograms(&new.name, &old.stages, &new.stages, choice))
        .collect();
    if wanted.json { json_line(&all) } else { stat::histograms_text(&all) }
}

/// Shows figures as a table or as JSON.
fn tabled<T: Serialize>(wanted: &Wanted, figures: &T, text: fn(&T, usize) -> String) -> String {
    if wanted.json {
        json_line(figures)
    } else {
        output::shown(&text(figures, output::width())).into_owned()
    }
}

/// Formats an answer as one line of JSON.
fn json_line(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("answers have a form in JSON") + "\n"
}

/// Formats an answer as text, with tables of at most `width` columns.
fn answer_text(answer: &Answer, width: usize) -> String {
    match answer {
        Answer::List { devices, exports } => list(devices, exports, width),
        Answer::Clients(all) => clients(all, width),
        Answer::Disconnecting(numbers) if numbers.is_empty() => "no client ends\n".to_owned(),
        Answer::Disconnecting(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            format!("ending once their requests are answered: {}\n", numbers.join(", "))
        }
        Answer::Attributes(all) => match &all[..] {
            [(_, value)] => format!("{value}\n"),
            all => all.iter().map(|(path, value)| format!("{path}={value}\n")).collect(),
        },
        Answer::Done(ns) => format!("in force after {:.1} ms\n", *ns as f64 / 1e6),
        Answer::Reloaded(lines) if lines.is_empty() => "nothing has changed\n".to_owned(),
        Answer::Differences(lines) if lines.is_empty() => "nothing differs\n".to_owned(),
        Answer::Reloaded(lines) | Answer::Differences(lines) => {
            lines.iter().map(|line| format!("{line}\n")).collect()
        }
        Answer::Saved(saved) => saved.as_ref().map_or_else(String::new, |saved| saved.text.clone()),
        Answer::Draining => "the server ends when the requests in flight are answered\n".to_owned(),
        Answer::Refused(why) => format!("{why}\n"),
        Answer::Recording => unreachable!("recordings are asked for on connections of their own"),
        Answer::Stat(_) | Answer::Waits(_) => unreachable!("counts are shown as rates"),
    }
}

/// Lists devices, each followed by its exports.
fn list(devices: &[DeviceState], exports: &[ExportState], width: usize) -> String {
    let mut disks = table("device,bytes>,scheduler,description");
    for (number, disk) in (1..).zip(devices) {
        let cells = [format!("{number}"), disk.bytes.to_string()];
        disks.row(&[&cells[..], &[disk.scheduler.clone(), disk.name.clone()]].concat());
    }
    // The column is shown only if needed: few servers have block devices.
    let has_ublk = exports.iter().any(|export| export.ublk.is_some());
    let columns =
        "export,device>,offset>,bytes>,access,weight>,class,cache,connections>,limits,promise";
    let mut list = table(&format!("{columns}{}", if has_ublk { ",ublk" } else { "" }));
    for export in exports {
        let access = if export.read_only { "read-only" } else { "read-write" };
        let mut cells = vec![
            export.name.clone(),
            export.device.to_string(),
            export.offset.to_string(),
            export.bytes.to_string(),
            access.to_owned(),
            export.weight.to_string(),
            export.class.clone(),
            export.cache.clone(),
            export.connections.to_string(),
            set(&export.max),
            set(&export.promise),
        ];
        if has_ublk {
            cells.push(export.ublk.map_or_else(String::new, |ublk| format!("/dev/ublkb{ublk}")));
        }
        list.row(&cells);
    }
    let mut paper = Paper::new(width);
    for export in exports {
        let parts = promised(&export.goals, &export.floor);
        if !parts.is_empty() {
            push_line(&mut paper, 0, &format!("{}: {}", export.name, parts.join("; ")));
        }
    }
    let said = paper.finish();
    let gap = if said.is_empty() { "" } else { "\n" };
    format!("{}\n{}{gap}{said}", disks.render_within(width), list.render_within(width))
}

fn clients(all: &[ClientState], width: usize) -> String {
    let mut list = table(
        "client>,export,identity,peer,age s>,in flight>,requests>,bytes read>,bytes written>",
    );
    for client in all {
        list.row(&[
            client.number.to_string(),
            client.export.clone(),
            client.identity.clone(),
            client.peer.clone(),
            client.seconds.to_string(),
            client.in_flight.to_string(),
            client.requests.to_string(),
            client.read_bytes.to_string(),
            client.written_bytes.to_string(),
        ]);
    }
    list.render_within(width)
}

/// Keeps only the limits and promises that differ from the defaults, such as `reserve_iops=200` in
/// `rbps=max reserve_iops=200`. Returns a dash if there are none.
fn set(words: &str) -> String {
    let defaults = format!("{} {}", IoMax::default(), Promise::default());
    let is_set = |word: &&str| !defaults.split_whitespace().any(|default| default == *word);
    let set = Vec::from_iter(words.split_whitespace().filter(is_set)).join(" ");
    if set.is_empty() { "-".to_owned() } else { set }
}

/// Creates a table with these columns; `>` is behind the names of those that contain figures.
fn table(columns: &str) -> TextTable {
    let column = |name: &str| match name.strip_suffix('>') {
        Some(name) => (name.to_owned(), Align::Right),
        None => (name.to_owned(), Align::Left),
    };
    TextTable::new(columns.split(',').map(column).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_server::control::FloorStat;
    use clap::ValueEnum;
    use clap_complete::Shell;

    /// The text that a command prints.
    fn made(words: &[&str]) -> String {
        let words = [args::PROGRAM].iter().chain(words);
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

    /// Unset limits take no room, so that set limits can be read in 80 columns.
    #[test]
    fn a_list_names_limits_and_promises_at_any_width() {
        let (max, promise) =
            ("rbps=10485760 wbps=max riops=500 wiops=max", "reserve_iops=100 p99_read=20ms");
        let export = |name: &str, max: &str, promise: &str| ExportState {
            name: name.into(),
            device: 1,
            offset: 1 << 40,
            bytes: 1 << 40,
            read_only: false,
            weight: 300,
            max: max.into(),
            promise: Promise::default().set(promise).expect("a promise").to_string(),
            connections: 12,
            class: "be".into(),
            cache: "writethrough".into(),
            goals: Vec::new(),
            floor: FloorStat::default(),
            ublk: None,
        };
        let exports = vec![export("gold", max, promise), export("rest", "rbps=max", "")];
        let list = answer_text(&Answer::List { devices: Vec::new(), exports }, 80);
        assert!(list.lines().all(|line| line.len() <= 80), "{list}");
        for whole in ["read-write", "writethrough", "rbps=10485760 riops=500", promise] {
            assert!(list.contains(whole), "{whole}:\n{list}");
        }
        for part in ["...", "=max", "=0", "goal_takes_at_most"] {
            assert!(!list.contains(part), "{part}:\n{list}");
        }
    }
}
