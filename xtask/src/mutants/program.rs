//! The test programs of a package with its mutants in them.
//!
//! The compiler says which mutants do not compile, and which functions cannot be switched; the latter's mutants are
//! built one at a time.

use super::list::Mutant;
use super::switch::{self, Blamed, Source, Switched};
use super::tree::Copy;
use crate::Result;
use crate::shell::{Cmd, target_dir};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

/// A target of `cargo test`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Target {
    /// The tests inside the crate.
    Lib,
    /// Those outside, which are one program.
    All,
}

impl Target {
    fn option(self) -> &'static str {
        match self {
            Self::Lib => "--lib",
            Self::All => "--test=all",
        }
    }

    fn of(target: &Value) -> Self {
        if target["kind"][0] == "lib" { Self::Lib } else { Self::All }
    }
}

/// How a mutant gets into a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// With all others: a number in the environment puts it in force.
    Switch,
    /// By a build of its own.
    Alone,
    /// Not at all: the compiler refuses it.
    Unviable,
}

/// The mutants of a package. The number of a mutant is its index and one.
pub(super) struct Package {
    name: &'static str,
    /// The programs that are needed.
    targets: BTreeSet<Target>,
    /// Its folder in the workspace.
    folder: String,
    pub(super) mutants: Vec<Mutant>,
    sources: BTreeMap<String, Source>,
    pub(super) ways: Vec<Way>,
    /// Constant functions that a constant calls, by their names.
    constant: BTreeSet<String>,
    copy: Copy,
}

/// Where the programs are, by target.
pub(super) type Programs = BTreeMap<Target, PathBuf>;

/// What came of a build.
enum Built {
    Programs(Programs),
    /// The errors, as cargo prints them for programs.
    Errors(Vec<Value>),
}

impl Package {
    /// Leaves out the mutants that are in tests.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn new(
        name: &'static str,
        targets: BTreeSet<Target>,
        mutants: Vec<Mutant>,
    ) -> Result<Self> {
        let copy = Copy::new()?;
        let mut sources = BTreeMap::new();
        for mutant in &mutants {
            if !sources.contains_key(&mutant.file) {
                let source = Source::new(mutant.file.clone(), copy.read(&mutant.file)?)?;
                sources.insert(mutant.file.clone(), source);
            }
        }
        let is_test = |mutant: &Mutant| sources[&mutant.file].is_test(mutant);
        let mutants: Vec<Mutant> = mutants.into_iter().filter(|mutant| !is_test(mutant)).collect();
        let way = |mutant: &Mutant| {
            let body = sources[&mutant.file].body(mutant);
            if body.is_some_and(|body| !body.is_opaque) { Way::Switch } else { Way::Alone }
        };
        Ok(Self {
            name,
            targets,
            folder: format!("crates/{}", name.trim_start_matches("blkmq-")),
            ways: mutants.iter().map(way).collect(),
            mutants,
            sources,
            constant: BTreeSet::new(),
            copy,
        })
    }

    /// The folder in which its tests run.
    pub(super) fn folder(&self) -> PathBuf {
        self.copy.folder.join(&self.folder)
    }

    /// Builds the programs with all mutants that can be switched.
    ///
    /// # Errors
    /// If the compiler has an error that comes from no mutant.
    pub(super) fn switched(&mut self) -> Result<Programs> {
        let lib = format!("{}/src/lib.rs", self.folder);
        let text = self.copy.read(&lib)?;
        let module = format!("{}/src/{}.rs", self.folder, switch::MODULE);
        self.copy.write(&module, switch::module().as_bytes())?;
        self.copy.write(&lib, format!("{text}\nmod {};\n", switch::MODULE).as_bytes())?;
        loop {
            let files = self.write()?;
            let errors = match self.build()? {
                Built::Programs(programs) => return Ok(programs),
                Built::Errors(errors) => errors,
            };
            let before = (self.ways.clone(), self.constant.len());
            errors.iter().for_each(|error| self.learn(error, &files));
            if before == (self.ways.clone(), self.constant.len()) {
                let texts: Vec<&str> =
                    errors.iter().filter_map(|error| error["rendered"].as_str()).collect();
                return Err(format!("{}: from no mutant:\n{}", self.name, texts.concat()).into());
            }
            let count = |way| self.ways.iter().filter(|known| **known == way).count();
            println!(
                "{}: {} together, {} alone, {} do not compile",
                self.name,
                count(Way::Switch),
                count(Way::Alone),
                count(Way::Unviable)
            );
        }
    }

    /// Builds the programs with this mutant alone; `None` if it does not compile.
    ///
    /// # Errors
    /// If cargo cannot be run.
    pub(super) fn alone(&self, mutant: &Mutant) -> Result<Option<Programs>> {
        for source in self.sources.values() {
            self.copy.write(&source.file, source.text.as_bytes())?;
        }
        let text = &self.sources[&mutant.file].text;
        self.copy.write(&mutant.file, mutant.applied(text, 0..text.len()).as_bytes())?;
        Ok(match self.build()? {
            Built::Programs(programs) => Some(programs),
            Built::Errors(_) => None,
        })
    }

    /// Writes the files with the mutants that are switched, and returns them.
    fn write(&mut self) -> Result<BTreeMap<String, Switched>> {
        for (mutant, way) in self.mutants.iter().zip(&mut self.ways) {
            let body = self.sources[&mutant.file].body(mutant);
            let stays = |name| self.constant.contains(name);
            if body.is_some_and(|body| body.constness.is_some() && stays(&body.function)) {
                *way = Way::Alone;
            }
        }
        let mut files = BTreeMap::new();
        for source in self.sources.values() {
            let is_here = |(mutant, way): &(&Mutant, &Way)| {
                mutant.file == source.file && **way == Way::Switch
            };
            let numbered = (1..).zip(self.mutants.iter().zip(&self.ways));
            let here: Vec<(u32, &Mutant)> = numbered
                .filter(|(_, pair)| is_here(pair))
                .map(|(number, (mutant, _))| (number, mutant))
                .collect();
            let switched = source.switched(&here);
            self.copy.write(&source.file, switched.text.as_bytes())?;
            files.insert(source.file.clone(), switched);
        }
        Ok(files)
    }

    fn build(&self) -> Result<Built> {
        let manifest = self.copy.folder.join("Cargo.toml");
        let cmd = Cmd::new("nice -n 19 cargo test --no-run --profile mutants")
            .arg("--message-format=json")
            .arg("--package")
            .arg(self.name)
            .arg("--manifest-path")
            .arg(manifest.to_string_lossy())
            .arg("--target-dir")
            .arg(target_dir().join("mutants/build").to_string_lossy())
            // A mutant may leave a name unused.
            .env("RUSTFLAGS", "--cap-lints=allow");
        let cmd = self.targets.iter().fold(cmd, |cmd, target| cmd.arg(target.option()));
        let (succeeded, output) = cmd.attempt()?;
        let mut programs = BTreeMap::new();
        let mut errors = Vec::new();
        for line in output.lines() {
            let Ok(mut message) = serde_json::from_str::<Value>(line) else { continue };
            if let Some(path) = message["executable"].as_str() {
                programs.insert(Target::of(&message["target"]), path.into());
            }
            if message["message"]["level"] == "error" {
                errors.push(message["message"].take());
            }
        }
        match (succeeded, errors.is_empty()) {
            (true, _) => Ok(Built::Programs(programs)),
            (false, false) => Ok(Built::Errors(errors)),
            (false, true) => Err(format!("{cmd}: failed without an error of the compiler").into()),
        }
    }

    /// Takes the mutants out that an error speaks of.
    fn learn(&mut self, error: &Value, files: &BTreeMap<String, Switched>) {
        // A call of a function that is constant no longer, from where it has to be.
        if error["code"]["code"] == "E0015" {
            self.constant.extend(error["message"].as_str().and_then(called).map(str::to_owned));
            return;
        }
        for (file, bytes) in places(error) {
            let Some(blamed) = files.get(&file).and_then(|switched| switched.blamed(&bytes)) else {
                continue;
            };
            let way = |number: u32| number as usize - 1;
            match blamed {
                Blamed::Arm(number) => self.ways[way(number)] = Way::Unviable,
                Blamed::Body(numbers) => {
                    numbers.into_iter().for_each(|number| self.ways[way(number)] = Way::Alone);
                }
            }
        }
    }
}

/// The places that an error points at, those that its macros are called from among them.
fn places(error: &Value) -> Vec<(String, Range<usize>)> {
    let spans = error["spans"].as_array().into_iter().flatten();
    let mut places = Vec::new();
    for mut span in spans.filter(|span| span["is_primary"] == true) {
        loop {
            let byte = |end: &str| span[end].as_u64().unwrap_or(0) as usize;
            if let Some(file) = span["file_name"].as_str() {
                places.push((file.to_owned(), byte("byte_start")..byte("byte_end")));
            }
            span = &span["expansion"]["span"];
            if span.is_null() {
                break;
            }
        }
    }
    places
}

/// `largest` for "cannot call non-const associated function `cut::Cut::largest` in constants".
fn called(message: &str) -> Option<&str> {
    message.split('`').nth(1)?.rsplit("::").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_where_it_points_and_where_its_macro_is_called() {
        let error = serde_json::json!({"spans": [
            {"is_primary": false, "file_name": "a.rs", "byte_start": 1, "byte_end": 2},
            {"is_primary": true, "file_name": "core.rs", "byte_start": 3, "byte_end": 4,
             "expansion": {"span": {"file_name": "b.rs", "byte_start": 5, "byte_end": 6, "expansion": null}}}
        ]});
        let wanted = [("core.rs".to_owned(), 3..4), ("b.rs".to_owned(), 5..6)];
        assert_eq!(places(&error), wanted);
    }

    #[test]
    fn the_function_that_a_constant_calls_is_named() {
        let text =
            "cannot call non-const associated function `cut::Cut::<u8>::largest` in constants";
        assert_eq!(called(text), Some("largest"));
        assert_eq!(called("no function"), None);
    }
}
