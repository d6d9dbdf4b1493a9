//! The permitted dependencies: between crates, on crates from outside, and between the files and folders of a crate.
//!
//! The table is the architecture: every crate but the codecs of NBD, vhost-user and ublk uses `core`, which uses none;
//! policies do not use the engine, the laboratory uses no threads or clocks, and no crate uses the command line.
//! Dependencies of tests and build scripts are not edges.
//!
//! The reason of an external dependency is a comment on the line directly above, in `[workspace.dependencies]` of the
//! root manifest. Members inherit their dependencies from there, so no crate can add one without a reason.
//!
//! Within a crate no imports are circular, neither between files nor between folders. The nodes are files, and an edge
//! is a path in non-test code: from `a.rs` to the file that declares the item, through re-exports if there are any.
//! Parents and their children may use each other, as modules are meant to. So those edges do not count, and neither do
//! paths that end at the crate's root.

use super::{File, Finding, Rust, Tree};
use crate::Result;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
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

/// A crate's files by module path: `["elevator", "merging"]` for `src/elevator/merging.rs`, and nothing for the root.
type Modules<'a> = BTreeMap<Vec<&'a str>, (&'a str, &'a Rust)>;
type Edges<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Finds files and folders in circles.
pub(super) fn check_circles(tree: &Tree, out: &mut Vec<Finding>) {
    let before = out.len();
    for modules in crates(tree).values() {
        for circle in circles(&edges(modules)) {
            if let Some(first) = circle.first() {
                let what = format!("a circle of imports: {}", circle.join(", "));
                out.extend(tree.file(first).map(|file| {
                    file.finding(1, what, "move what both sides need into a file of its own")
                }));
            }
        }
    }
    if out.len() > before {
        // Folders of files in a circle are in one, too.
        return;
    }
    for circle in circles_of_folders(tree) {
        let file = tree.files.iter().find(|file| file.path.starts_with(&circle[0]));
        out.extend(file.map(|file| {
            let what = format!("a circle of folders: {}", circle.join(", "));
            file.finding(1, what, "move what both sides need into a folder below them")
        }));
    }
}

/// The circles between the folders of each crate, largest first. A file directly in `src` counts as a folder here,
/// together with the folder of the same name.
pub(crate) fn circles_of_folders(tree: &Tree) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (source, modules) in &crates(tree) {
        let mut folders = Edges::new();
        for (from, targets) in edges(modules) {
            let from = top(source, from);
            let targets = targets.into_iter().map(|to| top(source, to)).filter(|to| *to != from);
            folders.entry(from).or_default().extend(targets);
        }
        for circle in circles(&folders) {
            found.push(circle.iter().map(|folder| format!("{source}/{folder}")).collect());
        }
    }
    found.sort_by_key(|circle: &Vec<String>| std::cmp::Reverse(circle.len()));
    found
}

/// The folder or the file below `source` that `path` is in.
fn top<'a>(source: &str, path: &'a str) -> &'a str {
    let inner = &path[source.len() + 1..];
    inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs")
}

/// The non-test files of each source folder.
fn crates(tree: &Tree) -> BTreeMap<&str, Modules<'_>> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for (file, rust) in tree.rust() {
        if let Some((folder, module)) = module(&file.path)
            && !rust.scopes.whole_file_is_test
        {
            crates.entry(folder).or_default().insert(module, (&file.path, rust));
        }
    }
    crates
}

/// The source folder and the module path of a file: `crates/engine/src` and `["elevator", "merging"]`.
fn module(path: &str) -> Option<(&str, Vec<&str>)> {
    let at = path.find("src/")? + "src".len();
    let mut parts: Vec<&str> = path[at + 1..].strip_suffix(".rs")?.split('/').collect();
    if matches!(parts.last(), Some(&("lib" | "main" | "mod"))) {
        parts.pop();
    }
    (!path.contains("/examples/")).then_some((&path[..at], parts))
}

fn edges<'a>(modules: &Modules<'a>) -> Edges<'a> {
    let mut edges = Edges::new();
    for (module, (path, rust)) in modules {
        let targets = edges.entry(*path).or_default();
        for (offset, words) in paths(&rust.masked.code) {
            if rust.scopes.is_test(offset) {
                continue;
            }
            let found = absolute(module, &words).and_then(|words| owner(modules, &words, 0));
            if let Some(target) = found
                && !is_related(module, target)
            {
                targets.insert(modules[target].0);
            }
        }
    }
    edges
}

/// Returns whether one of the modules is the other's ancestor, or the root.
fn is_related(a: &[&str], b: &[&str]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// The path from the crate's root, given a path in `module` that begins with `crate`, `self` or `super`.
fn absolute<'a>(module: &[&'a str], words: &[&'a str]) -> Option<Vec<&'a str>> {
    let mut base = match *words.first()? {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module.split_last()?.1.to_vec(),
        _ => return None,
    };
    for word in &words[1..] {
        match *word {
            "super" => drop(base.pop()),
            word => base.push(word),
        }
    }
    Some(base)
}

/// The longest chain of re-exports that is followed.
const MOST_STEPS: u32 = 4;

/// The module that declares the item at `path`.
fn owner<'a, 'm>(modules: &'m Modules<'a>, path: &[&'a str], steps: u32) -> Option<&'m [&'a str]> {
    let depth = (0..=path.len()).rev().find(|&depth| modules.contains_key(&path[..depth]))?;
    let (module, (_, rust)) = modules.get_key_value(&path[..depth])?;
    let item = path.get(depth);
    let reexport = item.filter(|_| steps < MOST_STEPS).and_then(|item| {
        let exported = paths(&rust.masked.code).into_iter().find(|(offset, words)| {
            words.last() == Some(item) && is_exported(&rust.masked.code[..*offset])
        });
        let words = exported?.1;
        let inner = match absolute(module, &words) {
            Some(words) => words,
            None => [&module[..], &words].concat(),
        };
        owner(modules, &inner, steps + 1)
    });
    Some(reexport.unwrap_or(module))
}

/// Returns whether the path after `code` is in a `pub use`.
fn is_exported(code: &str) -> bool {
    let start = code.rfind([';', '}']).map_or(0, |at| at + 1);
    let item = &code[start..];
    item.contains("pub") && item.contains(" use")
}

/// Every path of a file with its offset: `["crate", "a", "B"]` for each name of `use crate::a::{B, c::D}`, and for
/// `crate::a::B` in an expression.
fn paths(code: &str) -> Vec<(usize, Vec<&str>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((start, word)) = next_word(code, at) {
        at = start + word.len();
        let is_use = word == "use";
        let begins = matches!(word, "crate" | "self" | "super") && code[at..].starts_with("::");
        if is_use {
            let end = code[at..].find(';').map_or(code.len(), |end| at + end);
            tree_of(&code[at..end], at, &mut Vec::new(), &mut found);
            at = end;
        } else if begins {
            let end = at + path_length(&code[at..]);
            found.push((start, code[start..end].split("::").collect()));
            at = end;
        }
    }
    found
}

fn next_word(code: &str, from: usize) -> Option<(usize, &str)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let start = from + code.get(from..)?.find(is_word)?;
    let len = code[start..].find(|c| !is_word(c)).unwrap_or(code.len() - start);
    Some((start, &code[start..start + len]))
}

/// The length of `::a::b` at the beginning of `code`.
fn path_length(code: &str) -> usize {
    let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = code.find(|c| !is_path(c)).unwrap_or(code.len());
    code[..end].trim_end_matches(':').len()
}

/// Adds the paths of a use tree at `offset` of its file, each with `prefix`.
fn tree_of<'a>(
    text: &'a str,
    offset: usize,
    prefix: &mut Vec<&'a str>,
    found: &mut Vec<(usize, Vec<&'a str>)>,
) {
    let depth = prefix.len();
    let mut at = 0;
    for part in split(text) {
        let start = offset + at;
        at += part.len() + 1;
        let (path, rest) = part.split_once('{').map_or((part, None), |(a, b)| (a, Some(b)));
        let path = path.split(" as ").next().unwrap_or(path);
        prefix.extend(path.split("::").map(str::trim).filter(|word| !word.is_empty()));
        match rest {
            Some(rest) => {
                let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
                tree_of(inner, start + part.len() - rest.len(), prefix, found);
            }
            None if prefix.len() > depth => found.push((start, prefix.clone())),
            None => {}
        }
        prefix.truncate(depth);
    }
}

/// Splits at the commas outside of braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The sets of files that reach each other, largest first.
fn circles<'a>(edges: &Edges<'a>) -> Vec<Vec<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (*from, reachable(edges, from))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in edges.keys() {
        let is_mutual = |to: &&&str| reach.get(**to).is_some_and(|back| back.contains(from));
        let circle: Vec<&str> = reach[from].iter().filter(is_mutual).copied().collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

fn reachable<'a>(edges: &Edges<'a>, from: &str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        for to in edges.get(at).into_iter().flatten() {
            if seen.insert(*to) {
                next.push(to);
            }
        }
    }
    seen
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

    fn circles_in(files: &[(&str, &str)]) -> Vec<String> {
        let mut out = Vec::new();
        check_circles(&Tree::of(files), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        for back in [
            "use crate::a::A;",
            "fn f() -> crate::a::A {}",
            "use super::{a::{A, C as D}, lib};",
            "use crate::A;",
        ] {
            let found = circles_in(&[
                ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::{A, C};\n"),
                ("crates/x/src/a.rs", "use crate::b::B;\n"),
                ("crates/x/src/b.rs", back),
            ]);
            assert_eq!(found.len(), 1, "{back}: {found:?}");
            let text = "a circle of imports: crates/x/src/a.rs, crates/x/src/b.rs";
            assert!(found[0].contains(text), "{}", found[0]);
        }
    }

    #[test]
    fn parents_children_tests_and_one_direction_are_fine() {
        let found = circles_in(&[
            ("crates/x/src/lib.rs", "mod a;\nmod b;\nuse a::A;\n"),
            ("crates/x/src/a.rs", "mod c;\nuse crate::b::B;\nuse c::C;\n"),
            ("crates/x/src/a/c.rs", "use super::A;\nuse crate::X;\n"),
            (
                "crates/x/src/b.rs",
                "struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            ),
            ("crates/y/src/a.rs", "use crate::b::B;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_path_is_followed_to_the_file_that_declares_its_item() {
        let found = circles_in(&[
            ("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
            ("crates/x/src/a/mod.rs", "mod deep;\npub(crate) use deep::Deep;\n"),
            ("crates/x/src/a/deep.rs", "use crate::b::B;\n"),
            ("crates/x/src/b.rs", "use crate::a::Deep;\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("crates/x/src/a/deep.rs, crates/x/src/b.rs"), "{}", found[0]);
    }

    #[test]
    fn two_folders_that_use_each_other_are_a_circle() {
        let files = |back| {
            [
                ("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
                ("crates/x/src/a/mod.rs", "mod one;\nmod two;\n"),
                ("crates/x/src/a/one.rs", "use crate::b::B;\n"),
                ("crates/x/src/a/two.rs", "struct A;\n"),
                ("crates/x/src/b.rs", back),
            ]
        };
        let found = circles_in(&files("use crate::a::two::A;\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        let text = "a circle of folders: crates/x/src/a, crates/x/src/b";
        assert!(found[0].contains(text), "{}", found[0]);
        assert_eq!(circles_in(&files("struct B;\n")), [""; 0]);
    }
}
