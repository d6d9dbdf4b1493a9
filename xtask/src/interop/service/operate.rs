//! The commands of `docs/operate.md`, pasted into a shell unchanged.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::shell::{Cmd, root, target_dir};
use std::fs;

const PAGE: &str = "docs/operate.md";
/// The most commands from the sources to a graph.
const MOST: usize = 10;
/// The export with three times the weight gets at least this many times the I/O. `serve-isolation` measures shares
/// within 3 percent; here the machine may be busy.
const LEAST: f64 = 2.0;
/// A shell that reads the page as from a terminal: a command that reads its input consumes the next lines. It ends with
/// the first command that fails.
const SHELL: &str = "PATH=$PROGRAMS:$PATH exec bash -e < page";

/// In an empty folder, each command of the page works; two tenants, over TLS, share by weight, and there is a graph of
/// it.
pub(in crate::interop) fn check() -> Result<Outcome> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let blocks = blocks(&page);
    let first = blocks.first().ok_or_else(|| format!("no commands in {PAGE}"))?;
    if first.lines().count() > MOST {
        return Err(format!("{} commands; the bound is {MOST}", first.lines().count()).into());
    }
    for program in ["openssl", "chromium"] {
        if Cmd::new("sh -c").arg(format!("command -v {program}")).output().is_err() {
            return Ok(Outcome::Skipped(format!("{program} is not installed")));
        }
    }
    let folder = Folder::new("operate")?;
    let at = |name: &str| folder.path().join(name);
    fs::write(at("page"), script(&blocks))?;
    let programs = target_dir().join("dist").display().to_string();
    let said = Cmd::new("sh -c").arg(SHELL).env("PROGRAMS", programs).output_in(folder.path())?;
    println!("{said}");
    let (gold, rest) = (last_rate(&said, "gold")?, last_rate(&said, "rest")?);
    println!("gold {gold} reads a second, rest {rest}");
    if gold < LEAST * rest || rest < 1.0 {
        return Err("weights of 300 and 100 do not show".into());
    }
    if fs::metadata(at("graph.png"))?.len() < 10_000 {
        return Err("the graph is empty".into());
    }
    if !said.ends_with(END) {
        return Err("the shell has not reached the end of the page".into());
    }
    let log = fs::read_to_string(at("serve.log"))?;
    if log.contains("tls=true") { Ok(Outcome::Passed) } else { Err(log.into()) }
}

/// The page's blocks for a shell.
fn blocks(page: &str) -> Vec<&str> {
    let behind = page.split("```sh\n").skip(1);
    behind.filter_map(|text| Some(text.split_once("```")?.0)).collect()
}

/// The last line of the shell.
const END: &str = "the end of the page\n";

/// A script that ends its background processes when it ends.
fn script(blocks: &[&str]) -> String {
    let end = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";
    format!("{end}{}echo {END}", blocks.concat())
}

/// Reads in a second in the last row of this export that has them: `export  gold  5342.06 ...`, under `r/s`.
fn last_rate(said: &str, export: &str) -> Result<f64> {
    let mut rate = None;
    let mut is_first_part = false;
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["name", first, ..] => is_first_part = first == "r/s",
            ["export", name, value, ..] if name == export && is_first_part => rate = Some(value),
            _ => {}
        }
    }
    Ok(rate.ok_or_else(|| format!("no rate of {export}"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_the_page_are_one_script() {
        let page = "text\n```sh\na b\nc &\n```\n```\nno\n```\n```sh\nd\n```\n";
        assert_eq!(blocks(page), ["a b\nc &\n", "d\n"]);
        assert!(script(&blocks(page)).ends_with("EXIT\na b\nc &\nd\necho the end of the page\n"));
    }

    #[test]
    fn the_last_rate_counts() {
        let said = "  name  r/s  rkB/s\nexport gold 5.5 1\n  name wkB/s\nexport gold 9 9\n\
                    name r/s\nexport gold 6.5 2\nname wkB/s\nexport gold 0 0\n";
        assert_eq!(last_rate(said, "gold").unwrap(), 6.5);
        assert!(last_rate(said, "rest").is_err());
    }
}
