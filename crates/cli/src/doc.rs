//! `blkmq doc`: the pages of schedulers and devices, and the table of attributes.

mod reflow;

use crate::devices;
use blkmq_engine::attributes;
use blkmq_sched::registry as schedulers;
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Paper, paragraph};
use blkmq_terminal::screen;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use std::borrow::Cow;

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
    match (screen::known_width(), found.get_one::<String>("page")) {
        (Some(width), Some(_)) => reflow::reflow(&text, width),
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
}
