//! `tidy`: the rules of STYLE.md that a machine can check.
//!
//! One file per kind of rule. Each is a function from the [`Tree`] of files to findings, with a test that shows it a
//! bad example and a good one. The checks of rustfmt, clippy and rustdoc are not repeated here.

mod attributes;
mod banned;
pub(crate) mod circles;
mod comparison;
mod edges;
mod references;
pub(crate) mod source;
mod text;

use crate::{Result, shell};
use source::{Masked, Scopes, mask, tokens};
use std::fmt;
use std::path::{Path, PathBuf};

type Rule = fn(&Tree, &mut Vec<Finding>);

/// Every rule; a new one only needs an entry here.
const RULES: &[Rule] = &[
    edges::check,
    circles::check,
    comparison::check,
    attributes::check,
    text::check_size,
    banned::check,
    text::check,
    references::check_paths,
    edges::check_reasons_of_all,
    references::check_pages,
    references::check_citations,
    text::check_words,
];

/// `cargo xtask tidy`
///
/// # Errors
/// If any rule is broken; the findings have been printed then.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("tidy takes no argument, got {arg}").into());
    }
    let (files, findings) = findings()?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {files} files, nothing to say");
            Ok(())
        }
        n => Err(format!("{n} findings in {files} files").into()),
    }
}

/// The number of files, and the findings about them.
fn findings() -> Result<(usize, Vec<Finding>)> {
    let tree = Tree::read(&shell::root())?;
    let mut findings = Vec::new();
    for rule in RULES {
        rule(&tree, &mut findings);
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok((tree.files.len(), findings))
}

/// A broken rule: the place, the fault, and the remedy.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counts from 1.
    line: usize,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.what, self.remedy)
    }
}

pub(crate) struct File {
    /// The path from the root of the workspace, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Only for `.rs` files.
    pub(crate) rust: Option<Rust>,
}

/// The facts about a Rust file that the rules need beyond its text.
pub(crate) struct Rust {
    pub(crate) masked: Masked,
    pub(crate) scopes: Scopes,
}

impl File {
    /// # Errors
    /// If it is Rust and cannot be split into tokens.
    fn new((path, text): (String, String)) -> Result<Self> {
        let rust = if path.ends_with(".rs") {
            let tokens = tokens(&text).map_err(|error| format!("{path}: {error}"))?;
            let scopes = Scopes::new(&path, &tokens);
            Some(Rust { masked: mask(&text, &tokens), scopes })
        } else {
            None
        };
        Ok(Self { path, text, rust })
    }

    /// The line of a byte offset, counted from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count()
    }

    fn finding(&self, line: usize, what: String, remedy: &'static str) -> Finding {
        Finding { path: self.path.clone(), line, what, remedy }
    }

    /// The folder under `crates/` that the file is in: `engine` for `crates/engine/src/lib.rs`.
    pub(crate) fn krate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

/// The workspace's own files, sorted by path.
pub(crate) struct Tree {
    root: PathBuf,
    pub(crate) files: Vec<File>,
}

/// The extensions of text files of the project. Other files (lock files, results, pictures) are not checked.
const EXTENSIONS: [&str; 5] = ["rs", "md", "toml", "sh", "yml"];

impl Tree {
    /// Reads every file of the project below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        walk(root, root, &mut paths)?;
        paths.sort();
        let read = |path: String| -> Result<(String, String)> {
            let bytes = std::fs::read(root.join(&path))?;
            Ok((path, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let texts = paths.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        Self::new(root.to_path_buf(), texts)
    }

    fn new(root: PathBuf, texts: Vec<(String, String)>) -> Result<Self> {
        let mut files = texts.into_iter().map(File::new).collect::<Result<Vec<_>>>()?;
        mark_test_modules(&mut files);
        Ok(Self { root, files })
    }

    /// A tree that exists only in memory.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
        Self::new(PathBuf::from("nowhere"), texts).expect("the examples of tests are Rust")
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Every Rust file with its lexical halves.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&File, &Rust)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }
}

fn walk(root: &Path, folder: &Path, out: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let relative = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        let name = relative.rsplit('/').next().unwrap_or(&relative);
        if path.is_dir() {
            let ours = !matches!(name, "target" | "results") && !name.starts_with('.');
            if ours || matches!(name, ".ci" | ".cargo" | ".github") {
                walk(root, &path, out)?;
            }
        } else if relative == ".ci/run" || EXTENSIONS.iter().any(|ext| has_extension(name, ext)) {
            out.push(relative);
        }
    }
    Ok(())
}

fn has_extension(name: &str, ext: &str) -> bool {
    name.strip_suffix(ext).is_some_and(|stem| stem.ends_with('.'))
}

/// A file that is only declared under `#[cfg(test)]` is a test, and so is everything below it.
fn mark_test_modules(files: &mut [File]) {
    let mut prefixes = Vec::new();
    for file in files.iter() {
        let Some(rust) = &file.rust else { continue };
        let folder = module_folder(&file.path);
        for name in &rust.scopes.test_modules {
            prefixes.push((format!("{folder}/{name}.rs"), format!("{folder}/{name}/")));
        }
    }
    for file in files {
        let is_test =
            prefixes.iter().any(|(one, many)| file.path == *one || file.path.starts_with(many));
        if let (true, Some(rust)) = (is_test, &mut file.rust) {
            rust.scopes.whole_file_is_test = true;
        }
    }
}

/// The folder of the modules declared in `path`.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With this test, `cargo test --workspace` alone finds the same faults as CI.
    #[test]
    fn tidy_passes() {
        let (files, findings) = findings().unwrap();
        assert!(files > 20, "the workspace was not found");
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn a_module_declared_under_cfg_test_is_a_test() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod model;\nmod real;\n"),
            ("crates/a/src/model.rs", ""),
            ("crates/a/src/model/deep.rs", ""),
            ("crates/a/src/real.rs", "#[cfg(all(test, loom))]\nmod planted;\n"),
            ("crates/a/src/real/planted.rs", ""),
        ]);
        let tests: Vec<&str> = tree
            .rust()
            .filter(|(_, rust)| rust.scopes.whole_file_is_test)
            .map(|(file, _)| file.path.as_str())
            .collect();
        let expected =
            ["crates/a/src/model.rs", "crates/a/src/model/deep.rs", "crates/a/src/real/planted.rs"];
        assert_eq!(tests, expected);
    }

    #[test]
    fn lines_count_from_one() {
        let file = File::new(("a.md".into(), "x\ny\n".into())).unwrap();
        assert_eq!((file.line(0), file.line(2)), (1, 2));
    }
}
