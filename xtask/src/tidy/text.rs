//! Rules about the text of files: ASCII, clean line ends, a heading, and no path or link that is valid only on one
//! machine or for a short time.

use super::tree::{File, Finding, Tree};

/// Folders at the root of a developer's machine.
const MACHINE_FOLDERS: [&str; 4] = ["work", "root", "home", "tmp"];

/// Finds text that must not be in a file.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for file in &tree.files {
        check_lines(file, out);
        check_machine_paths(file, out);
        check_links(file, out);
        check_heading(file, out);
    }
}

fn check_lines(file: &File, out: &mut Vec<Finding>) {
    for (at, line) in file.text.split('\n').enumerate() {
        if let Some(stranger) = line.chars().find(|c| !c.is_ascii()) {
            let what = format!("{stranger:?} is not ASCII");
            out.push(file.finding(at + 1, what, "write it in ASCII"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            out.push(file.finding(at + 1, "trailing blanks".into(), "remove them"));
        }
    }
    let lines = file.text.lines().count();
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        let what = "does not end in exactly one newline".into();
        out.push(file.finding(lines, what, "end it with one"));
    }
}

/// Scripts and tests may name a folder for temporary files; other files may not.
fn check_machine_paths(file: &File, out: &mut Vec<Finding>) {
    if file.path.ends_with(".sh") || file.path == ".ci/run" {
        return;
    }
    for folder in MACHINE_FOLDERS {
        for (at, _) in file.text.match_indices(&format!("/{folder}/")) {
            let before = file.text[..at].bytes().last();
            let goes_on =
                before.is_some_and(|b| b.is_ascii_alphanumeric() || b"_-.})>".contains(&b));
            let is_test = file.rust.as_ref().is_some_and(|rust| rust.scopes.is_test(at));
            if !goes_on && !is_test {
                let what = format!("/{folder}/ is a folder of one machine");
                out.push(file.finding(file.line(at), what, "use a path from the workspace's root"));
            }
        }
    }
}

fn check_links(file: &File, out: &mut Vec<Finding>) {
    let Some(rust) = &file.rust else { return };
    for (at, scheme) in rust.masked.comments.match_indices("://") {
        let before = &rust.masked.comments[..at];
        if before.ends_with("http") || before.ends_with("https") {
            let what = format!("a web address ({scheme}) in a comment");
            out.push(file.finding(file.line(at), what, "say what it says; pages move"));
        }
    }
}

/// A `tests.rs` needs no heading of its own: that of the file that it belongs to counts.
fn check_heading(file: &File, out: &mut Vec<Finding>) {
    let needs_one = file.rust.is_some() && !file.path.ends_with("/tests.rs");
    if needs_one && !file.text.starts_with("//!") {
        let remedy = "open the file with //! and say what it is for and what it does not do";
        out.push(file.finding(1, "no heading".into(), remedy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut out = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut out);
        out.len()
    }

    #[test]
    fn only_ascii() {
        assert_eq!(count("README.md", "a \u{2013} b\n"), 1);
        assert_eq!(count("README.md", "a - b\n"), 0);
    }

    #[test]
    fn lines_end_cleanly() {
        assert_eq!(count("README.md", "a \nb\t\nc\r\n"), 3);
        assert_eq!(count("README.md", "a"), 1);
        assert_eq!(count("README.md", "a\n\n"), 1);
        assert_eq!(count("README.md", "a\n\nb\n"), 0);
        assert_eq!(count("README.md", ""), 0);
    }

    #[test]
    fn no_path_of_one_machine() {
        assert_eq!(count("README.md", "see /home/me/x\n"), 1);
        assert_eq!(count("crates/a/src/a.rs", "//! x\nconst A: &str = \"/tmp/x\";\n"), 1);
        assert_eq!(count("crates/a/tests/a.rs", "//! x\nconst A: &str = \"/tmp/x\";\n"), 0);
        assert_eq!(count("README.md", "see crates/home/x and $HOME/home/x\n"), 0);
    }

    #[test]
    fn no_web_address_in_a_comment() {
        assert_eq!(count("crates/a/src/a.rs", "//! see https://example.org\n"), 1);
        assert_eq!(count("crates/a/src/a.rs", "//! x\nconst A: &str = \"http://x\";\n"), 0);
        assert_eq!(count("crates/a/src/a.rs", "//! nbd://host is a name of ours\n"), 0);
    }

    #[test]
    fn a_module_opens_by_saying_what_it_is_for() {
        assert_eq!(count("crates/a/src/a.rs", "use x;\n"), 1);
        assert_eq!(count("crates/a/src/a.rs", "//! x\n"), 0);
        assert_eq!(count("crates/a/src/a/tests.rs", "use super::*;\n"), 0);
    }
}
