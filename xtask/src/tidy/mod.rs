//! `tidy`: the rules of STYLE.md that a machine can check.
//!
//! One file per kind of rule. Each is a function from the tree of files to findings, with a test that shows it a bad
//! example and a good one. The checks of rustfmt, clippy and rustdoc are not repeated here.

mod attributes;
mod banned;
pub(crate) mod circles;
mod comparison;
mod edges;
mod references;
pub(crate) mod source;
mod text;
pub(crate) mod tree;

use crate::{Result, shell};
use tree::{Finding, Tree};

type Rule = fn(&Tree, &mut Vec<Finding>);

/// Every rule; a new one only needs an entry here.
const RULES: &[Rule] = &[
    edges::check,
    circles::check,
    comparison::check,
    attributes::check,
    text::check_size,
    banned::check,
    text::check,
    references::check_paths,
    edges::check_reasons_of_all,
    references::check_pages,
    references::check_citations,
    text::check_words,
];

/// `cargo xtask tidy`
///
/// # Errors
/// If any rule is broken; the findings have been printed then.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("tidy takes no argument, got {arg}").into());
    }
    let (files, findings) = findings()?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {files} files, nothing to say");
            Ok(())
        }
        n => Err(format!("{n} findings in {files} files").into()),
    }
}

/// The number of files, and the findings about them.
fn findings() -> Result<(usize, Vec<Finding>)> {
    let tree = Tree::read(&shell::root())?;
    let mut findings = Vec::new();
    for rule in RULES {
        rule(&tree, &mut findings);
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok((tree.files.len(), findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With this test, `cargo test --workspace` alone finds the same faults as CI.
    #[test]
    fn tidy_passes() {
        let (files, findings) = findings().unwrap();
        assert!(files > 20, "the workspace was not found");
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }
}
