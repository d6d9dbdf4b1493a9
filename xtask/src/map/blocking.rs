//! The page of blocking library calls, generated from the sections `# Blocking` of their comments.

use crate::tidy::tree::Tree;
use crate::{Result, shell};
use std::fs;

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
pub(super) fn write() -> Result<()> {
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
