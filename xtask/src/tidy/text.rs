//! Rules about the text of files: ASCII, clean line ends, a heading, no path or link that is valid only on one machine
//! or for a short time, a maximum number of lines of a file and of a function, and plain words.
//!
//! A limit for functions alone does not keep files small, so there are both. To split a long file, move a type into its
//! own file, not a set of free functions.
//!
//! Plain words: the subject of a sentence is a noun of the field. Comments with a pronoun in place of a noun are
//! counted (*who*, *somebody*, *nobody* and the like), and so are clauses without a noun (*what is due*). English
//! sometimes needs them, so there is a limit for each crate instead of a ban. No other property of a sentence is
//! judged.

use super::{File, Finding, Tree};
use std::collections::BTreeMap;

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

/// The most lines of a file.
const FILE: usize = 1_000;
/// The most lines of a function, its signature and closing brace included.
const FUNCTION: usize = 70;
/// The most lines of a test.
const TEST_FUNCTION: usize = 100;

/// Finds files and functions that are too long.
pub(super) fn check_size(tree: &Tree, out: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        let lines = file.text.lines().count();
        if lines > FILE {
            let what = format!("{lines} lines, the limit is {FILE}");
            out.push(file.finding(1, what, "move a type into a file of its own"));
        }
        for function in &rust.scopes.functions {
            let (first, last) = (file.line(function.range.start), file.line(function.range.end));
            let lines = last - first + 1;
            let is_test = rust.scopes.is_test(function.range.start);
            let limit = if is_test { TEST_FUNCTION } else { FUNCTION };
            if lines > limit {
                let what = format!("fn {} has {lines} lines, the limit is {limit}", function.name);
                out.push(file.finding(
                    first,
                    what,
                    "push the loops down and the ifs up, and split it",
                ));
            }
        }
    }
}

/// Comment lines with such a word in 1,000, at most.
const CEILING: usize = 5;
/// The fewest lines that are judged; smaller crates would have no allowance.
const FEWEST: usize = 1_000;

/// They stand for a noun that the reader has to guess.
const PRONOUNS: &[&str] = &[
    "who",
    "whoever",
    "whom",
    "whomever",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
];
/// Behind *what* they make a clause without a noun.
const VERBS: &[&str] = &[
    "is", "was", "are", "were", "has", "have", "had", "came", "comes", "went", "goes", "waits",
    "happens", "did", "does", "can", "may", "must", "will",
];
/// In front of *what* they make it the object of the sentence.
const BEFORE: &[&str] = &[
    "of", "by", "to", "for", "in", "on", "with", "at", "from", "than", "and", "or", "but", "that",
];

/// Finds crates with more of them than the ceiling.
pub(super) fn check_words(tree: &Tree, out: &mut Vec<Finding>) {
    let mut crates: BTreeMap<&str, Vec<(&File, usize, usize)>> = BTreeMap::new();
    for file in &tree.files {
        let Some(rust) = &file.rust else { continue };
        let lines = comment_lines(&rust.masked.comments);
        let found = lines.iter().filter(|line| is_headless(line)).count();
        crates.entry(krate(&file.path)).or_default().push((file, lines.len(), found));
    }
    for (name, mut files) in crates {
        let lines: usize = files.iter().map(|(_, lines, _)| lines).sum();
        let found: usize = files.iter().map(|(.., found)| found).sum();
        if found * 1_000 > CEILING * lines.max(FEWEST) {
            files.sort_by_key(|(.., found)| std::cmp::Reverse(*found));
            let (worst, _, most) = files[0];
            let what = format!(
                "{found} of {lines} comment lines of {name} have a pronoun for a noun, {most} of them here; at most \
                 {CEILING} in 1,000"
            );
            out.push(worst.finding(1, what, "say which thread, request or group it is"));
        }
    }
}

/// `crates/engine` of `crates/engine/src/lib.rs`, `xtask` of `xtask/src/main.rs`.
fn krate(path: &str) -> &str {
    let parts = if path.starts_with("crates/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(parts - 1).map_or(path.len(), |(at, _)| at);
    &path[..end]
}

/// Lines of comments, without their markers.
fn comment_lines(comments: &str) -> Vec<&str> {
    let text = |line: &str| line.find("//").map(|at| at + 2);
    let lines = comments.lines().filter_map(|line| Some(&line[text(line)?..]));
    lines.map(|line| line.trim_start_matches(['/', '!'])).collect()
}

fn is_headless(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let mut words = Vec::new();
    let mut begins = true;
    for piece in line.split_whitespace() {
        let word = piece.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        words.push((word, begins));
        begins = piece.ends_with(['.', ';', ':', ',']);
    }
    let is_pronoun = |(word, _): &(&str, bool)| {
        PRONOUNS.contains(word) || PRONOUNS.contains(&word.trim_end_matches("'s"))
    };
    let is_clause = |at: usize| {
        let (word, begins) = words[at];
        let verb = words.get(at + 1).is_some_and(|(next, _)| VERBS.contains(next));
        let object = begins || at > 0 && BEFORE.contains(&words[at - 1].0);
        matches!(word, "what" | "whatever") && verb && object
    };
    words.iter().any(is_pronoun) || (0..words.len()).any(is_clause)
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

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    fn findings(path: &str, text: &str) -> Vec<Finding> {
        let mut out = Vec::new();
        check_size(&Tree::of(&[(path, text)]), &mut out);
        out
    }

    #[test]
    fn a_long_function_is_found_and_one_at_the_limit_is_not() {
        assert_eq!(findings("crates/a/src/a.rs", &function(71)).len(), 1);
        assert_eq!(findings("crates/a/src/a.rs", &function(70)), []);
    }

    #[test]
    fn a_test_may_be_longer_but_not_endless() {
        let module = |lines| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(lines));
        assert_eq!(findings("crates/a/src/a.rs", &module(100)), []);
        assert_eq!(findings("crates/a/src/a.rs", &module(101)).len(), 1);
    }

    #[test]
    fn a_long_file_is_found_and_one_at_the_limit_is_not() {
        assert_eq!(findings("crates/a/src/a.rs", &"//!\n".repeat(1_000)), []);
        assert_eq!(findings("crates/a/src/a.rs", &"//!\n".repeat(1_001)).len(), 1);
    }

    #[test]
    fn a_pronoun_for_a_noun_is_found() {
        for bad in [
            " Whoever gives a token back kicks.",
            " There is somebody's request in it",
            " what is due, is done",
            " The rest of what was staged",
            " Done by now; what has come waits.",
        ] {
            assert!(is_headless(bad), "{bad}");
        }
    }

    #[test]
    fn nouns_are_fine() {
        for good in [
            " The thread that gives a token back kicks the elevator.",
            " See what `drive.rs` says about it.",
            " What for? Whose?",
            " A device whose queues are full",
        ] {
            assert!(!is_headless(good), "{good}");
        }
    }

    #[test]
    fn a_crate_above_the_ceiling_is_told_with_its_worst_file() {
        let (plain, bad) = ("// A runner.\n".repeat(1_000), "// Whoever runs.\n".repeat(4));
        let check = |text: &str| {
            let tree = Tree::of(&[
                ("crates/x/src/lib.rs", plain.as_str()),
                ("crates/x/src/bad.rs", text),
                ("xtask/src/main.rs", "// Whoever runs.\n"),
            ]);
            let mut out = Vec::new();
            check_words(&tree, &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(check(&bad), [""; 0]);
        let found = check(&bad.repeat(2));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/x/src/bad.rs:1: 8 of 1008"), "{found:?}");
    }
}
