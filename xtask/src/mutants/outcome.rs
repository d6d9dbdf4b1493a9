//! What came of the mutants of a module, in a file that grows while they are tested.

use super::list::without_place;
use super::page::Figures;
use super::run::Fate;
use crate::Result;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The fates of mutants, with their names: file, line, column and change.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Outcome(pub(super) Vec<(Fate, String)>);

impl Outcome {
    /// What a run has left; nothing if there was none.
    ///
    /// # Errors
    /// If it has left something else.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
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

    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut journal = Journal::new(path)?;
        self.0.iter().try_for_each(|(fate, name)| journal.note(*fate, name))
    }

    pub(super) fn figures(&self) -> Figures {
        let count = |fate| self.0.iter().filter(|(known, _)| *known == fate).count() as u32;
        Figures {
            caught: count(Fate::Caught),
            missed: count(Fate::Missed),
            timeout: count(Fate::Timeout),
            unviable: count(Fate::Unviable),
        }
    }

    /// The mutants that no test noticed, without their lines, and the number of times that each occurs.
    pub(super) fn survivors(&self) -> BTreeMap<String, u32> {
        let mut survivors = BTreeMap::new();
        for (_, name) in self.0.iter().filter(|(fate, _)| *fate == Fate::Missed) {
            *survivors.entry(without_place(name)).or_insert(0) += 1;
        }
        survivors
    }

    /// The fates of these mutants, which may be in other lines by now. As many as there were of one name are the same
    /// in the same order; if there are more or fewer, nothing is known of them.
    pub(super) fn fates_of(&self, mutants: &[&str]) -> Vec<Option<Fate>> {
        let mut known: BTreeMap<String, Vec<&(Fate, String)>> = BTreeMap::new();
        for one in &self.0 {
            known.entry(without_place(&one.1)).or_default().push(one);
        }
        known.values_mut().for_each(|ones| ones.sort_by_key(|(_, name)| place(name)));
        let mut now: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, mutant) in mutants.iter().enumerate() {
            now.entry(without_place(mutant)).or_default().push(index);
        }
        let mut fates = vec![None; mutants.len()];
        for (name, mut indices) in now {
            indices.sort_unstable_by_key(|index| place(mutants[*index]));
            let before = known.get(&name).map_or(&[][..], Vec::as_slice);
            if before.len() == indices.len() {
                for (index, (fate, _)) in indices.iter().zip(before) {
                    fates[*index] = Some(*fate);
                }
            }
        }
        fates
    }
}

/// Line and column in `file.rs:12:34: replace ...`.
fn place(name: &str) -> (u32, u32) {
    let mut words = name.split(':').skip(1).map(|word| word.parse().unwrap_or(0));
    (words.next().unwrap_or(0), words.next().unwrap_or(0))
}

/// The file of an outcome, in which each fate is as soon as it is known: a run takes an hour, and may be stopped.
pub(super) struct Journal(File);

impl Journal {
    /// An empty one.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub(super) fn new(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        Ok(Self(File::create(path)?))
    }

    /// One that goes on.
    ///
    /// # Errors
    /// If the file cannot be made or opened.
    pub(super) fn append(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        Ok(Self(File::options().create(true).append(true).open(path)?))
    }

    /// # Errors
    /// If the file cannot be written.
    pub(super) fn note(&mut self, fate: Fate, name: &str) -> Result<()> {
        Ok(writeln!(self.0, "{fate}\t{name}")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "missed\ta.rs:9:2: replace + with -\nmissed\ta.rs:1:2: replace + with -\n\
                        caught\ta.rs:7:2: replace + with *\ntimeout\ta.rs:8:2: delete !\nunviable\ta.rs:9:9: x\n";

    #[test]
    fn survivors_are_counted_without_their_lines() {
        let outcome = Outcome::parse(TEXT).unwrap();
        let survivors = BTreeMap::from([("a.rs: replace + with -".to_owned(), 2)]);
        assert_eq!(outcome.survivors(), survivors);
        let figures = Figures { caught: 1, missed: 2, timeout: 1, unviable: 1 };
        assert_eq!(outcome.figures(), figures);
        assert!(Outcome::parse("missed").is_err() && Outcome::parse("lost\ta.rs").is_err());
    }

    #[test]
    fn a_mutant_is_known_again_in_another_line() {
        let text = TEXT.replace("missed\ta.rs:1", "caught\ta.rs:1");
        let outcome = Outcome::parse(&text).unwrap();
        let all = ["a.rs:20:1: replace + with -", "a.rs:19:9: replace + with -", "a.rs:1:1: y"];
        let (missed, caught) = (Some(Fate::Missed), Some(Fate::Caught));
        assert_eq!(outcome.fates_of(&all), [missed, caught, None]);
        assert_eq!(outcome.fates_of(&all[1..]), [None, None], "there were two");
    }

    #[test]
    fn a_journal_is_an_outcome() {
        let path = crate::shell::target_dir().join("mutants-test/a.txt");
        let outcome = Outcome::parse(TEXT).unwrap();
        outcome.write(&path).unwrap();
        Journal::append(&path).unwrap().note(Fate::Caught, "b.rs:1:1: z").unwrap();
        let read = Outcome::read(&path).unwrap();
        assert_eq!((read.0.len(), &read.0[..5]), (6, &outcome.0[..]));
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(Outcome::read(&path).unwrap(), Outcome::default());
    }
}
