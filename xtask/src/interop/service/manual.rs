//! The manual pages and the completions, as the programs that read them see them.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::shell::{BLKMQ, BLKMQCTL, Cmd};
use std::fs;
use std::path::Path;

/// The least number of pages: one for each program and each of their commands.
const PAGES: usize = 25;

/// man renders every page without a warning, and mandoc finds no error in any.
pub(in crate::interop) fn pages() -> Result<Outcome> {
    let folder = Folder::new("manual")?;
    for program in [BLKMQ, BLKMQCTL] {
        Cmd::new(&format!("{program} man --dir={}", folder.path().display())).output()?;
    }
    let mut count = 0;
    for entry in fs::read_dir(folder.path())? {
        let page = entry?.path().display().to_string();
        let man = Cmd::new("man --warnings -E UTF-8 -l").arg(page.as_str());
        let text = man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
        let text = text.silent_output_in(folder.path())?;
        if !text.contains("blkmq") {
            return Err(format!("{page} is empty").into());
        }
        Cmd::new("mandoc -T lint -W error").arg(page.as_str()).silent_output_in(folder.path())?;
        count += 1;
    }
    println!("{count} pages");
    if count >= PAGES { Ok(Outcome::Passed) } else { Err("too few pages".into()) }
}

/// Each shell loads the script of each program and completes words with it.
pub(in crate::interop) fn completions() -> Result<Outcome> {
    for (name, printer, begin, expected) in [
        ("blkmq", BLKMQ, "ben", "bench"),
        ("blkmqctl", BLKMQCTL, "sw", "switch"),
        ("blkmqd", BLKMQCTL, "--log-f", "--log-format"),
    ] {
        let folder = Folder::new("completions")?;
        let of = if printer == BLKMQCTL { name } else { "" };
        for (shell, file) in [("bash", "script"), ("zsh", &*format!("_{name}")), ("fish", "fish")] {
            let script = Cmd::new(&format!("{printer} completions {shell} {of}")).output()?;
            fs::write(folder.path().join(file), script)?;
        }
        let bash = format!(
            "source ./script; complete -p {name}; COMP_WORDS=({name} {begin}); COMP_CWORD=1; \
             _{name} {name} {begin} {name}; echo \"${{COMPREPLY[@]}}\""
        );
        let zsh = format!(
            "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d $PWD/dump; \
             [[ $_comps[{name}] = _{name} ]]; autoload +X _{name}; functions _{name}"
        );
        let fish = format!("source ./fish; complete -C '{name} {begin}'");
        says(folder.path(), "bash --norc -ec", &bash, expected)?;
        says(folder.path(), "zsh -fec", &zsh, expected)?;
        says(folder.path(), "fish --no-config -c", &fish, expected)?;
    }
    Ok(Outcome::Passed)
}

/// Checks that the shell prints the expected word, and no error.
fn says(folder: &Path, shell: &str, script: &str, expected: &str) -> Result<()> {
    let said = Cmd::new(shell).arg(script).silent_output_in(folder)?;
    if said.contains(expected) { Ok(()) } else { Err(format!("{shell}: {said}").into()) }
}
