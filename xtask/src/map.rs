//! `map`: the files of each crate, each with the first sentence of its header; and the page of blocking library calls,
//! generated from the sections `# Blocking` of their comments.

use crate::tidy::Tree;
use crate::{Result, shell};
use std::fs;

/// `cargo xtask map [WORD]`: the files with `WORD` in their path, or all of them. `cargo xtask map --blocking` writes
/// `docs/blocking.md`.
///
/// # Errors
/// If the workspace cannot be read, or no file has the word in its path.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|arg| arg == "--blocking") {
        return write();
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

const PAGE: &str = "docs/blocking.md";
const HEAD: &str = "\
# Calls that block

Made by `cargo xtask map --blocking` from the comments of the public items. Every other call of the library returns without waiting
for a device or for another thread's I/O, even if the device never answers; a test makes them beside such a device.

Two drops wait. That of a [`Reactor`](../crates/runtime/src/reactor/mod.rs) waits for its I/Os, outside of tasks and of its own
thread; `close` and `closed` end it in bounded time. That of the last holder of a queue waits until the kernel
has let go of buffers that it may still write to; `Service::close` ends it in bounded time. The drops of futures, clients and groups
do not wait.

| call | blocks |
|---|---|
";

/// # Errors
/// If the workspace cannot be read, or the page not be written.
fn write() -> Result<()> {
    fs::write(shell::root().join(PAGE), page(&Tree::read(&shell::root())?))?;
    Ok(())
}

fn page(tree: &Tree) -> String {
    let files = tree.rust().filter(|(file, rust)| {
        file.path.starts_with("crates/")
            && file.path.contains("/src/")
            && !rust.scopes.whole_file_is_test
    });
    let mut rows = Vec::from_iter(files.flat_map(|(file, _)| rows(&file.text)));
    rows.sort_unstable();
    HEAD.to_owned() + &rows.concat()
}

/// A row for each function with such a section.
fn rows(text: &str) -> Vec<String> {
    let (mut rows, mut within, mut section, mut is_open) = (Vec::new(), "", Vec::new(), false);
    for line in text.lines() {
        if line.starts_with("impl") {
            within = subject(line);
        } else if line.starts_with('}') {
            within = "";
        }
        let line = line.trim_start();
        if let Some(comment) = line.strip_prefix("///") {
            match comment.trim() {
                "# Blocking" => is_open = true,
                "" => is_open = false,
                words if is_open => section.push(words),
                _ => {}
            }
        } else if let Some((_, call)) = line.split_once("pub fn ")
            && !section.is_empty()
        {
            let name = call.split(['(', '<']).next().unwrap_or(call);
            let of = if within.is_empty() { String::new() } else { format!("{within}::") };
            rows.push(format!("| `{of}{name}` | {} |\n", plain(&section.join(" "))));
            (section, is_open) = (Vec::new(), false);
        } else if !line.starts_with('#') {
            (section, is_open) = (Vec::new(), false);
        }
    }
    rows
}

/// The type of an `impl` block.
fn subject(line: &str) -> &str {
    let behind = line.trim_start_matches("impl");
    let behind = match behind.strip_prefix('<') {
        Some(generic) => generic.split_once("> ").map_or(generic, |(_, behind)| behind),
        None => behind.trim_start(),
    };
    behind.split(['<', ' ', '{']).next().unwrap_or(behind)
}

/// A sentence without the targets of its links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('[') {
        let Some((name, after)) = behind.split_once(']') else { break };
        plain.push_str(before);
        plain.push_str(name);
        rest =
            after.strip_prefix('(').and_then(|it| it.split_once(')')).map_or(after, |(_, it)| it);
    }
    plain + rest
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

    #[test]
    fn each_section_is_a_row() {
        let text = "impl<P: Payload> Service<P> {\n    /// Ends.\n    ///\n    /// # Blocking\n    /// As [`edit`](Self::edit).\n    \
                    ///\n    /// # Errors\n    /// None.\n    #[must_use]\n    pub fn close(self) {}\n    /// Other.\n    pub fn \
                    other(&self) {}\n}\n\n/// # Blocking\n/// A\n/// while.\npub fn wait_any<P>() {}\n";
        assert_eq!(
            rows(text),
            ["| `Service::close` | As `edit`. |\n", "| `wait_any` | A while. |\n"]
        );
    }

    #[test]
    fn the_page_is_up_to_date() {
        let root = shell::root();
        let page_now = page(&Tree::read(&root).expect("the workspace"));
        let there = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
        assert!(there == page_now, "`cargo xtask map --blocking` writes {PAGE}");
    }
}
