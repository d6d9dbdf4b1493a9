//! The folder of an experiment: the study, and a file of results for each shard with a line for each finished point.
//!
//! A line is written immediately and completely, so that a killed program loses only the points in progress. The next
//! program truncates an incomplete line. The file is locked, so that only one program writes to it.

use super::row::Row;
use super::study::Study;
use crate::Failure;
use blkmq_terminal::{UsageError, bounded};
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const STUDY: &str = "study.json";
/// The longest file of a shard.
const MAX_BYTES: u64 = 8 << 30;
/// The longest study.
const MAX_STUDY: u64 = 64 << 20;

/// A subset of the points: those whose numbers modulo `of` equal `number - 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// The number, from 1.
    pub number: usize,
    /// All shards.
    pub of: usize,
}

impl Shard {
    /// The whole.
    pub const ALL: Self = Self { number: 1, of: 1 };

    /// Parses `i/n`.
    ///
    /// # Errors
    /// If `i` is not one of 1 to `n`, or `n` is above 100,000.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        let parts =
            text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) && of <= 100_000 => {
                Ok(Self { number, of })
            }
            _ => Err(UsageError::new(format!("{text}; accepted: I/N, as 1/3, 2/3 and 3/3"))),
        }
    }

    /// Returns whether the point `index` is in it.
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.number - 1
    }

    fn file(self) -> String {
        format!("shard-{}-of-{}.jsonl", self.number, self.of)
    }
}

/// The open file of a shard.
pub struct Store {
    path: PathBuf,
    file: Flock<File>,
}

impl Store {
    /// Opens the file of `shard` in `folder`, creating the folder if necessary, and reads the rows in it by id.
    ///
    /// # Errors
    /// If the folder has another study, the file is in use, or it contains anything but rows.
    pub fn open(
        folder: &Path,
        study: &Study,
        shard: Shard,
    ) -> Result<(Self, BTreeMap<String, Row>), Failure> {
        std::fs::create_dir_all(folder).map_err(|e| refuse(folder, &e))?;
        keep_study(folder, study)?;
        let path = folder.join(shard.file());
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = file.map_err(|e| refuse(&path, &e))?;
        let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let mut file = locked.map_err(|(_, e)| match e {
            nix::errno::Errno::EWOULDBLOCK => {
                let text =
                    "another experiment writes to it; accepted: one at a time for each shard";
                UsageError::new(text).at(path.display().to_string()).into()
            }
            e => refuse(&path, &e.into()),
        })?;
        let text = bounded::read(&path.display().to_string(), "results", MAX_BYTES)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(|e| refuse(&path, &e))?;
        }
        file.seek(SeekFrom::End(0)).map_err(|e| refuse(&path, &e))?;
        let mut rows = BTreeMap::new();
        read_rows(&path, &text[..whole], &mut rows)?;
        Ok((Self { path, file }, rows))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, row: &Row) -> Result<(), Failure> {
        self.file.write_all(row.line().as_bytes()).map_err(|e| refuse(&self.path, &e))
    }

    /// Waits until all rows are on the disk.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(|e| refuse(&self.path, &e))
    }
}

/// Writes the study of a new folder, and checks that of another.
fn keep_study(folder: &Path, study: &Study) -> Result<(), Failure> {
    let path = folder.join(STUDY);
    match std::fs::read_to_string(&path) {
        Ok(_) => {
            let known = study_of(folder)?;
            if known.json() == study.json() {
                return Ok(());
            }
            let text = "it has the results of another study; accepted: another --out, or this study under another name";
            Err(UsageError::new(text).at(folder.display().to_string()).into())
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            // Renamed into place, so that no other shard reads an incomplete file.
            let fresh = folder.join(format!("{STUDY}.{}", std::process::id()));
            let written = std::fs::write(&fresh, study.json());
            written.and_then(|()| std::fs::rename(&fresh, &path)).map_err(|e| refuse(&path, &e))
        }
        Err(e) => Err(refuse(&path, &e)),
    }
}

/// The study of a folder.
///
/// # Errors
/// If it has none.
pub fn study_of(folder: &Path) -> Result<Study, Failure> {
    let path = folder.join(STUDY).display().to_string();
    let bytes = bounded::read(&path, "the study of a folder with results", MAX_STUDY)?;
    let text = String::from_utf8(bytes).map_err(|e| UsageError::new(e.to_string()).at(&path))?;
    Ok(Study::of_json(&text).map_err(|e| e.at(&path))?)
}

/// The rows of all shards in `folder`, by id.
///
/// # Errors
/// If a file contains anything but rows, or two rows of one point differ.
pub fn rows_of(folder: &Path) -> Result<BTreeMap<String, Row>, Failure> {
    let listed = std::fs::read_dir(folder).map_err(|e| refuse(folder, &e))?;
    let mut names = Vec::new();
    for entry in listed {
        let name = entry.map_err(|e| refuse(folder, &e))?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("shard-") && name.ends_with(".jsonl") {
            names.push(name.into_owned());
        }
    }
    names.sort();
    let mut rows = BTreeMap::new();
    for name in names {
        let path = folder.join(name);
        let text = bounded::read(&path.display().to_string(), "results", MAX_BYTES)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        read_rows(&path, &text[..whole], &mut rows)?;
    }
    Ok(rows)
}

fn read_rows(path: &Path, text: &[u8], rows: &mut BTreeMap<String, Row>) -> Result<(), Failure> {
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let fault = |why: String| {
            UsageError::new(format!("line {}: {why}", at + 1)).at(path.display().to_string())
        };
        let row: Row = serde_json::from_slice(line).map_err(|e| fault(e.to_string()))?;
        match rows.get(&row.id) {
            Some(known) if *known != row => {
                let text = "another result of a point that has one; accepted: one of both lines";
                return Err(fault(text.into()).into());
            }
            _ => rows.insert(row.id.clone(), row),
        };
    }
    Ok(())
}

/// Writes a file of results, which is whole or is not there.
///
/// # Errors
/// If it cannot be written.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let (path, fresh) = (folder.join(name), folder.join(format!("{name}.new")));
    let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
    written.map_err(|e| refuse(&path, &e))
}

fn refuse(path: &Path, e: &std::io::Error) -> Failure {
    Failure::Results(format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> Row {
        Row {
            id: id.into(),
            values: BTreeMap::new(),
            run: BTreeMap::new(),
            jobs: Vec::new(),
            groups: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn study(seeds: &str) -> Study {
        Study::parse(&format!("[grid]\nseed={seeds}")).expect("a study")
    }

    #[test]
    fn a_line_without_an_end_is_cut_off_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(Shard::ALL.file());
        let open = || Store::open(folder.path(), &study("[1]"), Shard::ALL);
        {
            let (mut store, rows) = open().expect("a new one");
            assert!(rows.is_empty());
            store.add(&row("a")).expect("room");
            store.add(&row("b")).expect("room");
        }
        let text = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, &text[..text.len() - 3]).expect("it can be written");
        let (mut store, rows) = open().expect("the first row");
        assert_eq!(Vec::from_iter(rows.keys()), ["a"]);
        store.add(&row("c")).expect("room");
        drop(store);
        let rows = rows_of(folder.path()).expect("rows");
        assert_eq!(Vec::from_iter(rows.keys()), ["a", "c"]);
    }

    #[test]
    fn one_writer_one_study_and_nothing_but_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |seeds| Store::open(folder.path(), &study(seeds), Shard::ALL);
        let (store, _) = open("[1]").expect("a new one");
        let says =
            |result: Result<_, Failure>| result.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(says(open("[1]")).contains("another experiment writes to it"));
        drop(store);
        assert!(says(open("[1,2]")).contains("another study"));
        let path = folder.path().join("shard-2-of-3.jsonl");
        std::fs::write(&path, "{}\n").expect("it can be written");
        let error = rows_of(folder.path()).expect_err("no row").to_string();
        assert!(error.contains("line 1: missing field `id`"), "{error}");
        let other = Row { notes: vec!["other".into()], ..row("a") };
        std::fs::write(&path, row("a").line() + &row("a").line()).expect("it can be written");
        assert_eq!(rows_of(folder.path()).expect("one point").len(), 1);
        std::fs::write(&path, row("a").line() + &other.line()).expect("it can be written");
        let error = rows_of(folder.path()).expect_err("two results").to_string();
        assert!(error.contains("line 2: another result"), "{error}");
    }

    #[test]
    fn shards_have_each_point_once() {
        for of in 1..5 {
            let shards = Vec::from_iter((1..=of).map(|number| Shard { number, of }));
            for index in 0..20 {
                assert_eq!(shards.iter().filter(|shard| shard.has(index)).count(), 1);
            }
        }
        for text in ["0/3", "4/3", "1", "1/0", "a/b", "1/100001", ""] {
            assert!(Shard::parse(text).is_err(), "{text}");
        }
        assert_eq!(Shard::parse("2/3").expect("a shard"), Shard { number: 2, of: 3 });
    }
}
