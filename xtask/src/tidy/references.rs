//! References must resolve: a citation to a page of the specification and a section of it, or to a decision; a path in
//! a document to a file; and an entry of a registry to a page of documentation.
//!
//! A page of the specification is cited by its path in `docs`, with or without `section N` behind it, and a page of
//! `docs/decisions` as `decision N`. A capital D with a number is not a valid citation.
//!
//! A word in backticks counts as a path if it ends in a known extension, or if it has a slash and its first part is a
//! folder of the workspace or of `crates/`. It may leave out leading folders: `engine/src/lib.rs` and `registry.rs`
//! are found in any folder. `NAME` stands for any name.
//!
//! A policy or device is one file, one page and one registry line; the last rule finds the line without a page.

use super::{File, Finding, Tree};
use std::collections::BTreeSet;

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
        if let Some(registry) = tree.file(&format!("crates/{krate}/src/registry.rs")) {
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
        let all = [&[("crates/sched/src/registry.rs", REGISTRY)], files].concat();
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
        let tree = Tree::of(&[("crates/device/src/registry.rs", "//! x\n")]);
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
