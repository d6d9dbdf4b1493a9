//! The manual pages and the completions, as the programs that read them see them.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::shell::{BLKMQ, Cmd};
use std::fs;
use std::path::Path;

/// The least number of pages: the program, and each of its commands.
const PAGES: usize = 10;

/// man renders every page without a warning, and mandoc finds no error in any.
pub(in crate::interop) fn pages() -> Result<Outcome> {
    let folder = Folder::new("manual")?;
    Cmd::new(&format!("{BLKMQ} man --dir={}", folder.path().display())).output()?;
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

/// Each shell loads its script and completes a command and an option with it.
pub(in crate::interop) fn completions() -> Result<Outcome> {
    let folder = Folder::new("completions")?;
    for (shell, file) in [("bash", "blkmq.bash"), ("zsh", "_blkmq"), ("fish", "blkmq.fish")] {
        let script = Cmd::new(&format!("{BLKMQ} completions {shell}")).output()?;
        fs::write(folder.path().join(file), script)?;
    }
    let bash = "source blkmq.bash; complete -p blkmq; COMP_WORDS=(blkmq se); COMP_CWORD=1; \
                _blkmq blkmq se blkmq; echo \"${COMPREPLY[@]}\"; COMP_WORDS=(blkmq serve --log-f); \
                COMP_CWORD=2; _blkmq blkmq --log-f serve; echo \"${COMPREPLY[@]}\"";
    let zsh = "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d $PWD/dump; \
               [[ $_comps[blkmq] = _blkmq ]]; autoload +X _blkmq; functions _blkmq";
    let fish = "source blkmq.fish; complete -C 'blkmq se'; complete -C 'blkmq serve --log-f'";
    says(folder.path(), "bash --norc -ec", bash)?;
    says(folder.path(), "zsh -fec", zsh)?;
    says(folder.path(), "fish --no-config -c", fish)?;
    Ok(Outcome::Passed)
}

/// The shell prints the command and the option, and no complaint.
fn says(folder: &Path, shell: &str, script: &str) -> Result<()> {
    let said = Cmd::new(shell).arg(script).silent_output_in(folder)?;
    let finds = |word: &str| said.contains(word);
    if finds("serve") && finds("--log-format") {
        Ok(())
    } else {
        Err(format!("{shell}: {said}").into())
    }
}
