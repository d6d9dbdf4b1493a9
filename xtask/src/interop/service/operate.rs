//! The first commands of `docs/operate.md`, run as they stand there.

use super::super::Outcome;
use crate::Result;
use crate::shell::{Cmd, root, target_dir};
use std::fs;

const PAGE: &str = "docs/operate.md";
/// The most commands from the sources to a graph.
const MOST: usize = 10;
/// Seconds between a command in the background and the next one: as long as it takes to type that.
const TYPING: u32 = 3;
/// The export with three times the weight gets at least so many times the I/O. Shares within 3 percent are measured by
/// `serve-isolation`; here the machine may be busy.
const LEAST: f64 = 2.0;

/// Two tenants, over TLS, share by weight, and there is a graph of it.
pub(in crate::interop) fn check() -> Result<Outcome> {
    let text = fs::read_to_string(root().join(PAGE))?;
    let commands = commands(&text).ok_or_else(|| format!("no commands in {PAGE}"))?;
    if commands.len() > MOST {
        return Err(format!("{} commands; the bound is {MOST}", commands.len()).into());
    }
    for program in ["openssl", "chromium"] {
        if Cmd::new("sh -c").arg(format!("command -v {program}")).output().is_err() {
            return Ok(Outcome::Skipped(format!("{program} is not installed")));
        }
    }
    // The page's own path.
    let folder = root().join("target/first");
    let _ = fs::remove_dir_all(&folder);
    // The program of this run, wherever it was built: the same path in a checkout that is not set up otherwise.
    if target_dir() != root().join("target") {
        return Ok(Outcome::Skipped("the target folder is elsewhere than the page says".into()));
    }
    let script = script(&commands);
    let said = Cmd::new("bash -eu -c").arg(script).output()?;
    println!("{said}");
    let (gold, rest) = (last_rate(&said, "gold")?, last_rate(&said, "rest")?);
    println!("gold {gold} reads a second, rest {rest}");
    if gold < LEAST * rest || rest < 1.0 {
        return Err("weights of 300 and 100 do not show".into());
    }
    if fs::metadata(folder.join("graph.png"))?.len() < 10_000 {
        return Err("the graph is empty".into());
    }
    let errors = fs::read_to_string(folder.join("serve.log"))?;
    if errors.contains("tls=true") {
        fs::remove_dir_all(&folder)?;
    } else {
        return Err(errors.into());
    }
    Ok(Outcome::Passed)
}

/// The lines of the page's first block for a shell.
fn commands(page: &str) -> Option<Vec<&str>> {
    let (_, block) = page.split_once("```sh\n")?;
    Some(block.split_once("\n```")?.0.lines().collect())
}

/// A script that ends its background processes when it ends.
fn script(commands: &[&str]) -> String {
    let mut script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    for command in commands {
        script.push_str(command);
        script.push('\n');
        if command.ends_with(" &") {
            script.push_str(&format!("sleep {TYPING}\n"));
        }
    }
    script
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
    fn the_block_of_the_page_is_found_and_waits_behind_the_background() {
        let page = "text\n```sh\na b\nc &\n```\n```sh\nd\n```\n";
        assert_eq!(commands(page), Some(vec!["a b", "c &"]));
        let script = script(&["a b", "c &", "d"]);
        assert!(script.ends_with("a b\nc &\nsleep 3\nd\n"), "{script}");
    }

    #[test]
    fn the_last_rate_counts() {
        let said = "  name  r/s  rkB/s\nexport gold 5.5 1\n  name wkB/s\nexport gold 9 9\n\
                    name r/s\nexport gold 6.5 2\nname wkB/s\nexport gold 0 0\n";
        assert_eq!(last_rate(said, "gold").unwrap(), 6.5);
        assert!(last_rate(said, "rest").is_err());
    }
}
