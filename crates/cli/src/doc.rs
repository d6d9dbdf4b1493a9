//! `blkmq doc`: the pages of schedulers and devices, and the table of attributes, laid out for a terminal.
//!
//! Paragraphs and list items are wrapped, and rows of tables that are too wide become list items. Marks such as
//! backticks are kept.

use crate::devices;
use blkmq_engine::attributes;
use blkmq_sched::registry as schedulers;
use blkmq_terminal::output;
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Paper, paragraph, push_line};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use std::borrow::Cow;
use unicode_width::UnicodeWidthStr;

const PAGE: Page = Page {
    name: "doc",
    summary: "print the page of a scheduler or device; without a name, list them",
    description: "",
    examples: &["blkmq doc bfq", "blkmq doc attributes"],
};

/// The page about the attributes of queues.
const ATTRIBUTES: &str = "attributes";

/// The command.
pub fn definition() -> Command {
    let page = Arg::new("page").value_name("PAGE").value_parser(PossibleValuesParser::new(names()));
    let page = page.hide_possible_values(true);
    PAGE.command(&list()).arg(page.help("the name of a scheduler or device, or attributes"))
}

/// The requested page, or the list of all pages: laid out for a terminal, or unchanged if standard output is not one.
pub fn run(found: &ArgMatches) -> String {
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
