//! Documents may only name files that exist.
//!
//! A word in backticks counts as a path if it ends in a known extension, or if it has a slash and its first part is a
//! folder of the workspace or of `crates/`. It may leave out leading folders: `engine/src/lib.rs` and `registry.rs`
//! are found in any folder. `NAME` stands for any name.

use super::tree::{Finding, Tree};
use std::collections::BTreeSet;

/// The documents that newcomers follow.
const DOCUMENTS: [&str; 5] =
    ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "STYLE.md", "docs/spec/tests.md"];

/// Finds names of files that do not exist.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    let paths: Vec<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
    let folders = folders(&paths);
    for name in DOCUMENTS {
        let Some(file) = tree.file(name) else { continue };
        for (at, word) in quoted(&file.text) {
            if looks_like_a_path(word, &folders) && !exists(word, &paths) {
                let what = format!("`{word}` does not exist");
                out.push(file.finding(file.line(at), what, "name a file that does"));
            }
        }
    }
}

/// The folders at the root and those in `crates/`.
fn folders<'a>(paths: &[&'a str]) -> BTreeSet<&'a str> {
    let top = |path: &'a str| path.split_once('/').map(|(first, _)| first);
    let roots = paths.iter().filter_map(|path| top(path));
    let crates = paths.iter().filter_map(|path| top(path.strip_prefix("crates/")?));
    roots.chain(crates).collect()
}

/// Every word between two backticks on one line, with its offset. Fenced blocks are pictures and commands.
fn quoted(text: &str) -> Vec<(usize, &str)> {
    let (mut words, mut offset, mut fenced) = (Vec::new(), 0, false);
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let mut at = offset;
            for (nth, part) in line.split('`').enumerate() {
                if nth % 2 == 1 {
                    words.push((at, part));
                }
                at += part.len() + 1;
            }
        }
        offset += line.len();
    }
    words
}

fn looks_like_a_path(word: &str, folders: &BTreeSet<&str>) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./".contains(&b);
    if word.is_empty() || !word.bytes().all(plain) || word.contains("NAME") {
        return false;
    }
    let by_extension = [".rs", ".md", ".toml", ".sh"].iter().any(|ext| word.ends_with(ext));
    let by_folder = word.split_once('/').is_some_and(|(first, _)| folders.contains(first));
    by_extension || by_folder
}

/// A file, or a folder with a file in it.
fn exists(word: &str, paths: &[&str]) -> bool {
    let word = word.trim_start_matches("./").trim_end_matches('/');
    let within = |path: &&str| format!("/{path}/").contains(&format!("/{word}/"));
    paths.iter().any(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(document: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", document),
            ("crates/engine/src/sync/mod.rs", "//! x\n"),
            ("xtask/src/main.rs", "//! x\n"),
        ]);
        let mut out = Vec::new();
        check(&tree, &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_that_has_moved_is_found_at_its_line() {
        let found = findings("one\nread `engine/src/queue.rs` first\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("ARCHITECTURE.md:2: `engine/src/queue.rs`"));
        assert_eq!(findings("`gone.rs` and `crates/gone/`\n").len(), 2);
    }

    #[test]
    fn files_and_folders_that_exist_are_fine() {
        let good = "`crates/engine/src/sync/` `engine/src/sync/mod.rs` `mod.rs` `xtask` `xtask/`\n";
        assert_eq!(findings(good).len(), 0);
    }

    #[test]
    fn what_is_no_path_is_left_alone() {
        let words = "`read/write` `std::sync` `iops/s` `a b.rs` `crates/sched/doc/NAME.md`\n";
        assert_eq!(findings(words).len(), 0);
        assert_eq!(findings("```\n`gone.rs`\n```\n").len(), 0);
    }
}
