//! The sites where the protocols name an ordering, have a fence or check a second time, and the ways to weaken each.
//!
//! Read from the source, not from a run, since sites that no model reaches must be found as well.

use crate::Result;
use crate::tidy::source::{Scopes, is_word};
use crate::tidy::tree::Tree;
use std::collections::BTreeMap;
use std::fmt;

const FOLDER: &str = "crates/engine/src/sync/";
/// The facade, which holds no protocol.
const FACADE: [&str; 2] = ["mod.rs", "mutable.rs"];

/// A place in the source, as `Location::caller` reports it.
pub(super) type Place = (String, u32, u32);

/// An ordering, a fence or a second check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) place: Place,
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
pub(super) struct Mutant {
    pub(super) place: Place,
    /// The name in the list.
    pub(super) name: String,
    /// The text that the models read from the environment.
    pub(super) text: String,
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
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.name, self.what)
    }

    /// The file, from the folder of the protocols on.
    pub(super) fn file(&self) -> &str {
        self.place.0.strip_prefix(FOLDER).unwrap_or(&self.place.0)
    }

    pub(super) fn mutants(&self) -> impl Iterator<Item = Mutant> + '_ {
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
pub(super) fn module(file: &str) -> String {
    format!("sync::{}::", file.trim_end_matches(".rs").replace('/', "::"))
}

/// Every site outside of tests and models, in the order of the source.
pub(super) fn all(tree: &Tree) -> Result<Vec<Site>> {
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
