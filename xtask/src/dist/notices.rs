//! The licences of the linked libraries, whose text must accompany the programs.

use crate::Result;
use crate::shell::{Cmd, parse_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// For each library: name, version, licence, and the texts in its sources, each text once.
pub(super) fn text() -> Result<String> {
    let mut used = Vec::new();
    for program in ["blkmq-cli", "blkmq-daemon"] {
        let tree = format!("cargo tree --locked -p {program} -e normal --prefix none --format");
        let tree = Cmd::new(&tree).arg("{p}").output()?;
        used.extend(tree.lines().filter_map(package));
    }
    used.sort();
    used.dedup();
    let metadata = Cmd::new("cargo metadata --locked --format-version=1").output()?;
    let metadata = parse_json(&metadata)?;
    let (mut out, mut texts) = (String::new(), BTreeMap::<String, Vec<String>>::new());
    for package in metadata["packages"].as_array().ok_or("no packages")? {
        let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let name = (field("name"), field("version"));
        // The crates of the workspace have the licence of the whole.
        if package["source"] == Value::Null || !used.contains(&name) {
            continue;
        }
        out.push_str(&format!("{} {}: {}\n", name.0, name.1, field("license")));
        for text in licences(Path::new(&field("manifest_path")))? {
            texts.entry(text).or_default().push(name.0.clone());
        }
    }
    for (text, mut names) in texts {
        names.dedup();
        out.push_str(&format!("\n---- {}\n\n{}\n", names.join(", "), text.trim_end()));
    }
    Ok(out)
}

/// The name and version in a line of cargo's tree: `name v1.2.3`, perhaps with a path or `(*)` behind it.
fn package(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    Some((name, words.next()?.strip_prefix('v')?.to_owned()))
}

/// The licence texts in the folder of a manifest.
fn licences(manifest: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(manifest.parent().ok_or("a manifest has a folder")?)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_one = ["LICEN", "COPY", "NOTICE"].iter().any(|begin| name.starts_with(begin));
        if is_one && entry.file_type()?.is_file() {
            texts.push(fs::read_to_string(entry.path())?.replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_are_read() {
        let of = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
        assert_eq!(package("nix v0.31.1"), of("nix", "0.31.1"));
        assert_eq!(package("serde_derive v1.0.2 (proc-macro) (*)"), of("serde_derive", "1.0.2"));
        assert_eq!(package(""), None);
    }
}
