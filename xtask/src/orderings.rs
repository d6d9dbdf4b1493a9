//! `orderings`: shows that each memory ordering of the protocols is needed.
//!
//! Weakens every ordering in the engine's `sync` modules, drops every fence and every second check, one at a time, and
//! runs the models that reach it; one of them has to fail. A committed list justifies the survivors, and the sites that
//! no model reaches. The sites are read from the source, not from a run, since a site that no model reaches must be
//! found, too. The models are built once: they read the mutant from the environment
//! (`crates/engine/src/sync/mutable.rs`).

use crate::shell::{is_installed, root, target_dir, timed};
use crate::tidy::{Scopes, Tree, is_word};
use crate::{Result, suite};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The list that explains survivors.
const LIST: &str = "crates/engine/src/sync/orderings.md";
/// (factor by which models may be slower than without a mutant, the minimum time limit): mutants can give a model more
/// to explore.
const PATIENCE: u32 = 8;
const LEAST: Duration = Duration::from_secs(60);

/// A model, and the sites that it reaches.
struct Model {
    name: String,
    /// Whether the model has a planted bug. Such a model proves nothing about mutants.
    is_twin: bool,
    reaches: BTreeSet<Place>,
    took: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Killed,
    Survived,
    TimedOut,
}

impl Fate {
    /// How a run under `timeout` has ended.
    fn of(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Survived,
            Some(124) => Self::TimedOut,
            // A failed test, or a process that aborted.
            _ => Self::Killed,
        }
    }
}

/// `cargo xtask orderings [FILTER]`: only files or mutants with FILTER in their names.
///
/// # Errors
/// If a survivor, or a site that no model reaches, is not explained in the list, or an entry of it is stale.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let filter = match args {
        [] => "",
        [filter] => filter,
        _ => return Err("usage: cargo xtask orderings [FILTER]".into()),
    };
    if !is_installed("timeout") {
        return Err("needs timeout(1) of the coreutils, for mutants that never end".into());
    }
    let list = List::parse(&std::fs::read_to_string(root().join(LIST))?)?;
    let sites = all(&Tree::read(&root())?)?;
    let sites: Vec<Site> = sites.into_iter().filter(|site| is_wanted(site, filter)).collect();
    if sites.is_empty() {
        return Err(format!("no ordering matches {filter}").into());
    }
    let (result, time) = timed(|| judge(&sites, filter, &list));
    println!("orderings: {:.0} s", time.as_secs_f64());
    result
}

fn is_wanted(site: &Site, filter: &str) -> bool {
    site.name().contains(filter) || site.mutants().any(|mutant| mutant.name.contains(filter))
}

fn judge(sites: &[Site], filter: &str, list: &List) -> Result<()> {
    let binary = build()?;
    let models = record(&binary)?;
    let reached: BTreeSet<&Place> = models.iter().flat_map(|model| &model.reaches).collect();
    let unmodelled: Vec<String> =
        sites.iter().filter(|site| !reached.contains(&site.place)).map(Site::name).collect();
    let (mut survivors, mut killed, mut late) = (Vec::new(), 0, Vec::new());
    for site in sites.iter().filter(|site| reached.contains(&site.place)) {
        for mutant in site.mutants().filter(|mutant| mutant.name.contains(filter)) {
            let (fate, time) = timed(|| fate(&binary, &models, &mutant, site.file()));
            let fate = fate?;
            println!("{:<10} {:>6.1} s  {}", format!("{fate:?}"), time.as_secs_f64(), mutant.name);
            match fate {
                Fate::Killed => killed += 1,
                Fate::Survived => survivors.push(mutant.name),
                Fate::TimedOut => late.push(mutant.name),
            }
        }
    }
    let (sites, survived) = (sites.len(), survivors.len());
    println!(
        "orderings: {sites} sites, {} not reached; {} mutants: {killed} killed, {survived} survived, {} timed out",
        unmodelled.len(),
        killed + survived + late.len(),
        late.len()
    );
    survivors.extend(late);
    let was_asked = |name: &str| name.contains(filter);
    let mut wrong = complaints("a survivor", &survivors, &list.survivors, was_asked);
    wrong.extend(complaints("not reached by a model", &unmodelled, &list.unmodelled, was_asked));
    wrong.iter().for_each(|line| println!("{line}"));
    match wrong.len() {
        0 => Ok(()),
        n => Err(format!("{n} findings; kill it with a model, or argue in {LIST}").into()),
    }
}

/// Builds the models, and returns their path.
fn build() -> Result<PathBuf> {
    let build = suite::loom_cargo("test -p blkmq-engine --lib --no-run --message-format=json");
    println!("$ {build}");
    for line in build.output()?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if let Some(path) = message["executable"].as_str() {
            return Ok(path.into());
        }
    }
    Err("cargo does not say where the models are".into())
}

/// Runs each model separately, and records the sites that it reaches.
fn record(binary: &std::path::Path) -> Result<Vec<Model>> {
    let run = || suite::models(binary);
    let mut models = Vec::new();
    for line in run().arg("--list").arg("loom_").output()?.lines() {
        let Some(name) = line.strip_suffix(": test") else { continue };
        let file = target_dir().join("loom/sites");
        let _nothing_yet = std::fs::remove_file(&file);
        let cmd = run().env("BLKMQ_SITES", file.to_string_lossy()).arg("--exact").arg(name);
        let (output, took) = timed(|| cmd.output());
        let reached = std::fs::read_to_string(&file).unwrap_or_default();
        let model = Model {
            name: name.to_owned(),
            is_twin: output?.contains(" - should panic ... ok"),
            reaches: reached.lines().filter_map(place).collect(),
            took,
        };
        models.push(model);
    }
    if models.is_empty() {
        return Err("there are no models".into());
    }
    models.sort_by_key(|model| model.took);
    for model in models.iter().rev().take(5) {
        println!("{:>6.1} s  {}", model.took.as_secs_f64(), model.name);
    }
    Ok(models)
}

/// `FILE:LINE:COLUMN`.
fn place(line: &str) -> Option<Place> {
    let mut words = line.split(':');
    let mut next = || words.next();
    Some((next()?.to_owned(), next()?.parse().ok()?, next()?.parse().ok()?))
}

/// Runs the models that reach the site of `mutant`, those of its own file first.
fn fate(binary: &std::path::Path, models: &[Model], mutant: &Mutant, file: &str) -> Result<Fate> {
    let module = module(file);
    let able = models.iter().filter(|m| !m.is_twin && m.reaches.contains(&mutant.place));
    let (own, others): (Vec<&Model>, Vec<&Model>) =
        able.partition(|model| model.name.starts_with(&module));
    for models in [own, others] {
        if models.is_empty() {
            continue;
        }
        let time: Duration = models.iter().map(|model| model.took).sum();
        let limit = (time * PATIENCE).max(LEAST).as_secs();
        let mut cmd = suite::models(binary).under(&format!("timeout {limit}"));
        cmd = cmd.env("BLKMQ_MUTANT", mutant.text.clone()).arg("--test-threads=1").arg("--exact");
        let cmd = models.iter().fold(cmd, |cmd, model| cmd.arg(model.name.clone()));
        let fate = Fate::of(cmd.quiet_code()?);
        if fate != Fate::Survived {
            return Ok(fate);
        }
    }
    Ok(Fate::Survived)
}

/// Justifications, by the names of the mutants or sites.
#[derive(Debug, Default, PartialEq, Eq)]
struct List {
    /// Mutants that no model distinguishes from the original.
    survivors: BTreeMap<String, String>,
    /// Sites that no model reaches.
    unmodelled: BTreeMap<String, String>,
}

impl List {
    /// Entries are lines `` - `NAME`: ARGUMENT `` under the headings `## Survivors` and `## Unmodelled`. All other
    /// lines are prose.
    ///
    /// # Errors
    /// If an entry has no justification, occurs twice, or is under another heading.
    fn parse(text: &str) -> Result<Self> {
        let (mut list, mut heading) = (Self::default(), "");
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                heading = title.trim();
            }
            let Some(entry) = line.strip_prefix("- `") else { continue };
            let (name, argument) =
                entry.split_once("`: ").ok_or_else(|| format!("no argument in: {line}"))?;
            let entries = match heading {
                "Survivors" => &mut list.survivors,
                "Unmodelled" => &mut list.unmodelled,
                other => return Err(format!("an entry under {other:?}: {line}").into()),
            };
            if entries.insert(name.to_owned(), argument.to_owned()).is_some() {
                return Err(format!("two entries for {name}").into());
            }
        }
        Ok(list)
    }
}

/// The differences between the results and the list: unexplained results, and stale entries. Checks only entries for
/// which `was_asked` is true.
fn complaints(
    kind: &str,
    found: &[String],
    listed: &BTreeMap<String, String>,
    was_asked: impl Fn(&str) -> bool,
) -> Vec<String> {
    let unexplained = found.iter().filter(|name| !listed.contains_key(*name));
    let stale = listed.keys().filter(|name| was_asked(name) && !found.contains(name));
    unexplained
        .map(|name| format!("{name} is {kind}, and the list does not say why that may be"))
        .chain(stale.map(|name| format!("{name} is listed as {kind}, and is not")))
        .collect()
}

const FOLDER: &str = "crates/engine/src/sync/";
/// The facade, which holds no protocol.
const FACADE: [&str; 2] = ["mod.rs", "mutable.rs"];

/// A place in the source, as `Location::caller` reports it.
type Place = (String, u32, u32);

/// An ordering, a fence or a second check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Site {
    place: Place,
    /// The index of the ordering among those of the call, from 0.
    argument: usize,
    /// For example `ring.rs take store`: without the line, so that other sites can be added or removed without changing
    /// it.
    name: String,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
    /// A second check.
    Look,
}

/// One way in which a site can be weaker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mutant {
    place: Place,
    /// The name in the list.
    name: String,
    /// The text that the models read from the environment.
    text: String,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl What {
    const ORDERINGS: [Self; 5] =
        [Self::Relaxed, Self::Acquire, Self::Release, Self::AcqRel, Self::SeqCst];

    /// The weaker orderings that the models can use.
    fn weaker(self) -> &'static [&'static str] {
        match self {
            Self::Relaxed => &[],
            Self::Acquire | Self::Release => &["Relaxed"],
            Self::AcqRel => &["Acquire", "Release"],
            Self::SeqCst => &["AcqRel", "Dropped"],
            Self::Look => &["Dropped"],
        }
    }
}

impl Site {
    /// `ring.rs take store Release`.
    fn name(&self) -> String {
        format!("{} {}", self.name, self.what)
    }

    /// The file, from the folder of the protocols on.
    fn file(&self) -> &str {
        self.place.0.strip_prefix(FOLDER).unwrap_or(&self.place.0)
    }

    fn mutants(&self) -> impl Iterator<Item = Mutant> + '_ {
        self.what.weaker().iter().map(|instead| {
            let (file, line, column) = &self.place;
            Mutant {
                place: self.place.clone(),
                name: format!("{}->{instead}", self.name()),
                text: format!("{file}:{line}:{column}:{}:{instead}", self.argument),
            }
        })
    }
}

/// The module of the protocol in `file`, as its tests are named: `sync::ring::`.
fn module(file: &str) -> String {
    format!("sync::{}::", file.trim_end_matches(".rs").replace('/', "::"))
}

/// Every site outside of tests and models, in the order of the source.
fn all(tree: &Tree) -> Result<Vec<Site>> {
    let mut sites = Vec::new();
    for (file, rust) in tree.rust() {
        let Some(short) = file.path.strip_prefix(FOLDER) else { continue };
        if FACADE.contains(&short) {
            continue;
        }
        sites.extend(of_file(&file.path, &rust.masked.code, &rust.scopes)?);
    }
    if sites.is_empty() { Err("no protocol names an ordering".into()) } else { Ok(sites) }
}

fn of_file(path: &str, code: &str, scopes: &Scopes) -> Result<Vec<Site>> {
    let mut found: Vec<(usize, usize, What)> = Vec::new();
    for (at, text) in code.match_indices("Ordering::") {
        let word: String = word_at(code, at + text.len());
        let what = What::ORDERINGS.into_iter().find(|what| what.to_string() == word);
        let is_name = at > 0 && is_word(code.as_bytes()[at - 1]);
        if let (Some(what), false, false) = (what, is_name, scopes.is_test(at)) {
            let open = enclosing(code, at).ok_or_else(|| {
                format!("{path}: {word} at offset {at} is not in the call that it is for")
            })?;
            let argument = code[open..at].matches("Ordering::").count();
            found.push((call_before(code, open), argument, what));
        }
    }
    for (name, what) in [("fence_after_rmw()", What::SeqCst), ("looks_again()", What::Look)] {
        let calls = code.match_indices(name).map(|(at, _)| at).filter(|at| !scopes.is_test(*at));
        found.extend(calls.map(|at| (at, 0, what)));
    }
    found.sort_by_key(|(at, argument, _)| (*at, *argument));
    Ok(named(path, code, scopes, &found))
}

fn named(path: &str, code: &str, scopes: &Scopes, found: &[(usize, usize, What)]) -> Vec<Site> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let name = |(at, argument, what): &(usize, usize, What)| {
        let innermost =
            scopes.functions.iter().filter(|f| f.range.contains(at)).min_by_key(|f| f.range.len());
        let function = innermost.map_or("-", |function| function.name.as_str());
        let file = path.strip_prefix(FOLDER).unwrap_or(path);
        let mut name = format!("{file} {function} {}", word_at(code, *at));
        if *argument > 0 {
            name.push_str(" (failed)");
        }
        let count = seen.entry(format!("{name} {what}")).or_default();
        *count += 1;
        if *count > 1 {
            name.push_str(&format!(" #{count}"));
        }
        let line = 1 + code[..*at].matches('\n').count();
        let column = 1 + at - code[..*at].rfind('\n').map_or(0, |end| end + 1);
        let place = (path.to_owned(), line as u32, column as u32);
        Site { place, argument: *argument, name, what: *what }
    };
    found.iter().map(name).collect()
}

/// The word that begins at `at`.
fn word_at(code: &str, at: usize) -> String {
    code[at..].bytes().take_while(|byte| is_word(*byte)).map(char::from).collect()
}

/// The parenthesis around `at` that a call opens.
fn enclosing(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0;
    for (open, byte) in code.bytes().enumerate().take(at).skip(at.saturating_sub(400)).rev() {
        match byte {
            b')' | b'}' | b']' => depth += 1,
            b'(' | b'{' | b'[' if depth > 0 => depth -= 1,
            b'(' => return (call_before(code, open) < open).then_some(open),
            b'{' | b'[' => return None,
            _ => {}
        }
    }
    None
}

/// The beginning of the word in front of `open`.
fn call_before(code: &str, open: usize) -> usize {
    open - code[..open].bytes().rev().take_while(|byte| is_word(*byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_notes_is_read() {
        let there = ("crates/a.rs".to_owned(), 12, 7);
        assert_eq!(place("crates/a.rs:12:7"), Some(there));
        assert_eq!(place("crates/a.rs:12"), None);
    }

    #[test]
    fn a_failure_of_any_kind_kills() {
        assert_eq!(Fate::of(Some(0)), Fate::Survived);
        assert_eq!(Fate::of(Some(124)), Fate::TimedOut);
        assert_eq!(Fate::of(Some(101)), Fate::Killed);
        assert_eq!(Fate::of(None), Fate::Killed);
    }

    /// With this test, `cargo test` finds a stale entry without running a model.
    #[test]
    fn the_list_names_what_there_is() {
        let list = List::parse(&std::fs::read_to_string(root().join(LIST)).unwrap()).unwrap();
        let sites = all(&Tree::read(&root()).unwrap()).unwrap();
        let mutants: Vec<String> =
            sites.iter().flat_map(Site::mutants).map(|mutant| mutant.name).collect();
        let names: Vec<String> = sites.iter().map(Site::name).collect();
        for name in list.survivors.keys() {
            assert!(mutants.contains(name), "{name} is listed and does not exist");
        }
        for name in list.unmodelled.keys() {
            assert!(names.contains(name), "{name} is listed and does not exist");
        }
        let distinct: BTreeSet<&String> = mutants.iter().collect();
        assert_eq!(distinct.len(), mutants.len(), "two mutants have one name");
    }

    #[test]
    fn entries_are_told_from_prose() {
        let text = "# Title\n\n- a point\n## Survivors\nProse.\n- `a.rs f x`: because\n  of it\n\
                    ## Unmodelled\n- `b.rs g y`: a hint\n";
        let list = List::parse(text).unwrap();
        assert_eq!(list.survivors["a.rs f x"], "because");
        assert_eq!(list.unmodelled["b.rs g y"], "a hint");
    }

    #[test]
    fn an_entry_without_an_argument_or_a_heading_or_twice_is_an_error() {
        assert!(List::parse("## Survivors\n- `a`\n").is_err());
        assert!(List::parse("- `a`: b\n").is_err());
        assert!(List::parse("## Survivors\n- `a`: b\n- `a`: c\n").is_err());
    }

    #[test]
    fn the_unexplained_and_the_stale_are_found() {
        let list = List::parse("## Survivors\n- `a`: x\n- `b`: x\n- `c`: x\n").unwrap();
        let found = ["a".to_owned(), "d".to_owned()];
        let complaints = complaints("a survivor", &found, &list.survivors, |name| name != "c");
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("d is a survivor"));
        assert!(complaints[1].starts_with("b is listed as a survivor, and is not"));
    }

    fn sites(code: &str) -> Vec<Site> {
        of_file(&format!("{FOLDER}a.rs"), code, &Scopes::new("a.rs", &code.parse().unwrap()))
            .unwrap()
    }

    fn names(code: &str) -> Vec<String> {
        let sites = sites(code);
        sites.iter().flat_map(Site::mutants).map(|mutant| mutant.name).collect()
    }

    #[test]
    fn every_way_to_be_weaker_is_named() {
        let code = "fn f() {\n    x.store(1, Ordering::Release);\n    y.load(Ordering::Relaxed);\n    \
                    fence(Ordering::SeqCst);\n}\nfn g() { if looks_again() { fence_after_rmw(); } }";
        let expected = [
            "a.rs f store Release->Relaxed",
            "a.rs f fence SeqCst->AcqRel",
            "a.rs f fence SeqCst->Dropped",
            "a.rs g looks_again Look->Dropped",
            "a.rs g fence_after_rmw SeqCst->AcqRel",
            "a.rs g fence_after_rmw SeqCst->Dropped",
        ];
        assert_eq!(names(code), expected);
    }

    #[test]
    fn a_site_is_where_the_compiler_says_that_its_call_is() {
        let code = "fn f() {\n    a.b(|x| g(x)).compare_exchange(\n        h(1),\n        2,\n        \
                    Ordering::AcqRel,\n        Ordering::Relaxed,\n    );\n}";
        let sites = sites(code);
        let place = (format!("{FOLDER}a.rs"), 2, 19);
        assert!(sites.iter().all(|site| site.place == place), "{sites:?}");
        assert_eq!(sites.iter().map(|site| site.argument).collect::<Vec<_>>(), [0, 1]);
        let first = sites[0].mutants().next().unwrap();
        assert_eq!(first.text, format!("{FOLDER}a.rs:2:19:0:Acquire"));
        assert_eq!(sites[1].name(), "a.rs f compare_exchange (failed) Relaxed");
    }

    #[test]
    fn two_of_a_kind_have_numbers() {
        let code = "fn f() { x.load(Ordering::Acquire); x.load(Ordering::Acquire); }";
        let expected = ["a.rs f load Acquire->Relaxed", "a.rs f load #2 Acquire->Relaxed"];
        assert_eq!(names(code), expected);
    }

    #[test]
    fn tests_and_models_do_not_count() {
        let code = "#[cfg(all(test, loom))]\nmod model { fn f() { x.load(Ordering::Acquire); } }";
        assert_eq!(names(code), [] as [&str; 0]);
    }

    #[test]
    fn an_ordering_outside_of_its_call_is_an_error() {
        let code = "fn f() { let relaxed = Ordering::Relaxed; }";
        assert!(of_file("a.rs", code, &Scopes::new("a.rs", &code.parse().unwrap())).is_err());
    }

    #[test]
    fn models_are_found_by_the_name_of_the_file() {
        assert_eq!(module("ring.rs"), "sync::ring::");
    }
}
