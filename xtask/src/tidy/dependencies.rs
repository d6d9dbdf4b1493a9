//! Every external dependency has a reason.
//!
//! The reason is a comment on the line directly above, in `[workspace.dependencies]` of the root manifest. Members
//! inherit their dependencies from there, so no crate can add one without a reason.

use super::tree::{File, Finding, Tree};

/// The manifests of workspaces. The fuzz targets and the lister of public items are separate workspaces, so that their
/// dependencies are not the product's.
const ROOTS: [&str; 4] =
    ["Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml", "xtask/api/Cargo.toml"];

/// Finds dependencies without a reason.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for file in &tree.files {
        if ROOTS.contains(&file.path.as_str()) {
            check_reasons(file, out);
        } else if file.path.ends_with("/Cargo.toml") {
            check_inherits(file, out);
        }
    }
}

fn check_reasons(file: &File, out: &mut Vec<Finding>) {
    let mut previous = "";
    for (line, name, text) in entries(file, |table| table == "workspace.dependencies") {
        let ours = name == "blkmq" || name.starts_with("blkmq-");
        previous = if line > 1 { file.text.lines().nth(line - 2).unwrap_or("") } else { previous };
        if !ours && !previous.trim_start().starts_with('#') {
            let what = format!("dependency {name} without a reason ({text})");
            out.push(file.finding(line, what, "say why in a comment directly above"));
        }
    }
}

fn check_inherits(file: &File, out: &mut Vec<Finding>) {
    for (line, name, text) in entries(file, |table| table.ends_with("dependencies")) {
        let inherits = name.ends_with(".workspace") || text.contains("workspace = true");
        // A crate's tests may need a feature of that crate. With a version it could not be packed.
        let is_itself = text.contains("path = \".\"");
        if !inherits && !is_itself {
            let remedy = "put it into [workspace.dependencies] with its reason and inherit it";
            out.push(file.finding(line, format!("dependency {name} is declared here"), remedy));
        }
    }
}

/// The lines `name = ...` of the tables that `wanted` accepts, with their numbers.
fn entries(file: &File, wanted: impl Fn(&str) -> bool) -> Vec<(usize, &str, &str)> {
    let (mut found, mut inside) = (Vec::new(), false);
    for (at, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[') {
            inside = wanted(table.trim_end_matches(']'));
        } else if let (true, false, Some((name, _))) =
            (inside, line.starts_with('#'), line.split_once('='))
        {
            found.push((at + 1, name.trim(), line));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut out = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut out);
        out.len()
    }

    #[test]
    fn a_dependency_needs_a_reason_of_its_own() {
        let table = "[workspace.dependencies]\nblkmq-core = { path = \"x\" }\n";
        assert_eq!(count("Cargo.toml", &format!("{table}loom = \"0.7\"\n")), 1);
        assert_eq!(count("fuzz/Cargo.toml", &format!("{table}loom = \"0.7\"\n")), 1);
        assert_eq!(count("Cargo.toml", &format!("{table}# Why.\nloom = \"0.7\"\n")), 0);
        assert_eq!(count("Cargo.toml", &format!("{table}# Why.\nloom = \"0.7\"\nx = \"1\"\n")), 1);
        assert_eq!(count("Cargo.toml", "[profile.release]\nlto = \"fat\"\n"), 0);
    }

    #[test]
    fn members_inherit() {
        let bad = "[dependencies]\nloom = \"0.7\"\n";
        assert_eq!(count("crates/a/Cargo.toml", bad), 1);
        let target = "[target.'cfg(loom)'.dependencies]\nloom = { version = \"0.7\" }\n";
        assert_eq!(count("crates/a/Cargo.toml", target), 1);
        let good = "[dependencies]\nloom.workspace = true\nx = { workspace = true }\n";
        assert_eq!(count("crates/a/Cargo.toml", good), 0);
        let itself = "[dev-dependencies]\na = { path = \".\", features = [\"testkit\"] }\n";
        assert_eq!(count("crates/a/Cargo.toml", itself), 0);
        assert_eq!(count("crates/a/Cargo.toml", "[features]\ntestkit = []\n"), 0);
    }
}
