//! `mutants`: finds changes of a line that no test notices, module by module.
//!
//! cargo-mutants lists the changes (`list.rs`). All of a package that can be are compiled into one program (`switch.rs`,
//! `program.rs`), in a copy of the workspace (`tree.rs`); the others are built one at a time. Each is tested twice at
//! most (`run.rs`): by a quick test, which finds most of them, and, if that does not notice it, by all other tests of
//! its module. The figures and the survivors, with the reasons why they may survive, are in `docs/mutants.md`
//! (`page.rs`).

mod bodies;
mod list;
mod page;
mod program;
mod run;
mod switch;
mod tree;

use crate::Result;
use crate::shell::{is_installed, root, target_dir, timed};
use list::{Mutant, without_place};
use page::{Figures, Page};
use program::{Package, Target, Way};
use run::{Fate, Runner, going, is_meant};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

const HELP: &str = "usage: cargo xtask mutants [OPTION]... [MODULE]...

  --named TEXT  only mutants with TEXT in their names: file, line, column and change
  --missed      only mutants like those that the last run has not caught
  --read        run nothing; take up what the last run has left in target/mutants
  --help        this

Needs cargo-mutants (`cargo install cargo-mutants --locked`), which lists the mutants. Rewrites docs/mutants.md, and
fails if a survivor has no reason there, or if more than a twentieth of a module's mutants survive. With --named or
--missed it prints what survives, and leaves the page as it is. Without MODULE: all of them.";

/// Files that are mutated together, and the tests of them.
struct Module {
    name: &'static str,
    package: &'static str,
    files: &'static [&'static str],
    /// The tests that find most mutants soon.
    quick: Tests,
    /// The tests for mutants that the quick ones do not notice, if there are any.
    thorough: Option<Tests>,
}

impl Module {
    fn tests(&self) -> impl Iterator<Item = &Tests> {
        [&self.quick].into_iter().chain(&self.thorough)
    }

    fn has(&self, file: &str) -> bool {
        self.files.iter().any(|pattern| is_meant(pattern, file))
    }
}

/// Tests that run together.
#[derive(Clone, Copy)]
struct Tests {
    /// The programs that they are in.
    targets: &'static [Target],
    /// Parts of names, any of which selects a test of them; all of them if empty.
    filter: &'static str,
    /// Seconds of CPU time for a program, for mutants that never end; no program needs a third of that.
    cpu: u32,
}

impl Tests {
    /// Tests inside the crate.
    const fn inside(filter: &'static str) -> Self {
        Self { targets: &[Target::Lib], filter, cpu: 10 }
    }

    /// The tests of a policy, inside the crate and from outside; the names of both have `filter` in them.
    const fn policy(filter: &'static str) -> Self {
        Self { targets: &[Target::Lib, Target::All], filter, cpu: 40 }
    }

    /// The test of a policy against its twin.
    const fn differential(filter: &'static str) -> Self {
        Self { targets: &[Target::All], filter, cpu: 10 }
    }
}

/// The tests of the engine from outside that reach these modules.
const ENGINE: Option<Tests> = Some(Tests {
    targets: &[Target::All],
    filter: "submission:: splitting:: flush:: timeouts:: cancel:: groups::",
    cpu: 40,
});

const fn engine(name: &'static str, files: &'static [&'static str]) -> Module {
    Module { name, package: "blkmq-engine", files, quick: Tests::inside(""), thorough: ENGINE }
}

const MODULES: &[Module] = &[
    Module {
        name: "none",
        package: "blkmq-sched",
        files: &["crates/sched/src/none.rs"],
        quick: Tests::differential("none_decides"),
        thorough: Some(Tests::inside("")),
    },
    Module {
        name: "mq-deadline",
        package: "blkmq-sched",
        files: &["crates/sched/src/deadline/*.rs"],
        quick: Tests::differential("mq_deadline_decides"),
        thorough: Some(Tests::policy("deadline::")),
    },
    Module {
        name: "kyber",
        package: "blkmq-sched",
        files: &["crates/sched/src/kyber/*.rs"],
        quick: Tests::differential("kyber_decides"),
        thorough: Some(Tests::policy("kyber::")),
    },
    Module {
        name: "mclock",
        package: "blkmq-sched",
        files: &["crates/sched/src/mclock/*.rs"],
        quick: Tests::differential("mclock_decides"),
        thorough: Some(Tests::policy("mclock::")),
    },
    Module {
        name: "bfq",
        package: "blkmq-sched",
        files: &["crates/sched/src/bfq/*.rs"],
        quick: Tests::differential("bfq_decides"),
        thorough: Some(Tests::policy("bfq::")),
    },
    Module {
        name: "bfq-wf2q",
        package: "blkmq-sched",
        files: &["crates/sched/src/bfq/wf2q/*.rs"],
        quick: Tests::differential("bfq_decides"),
        thorough: Some(Tests::policy("bfq::")),
    },
    engine(
        "merge",
        &["crates/engine/src/elevator/merge.rs", "crates/engine/src/elevator/merge_index.rs"],
    ),
    engine("flush", &["crates/engine/src/elevator/flush.rs"]),
    engine("throttle", &["crates/engine/src/submission/throttle.rs"]),
    engine("meter", &["crates/engine/src/sync/meter.rs"]),
    engine("expiry", &["crates/engine/src/completion/expiry.rs"]),
    Module {
        name: "cut",
        package: "blkmq-core",
        files: &["crates/core/src/cut.rs"],
        quick: Tests { targets: &[Target::Lib], filter: "cut", cpu: 10 },
        thorough: None,
    },
];

/// The mutants to test.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Wanted {
    All,
    /// With this in their names.
    Named(String),
    /// Like those that the last run has not caught.
    Missed,
}

/// The outcome of a module's mutants, by their names: file, line, column and change.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Outcome(Vec<(Fate, String)>);

impl Outcome {
    /// What a run has left; `None` if there was none.
    ///
    /// # Errors
    /// If it has left something else.
    fn read(module: &Module) -> Result<Option<Self>> {
        let Ok(text) = std::fs::read_to_string(result(module)) else { return Ok(None) };
        Self::parse(&text).map(Some)
    }

    fn parse(text: &str) -> Result<Self> {
        let line = |line: &str| {
            let (fate, name) = line.split_once('\t')?;
            Some((Fate::named(fate)?, name.to_owned()))
        };
        let lines =
            text.lines().map(|text| line(text).ok_or_else(|| format!("no outcome: {text}")));
        Ok(Self(lines.collect::<std::result::Result<_, _>>()?))
    }

    fn figures(&self) -> Figures {
        let count = |fate| self.0.iter().filter(|(known, _)| *known == fate).count() as u32;
        Figures {
            caught: count(Fate::Caught),
            missed: count(Fate::Missed),
            timeout: count(Fate::Timeout),
            unviable: count(Fate::Unviable),
        }
    }

    /// The mutants that no test noticed, without their lines, and the number of times that each occurs.
    fn survivors(&self) -> BTreeMap<String, u32> {
        let mut survivors = BTreeMap::new();
        for (_, name) in self.0.iter().filter(|(fate, _)| *fate == Fate::Missed) {
            *survivors.entry(without_place(name)).or_insert(0) += 1;
        }
        survivors
    }

    /// Was this mutant, or one that differs in its place only, not caught?
    fn has_open(&self, mutant: &Mutant) -> bool {
        let name = without_place(&mutant.name);
        let mut open = self.0.iter().filter(|(fate, _)| fate.is_open());
        open.any(|(_, known)| without_place(known) == name)
    }
}

/// Where a run leaves the outcome of a module.
fn result(module: &Module) -> PathBuf {
    target_dir().join("mutants").join(format!("{}.txt", module.name))
}

/// Tests the mutants of these modules, which are of one package.
fn test(modules: &[&Module], wanted: &Wanted) -> Result<Vec<Outcome>> {
    let name = modules[0].package;
    let files: Vec<&str> = modules.iter().flat_map(|module| module.files).copied().collect();
    let mut mutants = list::of(name, &files)?;
    let mut last = Vec::new();
    for module in modules {
        last.extend(Outcome::read(module)?);
    }
    mutants.retain(|mutant| match wanted {
        Wanted::All => true,
        Wanted::Named(text) => mutant.name.contains(text),
        Wanted::Missed => last.iter().any(|outcome| outcome.has_open(mutant)),
    });
    if mutants.is_empty() {
        return Ok(modules.iter().map(|_| Outcome::default()).collect());
    }
    let tests = modules.iter().flat_map(|module| module.tests());
    let targets = tests.flat_map(|tests| tests.targets).copied().collect();
    let mut package = Package::new(name, targets, mutants)?;
    let programs = package.switched()?;
    let package = &package;
    let runner = Runner::new(package, programs);
    let mut outcomes = Vec::new();
    for module in modules {
        let (outcome, time) = timed(|| together(module, package, &runner));
        println!("{}: {:.0} s", module.name, time.as_secs_f64());
        outcomes.push(outcome?);
    }
    // A build of one mutant takes the place of the program with all of them.
    for (module, outcome) in modules.iter().zip(&mut outcomes) {
        for index in going(package, Way::Alone, |mutant| module.has(&mutant.file)) {
            let mutant = &package.mutants[index];
            say(outcome, run::alone(package, module, mutant)?, mutant);
        }
    }
    Ok(outcomes)
}

/// Tests the mutants of a module that are in the program with all of them.
fn together(module: &Module, package: &Package, runner: &Runner) -> Result<Outcome> {
    runner.check(module)?;
    let in_module = |mutant: &Mutant| module.has(&mutant.file);
    let mut outcome = Outcome::default();
    for index in going(package, Way::Unviable, in_module) {
        say(&mut outcome, Fate::Unviable, &package.mutants[index]);
    }
    runner.test_all(module, &going(package, Way::Switch, in_module), |index, fate| {
        say(&mut outcome, fate, &package.mutants[index]);
    })?;
    Ok(outcome)
}

/// Adds to an outcome, and prints what is worth looking at.
fn say(outcome: &mut Outcome, fate: Fate, mutant: &Mutant) {
    if fate.is_open() {
        println!("{fate:<8} {}", mutant.name);
    }
    if (outcome.0.len() + 1).is_multiple_of(100) {
        println!("{} tested", outcome.0.len() + 1);
    }
    outcome.0.push((fate, mutant.name.clone()));
}

/// Keeps the outcome for `--read` and `--missed`.
fn keep(module: &Module, outcome: &Outcome) -> Result<()> {
    let path = result(module);
    std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let mut file = std::fs::File::create(path)?;
    for (fate, name) in &outcome.0 {
        writeln!(file, "{fate}\t{name}")?;
    }
    Ok(())
}

struct Options {
    wanted: Wanted,
    reads: bool,
    modules: Vec<&'static Module>,
}

impl Options {
    /// # Errors
    /// If a word is neither an option nor a module.
    fn parse(args: &[String]) -> Result<Self> {
        let (mut wanted, mut reads, mut names) = (Wanted::All, false, Vec::new());
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--read" => reads = true,
                "--missed" => wanted = Wanted::Missed,
                "--named" => {
                    wanted = Wanted::Named(words.next().ok_or("--named needs TEXT")?.clone());
                }
                name => names.push(name),
            }
        }
        if let Some(name) = names.iter().find(|name| MODULES.iter().all(|of| of.name != **name)) {
            let known: Vec<&str> = MODULES.iter().map(|module| module.name).collect();
            return Err(format!("no module '{name}'; there are {}", known.join(", ")).into());
        }
        let is_named = |module: &&Module| names.is_empty() || names.contains(&module.name);
        Ok(Self { wanted, reads, modules: MODULES.iter().filter(is_named).collect() })
    }
}

/// `cargo xtask mutants [--named TEXT] [--missed] [--read] [MODULE]...`
///
/// # Errors
/// If the mutants cannot be listed or built, if a survivor has no reason, or if too many survive.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.iter().any(|word| word == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    let options = Options::parse(args)?;
    let runs = !options.reads;
    if runs && !["timeout", "prlimit"].into_iter().all(is_installed) {
        return Err("needs timeout(1) and prlimit(1), for mutants that never end".into());
    }
    let path = root().join("docs/mutants.md");
    let mut page = Page::parse(&std::fs::read_to_string(&path)?)?;
    for modules in options.modules.chunk_by(|one, two| one.package == two.package) {
        let outcomes = if options.reads {
            modules.iter().map(|module| Outcome::read(module)).collect::<Result<_>>()?
        } else {
            test(modules, &options.wanted)?.into_iter().map(Some).collect::<Vec<_>>()
        };
        for (module, outcome) in modules.iter().zip(outcomes) {
            let Some(outcome) = outcome.filter(|_| options.wanted == Wanted::All) else { continue };
            if !options.reads {
                keep(module, &outcome)?;
            }
            page.take_up(module.name, module.files, outcome.figures(), outcome.survivors());
        }
        if options.wanted == Wanted::All {
            std::fs::write(&path, page.to_string())?;
        }
    }
    if options.wanted == Wanted::All { page.judge() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let text = "missed\ta.rs:1:2: replace + with -\nmissed\ta.rs:7:2: replace + with -\n\
                    caught\ta.rs:7:2: replace + with *\ntimeout\ta.rs:8:2: delete !\nunviable\ta.rs:9:9: x";
        Outcome::parse(text).unwrap()
    }

    #[test]
    fn survivors_are_counted_without_their_lines() {
        let outcome = outcome();
        let survivors = BTreeMap::from([("a.rs: replace + with -".to_owned(), 2)]);
        assert_eq!(outcome.survivors(), survivors);
        let figures = Figures { caught: 1, missed: 2, timeout: 1, unviable: 1 };
        assert_eq!(outcome.figures(), figures);
        assert!(Outcome::parse("missed").is_err() && Outcome::parse("lost\ta.rs").is_err());
    }

    #[test]
    fn what_was_not_caught_is_known_again_in_another_line() {
        let mutant = |old, new| list::tests::mutant("\n1 + !2", old, new, "x");
        assert!(outcome().has_open(&mutant("+", "-")));
        assert!(!outcome().has_open(&mutant("+", "*")));
    }

    #[test]
    fn options_are_checked() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Options::parse(&words)
        };
        let options = parse("--named bfq/raising merge cut").unwrap();
        assert_eq!(options.wanted, Wanted::Named("bfq/raising".to_owned()));
        let names: Vec<&str> = options.modules.iter().map(|module| module.name).collect();
        assert_eq!(names, ["merge", "cut"]);
        assert_eq!(parse("").unwrap().modules.len(), MODULES.len());
        assert!(parse("--named").is_err() && parse("--shard 1/2").is_err());
    }

    #[test]
    fn every_file_of_a_module_is_there() {
        for file in MODULES.iter().flat_map(|module| module.files) {
            let path = root().join(file.trim_end_matches("*.rs"));
            assert!(path.exists(), "{}", path.display());
        }
    }
}
