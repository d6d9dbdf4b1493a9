//! `docs/mutants.md`: figures for each module, and survivors with the reasons why they may survive.
//!
//! The command writes figures and survivors; people write reasons, which stay as long as their survivor does.

use super::run::is_meant;
use crate::Result;
use std::collections::BTreeMap;
use std::fmt;

/// The part above the figures is kept unchanged.
const FIGURES: &str = "## Figures";
const SURVIVORS: &str = "## Survivors";
const HEAD: &str = "| module | mutants | caught | missed | timeout | unviable |
|---|---:|---:|---:|---:|---:|";
/// Characters of a line.
const WIDTH: usize = 120;
/// The reason of a survivor that has none yet.
const OPEN: &str = "OPEN";

/// The number of mutants by outcome.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Figures {
    /// A test failed, or used up its memory or CPU time.
    pub(super) caught: u32,
    /// Every test passed.
    pub(super) missed: u32,
    /// A test slept for ever.
    pub(super) timeout: u32,
    /// The mutant did not compile.
    pub(super) unviable: u32,
}

impl Figures {
    fn sum(self) -> u32 {
        self.caught + self.missed + self.timeout + self.unviable
    }

    /// Does more than a twentieth of the mutants that compile survive?
    fn too_many(self) -> bool {
        self.missed * 20 > self.sum() - self.unviable
    }
}

/// The number of times that a survivor occurs, and the reason why that is right.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Survivor {
    times: u32,
    why: String,
}

/// The whole page.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Page {
    preface: String,
    figures: BTreeMap<String, Figures>,
    survivors: BTreeMap<String, Survivor>,
}

impl Page {
    /// # Errors
    /// If the text does not have the form of the page.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once(FIGURES).and_then(|(preface, rest)| {
            rest.split_once(SURVIVORS).map(|(figures, survivors)| (preface, figures, survivors))
        });
        let (preface, rows, items) = parts.ok_or("the page has no figures or no survivors")?;
        let mut page = Self {
            preface: preface.to_owned(),
            figures: BTreeMap::new(),
            survivors: BTreeMap::new(),
        };
        for row in rows.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let (key, figures) = figures_of(row).ok_or_else(|| format!("no figures: {row}"))?;
            page.figures.insert(key, figures);
        }
        // A long reason has several lines.
        let items = items.replace("\n  ", " ");
        for item in items.lines().filter(|line| line.starts_with("- ")) {
            let (name, survivor) =
                survivor_of(item).ok_or_else(|| format!("no survivor: {item}"))?;
            page.survivors.insert(name, survivor);
        }
        Ok(page)
    }

    /// Puts the results of a run in the place of the earlier ones of the module, which consists of these files.
    pub(super) fn take_up(
        &mut self,
        module: &str,
        files: &[&str],
        figures: Figures,
        survivors: BTreeMap<String, u32>,
    ) {
        self.figures.insert(module.to_owned(), figures);
        let of_module = |name: &str| files.iter().any(|file| is_in(file, name));
        let known = std::mem::take(&mut self.survivors);
        let (mut reasons, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            known.into_iter().partition(|(name, _)| of_module(name));
        self.survivors = others;
        for (name, times) in survivors {
            let why = reasons.remove(&name).map_or_else(|| OPEN.to_owned(), |known| known.why);
            self.survivors.insert(name, Survivor { times, why });
        }
    }

    /// # Errors
    /// If a survivor has no reason, or a module has too many of them.
    pub(super) fn judge(&self) -> Result<()> {
        let open = self.survivors.iter().filter(|(_, survivor)| survivor.why == OPEN);
        let mut faults: Vec<String> =
            open.map(|(name, _)| format!("no reason in docs/mutants.md: {name}")).collect();
        for (module, figures) in &self.figures {
            if figures.too_many() {
                let missed = figures.missed;
                faults.push(format!("{module}: {missed} survive, above a twentieth"));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
    }
}

/// Is the survivor `name` in one of these files?
fn is_in(pattern: &str, name: &str) -> bool {
    is_meant(pattern, name.split(':').next().unwrap_or(name))
}

fn figures_of(row: &str) -> Option<(String, Figures)> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [module, _, caught, missed, timeout, unviable] = cells[..] else { return None };
    let figures = Figures {
        caught: caught.parse().ok()?,
        missed: missed.parse().ok()?,
        timeout: timeout.parse().ok()?,
        unviable: unviable.parse().ok()?,
    };
    Some((module.to_owned(), figures))
}

/// `` - `file.rs: change` (2): why ``
fn survivor_of(item: &str) -> Option<(String, Survivor)> {
    let (name, rest) = item.strip_prefix("- `")?.split_once("` (")?;
    let (times, why) = rest.split_once("): ")?;
    Some((name.to_owned(), Survivor { times: times.parse().ok()?, why: why.to_owned() }))
}

/// An item in lines of the usual width.
fn wrapped(item: &str) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for word in item.split(' ') {
        if width > 0 && width + 1 + word.len() > WIDTH {
            text += "\n  ";
            width = 2;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text += word;
        width += word.len();
    }
    text
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{FIGURES}\n\n{HEAD}\n", self.preface)?;
        for (module, figures) in &self.figures {
            let Figures { caught, missed, timeout, unviable } = figures;
            let sum = figures.sum();
            writeln!(f, "| {module} | {sum} | {caught} | {missed} | {timeout} | {unviable} |")?;
        }
        write!(f, "\n{SURVIVORS}\n\n")?;
        for (name, Survivor { times, why }) in &self.survivors {
            writeln!(f, "{}", wrapped(&format!("- `{name}` ({times}): {why}")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[&str] = &["crates/a/src/*.rs"];

    fn page() -> Page {
        let text = format!(
            "# Mutants\n\nWords.\n\n{FIGURES}\n\n{HEAD}\n| a | 40 | 38 | 1 | 0 | 1 |\n\n{SURVIVORS}\n\n\
             - `crates/a/src/x.rs: replace || with && in f` (1): equivalent because it is\n"
        );
        let page = Page::parse(&text).expect("as it is written");
        assert_eq!(page.to_string(), text);
        page
    }

    fn found(names: &[(&str, u32)]) -> BTreeMap<String, u32> {
        names.iter().map(|(name, times)| ((*name).to_owned(), *times)).collect()
    }

    #[test]
    fn a_survivor_keeps_its_reason_and_a_new_one_has_none() {
        let mut page = page();
        assert!(page.judge().is_ok());
        let figures = Figures { caught: 98, missed: 2, ..Figures::default() };
        let old = "crates/a/src/x.rs: replace || with && in f";
        page.take_up("a", FILES, figures, found(&[(old, 2), ("crates/a/src/y.rs: z", 1)]));
        let text = page.to_string();
        assert!(text.contains("in f` (2): equivalent because it is\n"), "{text}");
        assert!(text.contains("| a | 100 | 98 | 2 | 0 | 0 |"), "{text}");
        let error = page.judge().unwrap_err().to_string();
        assert_eq!(error, "no reason in docs/mutants.md: crates/a/src/y.rs: z");
        page.take_up("a", FILES, figures, found(&[]));
        assert!(page.survivors.is_empty(), "those that a test notices by now are gone");
    }

    #[test]
    fn a_long_reason_has_several_lines() {
        let text = page().to_string().replace("it is\n", &format!("it is{}\n", " so".repeat(40)));
        let page = Page::parse(&text).expect("a reason may be long");
        let shown = page.to_string();
        assert!(shown.lines().all(|line| line.len() <= WIDTH) && shown != text, "{shown}");
        assert_eq!(Page::parse(&shown).expect("as it is written"), page);
    }

    #[test]
    fn another_module_stays_as_it_is() {
        let mut page = page();
        let figures = Figures { caught: 20, missed: 1, ..Figures::default() };
        page.take_up("b", &["crates/b/src/x.rs"], figures, found(&[]));
        assert_eq!((page.figures.len(), page.survivors.len()), (2, 1));
    }

    #[test]
    fn survivors_belong_to_a_file_or_to_the_files_of_a_folder() {
        assert!(is_in("a/b/*.rs", "a/b/c.rs: x") && is_in("a/b.rs", "a/b.rs: x"));
        assert!(!is_in("a/b/*.rs", "a/b/c/d.rs: x") && !is_in("a/b.rs", "a/c.rs: x"));
    }

    #[test]
    fn more_than_a_twentieth_is_too_many() {
        let figures = |missed| Figures { caught: 100 - missed, missed, timeout: 0, unviable: 9 };
        assert!(!figures(5).too_many() && figures(6).too_many());
        let mut page = page();
        page.take_up("a", FILES, figures(6), found(&[]));
        let error = page.judge().unwrap_err().to_string();
        assert_eq!(error, "a: 6 survive, above a twentieth");
    }

    #[test]
    fn a_page_of_another_form_is_refused() {
        assert!(Page::parse("# Mutants").is_err());
        let text = page().to_string();
        assert!(Page::parse(&text.replace("(1): ", "(one): ")).is_err());
        assert!(Page::parse(&text.replace("| 38 |", "| - |")).is_err());
    }
}
