//! The commands: a single definition of all of them, and their dispatch; and `--dry-run`, which describes the plan of
//! `blkmq bench` or `blkmq sim`, so that a long run can be checked before it is started.
//!
//! The definition is clap's. Help, completions, manual pages and most error messages are generated from it, and clap
//! parses the command line with it, with one exception: the words after `bench` and `sim` follow fio's grammar, which
//! [`args`] parses (decision 14).
//!
//! `blkmq doc` shows the pages of schedulers and devices, and the table of attributes, laid out for a terminal.
//! Paragraphs and list items are wrapped, and rows of tables that are too wide become list items. Marks such as
//! backticks are kept.

use crate::args::{self, Request};
use crate::plan::{Choice, Plan, Time, job_file, quote, time};
use crate::{Failure, bench, devices, experiment, replay, repro, tour, trace};
use blkmq_core::Nanos;
use blkmq_engine::{AUTO, PolicyChoice, attributes};
use blkmq_sched::registry as schedulers;
use blkmq_terminal::output::{self, print, print_results, shown, width};
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Align, Paper, TextTable, paragraph, push_command, push_line};
use blkmq_terminal::{UsageError, completions, man, program};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use std::borrow::Cow;
use unicode_width::UnicodeWidthStr;

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
    Fixed { definition: replay::definition, run: replay },
    Fixed { definition: trace::definition, run: |found, _| trace::run(found) },
    Fixed { definition: experiment::definition, run: |found, _| experiment::run(found) },
    Fixed { definition: repro::definition, run: repro },
    Fixed { definition: doc_definition, run: |found, _| Ok(print(&shown(&doc(found)))?) },
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
                Ok(print(&shown(&dry_run(&plan, width())))?)
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
    let Some(wanted) = replay::Wanted::of(found)? else {
        return replay::run_trace(found, words);
    };
    let (text, verdict) = replay::run(wanted, width())?;
    print(&shown(&text))?;
    verdict
}

fn repro(found: &ArgMatches, words: &[String]) -> Result<(), Failure> {
    let wanted = repro::Wanted::of(found);
    let (text, verdict) = repro::run(&wanted, quote("repro", words))?;
    print_results(&text)?;
    verdict
}

/// The plan as text of at most `width` columns, except for the job file: the amount of work, the jobs as a job file,
/// the runs in order, and the notes.
fn dry_run(plan: &Plan, width: usize) -> String {
    let mut out = Paper::new(width);
    push_command(&mut out, 0, &plan.command);
    out.push('\n');
    totals(&mut out, plan);
    out.push_str("\nJobs, as a job file:\n\n");
    if !plan.annotations.is_empty() {
        out.push_str("[global]\n");
        plan.annotations.iter().for_each(|(key, value)| out.push_str(&format!("{key}={value}\n")));
        out.push('\n');
    }
    out.push_str(&job_file(&plan.jobs));
    out.push_str("\nRuns, in order:\n\n");
    out.table(&run_table(plan));
    if !plan.notes.is_empty() {
        out.push_str("\nNotes:\n\n");
        plan.notes.iter().for_each(|note| paragraph(&mut out, "  ", note));
    }
    out.finish()
}

fn totals(out: &mut Paper, plan: &Plan) {
    let of = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let count = plan.cases() * plan.repeat as usize;
    if plan.default_matrix {
        paragraph(out, "", "Nothing was asked for, so everything is compared.");
    }
    let sizes = format!(
        "{}: {} x {} x {} x {}, each {}",
        of(count, "run"),
        of(plan.devices.len(), "device"),
        of(plan.threads.len(), "thread count"),
        of(plan.access.len(), "access path"),
        of(plan.schedulers.len(), "scheduler"),
        if plan.repeat == 1 { "once".into() } else { format!("{} times", plan.repeat) },
    );
    paragraph(out, "", &sizes);
    let runs = plan.runs();
    // The full names, since the table shortens long ones.
    named(out, "device", runs.iter().map(|run| run.device.text.as_str()));
    named(out, "scheduler", runs.iter().map(|run| run.scheduler.text.as_str()));
    match plan.run_time() {
        Some(run) => {
            let total = Nanos(run.0.saturating_mul(count as u64));
            let text = format!("At most {} a run, {} in all.", time(run), time(total));
            paragraph(out, "", &text);
        }
        None => paragraph(out, "", "A job without runtime ends when its I/O is done."),
    }
    let nr_requests = plan.nr_requests.map_or("default".into(), |n| n.to_string());
    let file = |path: &Option<std::path::PathBuf>, without: &str| {
        path.as_ref().map_or(without.into(), |path| path.display().to_string())
    };
    let settings = format!(
        "nomerges={} nr_requests={nr_requests} device_depth={} pump={} format={} output={} report={} trace={}",
        plan.nomerges.word(),
        plan.device_depth,
        plan.pump.word(),
        Vec::from_iter([plan.format].iter().chain(&plan.also).map(|it| it.word())).join(","),
        file(&plan.output, "standard output"),
        file(&plan.report, "none"),
        plan.trace.as_ref().map_or("none", |trace| trace.prefix.as_str()),
    );
    paragraph(out, "", &settings);
}

/// Adds a line for each distinct name.
fn named<'a>(out: &mut Paper, what: &str, names: impl Iterator<Item = &'a str>) {
    let mut known: Vec<&str> = Vec::new();
    for name in names {
        if !known.contains(&name) {
            known.push(name);
            push_line(out, 2, &format!("{what} {name}"));
        }
    }
}

fn run_table(plan: &Plan) -> TextTable {
    // The numbers of the run and of its repetition are those used in JSON and in file names.
    let figures = ["order", "run", "rep", "threads"].map(|name| (name.to_owned(), Align::Right));
    let words = ["access", "scope", "scheduler", "device"];
    let words = words.map(|name| (name.to_owned(), Align::Left));
    let mut table = TextTable::new(figures.into_iter().chain(words).collect());
    table.keys(1);
    for (i, run) in plan.runs().iter().enumerate() {
        let scope = match run.scope {
            // As the scheduler that will be chosen prefers.
            _ if plan.scope.is_none() && run.scheduler.choice == PolicyChoice::Auto => AUTO,
            scope => scope.word(),
        };
        table.row(&[
            (i + 1).to_string(),
            run.case.to_string(),
            run.repetition.to_string(),
            run.threads.len().to_string(),
            run.access.text.clone(),
            scope.into(),
            run.scheduler.text.clone(),
            run.device.text.clone(),
        ]);
    }
    table
}

const DOC_PAGE: Page = Page {
    name: "doc",
    summary: "print the page of a scheduler or device; without a name, list them",
    description: "",
    examples: &["blkmq doc bfq", "blkmq doc attributes"],
};

/// The page about the attributes of queues.
const ATTRIBUTES: &str = "attributes";

/// The command.
fn doc_definition() -> Command {
    let page = Arg::new("page").value_name("PAGE").value_parser(PossibleValuesParser::new(names()));
    let page = page.hide_possible_values(true);
    DOC_PAGE.command(&list()).arg(page.help("the name of a scheduler or device, or attributes"))
}

/// The requested page, or the list of all pages: laid out for a terminal, or unchanged if standard output is not one.
fn doc(found: &ArgMatches) -> String {
    let text = match found.get_one::<String>("page") {
        Some(name) => page(name).expect("clap refuses other names"),
        None => format!("{}\nblkmq doc PAGE prints a page.\n", list()).into(),
    };
    match (output::known_width(), found.get_one::<String>("page")) {
        (Some(width), Some(_)) => reflow(&text, width),
        (Some(width), None) => {
            let mut out = Paper::new(width);
            text.lines().for_each(|line| listed(&mut out, line));
            out.finish()
        }
        (None, _) => text.into_owned(),
    }
}

/// Adds a line of the list, with continuation lines aligned to its text.
fn listed(out: &mut Paper, line: &str) {
    let indent = line.len() - line.trim_start().len();
    match line.trim_start().split_once("  ") {
        Some((name, summary)) if indent > 0 => {
            let lead = line.len() - summary.trim_start().len();
            paragraph(out, &format!("{:indent$}{name:<1$}", "", lead - indent), summary);
        }
        _ => paragraph(out, &" ".repeat(indent), line),
    }
}

fn names() -> Vec<&'static str> {
    let schedulers = schedulers::ALL.iter().map(|factory| factory.name);
    let devices = devices::offers().into_iter().map(|device| device.name);
    schedulers.chain(devices).chain([ATTRIBUTES]).collect()
}

fn list() -> String {
    let mut text = String::from("Schedulers (--scheduler):\n");
    for factory in schedulers::ALL {
        text.push_str(&format!("  {:<14}{}\n", factory.name, factory.summary));
    }
    text.push_str("\nDevices (--device):\n");
    text.push_str(&devices::list(|_| true));
    text.push_str("\nQueues:\n");
    text.push_str(&format!("  {ATTRIBUTES:<14}what can be read and set while a queue is in use\n"));
    text
}

/// The page called `name`, if it exists.
fn page(name: &str) -> Option<Cow<'static, str>> {
    if name == ATTRIBUTES {
        return Some(attributes::table().into());
    }
    let scheduler = schedulers::page(name);
    let devices = devices::offers();
    let device = devices.iter().find(|device| device.name == name).map(|device| device.doc);
    scheduler.or(device).map(Cow::Borrowed)
}

enum Part<'a> {
    /// Stays as it is: code, and empty lines.
    Line(&'a str),
    /// The lead of the first line, and the text after it.
    Words(&'a str, String),
    /// The lines of a table.
    Table(Vec<&'a str>),
}

/// The page in lines of up to `width`; only lines of code may be wider.
fn reflow(page: &str, width: usize) -> String {
    let mut out = Paper::new(width);
    for part in parts(page) {
        match part {
            Part::Line(line) => {
                out.push_str(line);
                out.push('\n');
            }
            Part::Words(lead, words) => paragraph(&mut out, lead, &words),
            Part::Table(lines) => table(&mut out, &lines),
        }
    }
    out.finish()
}

fn parts(page: &str) -> Vec<Part<'_>> {
    let (mut parts, mut is_code) = (Vec::new(), false);
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || line.trim().is_empty() {
            parts.push(Part::Line(line));
        } else if line.starts_with('|') {
            match parts.last_mut() {
                Some(Part::Table(lines)) => lines.push(line),
                _ => parts.push(Part::Table(vec![line])),
            }
        } else {
            let (lead, words) = line.split_at(lead(line));
            match parts.last_mut() {
                // A line without a mark continues the previous words.
                Some(Part::Words(_, before)) if lead.trim().is_empty() => {
                    before.push(' ');
                    before.push_str(words);
                }
                _ => parts.push(Part::Words(lead, words.to_owned())),
            }
        }
    }
    parts
}

/// The length of the beginning of a line: spaces, and the mark of an item or of a heading.
fn lead(line: &str) -> usize {
    let spaces = line.len() - line.trim_start().len();
    let word = line[spaces..].split(' ').next().unwrap_or("");
    let is_number = word.strip_suffix('.').is_some_and(|number| number.parse::<u32>().is_ok());
    let is_heading = !word.is_empty() && word.bytes().all(|byte| byte == b'#');
    if is_number || is_heading || word == "-" || word == "*" {
        spaces + word.len() + 1
    } else {
        spaces
    }
}

/// Adds a table unchanged if it fits; else an item for each row, in which figures are prefixed with the names of their
/// columns.
fn table(out: &mut Paper, lines: &[&str]) {
    if lines.iter().all(|line| line.width() <= out.width()) {
        lines.iter().for_each(|line| push_line(out, 0, line));
        return;
    }
    let mut rows = lines.iter().map(|line| cells(line));
    let heading = rows.next().unwrap_or_default();
    // The heading is followed by a rule.
    for row in rows.skip(1) {
        let last = row.len().saturating_sub(1);
        let mut words = String::new();
        for (at, cell) in row.iter().enumerate().skip(1).filter(|(_, cell)| !cell.is_empty()) {
            let gap = if words.is_empty() { "" } else { "; " };
            let name = heading.get(at).filter(|name| at < last && !name.is_empty());
            let name = name.map_or_else(String::new, |name| format!("{name} "));
            words.push_str(&format!("{gap}{name}{cell}"));
        }
        let first = row.first().map_or("", String::as_str);
        paragraph(out, "- ", &format!("{first}: {words}"));
    }
}

fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_matches('|').replace("\\|", "\u{0}");
    line.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

#[cfg(test)]
mod tests {
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
        matches!(option.meaning, Meaning::Unsupported(..))
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
                for name in option.names() {
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

    /// Returns whether a command outside of fio's grammar has an option of this name. If so, a script contains it,
    /// whatever fio's option means.
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
            assert!(
                text.contains(&format!("\n.TH {} 1 ", page.file.trim_end_matches(".1"))),
                "{text}"
            );
            assert!(text.contains("\n.SS Examples\n.nf\n  blkmq "), "{text}");
            if !matches!(page.file.as_str(), "blkmq-bench.1" | "blkmq-sim.1") {
                continue;
            }
            for (heading, option) in options::under_headings() {
                let spelled = match option.meaning {
                    Meaning::NoOp(_) | Meaning::Unsupported(..) => format!(" {}", option.name),
                    _ => format!("--{}", option.name),
                };
                let is_missing = page.file == "blkmq-bench.1" && option.name == "seed";
                assert_eq!(has_word(&text, &spelled), !is_missing, "{}: {spelled}", page.file);
                for alias in option.aliases.iter().filter(|_| heading != options::FOREIGN) {
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

    #[test]
    fn every_name_has_a_page_that_begins_with_it_and_is_in_the_list() {
        for name in names() {
            let page = page(name).expect(name);
            let begins = page.starts_with(&format!("# {name}"));
            assert!(begins || name == ATTRIBUTES, "{name}: {page}");
            assert!(list().contains(&format!("\n  {name}")), "{name}");
        }
    }

    #[test]
    fn the_table_of_attributes_is_a_page() {
        assert!(page(ATTRIBUTES).expect("listed").contains("| `queue/scheduler` | rw |"));
    }

    const PAGE: &str = "# disk\n\nA rotating disk: one arm,\nplatters that always turn.\n\n- one item that is\n  long\n- \
                        two\n\n```\nblkmq sim --device=disk --rw=read --size=1m\n```\n| name | unit | meaning |\n|---|---|---|\n| \
                        `rpm` | 1/min | how often it turns |\n";

    #[test]
    fn words_are_broken_anew_and_code_is_not() {
        let text = reflow(PAGE, 30);
        let expected = "# disk\n\nA rotating disk: one arm,\nplatters that always turn.\n\n- one item that is long\n- two\n\n\
                        ```\nblkmq sim --device=disk --rw=read --size=1m\n```\n- `rpm`: unit 1/min; how often\n  it turns\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_table_that_fits_stays_one() {
        assert!(reflow(PAGE, 80).contains("\n| `rpm` | 1/min | how often it turns |\n"));
    }

    #[test]
    fn a_bar_within_a_cell_is_no_border() {
        assert_eq!(cells("| `a\\|b` | c |"), ["`a|b`", "c"]);
    }
}
