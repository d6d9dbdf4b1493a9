//! Rules about the text of files: ASCII, clean line ends, a heading, no path or link that is valid only on one machine
//! or for a short time, a maximum number of lines of a file and of a function, plain words, and references that
//! resolve.
//!
//! A limit for functions alone does not keep files small, so there are both. To split a long file, move a type into its
//! own file, not a set of free functions.
//!
//! Plain words: the subject of a sentence is a noun of the field. Comments with a pronoun in place of a noun are
//! counted (*who*, *somebody*, *nobody* and the like), and so are clauses without a noun (*what is due*). English
//! sometimes needs them, so there is a limit for each crate instead of a ban. No other property of a sentence is
//! judged.
//!
//! References must resolve: a citation to a page of the specification and a section of it, or to a decision; a path in
//! a document to a file; and an entry of a registry to a page of documentation. A page of the specification is cited by
//! its path in `docs`, with or without `section N` behind it, and a page of `docs/decisions` as `decision N`. A capital
//! D with a number is not a valid citation. A word in backticks counts as a path if it ends in a known extension, or if
//! it has a slash and its first part is a folder of the workspace or of `crates/`. It may leave out leading folders:
//! `engine/src/lib.rs` and `none.rs` are found in any folder. `NAME` stands for any name. A policy or device is one
//! file, one page and one registry line; the last rule finds the line without a page.

use super::{File, Finding, Tree};
use std::collections::{BTreeMap, BTreeSet};

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

const SPEC: &str = "docs/spec/";
const DECISIONS: &str = "docs/decisions/";

/// Finds citations of pages, sections and decisions that are not there.
pub(super) fn check_citations(tree: &Tree, out: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| !file.path.starts_with(SPEC)) {
        let Some(text) = prose(file) else { continue };
        pages(tree, file, text, out);
        decisions(tree, file, text, out);
        letters(file, text, out);
    }
}

/// The prose of a file: all of a document, the comments of source.
fn prose(file: &File) -> Option<&str> {
    match &file.rust {
        Some(rust) => Some(&rust.masked.comments),
        None => file.path.ends_with(".md").then_some(&file.text),
    }
}

fn pages(tree: &Tree, file: &File, text: &str, out: &mut Vec<Finding>) {
    for (at, _) in text.match_indices("spec/") {
        let before = text[..at].bytes().last();
        if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let rest = &text[at + "spec/".len()..];
        let Some(end) = rest.find(".md") else { continue };
        let name = &rest[..end];
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        {
            continue;
        }
        let Some(page) = tree.file(&format!("{SPEC}{name}.md")) else {
            let what = format!("spec/{name}.md does not exist");
            out.push(file.finding(file.line(at), what, "cite a page that does"));
            continue;
        };
        if let Some(section) = section(&rest[end + ".md".len()..])
            && !has_section(&page.text, section)
        {
            let what = format!("spec/{name}.md has no section {section}");
            out.push(file.finding(file.line(at), what, "cite a section that exists"));
        }
    }
}

/// The number in `, section 15.2` or `` ` sections 10 and 11 ``.
fn section(rest: &str) -> Option<&str> {
    let rest = rest.trim_start_matches(['`', ',', ')']);
    let rest = rest.strip_prefix(' ')?;
    let rest = rest.strip_prefix("sections ").or_else(|| rest.strip_prefix("section "))?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let number = rest[..end].trim_end_matches('.');
    (!number.is_empty()).then_some(number)
}

/// Returns whether there is a heading with this number, or with that of the section it is a part of.
fn has_section(page: &str, number: &str) -> bool {
    let whole = number.split('.').next().unwrap_or(number);
    page.lines().filter_map(|line| line.strip_prefix('#')).any(|line| {
        let title = line.trim_start_matches('#').trim_start();
        let is = |number: &str| {
            title
                .strip_prefix(number)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        is(number) || is(whole)
    })
}

fn decisions(tree: &Tree, file: &File, text: &str, out: &mut Vec<Finding>) {
    for (at, word) in text.match_indices("decision ") {
        let rest = &text[at + word.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let Ok(number) = rest[..end].parse::<u32>() else { continue };
        let stem = format!("{DECISIONS}{number:04}-");
        if !tree.files.iter().any(|page| page.path.starts_with(&stem)) {
            let what = format!("there is no decision {number}");
            out.push(file.finding(file.line(at), what, "cite a page of docs/decisions"));
        }
    }
}

/// A capital D with one or two digits. If a hyphen follows, it is part of a product's name.
fn letters(file: &File, text: &str, out: &mut Vec<Finding>) {
    let mut at = 0;
    for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let is_cited = word.strip_prefix('D').is_some_and(|number| {
            (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        let is_name = text.get(at + word.len()..).is_some_and(|rest| rest.starts_with('-'));
        if is_cited && !is_name {
            let what = format!("{word} is defined nowhere");
            out.push(file.finding(file.line(at), what, "cite a decision by its number, or say it"));
        }
        at += word.len() + 1;
    }
}

/// Registries, and the crate whose `doc/` holds their pages.
const CRATES: [&str; 2] = ["sched", "device"];

/// Finds registry lines without a page.
pub(super) fn check_pages(tree: &Tree, out: &mut Vec<Finding>) {
    for krate in CRATES {
        if let Some(registry) = tree.file(&format!("crates/{krate}/src/lib.rs")) {
            check_registry(tree, krate, registry, out);
        }
    }
}

fn check_registry(tree: &Tree, krate: &str, registry: &File, out: &mut Vec<Finding>) {
    let modules = registered(registry);
    if modules.is_empty() {
        let what = "no registry line found".into();
        out.push(registry.finding(1, what, "name its module::FACTORY, or module::ABOUT"));
    }
    for (at, module) in modules {
        let line = registry.line(at);
        let Some(name) = public_name(tree, krate, module) else {
            let what = format!("module {module} does not give its name");
            out.push(registry.finding(line, what, "set name: \"...\" in its FACTORY or ABOUT"));
            continue;
        };
        let page = format!("crates/{krate}/doc/{name}.md");
        let is_written = tree.file(&page).is_some_and(|page| !page.text.trim().is_empty());
        if !is_written {
            let what = format!("{name} has no page {page}");
            out.push(registry.finding(line, what, "write it: idea, options, bounds, deviations"));
        }
    }
}

/// The modules that the registry names, with their offsets: `none` in `&none::FACTORY`, `null` in `null::ABOUT`.
fn registered(registry: &File) -> Vec<(usize, &str)> {
    let Some(rust) = &registry.rust else { return Vec::new() };
    let code = rust.masked.code.as_str();
    let ends = ["::FACTORY", "::ABOUT"].iter().flat_map(|tail| code.match_indices(tail));
    let mut modules =
        Vec::from_iter(ends.filter(|(at, _)| !rust.scopes.is_test(*at)).map(|(at, _)| {
            let from =
                code[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |at| at + 1);
            (from, &code[from..at])
        }));
    modules.sort_unstable();
    modules.dedup_by_key(|(_, module)| *module);
    modules
}

/// The public name of the policy or device: the first `name: "..."` of its module.
fn public_name<'a>(tree: &'a Tree, krate: &str, module: &str) -> Option<&'a str> {
    let file = ["", "/mod"]
        .iter()
        .find_map(|tail| tree.file(&format!("crates/{krate}/src/{module}{tail}.rs")))?;
    // The code half gives the offset, the text the name, so that a name in a comment does not count.
    let code = &file.rust.as_ref()?.masked.code;
    let start = code.find("name: \"")? + "name: \"".len();
    file.text[start..].split('"').next()
}

/// The documents that newcomers follow.
const DOCUMENTS: [&str; 5] =
    ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "STYLE.md", "docs/spec/tests.md"];

/// Finds names of files that do not exist.
pub(super) fn check_paths(tree: &Tree, out: &mut Vec<Finding>) {
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

    fn citation_findings(source: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("crates/x/src/lib.rs", source),
            ("docs/spec/bfq.md", "# bfq\n\n## 1. Idea\n\n## 17. Groups\n\n### 17.1 Locks\n"),
            ("docs/decisions/0002-combining.md", "# 2. Combining\n"),
        ]);
        let mut out = Vec::new();
        check_citations(&tree, &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn citations_that_lead_somewhere_are_fine() {
        for good in [
            "`spec/bfq.md` section 17",
            "(`spec/bfq.md` sections 1 and 17)",
            "spec/bfq.md, section 17.1",
            "`spec/bfq.md` says so",
            "decision 0002 and decision 2",
            "a decision that was made",
            "`docs/spec/bfq.md`",
            "Intel D3-S4610",
        ] {
            assert_eq!(citation_findings(&format!("//! {good}\n")), [""; 0], "{good}");
        }
        assert_eq!(citation_findings("const D7: u32 = 3;\n"), [""; 0], "code is no prose");
    }

    #[test]
    fn citations_of_nothing_are_found_at_their_lines() {
        for (bad, what) in [
            ("`spec/cfq.md` section 1", "spec/cfq.md does not exist"),
            ("`spec/bfq.md` section 7", "spec/bfq.md has no section 7"),
            ("see decision 0099", "there is no decision 99"),
            ("(D7)", "D7 is defined nowhere"),
        ] {
            let found = citation_findings(&format!("//! x\n// {bad}\n"));
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].starts_with("crates/x/src/lib.rs:2: ") && found[0].contains(what));
        }
    }

    const REGISTRY: &str =
        "//! x\npub const ALL: &[&Factory] = &[&none::FACTORY, &late::FACTORY];\n";
    const NONE: (&str, &str) = ("crates/sched/src/none.rs", "const F: X = X { name: \"none\" };\n");
    const LATE: (&str, &str) =
        ("crates/sched/src/late/mod.rs", "// name: \"x\"\nconst F: X = X { name: \"so-late\" };\n");

    fn page_findings(files: &[(&str, &str)]) -> Vec<String> {
        let all = [&[("crates/sched/src/lib.rs", REGISTRY)], files].concat();
        let mut out = Vec::new();
        check_pages(&Tree::of(&all), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_line_without_a_page_is_found() {
        let found = page_findings(&[NONE, LATE, ("crates/sched/doc/none.md", "# none\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("so-late has no page crates/sched/doc/so-late.md"));
    }

    #[test]
    fn an_empty_page_is_no_page() {
        let pages = [("crates/sched/doc/none.md", "x\n"), ("crates/sched/doc/so-late.md", "\n")];
        assert_eq!(page_findings(&[NONE, LATE, pages[0], pages[1]]).len(), 1);
    }

    #[test]
    fn lines_with_pages_are_fine() {
        let pages = [("crates/sched/doc/none.md", "x\n"), ("crates/sched/doc/so-late.md", "y\n")];
        assert_eq!(page_findings(&[NONE, LATE, pages[0], pages[1]]).len(), 0);
    }

    #[test]
    fn a_module_without_a_name_is_found() {
        let found = page_findings(&[NONE, ("crates/sched/doc/none.md", "x\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("module late does not give its name"));
    }

    #[test]
    fn a_registry_that_cannot_be_read_is_found() {
        let tree = Tree::of(&[("crates/device/src/lib.rs", "//! x\n")]);
        let mut out = Vec::new();
        check_pages(&tree, &mut out);
        assert_eq!(out.len(), 1);
    }

    fn path_findings(document: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", document),
            ("crates/engine/src/sync/mod.rs", "//! x\n"),
            ("xtask/src/main.rs", "//! x\n"),
        ]);
        let mut out = Vec::new();
        check_paths(&tree, &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_that_has_moved_is_found_at_its_line() {
        let found = path_findings("one\nread `engine/src/queue.rs` first\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("ARCHITECTURE.md:2: `engine/src/queue.rs`"));
        assert_eq!(path_findings("`gone.rs` and `crates/gone/`\n").len(), 2);
    }

    #[test]
    fn files_and_folders_that_exist_are_fine() {
        let good = "`crates/engine/src/sync/` `engine/src/sync/mod.rs` `mod.rs` `xtask` `xtask/`\n";
        assert_eq!(path_findings(good).len(), 0);
    }

    #[test]
    fn what_is_no_path_is_left_alone() {
        let words = "`read/write` `std::sync` `iops/s` `a b.rs` `crates/sched/doc/NAME.md`\n";
        assert_eq!(path_findings(words).len(), 0);
        assert_eq!(path_findings("```\n`gone.rs`\n```\n").len(), 0);
    }
}
