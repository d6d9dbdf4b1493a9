//! `README.md` agrees with the code: its snippet is the doctest of this crate, line by line, and the setup takes two
//! commands.

const README: &str = include_str!("../../../README.md");
const LIBRARY: &str = include_str!("../src/lib.rs");

/// Returns the fenced blocks of a Markdown page: the text behind the opening fence, and the lines.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (mut blocks, mut open): (Vec<(&str, Vec<&str>)>, _) = (Vec::new(), false);
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            open = !open;
            if open {
                blocks.push((info, Vec::new()));
            }
        } else if open {
            blocks.last_mut().expect("a block was opened").1.push(line);
        }
    }
    assert!(!open, "the last block is not closed");
    blocks
}

/// Returns the part of the page under `heading`.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).expect("the heading is there");
    rest.split_once("\n## ").map_or(rest, |(section, _)| section)
}

#[test]
fn the_snippet_is_the_doctest() {
    let page: Vec<&str> = LIBRARY.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let page: Vec<&str> = page.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let page = page.join("\n");
    let doctests: Vec<_> = blocks(&page).into_iter().filter(|(info, _)| info.is_empty()).collect();
    let [(_, doctest)] = &doctests[..] else { panic!("{} doctests, not one", doctests.len()) };
    // rustdoc hides lines that begin with a number sign.
    let doctest: Vec<&str> =
        doctest.iter().copied().filter(|line| !line.starts_with("# ")).collect();
    assert!(doctest.len() > 10, "{} lines show little", doctest.len());
    let shown = blocks(section(README, "As a library"));
    let snippet = shown.iter().find(|(info, _)| *info == "rust").expect("a block in Rust");
    assert_eq!(snippet.1, doctest);
}

#[test]
fn setting_up_takes_two_commands() {
    let commands: Vec<&str> = blocks(README)
        .into_iter()
        .flat_map(|(_, lines)| lines)
        .filter(|line| line.trim_start().trim_start_matches("$ ").starts_with("cargo "))
        .collect();
    assert_eq!(commands, ["cargo run --release -- bench", "cargo test --workspace"]);
}
