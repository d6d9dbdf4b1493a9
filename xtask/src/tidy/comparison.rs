//! Comparison code is absent from a build without the feature `compare`.
//!
//! A program that does I/O compiles no lock, no published variant and no hook of the laboratory. The compiler checks
//! the uses of these modules, since the step `product` of CI builds without them; this rule checks their declarations,
//! and which crates enable the feature.

use super::{File, Finding, Tree};

const GATE: &str = "#[cfg(feature = \"compare\")]";

/// Files, and the modules that they declare for comparison only.
const GATED: &[(&str, &[&str])] = &[
    ("crates/engine/src/dispatch/mod.rs", &["compare"]),
    ("crates/engine/src/shared/mod.rs", &["modes"]),
    ("crates/engine/src/attributes/table.rs", &["modes"]),
    (
        "crates/engine/src/sync/mod.rs",
        &["delayed_work", "dispatch_gate", "insert_lists", "lock_cell", "queued_lock"],
    ),
];

/// The crates whose builds have the comparison modes.
const USERS: &[&str] = &["crates/lab/Cargo.toml", "crates/cli/Cargo.toml"];

/// Finds declarations without the feature, and crates that switch it on.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for (path, modules) in GATED {
        if let Some(file) = tree.file(path) {
            modules.iter().for_each(|module| check_gated(file, module, out));
        }
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        if !USERS.contains(&file.path.as_str()) {
            check_manifest(file, out);
        }
    }
}

fn check_gated(file: &File, module: &str, out: &mut Vec<Finding>) {
    let declares = |line: &str| {
        let line = line.trim_start_matches("pub").trim_start_matches("(crate)").trim_start();
        line.strip_prefix("mod ")
            .is_some_and(|rest| rest.trim_end_matches([';', ' ', '{']) == module)
    };
    let mut previous = "";
    for (at, line) in file.text.lines().enumerate() {
        if declares(line) && previous.trim() != GATE {
            let what = format!("module {module} is in every build");
            out.push(file.finding(at + 1, what, "put #[cfg(feature = \"compare\")] above it"));
        }
        previous = line;
    }
}

/// In a crate of the product, only the feature itself and tests may name it.
fn check_manifest(file: &File, out: &mut Vec<Finding>) {
    let mut table = "";
    for (at, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']);
        }
        let product = table.ends_with("dependencies") && !table.ends_with("dev-dependencies");
        let default = table == "features" && line.starts_with("default");
        if (product || default) && line.contains("\"compare\"") {
            let what = "the product has comparison code".to_owned();
            out.push(file.finding(at + 1, what, "leave the feature compare to lab and cli"));
        }
    }
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
    fn a_module_for_comparison_needs_the_feature() {
        let path = "crates/engine/src/dispatch/mod.rs";
        assert_eq!(count(path, "mod compare;\n"), 1);
        assert_eq!(count(path, "#[cfg(feature = \"compare\")]\nmod compare;\n"), 0);
        let path = "crates/engine/src/sync/mod.rs";
        assert_eq!(count(path, "pub(crate) mod lock_cell;\npub(crate) mod ring;\n"), 1);
    }

    #[test]
    fn only_the_laboratory_and_the_command_line_have_it() {
        let on = "[dependencies]\na = { workspace = true, features = [\"compare\"] }\n";
        assert_eq!(count("crates/runtime/Cargo.toml", on), 1);
        assert_eq!(count("crates/lab/Cargo.toml", on), 0);
        let tests = "[dev-dependencies]\na = { path = \".\", features = [\"compare\"] }\n";
        assert_eq!(count("crates/runtime/Cargo.toml", tests), 0);
        let default = "[features]\ndefault = [\"compare\"]\n";
        assert_eq!(count("crates/blkmq/Cargo.toml", default), 1);
        let offered = "[features]\ncompare = [\"blkmq-engine/compare\"]\n";
        assert_eq!(count("crates/blkmq/Cargo.toml", offered), 0);
    }
}
