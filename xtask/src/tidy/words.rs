//! Plain words: the subject of a sentence is a noun of the field.
//!
//! Counts comments in which a pronoun replaces a noun: *who*, *somebody*, *nobody* and the like, and clauses without a
//! noun (*what is due*). English sometimes needs them, so there is a limit for each crate instead of a ban. No other
//! property of a sentence is judged.

use super::tree::{File, Finding, Tree};
use std::collections::BTreeMap;

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
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
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
            check(&tree, &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(check(&bad), [""; 0]);
        let found = check(&bad.repeat(2));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/x/src/bad.rs:1: 8 of 1008"), "{found:?}");
    }
}
