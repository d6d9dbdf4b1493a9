//! The permitted dependencies between crates.
//!
//! The table is the architecture: every crate but the codecs of NBD, vhost-user and ublk uses `core`, which uses none;
//! policies do not use the engine, the laboratory uses no threads or clocks, and no crate uses the command line.
//! Dependencies of tests and build scripts are not edges.

use super::tree::{Finding, Tree};
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
}
