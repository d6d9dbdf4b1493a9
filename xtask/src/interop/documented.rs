//! The commands of the documents, executed unchanged: those in pages and `--help` that serve, control a server or are
//! its clients, and those of `docs/operate.md`, pasted into a shell.
//!
//! They name ports, `/run/blkmq` and `/srv`, so they run in their own network and mount namespaces, where nothing of
//! this machine is touched. Commands that end without a signal are in `cli/tests/documented.rs`.

use super::{Folder, Outcome};
use crate::Result;
use crate::shell::{BLKMQCTL, BLKMQD, Cmd, root, target_dir};
use std::fs;
use std::path::Path;

/// Words of commands that cannot run here, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("/dev/nvme0n1", "needs that disk"),
    ("--tls-certificates", "needs certificates; the check serve-tls makes some"),
    ("tls-certificates=", "needs certificates; the check serve-tls makes some"),
    (",ublk=", "needs the kernel's ublk_drv; the check cloud-guest-ublk has it"),
    ("qemu-system-", "starts a guest; qemu-io and qemu-img are the clients of other checks"),
    ("--identity=cn:", "needs a client with that certificate; the tests of clients disconnect one"),
];

/// The needs of a command, and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Serves until it is ended.
    Server,
    /// Asks the server of the runtime directory.
    Control,
    /// Speaks NBD to the server of the file.
    Client,
}

pub(super) fn check() -> Result<Outcome> {
    let (lines, left_out) = commands()?;
    for (line, why) in &left_out {
        println!("  not here: {line}: {why}");
    }
    let folder = Folder::new("documented")?;
    let place = folder.path();
    fs::create_dir_all(place.join("srv"))?;
    fs::copy(root().join("crates/daemon/examples/serve.toml"), place.join("serve.toml"))?;
    fs::write(place.join("image.raw"), vec![7; 1 << 20])?;
    if Cmd::new("unshare --mount --net ip link set lo up").quiet_code().ok().flatten() != Some(0) {
        return Ok(Outcome::Skipped("no right to a network and mounts of its own".into()));
    }
    for kind in [Kind::Server, Kind::Control, Kind::Client] {
        let those = lines.iter().filter(|(of, _)| *of == kind).map(|(_, line)| line.as_str());
        let those: Vec<&str> = those.collect();
        if those.is_empty() {
            return Err(format!("the documents show no command of the kind {kind:?}").into());
        }
        carry_out(kind, &those, place)?;
        println!("  {} commands: {kind:?}", those.len());
    }
    Ok(Outcome::Passed)
}

/// (all documented commands of these kinds, those that cannot run here with the reason).
#[expect(clippy::type_complexity, reason = "two lists")]
fn commands() -> Result<(Vec<(Kind, String)>, Vec<(String, &'static str)>)> {
    let mut text = String::new();
    for page in ["README.md", "docs/serve.md"] {
        let page = fs::read_to_string(root().join(page))?;
        text.extend(page.split("```").skip(1).step_by(2));
    }
    for program in [BLKMQD, BLKMQCTL] {
        let help = Cmd::new(&format!("{program} --help")).env("COLUMNS", "200").output()?;
        let (_, examples) = help.split_once("\nExamples:\n").ok_or("no examples")?;
        text.push_str(examples);
    }
    let (mut lines, mut left_out) = (Vec::new(), Vec::new());
    for line in joined(&text).lines().map(str::trim) {
        // Comments follow several spaces.
        let line = line.split("  ").next().unwrap_or(line);
        let Some(kind) = kind(line) else { continue };
        match ELSEWHERE.iter().find(|(words, _)| line.contains(words)) {
            Some((_, why)) => left_out.push((line.to_owned(), *why)),
            None => lines.push((kind, line.to_owned())),
        }
    }
    lines.sort_by(|a, b| a.1.cmp(&b.1));
    lines.dedup();
    Ok((lines, left_out))
}

/// The lines of a text; a line that ends in a backslash is joined with the next one.
fn joined(text: &str) -> String {
    let mut all = String::new();
    for line in text.lines() {
        match line.strip_suffix('\\') {
            Some(begin) => all.push_str(&format!("{} ", begin.trim())),
            None => all.push_str(&format!("{}\n", line.trim())),
        }
    }
    all
}

fn kind(line: &str) -> Option<Kind> {
    let of = |programs: &[&str]| programs.iter().any(|program| line.starts_with(program));
    if line == "blkmqd" || of(&["blkmqd "]) {
        Some(Kind::Server)
    } else if of(&["blkmqctl "]) {
        Some(Kind::Control)
    } else {
        of(&["nbdinfo ", "nbdcopy ", "fio ", "qemu-"]).then_some(Kind::Client)
    }
}

/// Runs the commands, each within half a minute of CPU time, in its own shell: on a busy machine wall-clock time says
/// little about a command. A server is ready once it prints its line about SIGTERM, and is stopped afterwards.
fn carry_out(kind: Kind, lines: &[&str], place: &Path) -> Result<()> {
    let program = target_dir().join("dist");
    let mut script = format!(
        "set -eu; ip link set lo up; mount -t tmpfs none /run; mkdir -p /run/blkmq; mkdir -p /srv; \
         mount --bind srv /srv; export PATH={}:$PATH XDG_RUNTIME_DIR=/run/blkmq\n\
         ready() {{ for n in $(seq 600); do grep -qs '^SIGTERM' out && return; kill -0 $1; sleep 0.1; done; false; }}\n",
        program.display()
    );
    match kind {
        Kind::Server => {
            lines.iter().for_each(|line| script.push_str(&serving(line)));
        }
        Kind::Control | Kind::Client => {
            let server = match kind {
                Kind::Control => {
                    "blkmqd --device=memory,size=64 --scheduler=bfq --export=gold,size=8m --export=rest,offset=8m"
                }
                _ => "blkmqd serve.toml",
            };
            script.push_str(&format!(
                "rm -f out; {server} > out 2> errors & server=$!\nready $server\n"
            ));
            for line in lines {
                script.push_str(&one(line));
            }
            script.push_str(STOP);
        }
    }
    let run = Cmd::new("timeout 900 unshare --mount --net sh -c").arg(script);
    let said = run.output_in(place).map_err(|e| {
        let errors = fs::read_to_string(place.join("errors")).unwrap_or_default();
        format!("{e}: {errors}")
    })?;
    let missing = lines.iter().find(|line| !said.contains(**line));
    missing.map_or(Ok(()), |line| Err(format!("{line} did not run: {said}").into()))
}

/// Ends a server, whose exit code must be 0.
const STOP: &str = "kill -TERM $server; wait $server\n";

/// A command that serves; a command that only checks a file ends without a signal. The last of several commands is the
/// server.
fn serving(line: &str) -> String {
    let (before, server) = match line.rsplit_once(" && ") {
        Some((before, server)) => (format!("{before} && "), server),
        None if line.contains("--check") => return one(line),
        None => (String::new(), line),
    };
    let name = quoted(line);
    format!(
        "rm -f out; echo {name}; ({before}exec {server}) > out 2> errors & server=$!\nready $server; {STOP}"
    )
}

/// A command that ends without a signal, or that runs forever and is interrupted when it has printed something.
fn one(line: &str) -> String {
    let name = quoted(line);
    let goes_on = line.contains(" stat ") && !line.contains("--count") || line.ends_with(" top");
    if goes_on {
        return format!(
            "echo {name}; timeout -s INT 5 {line} > shown || true; grep -q aqu-sz shown\n"
        );
    }
    format!("echo {name}; (ulimit -t 30; exec timeout 120 sh -c {name}) > shown\n")
}

fn quoted(line: &str) -> String {
    format!("'{}'", line.replace('\'', r"'\''"))
}

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
pub(super) fn operate() -> Result<Outcome> {
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
    fn commands_have_their_kinds() {
        assert_eq!(kind("blkmqd serve.toml"), Some(Kind::Server));
        assert_eq!(kind("blkmqctl list"), Some(Kind::Control));
        assert_eq!(kind("nbdcopy image.raw 'nbd://127.0.0.1/gold'"), Some(Kind::Client));
        assert_eq!((kind("blkmq bench"), kind("SocketGroup=disk")), (None, None));
    }

    #[test]
    fn what_goes_on_for_ever_is_interrupted() {
        assert!(one("blkmqctl stat --interval=2").contains("-s INT"));
        let list = one("blkmqctl list");
        assert!(list.contains("ulimit -t 30;") && !list.contains("-s INT"));
        assert!(serving("blkmqd --check a && blkmqd a").contains("a && exec blkmqd a)"));
        assert!(!serving("blkmqd --check a").contains("ready"));
        assert_eq!(joined("a \\\n    b\nc\n"), "a b\nc\n");
        assert_eq!(quoted("a 'b'"), r"'a '\''b'\'''");
    }

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
