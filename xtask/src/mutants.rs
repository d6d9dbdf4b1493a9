//! `mutants`: finds changes of a line that no test notices, by cargo-mutants, module by module.
//!
//! Each mutant is built and tested twice at most: by a quick test, which finds most of them, and, if that does not
//! notice it, by all other tests of its module. The figures and the survivors, with the reasons why they may survive,
//! are in `docs/mutants.md` (`page.rs`). The mutated files are in a copy of the workspace.

mod page;

use crate::Result;
use crate::shell::{Cmd, root, target_dir};
use page::{Figures, Page};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HELP: &str = "usage: cargo xtask mutants [OPTION]... [MODULE]...

  --shard K/N   only every N-th mutant of each module, beginning with the K-th (from 0)
  --read        run nothing; take up what earlier runs have left in target/mutants
  --help        this

Needs cargo-mutants (`cargo install cargo-mutants --locked`). Rewrites docs/mutants.md, and fails if a survivor has
no reason there, or if more than a twentieth of a module's mutants survive. Without MODULE: all of them.";

/// Bytes of address space of a compiler or a test: a mutant that grows without an end fails alone.
const MEMORY: u64 = 8_000_000_000;
/// Seconds of CPU time of a compiler or a test, for mutants that never end; no test needs a fifth of that.
const CPU_TIME: u32 = 120;
/// Seconds until cargo-mutants gives up, for mutants that sleep for ever. By the wall clock, so it is generous.
const TIMEOUT: u32 = 900;

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

/// The arguments of `cargo test`.
#[derive(Clone, Copy)]
struct Tests {
    /// The targets that are built.
    targets: &'static str,
    /// Parts of names, any of which selects a test of them; all of them if empty.
    filter: &'static str,
}

impl Tests {
    const fn of(targets: &'static str) -> Self {
        Self { targets, filter: "" }
    }

    /// The tests of a policy, inside the crate and from outside; the names of both have `filter` in them.
    const fn policy(filter: &'static str) -> Self {
        Self { targets: "--lib --test all", filter }
    }

    /// The test of a policy against its twin.
    const fn differential(filter: &'static str) -> Self {
        Self { targets: "--test all", filter }
    }
}

/// The tests of the engine from outside that reach these modules.
const ENGINE: Option<Tests> = Some(Tests {
    targets: "--test all",
    filter: "submission:: splitting:: flush:: timeouts:: cancel:: groups::",
});

const fn engine(name: &'static str, files: &'static [&'static str]) -> Module {
    Module { name, package: "blkmq-engine", files, quick: Tests::of("--lib"), thorough: ENGINE }
}

const MODULES: &[Module] = &[
    Module {
        name: "none",
        package: "blkmq-sched",
        files: &["crates/sched/src/none.rs"],
        quick: Tests::differential("none_decides"),
        thorough: Some(Tests::of("--lib")),
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
        quick: Tests { targets: "--lib", filter: "cut" },
        thorough: None,
    },
];

/// The mutants of a module to test: all, or a shard of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    All,
    /// `K/N`.
    Shard(String),
}

impl Part {
    /// # Errors
    /// If it is not `K/N` with K below N.
    fn shard(text: &str) -> Result<Self> {
        let wrong = || format!("--shard {text}: K/N is wanted, with K from 0 to below N");
        let (k, n) = text.split_once('/').ok_or_else(wrong)?;
        let (k, n): (u32, u32) = (k.parse()?, n.parse()?);
        if k < n { Ok(Self::Shard(format!("{k}/{n}"))) } else { Err(wrong().into()) }
    }

    fn name(&self) -> &str {
        match self {
            Self::All => "all",
            Self::Shard(shard) => shard,
        }
    }
}

/// The outcome of some mutants: the lines of cargo-mutants, file, line, column and change.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Outcome {
    caught: Vec<String>,
    missed: Vec<String>,
    timeout: Vec<String>,
    unviable: Vec<String>,
}

impl Outcome {
    /// The outcome that a run has left in `folder`.
    ///
    /// # Errors
    /// If it has left none.
    fn read(folder: &Path) -> Result<Self> {
        let list = |name: &str| -> Result<Vec<String>> {
            let path = folder.join("mutants.out").join(name);
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Self {
            caught: list("caught.txt")?,
            missed: list("missed.txt")?,
            timeout: list("timeout.txt")?,
            unviable: list("unviable.txt")?,
        })
    }

    /// The mutants that no test has caught.
    fn open(&self) -> impl Iterator<Item = &String> {
        self.missed.iter().chain(&self.timeout)
    }

    /// This outcome, updated with that of a second run over the uncaught mutants. The second run may have tested
    /// others too: cargo-mutants picks all mutants that leave a field out, with any name.
    fn then(mut self, mut again: Self) -> Self {
        let open: Vec<String> = self.open().cloned().collect();
        for list in [&mut again.caught, &mut again.missed, &mut again.timeout, &mut again.unviable]
        {
            list.retain(|line| open.contains(line));
        }
        self.caught.extend(again.caught);
        self.unviable.extend(again.unviable);
        Self { missed: again.missed, timeout: again.timeout, ..self }
    }

    fn figures(&self) -> Figures {
        let count = |list: &Vec<String>| list.len() as u32;
        Figures {
            caught: count(&self.caught),
            missed: count(&self.missed),
            timeout: count(&self.timeout),
            unviable: count(&self.unviable),
        }
    }

    /// The mutants that no test noticed, without their lines, and the number of times that each occurs.
    fn survivors(&self) -> BTreeMap<String, u32> {
        let mut survivors = BTreeMap::new();
        for line in &self.missed {
            *survivors.entry(without_place(line)).or_insert(0) += 1;
        }
        survivors
    }
}

/// `file.rs: replace ...` for `file.rs:12:34: replace ...`: lines move, and the change is the same.
fn without_place(line: &str) -> String {
    let (place, change) = line.split_once(": ").unwrap_or((line, ""));
    let file = place.split(':').next().unwrap_or(place);
    format!("{file}: {change}")
}

/// A regular expression that matches this text and no other.
fn exactly(text: &str) -> String {
    let mut pattern = String::from("^");
    for c in text.chars() {
        // Only these are escaped: a `\>` would be the end of a word.
        if "\\.+*?()|[]{}^$#&-~".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "$"
}

/// The run of cargo-mutants over these files with these tests.
fn command(module: &Module, tests: Tests, out: &Path) -> Cmd {
    let mut cmd = Cmd::new(&format!(
        "prlimit --as={MEMORY} --cpu={CPU_TIME} nice -n 19 cargo mutants --package {} --baseline skip --timeout \
         {TIMEOUT} --colors never --output",
        module.package
    ));
    cmd = cmd.arg(out.to_string_lossy());
    for file in module.files {
        cmd = cmd.arg("--file").arg(*file);
    }
    // The first kind is for building too, the second one for running alone: it is for the test programs, which take
    // several filters, and not for cargo, which takes one.
    for word in tests.targets.split_whitespace() {
        cmd = cmd.arg(format!("--cargo-arg={word}"));
    }
    for word in ["--"].into_iter().chain(tests.filter.split_whitespace()) {
        cmd = cmd.arg(format!("--cargo-test-arg={word}"));
    }
    cmd
}

/// Runs `cmd`. Mutants that survive or time out are no failure of the run.
fn run(cmd: &Cmd, out: &Path) -> Result<Outcome> {
    std::fs::create_dir_all(out)?;
    match cmd.exit_code()? {
        0 | 2 | 3 => Outcome::read(out),
        code => Err(format!("{cmd}: exit status {code}").into()),
    }
}

fn folder(module: &Module, part: &Part) -> PathBuf {
    let part = part.name().replace('/', "-of-");
    target_dir().join("mutants").join(format!("{}-{part}", module.name))
}

/// Both passes over one module.
fn test(module: &Module, part: &Part) -> Result<Outcome> {
    let folder = folder(module, part);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let quick = folder.join("quick");
    let mut cmd = command(module, module.quick, &quick);
    if let Part::Shard(shard) = part {
        cmd = cmd.arg("--shard").arg(shard);
    }
    let outcome = run(&cmd, &quick)?;
    let Some(thorough) = module.thorough.filter(|_| outcome.open().next().is_some()) else {
        return Ok(outcome);
    };
    let again = folder.join("thorough");
    let mut cmd = command(module, thorough, &again);
    for line in outcome.open() {
        cmd = cmd.arg("--re").arg(exactly(line));
    }
    let again = run(&cmd, &again)?;
    Ok(outcome.then(again))
}

/// The outcome that an earlier run has left; `None` if there was none.
fn read(module: &Module, part: &Part) -> Result<Option<Outcome>> {
    let folder = folder(module, part);
    if !folder.exists() {
        return Ok(None);
    }
    let quick = Outcome::read(&folder.join("quick"))?;
    let again = folder.join("thorough");
    Ok(Some(if again.exists() { quick.then(Outcome::read(&again)?) } else { quick }))
}

/// `cargo xtask mutants [--shard K/N] [--read] [MODULE]...`
///
/// # Errors
/// If cargo-mutants cannot be run, if a survivor has no reason, or if too many survive.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (mut part, mut reads, mut names) = (Part::All, false, Vec::new());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" => {
                println!("{HELP}");
                return Ok(());
            }
            "--read" => reads = true,
            "--shard" => part = Part::shard(words.next().ok_or("--shard needs K/N")?)?,
            name => names.push(name),
        }
    }
    if let Some(name) = names.iter().find(|name| MODULES.iter().all(|of| of.name != **name)) {
        let known: Vec<&str> = MODULES.iter().map(|module| module.name).collect();
        return Err(format!("no module '{name}'; there are {}", known.join(", ")).into());
    }
    let path = root().join("docs/mutants.md");
    let mut page = Page::parse(&std::fs::read_to_string(&path)?)?;
    for module in MODULES {
        if !names.is_empty() && !names.contains(&module.name) {
            continue;
        }
        let outcome = if reads { read(module, &part)? } else { Some(test(module, &part)?) };
        let Some(outcome) = outcome else { continue };
        page.take_up(module.name, module.files, &part, outcome.figures(), outcome.survivors());
        // Written after each module: a run takes hours, and may be stopped.
        std::fs::write(&path, page.to_string())?;
    }
    page.judge()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survivor_is_named_without_its_line() {
        let line = "crates/a/src/b.rs:76:5: replace <impl A for B>::c -> u32 with 1";
        assert_eq!(
            without_place(line),
            "crates/a/src/b.rs: replace <impl A for B>::c -> u32 with 1"
        );
        let lines = ["a.rs:1:2: replace + with -", "a.rs:7:2: replace + with -"].map(str::to_owned);
        let outcome = Outcome { missed: lines.to_vec(), ..Outcome::default() };
        assert_eq!(outcome.survivors(), BTreeMap::from([("a.rs: replace + with -".to_owned(), 2)]));
    }

    #[test]
    fn what_is_looked_at_again_is_counted_once() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let quick = Outcome {
            caught: list(&["a"]),
            missed: list(&["b", "c"]),
            timeout: list(&["d"]),
            unviable: list(&["e"]),
        };
        assert_eq!(quick.open().count(), 3);
        let again =
            Outcome { caught: list(&["b", "d"]), missed: list(&["c"]), ..Outcome::default() };
        let figures = quick.then(again).figures();
        assert_eq!(figures, Figures { caught: 3, missed: 1, timeout: 0, unviable: 1 });
    }

    #[test]
    fn patterns_match_nothing_but_their_text() {
        assert_eq!(exactly("a.rs:1: replace + with *"), "^a\\.rs:1: replace \\+ with \\*$");
        assert_eq!(exactly("f -> u8 with < or >"), "^f \\-> u8 with < or >$");
    }

    /// `cargo test` takes one filter of its own and refuses a second one; to cargo-mutants, a `cargo test` that does not
    /// start is a test that fails, so that every mutant counted as caught. The test programs take as many as there are.
    #[test]
    fn filters_go_to_the_test_programs() {
        let module = engine("x", &["x.rs"]);
        let tests = Tests { targets: "--test all", filter: "one:: two::" };
        let line = command(&module, tests, Path::new("out")).to_string();
        let filters = "--cargo-test-arg=-- --cargo-test-arg=one:: --cargo-test-arg=two::";
        assert!(line.ends_with(&format!("--cargo-arg=--test --cargo-arg=all {filters}")), "{line}");
        let all = command(&module, Tests::of("--lib"), Path::new("out")).to_string();
        assert!(all.ends_with("--cargo-arg=--lib --cargo-test-arg=--"), "{all}");
    }

    #[test]
    fn a_shard_is_below_their_number() {
        assert_eq!(Part::shard("3/16").unwrap().name(), "3/16");
        for wrong in ["3", "4/4", "a/b", "-1/4"] {
            assert!(Part::shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_file_of_a_module_is_there() {
        for file in MODULES.iter().flat_map(|module| module.files) {
            let path = root().join(file.trim_end_matches("*.rs"));
            assert!(path.exists(), "{}", path.display());
        }
    }
}
