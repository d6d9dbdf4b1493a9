//! The permitted dependencies between crates, and the reasons of those from outside.
//!
//! The table is the architecture: every crate but the codecs of NBD, vhost-user and ublk uses `core`, which uses none;
//! policies do not use the engine, the laboratory uses no threads or clocks, and no crate uses the command line.
//! Dependencies of tests and build scripts are not edges.
//!
//! The reason of an external dependency is a comment on the line directly above, in `[workspace.dependencies]` of the
//! root manifest. Members inherit their dependencies from there, so no crate can add one without a reason.

use super::{File, Finding, Tree};
use crate::Result;
use serde_json::Value;
use std::process::Command;

/// A crate, without the prefix `blkmq-`, and the crates of the workspace that it may use.
const TABLE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("buf", &["core"]),
    ("sched", &["core"]),
    ("engine", &["core", "sched"]),
    ("device", &["core", "engine"]),
    ("threads", &["core", "buf", "engine"]),
    ("uring", &["core", "buf", "engine", "threads"]),
    ("runtime", &["core", "sched", "engine"]),
    ("trace", &["core", "sched", "engine"]),
    ("recording", &["core", "trace"]),
    ("lab", &["core", "sched", "engine", "device", "trace"]),
    ("nbd", &[]),
    ("vhost", &[]),
    ("ublk", &[]),
    ("remote", &["core", "buf", "engine", "nbd"]),
    ("rbd", &["core", "buf", "engine"]),
    ("layer", &["core", "buf", "engine"]),
    (
        "blkmq",
        &[
            "core", "buf", "sched", "engine", "device", "threads", "uring", "remote", "rbd",
            "layer", "runtime",
        ],
    ),
    ("server", &["nbd", "vhost", "ublk", "blkmq", "trace"]),
    ("daemon", &["terminal", "core", "sched", "engine", "runtime", "trace", "blkmq", "server"]),
    ("terminal", &["core", "sched", "engine", "runtime"]),
    (
        "cli",
        &[
            "terminal",
            "core",
            "buf",
            "sched",
            "engine",
            "device",
            "uring",
            "runtime",
            "trace",
            "recording",
            "lab",
            "blkmq",
        ],
    ),
    ("xtask", &[]),
];

/// Finds edges that are not in the table.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    match metadata(tree) {
        Ok(metadata) => check_metadata(&metadata, tree, out),
        Err(error) => out.push(Finding {
            path: "Cargo.toml".into(),
            line: 1,
            what: format!("cargo metadata does not work: {error}"),
            remedy: "make the workspace load",
        }),
    }
}

fn metadata(tree: &Tree) -> Result<Value> {
    let output = Command::new(crate::shell::cargo())
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(&tree.root)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn check_metadata(metadata: &Value, tree: &Tree, out: &mut Vec<Finding>) {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    for package in packages {
        let Some(from) = package["name"].as_str() else { continue };
        let row = TABLE.iter().find(|(name, _)| *name == short(from));
        if row.is_none() {
            let what = format!("crate {from} is not in the table of edges");
            out.push(at(tree, from, "name", what, "add it to xtask/src/tidy/edges.rs"));
        }
        let allowed = row.map_or(&[][..], |(_, allowed)| allowed);
        for dependency in package["dependencies"].as_array().map_or(&[][..], Vec::as_slice) {
            let Some(to) = dependency["name"].as_str() else { continue };
            let is_normal = dependency["kind"].is_null();
            if is_normal && ours.contains(&to) && !allowed.contains(&short(to)) {
                let what = format!("{from} uses {to}");
                let remedy = "that edge is not in the table of ARCHITECTURE.md; turn it round";
                out.push(at(tree, from, to, what, remedy));
            }
        }
    }
}

fn short(package: &str) -> &str {
    package.strip_prefix("blkmq-").unwrap_or(package)
}

/// A finding at the line of `from`'s manifest that begins with `key`.
fn at(tree: &Tree, from: &str, key: &str, what: String, remedy: &'static str) -> Finding {
    let folder = if from == "xtask" { "xtask".into() } else { format!("crates/{}", short(from)) };
    let path = format!("{folder}/Cargo.toml");
    let text = tree.file(&path).map_or("", |file| file.text.as_str());
    let line = text.lines().position(|line| line.starts_with(key)).map_or(1, |line| line + 1);
    Finding { path, line, what, remedy }
}

/// The manifests of workspaces. The fuzz targets and the lister of public items are separate workspaces, so that their
/// dependencies are not the product's.
const ROOTS: [&str; 4] =
    ["Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml", "xtask/api/Cargo.toml"];

/// Finds dependencies without a reason.
pub(super) fn check_reasons_of_all(tree: &Tree, out: &mut Vec<Finding>) {
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
    use serde_json::json;

    fn findings(metadata: &Value) -> Vec<String> {
        let manifest = "[package]\nname = \"blkmq-sched\"\n\n[dependencies]\nblkmq-engine = 1\n";
        let tree = Tree::of(&[("crates/sched/Cargo.toml", manifest)]);
        let mut out = Vec::new();
        check_metadata(metadata, &tree, &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    fn packages(from: &str, to: &str, kind: &Value) -> Value {
        json!({ "packages": [
            { "name": from, "dependencies": [{ "name": to, "kind": kind }] },
            { "name": to, "dependencies": [] },
        ]})
    }

    #[test]
    fn a_policy_that_uses_the_engine_is_found_at_its_line() {
        let found = findings(&packages("blkmq-sched", "blkmq-engine", &Value::Null));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/sched/Cargo.toml:5: blkmq-sched uses blkmq-engine"));
    }

    #[test]
    fn an_edge_of_the_table_is_fine() {
        assert_eq!(findings(&packages("blkmq-sched", "blkmq-core", &Value::Null)).len(), 0);
        assert_eq!(findings(&packages("blkmq", "blkmq-runtime", &Value::Null)).len(), 0);
    }

    #[test]
    fn nothing_uses_the_command_line() {
        assert_eq!(findings(&packages("blkmq", "blkmq-cli", &Value::Null)).len(), 1);
    }

    #[test]
    fn tests_may_use_what_they_like() {
        assert_eq!(findings(&packages("blkmq-sched", "blkmq-engine", &json!("dev"))).len(), 0);
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        assert_eq!(findings(&packages("blkmq-new", "blkmq-core", &Value::Null)).len(), 2);
    }

    fn count(path: &str, text: &str) -> usize {
        let mut out = Vec::new();
        check_reasons_of_all(&Tree::of(&[(path, text)]), &mut out);
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
