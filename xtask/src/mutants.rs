//! `mutants`: finds changes of a line that no test notices, module by module.
//!
//! cargo-mutants lists the changes (`list.rs`). All of a package that can be are compiled into one program (`switch.rs`,
//! `program.rs`), in a copy of the workspace (`tree.rs`); the others are built one at a time. Each is tested twice at
//! most (`run.rs`): by a quick test, which finds most of them, and, if that does not notice it, by all other tests of
//! its module. The figures and the survivors, with the reasons why they may survive, are in `docs/mutants.md`
//! (`page.rs`).

mod bodies;
mod list;
mod outcome;
mod page;
mod program;
mod run;
mod switch;
mod tree;

use crate::Result;
use crate::shell::{is_installed, root, target_dir, timed};
use list::Mutant;
use outcome::{Journal, Outcome};
use page::Page;
use program::{Package, Target, Way};
use run::{Fate, Runner, going, is_meant};
use std::path::PathBuf;

const HELP: &str = "usage: cargo xtask mutants [OPTION]... [MODULE]...

  --named TEXT  only mutants with TEXT in their names: file, line, column and change
  --missed      only mutants that the last run has not caught, or not come to; the others are as they were
  --read        run nothing; take up what the last run has left in target/mutants
  --help        this

Needs cargo-mutants (`cargo install cargo-mutants --locked`), which lists the mutants. Rewrites docs/mutants.md, and
fails if a survivor has no reason there, or if more than a twentieth of a module's mutants survive. With --named it
prints what survives, and leaves the page as it is. Without MODULE: all of them.";

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
        Self { targets: &[Target::Lib, Target::All], filter, cpu: 12 }
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
        // These take ten seconds.
        thorough: Some(Tests { cpu: 40, ..Tests::policy("kyber::") }),
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
    /// Those that the last run has not caught, or not come to.
    Missed,
}

/// Where a run leaves the outcome of a module.
fn result(module: &Module) -> PathBuf {
    target_dir().join("mutants").join(format!("{}.txt", module.name))
}

/// A module with its mutants.
struct Task {
    module: &'static Module,
    /// The fates that are known from an earlier run, and then all.
    mutants: Vec<(Mutant, Option<Fate>)>,
    /// If the outcome is to be kept.
    journal: Option<Journal>,
}

impl Task {
    /// The task of a module among the mutants of its package.
    fn new(module: &'static Module, all: &[Mutant], wanted: &Wanted) -> Result<Self> {
        let of_module = all.iter().filter(|mutant| module.has(&mutant.file));
        let is_named = |mutant: &&Mutant| !matches!(wanted, Wanted::Named(text) if !mutant.name.contains(text));
        let mutants: Vec<&Mutant> = of_module.filter(is_named).collect();
        let mut fates = vec![None; mutants.len()];
        let names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
        if *wanted == Wanted::Missed {
            fates = Outcome::read(&result(module))?.fates_of(&names);
        }
        let mutants = mutants.into_iter().cloned();
        Ok(Self {
            module,
            mutants: mutants
                .zip(fates.into_iter().map(|fate| fate.filter(|fate| !fate.is_open())))
                .collect(),
            journal: match wanted {
                Wanted::All => Some(Journal::new(&result(module))?),
                Wanted::Missed => Some(Journal::append(&result(module))?),
                Wanted::Named(_) => None,
            },
        })
    }

    /// Takes up the fate of a mutant, and prints what is worth looking at.
    fn note(&mut self, mutant: &Mutant, fate: Fate) -> Result<()> {
        if fate.is_open() {
            println!("{fate:<8} {}", mutant.name);
        }
        let known = self.mutants.iter_mut().find(|(known, _)| known.name == mutant.name);
        known.expect("it is tested for this module").1 = Some(fate);
        self.journal.as_mut().map_or(Ok(()), |journal| journal.note(fate, &mutant.name))
    }

    /// Without the mutants in tests, which have no fate.
    fn outcome(&self) -> Outcome {
        let known =
            self.mutants.iter().filter_map(|(mutant, fate)| Some(((*fate)?, mutant.name.clone())));
        Outcome(known.collect())
    }

    /// Tests the mutants that are in the program with all of them.
    fn together(&mut self, package: &Package, runner: &Runner) -> Result<()> {
        let module = self.module;
        let in_module = |mutant: &Mutant| module.has(&mutant.file);
        for index in going(package, Way::Unviable, in_module) {
            self.note(&package.mutants[index], Fate::Unviable)?;
        }
        let switched = going(package, Way::Switch, in_module);
        if switched.is_empty() {
            return Ok(());
        }
        runner.check(module)?;
        runner.test_all(module, &switched, |index, fate| self.note(&package.mutants[index], fate))
    }

    /// Tests the others.
    fn one_by_one(&mut self, package: &Package) -> Result<()> {
        for index in going(package, Way::Alone, |mutant| self.module.has(&mutant.file)) {
            let mutant = &package.mutants[index];
            self.note(mutant, run::alone(package, self.module, mutant)?)?;
        }
        Ok(())
    }
}

/// Tests the mutants of these modules, which are of one package.
fn test(modules: &[&'static Module], wanted: &Wanted) -> Result<Vec<Outcome>> {
    let name = modules[0].package;
    let files: Vec<&str> = modules.iter().flat_map(|module| module.files).copied().collect();
    let all = list::of(name, &files)?;
    let tasks = modules.iter().map(|module| Task::new(module, &all, wanted));
    let mut tasks = tasks.collect::<Result<Vec<_>>>()?;
    let unknown = tasks.iter().flat_map(|task| &task.mutants).filter(|(_, fate)| fate.is_none());
    let unknown: Vec<Mutant> = unknown.map(|(mutant, _)| mutant.clone()).collect();
    if !unknown.is_empty() {
        let tests = modules.iter().flat_map(|module| module.tests());
        let targets = tests.flat_map(|tests| tests.targets).copied().collect();
        let mut package = Package::new(name, targets, unknown)?;
        let programs = package.switched()?;
        let runner = Runner::new(&package, programs);
        for task in &mut tasks {
            let (result, time) = timed(|| task.together(&package, &runner));
            println!("{}: {:.0} s", task.module.name, time.as_secs_f64());
            result?;
        }
        // A build of one mutant takes the place of the program with all of them.
        tasks.iter_mut().try_for_each(|task| task.one_by_one(&package))?;
    }
    Ok(tasks.iter().map(Task::outcome).collect())
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

impl Options {
    /// Are all mutants of the modules known after this?
    fn changes_page(&self) -> bool {
        !matches!(self.wanted, Wanted::Named(_))
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
    let page = || Page::parse(&std::fs::read_to_string(&path)?);
    page()?;
    for modules in options.modules.chunk_by(|one, two| one.package == two.package) {
        let outcomes = if options.reads {
            modules.iter().map(|module| Outcome::read(&result(module))).collect::<Result<_>>()?
        } else {
            test(modules, &options.wanted)?
        };
        if !options.changes_page() {
            continue;
        }
        // Its reasons may have been edited meanwhile.
        let mut page = page()?;
        for (module, outcome) in modules.iter().zip(outcomes) {
            if outcome == Outcome::default() {
                continue;
            }
            outcome.write(&result(module))?;
            page.take_up(module.name, module.files, outcome.figures(), outcome.survivors());
        }
        std::fs::write(&path, page.to_string())?;
    }
    if options.changes_page() { page()?.judge() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
