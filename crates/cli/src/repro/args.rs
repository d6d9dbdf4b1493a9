//! The words of `blkmq repro`.

use super::name::Name;
use crate::args::nearest::nearest;
use crate::error::UsageError;
use crate::report::Format;
use crate::units::{self, KbBase, TimeUnit};
use blkmq_core::Nanos;
use std::path::PathBuf;

/// The text of `--help`.
pub const HELP: &str = "\
usage: blkmq repro [NAME]... [--runtime=TIME] [--threads=COUNT,...] [--report=FILE.html]
                   [--output-format=normal|json]

Measures again, on this machine, what was published about the block layer's schedulers, and puts it beside the
published figures and the hardware that those are from. Every step is run as the kernel does it (before), as it was
proposed for the kernel, and as it is done here (ours), in one program and one after the other, so that ratios
mean something on any machine; rates do not. Each row can be repeated alone: --output-format=json has its command.
Without a NAME all of them are measured, in a few minutes.

  contention  one lock around a scheduler, with more and more threads
  batch       several requests for each hold of the lock
  order       how many requests reach the device before one that was picked earlier
  merge       what batches and parked requests do to merging
  kick        wake-ups that are not needed, and the call for now that one of them swallowed
  depth       merging, with a scheduler no deeper than its device and with a deeper one
  stats       what statistics of groups cost bfq

  --runtime=TIME        how long each row is measured, in five runs that take turns with those of the rows that it
                        is compared with; seconds unless a unit is given (default 2)
  --threads=COUNT,...   thread counts of contention (default 1, 2, 4 and so on to twice the cores), batch, order
                        (default 16) and stats (default 1 and as many as cores)
  --report=FILE.html    a page with plots besides
  --output-format=NAME  normal (default) or json

  blkmq repro
  blkmq repro contention batch --runtime=5 --report=locks.html
  blkmq repro contention --threads=1,2,4,8,16,32
  blkmq repro stats --output-format=json
";

/// The formats of `blkmq repro`.
pub const FORMATS: [(&str, Format); 2] = [("normal", Format::Normal), ("json", Format::Json)];

/// The most threads of a run.
const MAX_THREADS: u32 = 4096;

/// A parsed command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The text of [`HELP`].
    Help,
    /// Measure.
    Run(Wanted),
}

/// The claims to measure, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The claims, each once, in the order in which they are shown.
    pub names: Vec<Name>,
    /// The time of each row, all repetitions together.
    pub runtime: Nanos,
    /// Thread counts; empty for those that suit each claim.
    pub threads: Vec<u32>,
    /// The file for an additional page with plots.
    pub report: Option<PathBuf>,
    /// The format of the result.
    pub format: Format,
}

impl Wanted {
    /// The defaults: all claims.
    fn new() -> Self {
        Self {
            names: Vec::new(),
            runtime: Nanos::from_secs(2),
            threads: Vec::new(),
            report: None,
            format: Format::Normal,
        }
    }
}

/// Parses the arguments behind `blkmq repro`.
///
/// # Errors
/// For the first argument that cannot be accepted.
pub fn parse(args: &[String]) -> Result<Request, UsageError> {
    let mut wanted = Wanted::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if matches!(arg.as_str(), "-h" | "--help") {
            return Ok(Request::Help);
        }
        let Some(option) = arg.strip_prefix("--") else {
            if arg.starts_with('-') {
                return Err(unknown(arg));
            }
            wanted.names.push(Name::from_word(arg).map_err(|e| guess(e, arg))?);
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        if !OPTIONS.contains(&name.replace('_', "-").as_str()) {
            return Err(unknown(arg));
        }
        let value = value.or_else(|| rest.next().cloned());
        let value = value.ok_or_else(|| UsageError::new("needs a value").at(arg))?;
        set(&mut wanted, &name.replace('_', "-"), &value)
            .map_err(|e| e.at(format!("--{name}={value}")))?;
    }
    if wanted.names.is_empty() {
        wanted.names = Name::ALL.map(|(_, name)| name).to_vec();
    }
    wanted.names.sort_unstable();
    wanted.names.dedup();
    Ok(Request::Run(wanted))
}

const OPTIONS: [&str; 4] = ["runtime", "threads", "report", "output-format"];

fn set(wanted: &mut Wanted, name: &str, value: &str) -> Result<(), UsageError> {
    match name {
        "runtime" => {
            let runtime = units::time(value, TimeUnit::Seconds)?;
            if runtime == Nanos::ZERO {
                return Err(UsageError::new("accepted: a time above 0, such as 5 or 500ms"));
            }
            wanted.runtime = runtime;
        }
        "threads" => {
            let count = |text: &str| units::count(text.trim(), 1..=MAX_THREADS, KbBase::Binary);
            let mut threads = value.split(',').map(count).collect::<Result<Vec<u32>, _>>()?;
            threads.sort_unstable();
            threads.dedup();
            wanted.threads = threads;
        }
        "report" => {
            let path = PathBuf::from(value);
            if Format::of_path(&path) != Format::Html {
                return Err(UsageError::new("a page; accepted: a name that ends in .html"));
            }
            wanted.report = Some(path);
        }
        _ => {
            let found = FORMATS.iter().find(|(known, _)| *known == value);
            let (_, format) = found.ok_or_else(|| {
                UsageError::new("no such format; accepted: normal, json, and --report for a page")
            })?;
            wanted.format = *format;
        }
    }
    Ok(())
}

fn unknown(arg: &str) -> UsageError {
    let options = OPTIONS.map(|name| format!("--{name}")).join(", ");
    UsageError::new(format!("no such option; accepted: {options}, --help")).at(arg)
}

/// The refusal of `word`, with similar known words in front.
fn guess(refusal: UsageError, word: &str) -> UsageError {
    let near = nearest(word, Name::ALL.iter().map(|(known, _)| *known));
    match near.first() {
        Some(near) => UsageError::new(format!("did you mean {near}? {refusal}")),
        None => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    fn wanted(line: &str) -> Wanted {
        match parse(&words(line)).expect(line) {
            Request::Run(wanted) => wanted,
            Request::Help => panic!("{line}: no help was asked for"),
        }
    }

    fn refusal(line: &str) -> String {
        parse(&words(line)).expect_err(line).to_string()
    }

    #[test]
    fn without_a_word_everything_is_measured() {
        let all = wanted("");
        assert_eq!(all.names.len(), 7);
        assert_eq!((all.runtime, all.format), (Nanos::from_secs(2), Format::Normal));
        assert!(all.threads.is_empty() && all.report.is_none());
    }

    #[test]
    fn claims_have_an_order_of_their_own_and_options_fios_spelling() {
        let some = wanted(
            "stats batch stats --runtime=500ms --threads 8,2,2 --report=a.html --output_format=json",
        );
        assert_eq!(some.names, [Name::Batch, Name::Stats]);
        assert_eq!((some.runtime, some.threads), (Nanos::from_millis(500), vec![2, 8]));
        assert_eq!((some.report, some.format), (Some(PathBuf::from("a.html")), Format::Json));
        for line in ["--help", "batch -h --runtime=1"] {
            assert_eq!(parse(&words(line)), Ok(Request::Help), "{line}");
        }
    }

    #[test]
    fn what_is_refused_says_what_is_accepted() {
        let all = "contention, batch, order, merge, kick, depth, stats";
        assert_eq!(
            refusal("contension"),
            format!("did you mean contention? no claim 'contension'; accepted: {all}")
        );
        assert_eq!(refusal("x"), format!("no claim 'x'; accepted: {all}"));
        let options = "--runtime, --threads, --report, --output-format, --help";
        assert_eq!(refusal("--depth=3"), format!("--depth=3: no such option; accepted: {options}"));
        assert_eq!(refusal("-r"), format!("-r: no such option; accepted: {options}"));
        assert_eq!(refusal("batch --runtime"), "--runtime: needs a value");
        assert!(refusal("--runtime=0").ends_with("accepted: a time above 0, such as 5 or 500ms"));
        assert!(refusal("--runtime=soon").starts_with("--runtime=soon: "));
        assert!(refusal("--threads=0").starts_with("--threads=0: "));
        assert!(refusal("--threads=").starts_with("--threads=: "));
        assert!(refusal("--report=a.txt").ends_with("accepted: a name that ends in .html"));
        assert!(refusal("--output-format=csv").contains("accepted: normal, json"));
    }

    #[test]
    fn the_help_names_every_claim_and_option_and_its_examples_are_understood() {
        for (word, _) in Name::ALL {
            assert!(HELP.contains(&format!("\n  {word} ")), "{word}");
        }
        for option in OPTIONS {
            assert!(HELP.contains(&format!("\n  --{option}=")), "{option}");
        }
        let examples = HELP.lines().filter_map(|line| line.strip_prefix("  blkmq repro"));
        assert_eq!(examples.map(wanted).count(), 4);
    }
}
