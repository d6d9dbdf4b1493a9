//! `docs/mutants.md`: figures for each module, and survivors with the reasons why they may survive.
//!
//! The command writes figures and survivors; people write reasons, which stay as long as their survivor does.

use super::Part;
use crate::Result;
use std::collections::BTreeMap;
use std::fmt;

/// The part above the figures is kept unchanged.
const FIGURES: &str = "## Figures";
const SURVIVORS: &str = "## Survivors";
const HEAD: &str = "| module | part | mutants | caught | missed | timeout | unviable |
|---|---|---:|---:|---:|---:|---:|";
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
    figures: BTreeMap<(String, Part), Figures>,
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
        for item in items.lines().filter(|line| line.starts_with("- ")) {
            let (name, survivor) =
                survivor_of(item).ok_or_else(|| format!("no survivor: {item}"))?;
            page.survivors.insert(name, survivor);
        }
        Ok(page)
    }

    /// Adds the results of a run for a part of a module, which consists of these files. Replaces the earlier results
    /// of the module if all of it has been run again, or a shard of another size.
    pub(super) fn take_up(
        &mut self,
        module: &str,
        files: &[&str],
        part: &Part,
        figures: Figures,
        survivors: BTreeMap<String, u32>,
    ) {
        self.figures.retain(|(name, other), _| name != module || part.stands_beside(other));
        self.figures.insert((module.to_owned(), part.clone()), figures);
        let of_module = |name: &str| files.iter().any(|file| is_in(file, name));
        let mut reasons = BTreeMap::new();
        if *part == Part::All {
            let known = std::mem::take(&mut self.survivors);
            (reasons, self.survivors) = known.into_iter().partition(|(name, _)| of_module(name));
        }
        for (name, times) in survivors {
            let known = self.survivors.remove(&name);
            // Another shard may have met the same change in another line.
            let others = known.as_ref().map_or(0, |known| known.times);
            let why = known.or_else(|| reasons.remove(&name)).map(|known| known.why);
            let why = why.unwrap_or_else(|| OPEN.to_owned());
            self.survivors.insert(name, Survivor { times: times.max(others), why });
        }
    }

    /// # Errors
    /// If a survivor has no reason, or a module has too many of them.
    pub(super) fn judge(&self) -> Result<()> {
        let open = self.survivors.iter().filter(|(_, survivor)| survivor.why == OPEN);
        let mut faults: Vec<String> =
            open.map(|(name, _)| format!("no reason in docs/mutants.md: {name}")).collect();
        for ((module, part), figures) in &self.figures {
            if figures.too_many() {
                let (missed, part) = (figures.missed, part.name());
                faults.push(format!("{module} ({part}): {missed} survive, above a twentieth"));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
    }
}

impl Part {
    /// Are the figures of `other` still true beside new ones of this part?
    fn stands_beside(&self, other: &Self) -> bool {
        let number = |shard: &str| shard.split('/').nth(1).map(str::to_owned);
        match (self, other) {
            (Self::Shard(one), Self::Shard(two)) => one != two && number(one) == number(two),
            _ => false,
        }
    }
}

/// Is the survivor `name` in `file`, or in the folder itself if that is `folder/*.rs`?
fn is_in(file: &str, name: &str) -> bool {
    let place = name.split(':').next().unwrap_or(name);
    match file.strip_suffix("*.rs") {
        Some(folder) => place.strip_prefix(folder).is_some_and(|rest| !rest.contains('/')),
        None => place == file,
    }
}

fn figures_of(row: &str) -> Option<((String, Part), Figures)> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [module, part, _, caught, missed, timeout, unviable] = cells[..] else { return None };
    let part = if part == "all" { Part::All } else { Part::shard(part).ok()? };
    let figures = Figures {
        caught: caught.parse().ok()?,
        missed: missed.parse().ok()?,
        timeout: timeout.parse().ok()?,
        unviable: unviable.parse().ok()?,
    };
    Some(((module.to_owned(), part), figures))
}

/// `` - `file.rs: change` (2): why ``
fn survivor_of(item: &str) -> Option<(String, Survivor)> {
    let (name, rest) = item.strip_prefix("- `")?.split_once("` (")?;
    let (times, why) = rest.split_once("): ")?;
    Some((name.to_owned(), Survivor { times: times.parse().ok()?, why: why.to_owned() }))
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{FIGURES}\n\n{HEAD}\n", self.preface)?;
        for ((module, part), figures) in &self.figures {
            let Figures { caught, missed, timeout, unviable } = figures;
            let (part, sum) = (part.name(), figures.sum());
            writeln!(
                f,
                "| {module} | {part} | {sum} | {caught} | {missed} | {timeout} | {unviable} |"
            )?;
        }
        write!(f, "\n{SURVIVORS}\n\n")?;
        for (name, Survivor { times, why }) in &self.survivors {
            writeln!(f, "- `{name}` ({times}): {why}")?;
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
            "# Mutants\n\nWords.\n\n{FIGURES}\n\n{HEAD}\n| a | all | 40 | 38 | 1 | 0 | 1 |\n\n{SURVIVORS}\n\n\
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
        page.take_up(
            "a",
            FILES,
            &Part::All,
            figures,
            found(&[(old, 2), ("crates/a/src/y.rs: z", 1)]),
        );
        let text = page.to_string();
        assert!(text.contains("in f` (2): equivalent because it is\n"), "{text}");
        assert!(text.contains("| a | all | 100 | 98 | 2 | 0 | 0 |"), "{text}");
        let error = page.judge().unwrap_err().to_string();
        assert_eq!(error, "no reason in docs/mutants.md: crates/a/src/y.rs: z");
        page.take_up("a", FILES, &Part::All, figures, found(&[]));
        assert!(page.survivors.is_empty(), "those that a test notices by now are gone");
    }

    #[test]
    fn shards_stand_side_by_side_and_the_whole_takes_their_place() {
        let mut page = page();
        let shard = |text| Part::shard(text).expect("a shard");
        let figures = Figures { caught: 20, missed: 1, ..Figures::default() };
        for part in [shard("0/4"), shard("3/4")] {
            page.take_up("a", FILES, &part, figures, found(&[]));
        }
        assert_eq!(page.figures.len(), 2);
        assert_eq!(page.survivors.len(), 1, "it may be in another shard");
        page.take_up("a", FILES, &shard("1/2"), figures, found(&[]));
        assert_eq!(page.figures.len(), 1);
        page.take_up("b", &["crates/b/src/x.rs"], &Part::All, figures, found(&[]));
        assert_eq!((page.figures.len(), page.survivors.len()), (2, 1));
        page.take_up("a", FILES, &Part::All, figures, found(&[]));
        assert_eq!((page.figures.len(), page.survivors.len()), (2, 0));
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
        page.take_up("a", FILES, &Part::All, figures(6), found(&[]));
        let error = page.judge().unwrap_err().to_string();
        assert_eq!(error, "a (all): 6 survive, above a twentieth");
    }

    #[test]
    fn a_page_of_another_form_is_refused() {
        assert!(Page::parse("# Mutants").is_err());
        let text = page().to_string();
        assert!(Page::parse(&text.replace("(1): ", "(one): ")).is_err());
        assert!(Page::parse(&text.replace("| 38 |", "| - |")).is_err());
    }
}
