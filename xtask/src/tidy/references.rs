//! Citations must resolve: to a page of the specification and a section of it, or to a decision.
//!
//! A page of the specification is cited by its path in `docs`, with or without `section N` behind it, and a page of
//! `docs/decisions` as `decision N`. A capital D with a number is not a valid citation.

use super::tree::{File, Finding, Tree};

const SPEC: &str = "docs/spec/";
const DECISIONS: &str = "docs/decisions/";

/// Finds citations of pages, sections and decisions that are not there.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(source: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("crates/x/src/lib.rs", source),
            ("docs/spec/bfq.md", "# bfq\n\n## 1. Idea\n\n## 17. Groups\n\n### 17.1 Locks\n"),
            ("docs/decisions/0002-combining.md", "# 2. Combining\n"),
        ]);
        let mut out = Vec::new();
        check(&tree, &mut out);
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
            assert_eq!(findings(&format!("//! {good}\n")), [""; 0], "{good}");
        }
        assert_eq!(findings("const D7: u32 = 3;\n"), [""; 0], "code is no prose");
    }

    #[test]
    fn citations_of_nothing_are_found_at_their_lines() {
        for (bad, what) in [
            ("`spec/cfq.md` section 1", "spec/cfq.md does not exist"),
            ("`spec/bfq.md` section 7", "spec/bfq.md has no section 7"),
            ("see decision 0099", "there is no decision 99"),
            ("(D7)", "D7 is defined nowhere"),
        ] {
            let found = findings(&format!("//! x\n// {bad}\n"));
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].starts_with("crates/x/src/lib.rs:2: ") && found[0].contains(what));
        }
    }
}
