//! `map`: the files of each crate, each with the first sentence of its header.

use crate::tidy::tree::Tree;
use crate::{Result, shell};

mod blocking;

/// `cargo xtask map [WORD]`: the files with `WORD` in their path, or all of them. `cargo xtask map --blocking` writes
/// `docs/blocking.md`.
///
/// # Errors
/// If the workspace cannot be read, or no file has the word in its path.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|arg| arg == "--blocking") {
        return blocking::write();
    }
    let word = args.first().map_or("", String::as_str);
    let lines = lines(&Tree::read(&shell::root())?, word);
    if lines.is_empty() {
        return Err(format!("no source file has '{word}' in its path").into());
    }
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// A line for each source file with `word` in its path, in the order of paths; tests are left out.
fn lines(tree: &Tree, word: &str) -> Vec<String> {
    let files = tree.rust().filter(|(file, rust)| {
        file.path.contains("/src/") && file.path.contains(word) && !rust.scopes.whole_file_is_test
    });
    let mut lines: Vec<String> =
        files.map(|(file, _)| format!("{}: {}", file.path, header(&file.text))).collect();
    lines.sort_unstable();
    lines
}

/// The first sentence of the comment at the beginning of a file.
fn header(text: &str) -> String {
    let first = text.lines().map_while(|line| line.strip_prefix("//!"));
    let words: Vec<&str> =
        first.take_while(|line| !line.is_empty()).flat_map(str::split_whitespace).collect();
    let ends = |word: &&str| word.ends_with('.');
    let last = words.iter().position(ends).map_or(words.len(), |at| at + 1);
    words[..last].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_the_first_sentence_of_its_header() {
        let tree = Tree::of(&[
            ("crates/a/src/b.rs", "//! Does one\n//! thing. And more.\n//!\n//! Details.\n"),
            ("crates/a/src/a.rs", "//! A heading\n//!\n//! Text.\nfn f() {}\n"),
            ("crates/a/tests/all.rs", "//! No part of the map.\n"),
        ]);
        let both = ["crates/a/src/a.rs: A heading", "crates/a/src/b.rs: Does one thing."];
        assert_eq!(lines(&tree, ""), both);
        assert_eq!(lines(&tree, "b.rs"), both[1..]);
        assert!(lines(&tree, "c.rs").is_empty());
    }
}
