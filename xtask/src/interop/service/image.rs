//! The recipe of an image. Where no container engine runs, its steps run in a folder that has the sources and nothing
//! else; they are in one script, which is all that the recipe runs to build.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::shell::{Cmd, root, target_dir};
use std::fs;

const RECIPE: &str = "contrib/container/Containerfile";
const BUILD: &str = "RUN sh /src/contrib/container/build.sh /src /out";

/// The files of the repository build and install themselves, and the installed program serves.
pub(in crate::interop) fn check() -> Result<Outcome> {
    let recipe = fs::read_to_string(root().join(RECIPE))?;
    let build = recipe.split("\nFROM ").nth(1).ok_or("one stage only")?;
    let runs: Vec<&str> = build.lines().filter(|line| line.starts_with("RUN ")).collect();
    if runs != [BUILD] {
        return Err(format!("the stage that builds runs {runs:?} and not only {BUILD}").into());
    }
    let folder = Folder::new("image")?;
    let [sources, out] = ["src", "out"].map(|it| folder.path().join(it));
    fs::create_dir_all(&sources)?;
    // Files that are not committed yet are checked as well; those that git ignores are not there.
    let copy = "git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t";
    Cmd::new("sh -c").arg(format!("{copy} {}", sources.display())).run()?;
    // The check is about the files and their places: nothing is optimised for it.
    let cache = target_dir().join("image").display().to_string();
    let script = sources.join("contrib/container/build.sh");
    Cmd::new("sh")
        .arg(script.display().to_string())
        .arg(sources.display().to_string())
        .arg(out.display().to_string())
        .env("CARGO_TARGET_DIR", cache)
        .env("CARGO_PROFILE_DIST_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_DIST_LTO", "off")
        .env("CARGO_PROFILE_DIST_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_DIST_DEBUG", "false")
        .run()?;
    for file in ["bin/blkmqctl", "share/man/man1/blkmqd.1", "lib/systemd/system/blkmqd.service"] {
        if fs::metadata(out.join("usr").join(file))?.len() == 0 {
            return Err(format!("{file} is empty").into());
        }
    }
    serves(&out.join("usr/bin/blkmqd").display().to_string())
}

/// libnbd starts the installed program, and reads its size.
fn serves(program: &str) -> Result<Outcome> {
    let words = "--device=memory,size=64 --export= --control= --log=error";
    let size = Cmd::new(&format!("nbdinfo --size -- [ {program} {words} ]")).output()?;
    // The server's lines about its device are in front of the size.
    if size.lines().last() == Some("67108864") {
        Ok(Outcome::Passed)
    } else {
        Err(format!("a size of {size}").into())
    }
}
