//! `outside`: a scheduler and a device in a package that is not in the workspace, by the recipe of CONTRIBUTING.md,
//! pass their kits.
//!
//! The manifest and the test are the very blocks of the recipe, and the sources are the examples that it tells the
//! reader to copy. The versions of dependencies are those of the workspace, so that nothing is fetched.

use crate::Result;
use crate::shell::{Cmd, root, target_dir};
use std::fs;
use std::path::{Path, PathBuf};

const RECIPE: &str = "\n## A scheduler or a device elsewhere\n";
/// The examples that the recipe tells the reader to copy.
const SPECIMENS: [&str; 2] = ["own_device", "own_scheduler"];
/// The source of `blkmq` in the recipe, once there is a release.
const VERSION: &str = "version = \"0.1\"";

/// The rest of the package's manifest. Built to be checked, not to be fast.
const PACKAGE: &str = "[workspace]\n\n[package]\nname = \"mine\"\nedition = \"2024\"\n\n\
                       [profile.test]\nopt-level = 0\ndebug = false\n\n";

/// A folder outside of the workspace, removed afterwards.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `cargo xtask outside`
///
/// # Errors
/// If the package does not build or a kit finds a fault.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("outside takes no argument, got {arg}").into());
    }
    let name = format!("blkmq-outside-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    let page = fs::read_to_string(root().join("CONTRIBUTING.md"))?;
    write(&folder.0, &page)?;
    // Apart from other builds, so that they need not wait; kept, so that the next time is short.
    let passed = Cmd::new("cargo test --offline --quiet --tests --manifest-path")
        .arg(folder.0.join("Cargo.toml").to_string_lossy())
        .env("CARGO_TARGET_DIR", target_dir().join("outside").to_string_lossy())
        .run_tests()?;
    println!("outside: {passed} kits passed");
    let expected = SPECIMENS.len() as u32;
    if passed == expected { Ok(()) } else { Err(format!("{expected} kits should have run").into()) }
}

/// Makes the package that the recipe describes.
fn write(folder: &Path, page: &str) -> Result<()> {
    let (dependencies, test) = (block(page, "toml")?, block(page, "rust")?);
    let here = format!("path = '{}'", root().join("crates/blkmq").display());
    let manifest = PACKAGE.to_owned() + &dependencies.replace(VERSION, &here);
    for name in ["src", "tests"] {
        fs::create_dir_all(folder.join(name))?;
    }
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("tests/kit.rs"), test)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let modules = SPECIMENS.map(|name| format!("pub mod {name};\n"));
    fs::write(folder.join("src/lib.rs"), modules.concat())?;
    for name in SPECIMENS.map(|name| format!("{name}.rs")) {
        let example = root().join("crates/blkmq/examples").join(&name);
        fs::copy(example, folder.join("src").join(name))?;
    }
    Ok(())
}

/// The recipe's block in `language`, without its indentation.
fn block(page: &str, language: &str) -> Result<String> {
    let (_, recipe) = page.split_once(RECIPE).ok_or("CONTRIBUTING.md has no such recipe")?;
    let recipe = recipe.split("\n## ").next().unwrap_or(recipe);
    let fence = format!("```{language}");
    let mut lines = recipe.lines().skip_while(|line| line.trim() != fence);
    let first = lines.next().ok_or_else(|| format!("the recipe has no block in {language}"))?;
    let indent = first.len() - first.trim_start().len();
    let inside = lines.take_while(|line| line.trim() != "```");
    Ok(inside.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_the_recipe_are_found_and_no_others() {
        let page = "```toml\nno\n```\n\n## A scheduler or a device elsewhere\n\n1. x:\n\n   ```toml\n   \
                    [a]\n\n     b\n   ```\n\n## C\n\n```rust\nno\n```\n";
        assert_eq!(block(page, "toml").unwrap(), "[a]\n\n  b\n");
        assert!(block(page, "rust").is_err());
        assert!(block("", "toml").is_err());
    }

    #[test]
    fn the_recipe_names_what_is_copied() {
        let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let (_, recipe) = page.split_once(RECIPE).unwrap();
        for name in SPECIMENS {
            assert!(recipe.contains(&format!("`crates/blkmq/examples/{name}.rs`")), "{name}");
        }
        assert_eq!(block(&page, "toml").unwrap().matches(VERSION).count(), 2);
    }
}
