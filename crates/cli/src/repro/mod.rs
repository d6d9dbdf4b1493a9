//! `blkmq repro`: the published claims that this project grew out of, measured again on this machine.
//!
//! A [`claim`] is a data file: the published figures, and a study of `blkmq experiment` that shows it here. [`measure`]
//! runs the points of the studies, and the [`pages`] show the answers beside the published figures.

mod claim;
mod measure;
mod pages;
#[cfg(test)]
mod sample;

use crate::Failure;
use crate::report::{self, Format};
use blkmq_core::Nanos;
use blkmq_terminal::page::Page;
use blkmq_terminal::program::Stop;
use blkmq_terminal::units::{self, KbBase, TimeUnit};
use blkmq_terminal::{UsageError, output};
use claim::Claim;
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueHint};
use clap::{Arg, ArgAction, ArgMatches, Command};
use measure::Repro;
use std::path::PathBuf;

/// Measures the claims of `wanted`, and writes the page if requested. Returns the text to print, and the verdict: an
/// error if the page could not be written, or a signal ended the measurement.
///
/// # Errors
/// If a claim cannot be measured here, or the page cannot be opened.
pub fn run(wanted: &Wanted, command: String) -> Result<(String, Result<(), Failure>), Failure> {
    let stop = Stop::on_signals();
    // The page is opened before the minutes of measuring are spent.
    let page = wanted.report.as_deref().map(report::open).transpose()?;
    let repro = measure::measure(wanted, command, &stop)?;
    let mut text = render(&repro, wanted.format);
    if let (Some(mut file), Some(path)) = (page, &wanted.report) {
        if let Err(e) = file.write_text(&render(&repro, Format::Html)) {
            return Ok((text, Err(Failure::Results(e.to_string()))));
        }
        if wanted.format == Format::Normal {
            text.push_str(&format!("\nThe same with plots: {}\n", path.display()));
        }
    }
    Ok((text, Failure::of_partial(repro.partial)))
}

/// Formats the results, ending in a newline; as text for formats that `blkmq repro` does not support.
fn render(repro: &Repro, format: Format) -> String {
    match format {
        Format::Json => pages::render_json(repro),
        Format::Html => pages::render_html(repro),
        Format::Normal | Format::JsonPlus | Format::Csv | Format::Terse(_) => {
            pages::render_text(repro, output::width())
        }
    }
}

const PAGE: Page = Page {
    name: "repro",
    summary: "measure again what was published about the kernel's schedulers",
    description: "\
Measures again, on this machine, what was published about the block layer's schedulers, and puts it beside the \
published figures and the hardware that those are from. Every step is run as the kernel does it (before), as it was \
proposed for the kernel, and as it is done here (ours), in one program and one after the other, so that ratios mean \
something on any machine; rates do not. Each row can be repeated alone: --output-format=json has its command. Without a \
CLAIM all of them are measured, in a few minutes; with a shorter --runtime in less, and with more noise.",
    examples: &[
        "blkmq repro --runtime=100ms",
        "blkmq repro contention batch --runtime=300ms --report=locks.html",
        "blkmq repro contention --threads=1,2,4,8,16,32 --runtime=100ms",
        "blkmq repro stats --runtime=500ms --output-format=json",
    ],
};

/// The formats of `blkmq repro`.
const FORMATS: [(&str, Format); 2] = [("normal", Format::Normal), ("json", Format::Json)];

/// The most threads of a run.
const MAX_THREADS: u32 = 4096;

/// The claims to measure, and the options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The names of the claims.
    pub names: Vec<String>,
    /// The time of each row, all repetitions together.
    pub runtime: Nanos,
    /// Thread counts; empty for the defaults of each claim.
    pub threads: Vec<u32>,
    /// The file for an additional page with plots.
    pub report: Option<PathBuf>,
    /// The format of the result.
    pub format: Format,
}

/// The command.
pub fn definition() -> Command {
    let mut claims = String::from("Claims:\n");
    for Claim { name, summary, .. } in Claim::all() {
        claims.push_str(&format!("  {name:<10}  {summary}\n"));
    }
    PAGE.command(&claims).args(arguments())
}

fn arguments() -> [Arg; 5] {
    let claims = Arg::new("claim").value_name("CLAIM").num_args(0..).action(ArgAction::Append);
    let names = PossibleValuesParser::new(Claim::all().into_iter().map(|claim| claim.name));
    let claims = claims.value_parser(names).hide_possible_values(true);
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    let formats = PossibleValuesParser::new(FORMATS.map(|(word, _)| word));
    let format = option("output-format", "FORMAT").alias("output_format");
    [
        claims.help("what to measure; all claims without any"),
        option("runtime", "TIME").value_parser(runtime).default_value("2").help(
            "how long each row is measured, in five runs that take turns with those of the rows that it is compared \
             with; seconds unless a unit is given",
        ),
        option("threads", "COUNT,...").value_parser(threads).help(
            "thread counts of contention (default 1, 2, 4 and so on to twice the cores), batch, order (default 16) \
             and stats (default 1 and as many as cores)",
        ),
        option("report", "FILE.html")
            .value_parser(report)
            .value_hint(ValueHint::FilePath)
            .help("a page with plots besides"),
        format
            .value_parser(formats.map(|word| format_of(&word)))
            .default_value("normal")
            .help("the form of the result"),
    ]
}

impl Wanted {
    /// The arguments that clap has read.
    pub fn of(found: &ArgMatches) -> Self {
        let default = "it has a default";
        let names = found.get_many::<String>("claim").map(|names| names.cloned().collect());
        let all = || Claim::all().into_iter().map(|claim| claim.name.into()).collect();
        Self {
            names: names.unwrap_or_else(all),
            runtime: *found.get_one("runtime").expect(default),
            threads: found.get_one("threads").cloned().unwrap_or_default(),
            report: found.get_one("report").cloned(),
            format: *found.get_one("output-format").expect(default),
        }
    }
}

fn runtime(text: &str) -> Result<Nanos, UsageError> {
    match units::time(text, TimeUnit::Seconds)? {
        Nanos::ZERO => Err(UsageError::new("accepted: a time above 0, such as 5 or 500ms")),
        runtime => Ok(runtime),
    }
}

/// Parses a list of thread counts, without duplicates and in ascending order.
fn threads(text: &str) -> Result<Vec<u32>, UsageError> {
    let count = |text: &str| units::count(text.trim(), 1..=MAX_THREADS, KbBase::Binary);
    let mut threads = text.split(',').map(count).collect::<Result<Vec<u32>, _>>()?;
    threads.sort_unstable();
    threads.dedup();
    Ok(threads)
}

fn report(text: &str) -> Result<PathBuf, UsageError> {
    let path = PathBuf::from(text);
    if Format::of_path(&path) == Some(Format::Html) {
        Ok(path)
    } else {
        Err(UsageError::new("a page; accepted: a name that ends in .html"))
    }
}

fn format_of(word: &str) -> Format {
    let known = FORMATS.iter().find(|(known, _)| *known == word);
    known.expect("clap accepts these words only").1
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[test]
    fn every_format_is_another_text_that_ends_in_a_newline() {
        let formats = [Format::Normal, Format::Json, Format::Html];
        for repro in [Repro::default(), sample::both(), sample::hostile()] {
            let texts = formats.map(|format| render(&repro, format));
            for text in &texts {
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text:?}");
            }
            let starts = texts.map(|text| text.chars().next());
            assert!(starts[1] == Some('{') && starts[2] == Some('<'));
        }
    }

    /// The arguments of a command line, which is valid.
    pub fn wanted(line: &str) -> Wanted {
        let words = ["repro"].into_iter().chain(line.split_whitespace());
        Wanted::of(&definition().try_get_matches_from(words).expect(line))
    }

    #[test]
    fn without_a_word_everything_is_measured() {
        let all = wanted("");
        assert_eq!(all.names.len(), 7);
        assert_eq!((all.runtime, all.format), (Nanos::from_secs(2), Format::Normal));
        assert!(all.threads.is_empty() && all.report.is_none());
    }

    #[test]
    fn claims_are_words_and_options_have_fios_spelling() {
        let some = wanted(
            "stats batch stats --runtime=500ms --threads 8,2,2 --report=a.html --output_format=json",
        );
        assert_eq!(some.names, ["stats", "batch", "stats"]);
        assert_eq!((some.runtime, some.threads), (Nanos::from_millis(500), vec![2, 8]));
        assert_eq!((some.report, some.format), (Some(PathBuf::from("a.html")), Format::Json));
        assert_eq!(wanted("--runtime=1 --runtime=3").runtime, Nanos::from_secs(3));
    }

    #[test]
    fn the_examples_of_the_page_are_understood() {
        let examples = PAGE.examples.iter().filter_map(|line| line.strip_prefix("blkmq repro"));
        assert_eq!(examples.map(wanted).count(), 4);
    }
}
