//! `blkmq repro`: the published claims that this project grew out of, measured again on this machine.
//!
//! A [`Claim`] is a data file in `claims`: the published figures, and the studies of `blkmq experiment` that show it here.
//! [`measure`] runs the points of the studies, and the [`pages`] show the answers beside the published figures.

mod measure;
mod pages;

use crate::experiment::compare::LEAST_PAIRS;
use crate::experiment::study::{Study, Value, Values};
use crate::report::{self, Format};
use crate::{Failure, plan};
use blkmq_core::Nanos;
use blkmq_terminal::page::Page;
use blkmq_terminal::program::Stop;
use blkmq_terminal::units::{self, KbBase, TimeUnit};
use blkmq_terminal::{UsageError, output};
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueHint};
use clap::{Arg, ArgAction, ArgMatches, Command};
use measure::Repro;
use serde::{Deserialize, Serialize};
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

/// The claims by name, in the order of display.
const FILES: [(&str, &str); 7] = [
    ("contention", include_str!("claims/contention.toml")),
    ("batch", include_str!("claims/batch.toml")),
    ("order", include_str!("claims/order.toml")),
    ("merge", include_str!("claims/merge.toml")),
    ("kick", include_str!("claims/kick.toml")),
    ("depth", include_str!("claims/depth.toml")),
    ("stats", include_str!("claims/stats.toml")),
];

/// A claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// The name on the command line.
    #[serde(skip_deserializing)]
    name: &'static str,
    /// The subject of the measurement, in a line.
    #[serde(skip_serializing)]
    summary: String,
    /// The claim as a heading.
    title: String,
    /// The claim in a few sentences, in our own words.
    claim: String,
    /// The numbers of threads on the axis `numjobs`, where they depend on the machine.
    #[serde(default, skip_serializing)]
    threads: Option<Threads>,
    /// The workload here, in words.
    workload: String,
    /// Calls in quick succession are a part of it.
    #[serde(default, skip_serializing)]
    calls: bool,
    /// The limits of this machine and of the workload, a sentence each.
    limits: Vec<String>,
    /// The published figures, a table for each source.
    published: Vec<Source>,
    /// The studies, whose first figures are those of the claim.
    #[serde(skip_serializing)]
    part: Vec<Part>,
}

/// Numbers of threads.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Threads {
    /// 1, 2, 4 and so on to twice the cores.
    Doubling,
    /// 1 and the number of cores.
    Ends,
}

/// Figures from one source, as published by its authors, and not ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    /// The authors, the publication and the date.
    by: String,
    /// The hardware of the measurement.
    hardware: String,
    /// The workload.
    workload: String,
    /// The figures.
    figures: Vec<Published>,
    /// A remark about the figures; may be empty.
    #[serde(default)]
    remark: String,
}

/// A quantity before the change and with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// The configuration.
    what: String,
    /// The quantity, a figure of an experiment.
    metric: String,
    /// The value before the change.
    before: f64,
    /// The value with the proposed change.
    proposed: f64,
}

/// A study of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    /// The subject, if a claim has several.
    #[serde(default)]
    of: String,
    /// The study.
    study: Study,
}

impl Published {
    /// The change relative to the value before it.
    fn relative(&self) -> f64 {
        self.proposed / self.before - 1.0
    }
}

impl Claim {
    /// Every claim, in the order of display.
    fn all() -> Vec<Self> {
        let of =
            |(name, text)| Self { name, ..toml::from_str(text).expect("a claim of this program") };
        FILES.map(of).into()
    }

    /// Returns whether a part of it reads a disk in memory.
    fn reads_disk(&self) -> bool {
        let disk = Values::One(Value::Text("{disk}".into()));
        self.part.iter().any(|part| part.study.options.get("device") == Some(&disk))
    }

    /// Sets the total time of the runs of a row and the thread counts, if any are `asked` for, and fills in the
    /// properties of a machine with this many cores and a `disk` in memory.
    fn prepare(&mut self, runtime: Nanos, asked: &[u32], (cores, disk): (u32, &str)) {
        let here = |text: &str| text.replace("{cores}", &cores.to_string()).replace("{disk}", disk);
        self.limits.iter_mut().for_each(|text| *text = here(text));
        let usual = match self.threads {
            Some(Threads::Doubling) => powers_to(2 * cores),
            Some(Threads::Ends) if cores > 1 => vec![1, cores],
            Some(Threads::Ends) | None => Vec::new(),
        };
        let threads = if asked.is_empty() { &usual[..] } else { asked };
        let threads = Vec::from_iter(threads.iter().map(|count| Value::Integer((*count).into())));
        let each = plan::time(each(runtime));
        self.workload.push_str(&format!("; {LEAST_PAIRS} runs of {each} each"));
        for part in &mut self.part {
            if let Some(Values::One(Value::Text(device))) = part.study.options.get_mut("device") {
                *device = here(device);
            }
            part.study.options.insert("runtime".into(), Values::One(Value::Text(each.clone())));
            let axis = part.study.grid.get_mut("numjobs").filter(|_| !threads.is_empty());
            if let Some(axis) = axis {
                *axis = Values::Many(threads.clone());
            }
        }
    }
}

/// The time of each run, at least a millisecond.
fn each(runtime: Nanos) -> Nanos {
    Nanos::from_millis((runtime.0 / 1_000_000 / LEAST_PAIRS as u64).max(1))
}

/// 1, 2, 4 and so on, up to `most`, which is the last one.
fn powers_to(most: u32) -> Vec<u32> {
    let powers = (0..31).map(|n| 1 << n).take_while(|power| *power < most);
    powers.chain([most.max(1)]).collect()
}

#[cfg(test)]
pub mod tests {
    use super::pages::tests::{both, hostile};
    use super::*;
    use crate::experiment::Points;
    use crate::experiment::answer::percent;

    #[test]
    fn every_format_is_another_text_that_ends_in_a_newline() {
        let formats = [Format::Normal, Format::Json, Format::Html];
        for repro in [Repro::default(), both(), hostile()] {
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

    /// The claims on a machine with `cores` cores.
    fn prepared(ms: u64, threads: &[u32], cores: u32) -> Vec<Claim> {
        let mut claims = Claim::all();
        let disk = "null,irqmode=2,submit_queues=8,hw_queue_depth=16";
        claims
            .iter_mut()
            .for_each(|claim| claim.prepare(Nanos::from_millis(ms), threads, (cores, disk)));
        claims
    }

    #[test]
    fn every_claim_has_words_and_says_where_its_figures_are_from() {
        for claim in prepared(2_500, &[], 4) {
            let Claim { name, title, claim, workload, limits, published, .. } = &claim;
            assert!(!title.ends_with('.') && claim.ends_with('.'), "{name}");
            assert!(workload.ends_with("; 5 runs of 500ms each"), "{name}: {workload}");
            assert!(!published.is_empty() && limits.iter().all(|it| it.ends_with('.')), "{name}");
            let text = format!("{claim}{workload}{}", limits.concat());
            assert!(text.is_ascii() && !text.contains('{'), "{text}");
            for source in published {
                let year = source.by.split(|c: char| !c.is_ascii_digit()).any(|it| it.len() == 4);
                assert!(year, "{name}: {}", source.by);
                assert!(!source.hardware.is_empty() && !source.workload.is_empty(), "{name}");
                let text = format!("{}{}{}", source.by, source.hardware, source.remark);
                assert!(text.is_ascii() && !text.contains("http") && !text.contains("www"));
            }
        }
        let said = |at: usize| prepared(2_000, &[], 2)[at].limits.concat();
        assert!(said(0).contains("cores here: 2.") && said(3).contains("5 ms"));
    }

    #[test]
    fn differences_are_those_of_the_published_figures() {
        let differences = |name: &str, metric: &str| -> Vec<String> {
            let claim = Claim::all().into_iter().find(|claim| claim.name == name).expect("a claim");
            let rows = claim.published.into_iter().flat_map(|source| source.figures);
            rows.filter(|row| row.metric == metric).map(|row| percent(row.relative())).collect()
        };
        assert_eq!(differences("contention", "iops"), ["2.63x", "2.90x", "3.26x", "3.51x"]);
        assert_eq!(differences("contention", "waiting"), ["-77.5 %", "-74.0 %"]);
        assert_eq!(differences("kick", "iops"), ["+0.0 %", "+2.1 %", "+42.2 %", "+60.3 %"]);
        assert_eq!(differences("merge", "merged"), ["+0.0 %"]);
        assert_eq!(differences("stats", "iops"), ["+24.0 %", "+29.0 %", "+25.0 %", "+42.9 %"]);
    }

    #[test]
    fn every_point_is_a_run_of_bench_and_every_way_has_its_name() {
        for claim in prepared(1_250, &[], 4) {
            for Part { study, .. } in claim.part {
                let points = Points::of(Study::of_json(&study.json()).expect("a study"));
                let points = points.expect("points");
                points.check().expect("they can be run");
                let command = points.command(0);
                assert!(command.starts_with("blkmq bench --") && command.contains("=250ms"));
                let axis = |name: Option<&str>| {
                    let axis = points.axes().iter().find(|axis| Some(axis.name.as_str()) == name);
                    axis.expect("an axis").values.clone()
                };
                assert_eq!(axis(study.pair()).len(), LEAST_PAIRS);
                let ways = axis(study.compared());
                let names = ways.iter().map(|way| study.shown(way));
                assert!(names.zip(&ways).all(|(name, way)| name != way.to_string()));
            }
        }
    }

    #[test]
    fn threads_go_to_twice_the_cores_unless_they_are_given() {
        let counts = |threads: &[u32], cores, claim: usize| {
            let study =
                prepared(2_000, threads, cores).swap_remove(claim).part.swap_remove(0).study;
            study.grid.get("numjobs").cloned()
        };
        let many = |counts: &[i64]| {
            Some(Values::Many(counts.iter().map(|count| Value::Integer(*count)).collect()))
        };
        assert_eq!(counts(&[], 1, 0), many(&[1, 2]));
        assert_eq!(counts(&[], 6, 0), many(&[1, 2, 4, 8, 12]));
        assert_eq!(counts(&[3, 32], 6, 0), many(&[3, 32]));
        assert_eq!((counts(&[], 6, 1), counts(&[3], 6, 2)), (many(&[16]), many(&[3])));
        assert_eq!((counts(&[], 1, 6), counts(&[], 6, 6)), (many(&[1]), many(&[1, 6])));
        assert_eq!(counts(&[3], 6, 3), None);
    }
}
