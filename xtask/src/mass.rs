//! `mass` and `map`: the size of the project, in a table, and the files of each crate, each with the first sentence of
//! its header. `map` also writes the page of blocking library calls, from the sections `# Blocking` of their comments.
//!
//! A line is code if it is neither blank nor a comment. Code is a *test* in `tests/`, in a module that is only compiled
//! for tests, and in a model; *kit* in the soak, its oracles, the suites of conformance and the fuzz targets; a *chore*
//! in `xtask`; *product* elsewhere. Examples are counted separately.

use crate::tidy::{File, Rust, Tree, edges};
use crate::{Result, shell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Accepted lines of product code and files. A commit that raises them says why; a commit that removes much code lowers
/// them.
const ACCEPTED: [(Count, &str, usize); 2] =
    [(Count::Product, "lines of product code", 100_800), (Count::Files, "files", 585)];
/// By how much a count may exceed [`ACCEPTED`], in percent.
const MARGIN: usize = 2;
/// The length of the list of types whose methods are in the most files.
const TYPES: usize = 8;
/// The most files with methods of one type: state that belongs together is a type of its own.
const MOST_FILES: usize = 3;

/// Paths of kits.
const KIT: [&str; 5] = [
    "crates/engine/src/planted.rs",
    "crates/sched/src/testkit/",
    "crates/device/src/contract.rs",
    "fuzz/",
    "planted/",
];
/// The soak and its oracles: files and folders of the laboratory without a part in the generator of loads.
const SOAK: &str = "soak draw scenario subject oracle violation ledger contents order";

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    Product,
    Kit,
    Chores,
    Tests,
    Examples,
    Comments,
    Blank,
    Files,
    /// Non-blank characters of product and kit in `crates`. Longer lines do not lower this count.
    Characters,
}

/// The columns in their order, and after them two that are computed.
const HEADS: &str =
    "product kit chores tests examples comments blank files characters all comment%";

/// The counts of a crate, indexed by [`Count`].
type Row = [usize; 9];

/// `cargo xtask mass [DIR]`: counts the workspace, or the checkout in `DIR`, which has no limits.
///
/// # Errors
/// If a count exceeds [`ACCEPTED`] by more than [`MARGIN`] percent, or a type has methods in more than
/// [`MOST_FILES`] files.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let root = shell::root();
    let tree = Tree::read(args.first().map_or(&root, Path::new))?;
    let rows = rows(&tree);
    print!("{}", table(&rows));
    println!("\ncircles of folders:");
    for circle in edges::circles_of_folders(&tree) {
        println!("  {}: {}", circle.len(), circle.join(", "));
    }
    println!("files with methods of one type:");
    let types = types(&tree);
    for (name, files) in types.iter().take(TYPES) {
        println!("{files:>3} {name}");
    }
    if !args.is_empty() {
        return Ok(());
    }
    within(&rows["all"], &ACCEPTED)?;
    gathered(&types)
}

/// The counts of each crate, by its folder, and of `all`.
fn rows(tree: &Tree) -> BTreeMap<&str, Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for (file, rust) in tree.rust() {
        let counts = count(file, rust);
        for name in [folder(file), "all"] {
            let row = rows.entry(name).or_default();
            row.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    rows
}

/// The crate of a file: the folder below `crates`, or else the first folder of the path.
fn folder(file: &File) -> &str {
    file.krate().or_else(|| file.path.split('/').next()).unwrap_or("")
}

fn count(file: &File, rust: &Rust) -> Row {
    let mut row = Row::default();
    row[Count::Files as usize] = 1;
    let mut start = 0;
    for line in file.text.split_inclusive('\n') {
        let end = start + line.len();
        let written = |text: &str| text.split_whitespace().map(str::len).sum::<usize>();
        let comment = written(&rust.masked.comments[start..end]);
        let column = match (written(line), written(&rust.masked.code[start..end])) {
            (0, _) => Count::Blank,
            (_, 0) if comment > 0 => Count::Comments,
            _ => kind(&file.path, rust.scopes.is_test(start + line.trim_end().len() - 1)),
        };
        row[column as usize] += 1;
        if matches!(column, Count::Product | Count::Kit) && file.krate().is_some() {
            row[Count::Characters as usize] += written(line).saturating_sub(comment);
        }
        start = end;
    }
    row
}

/// The column of a line of code.
fn kind(path: &str, is_test: bool) -> Count {
    let is_model = |part: &str| part.trim_end_matches(".rs").ends_with("_tests");
    let of_lab =
        path.strip_prefix("crates/lab/src/").and_then(|path| path.split(['/', '.']).next());
    let is_soak = of_lab.is_some_and(|name| SOAK.split(' ').any(|of_soak| of_soak == name));
    if is_test || path.split('/').any(is_model) {
        Count::Tests
    } else if is_soak || KIT.iter().any(|kit| path.starts_with(kit)) {
        Count::Kit
    } else if path.contains("/examples/") {
        Count::Examples
    } else if path.starts_with("xtask/") {
        Count::Chores
    } else {
        Count::Product
    }
}

fn table(rows: &BTreeMap<&str, Row>) -> String {
    let cell = |text: &str| format!("{text:>11}");
    let mut text = format!("{:<8}{}\n", "crate", HEADS.split(' ').map(cell).collect::<String>());
    let (all, others): (Vec<_>, _) = rows.iter().partition(|(name, _)| **name == "all");
    for (name, row) in others.into_iter().chain(all) {
        let lines: usize = row[..Count::Files as usize].iter().sum();
        let comments = row[Count::Comments as usize];
        let share = 100 * comments / (lines - row[Count::Blank as usize]).max(1);
        let numbers =
            row.iter().copied().chain([lines, share]).map(|count| cell(&count.to_string()));
        text.push_str(&format!("{name:<8}{}\n", numbers.collect::<String>()));
    }
    text
}

/// Types with inherent methods, and the number of files that contain these, most files first. Names that a crate
/// declares twice are left out, since a name does not distinguish such types.
fn types(tree: &Tree) -> Vec<(String, usize)> {
    let mut declared: BTreeMap<_, usize> = BTreeMap::new();
    let mut files: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for (file, rust) in tree.rust() {
        let code = &rust.masked.code;
        let behind = |word: &'static str| {
            let found = code.match_indices(word).filter(|(at, _)| !rust.scopes.is_test(*at));
            found.map(move |(at, _)| &code[at + word.len()..])
        };
        for name in behind("\nimpl").chain(behind("    impl")).filter_map(inherent) {
            files.entry((folder(file), name)).or_default().insert(&file.path);
        }
        for code in ["struct ", "enum "].into_iter().flat_map(behind) {
            *declared.entry((folder(file), word(code))).or_default() += 1;
        }
    }
    files.retain(|key, _| declared.get(key) == Some(&1));
    let count =
        |((krate, name), files): ((_, _), BTreeSet<_>)| (format!("{krate}::{name}"), files.len());
    let mut found = Vec::from_iter(files.into_iter().map(count));
    found.sort_by_key(|(_, files)| std::cmp::Reverse(*files));
    found
}

/// The type of the `impl` that `code` follows, unless it implements a trait.
fn inherent(code: &str) -> Option<&str> {
    let head = &code[..code.find('{')?];
    let mut depth = 0i32;
    let end = head.bytes().position(|byte| {
        depth += i32::from(byte == b'<') - i32::from(byte == b'>');
        depth == 0 && matches!(byte, b' ' | b'>')
    })?;
    let name = word(head[end + 1..].trim_start());
    (!head.contains(" for ") && !name.is_empty()).then_some(name)
}

fn word(code: &str) -> &str {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

fn within(row: &Row, accepted: &[(Count, &str, usize)]) -> Result<()> {
    for &(count, what, accepted) in accepted {
        let now = row[count as usize];
        if now * 100 > accepted * (100 + MARGIN) {
            let limit = format!("{now} {what}, more than {MARGIN} % above {accepted}");
            let remedy =
                "remove some, or raise the number in xtask/src/mass.rs and say why in CHANGELOG.md";
            return Err(format!("{limit}; {remedy}").into());
        }
    }
    Ok(())
}

/// Checks that no type has methods in too many files.
fn gathered(types: &[(String, usize)]) -> Result<()> {
    for (name, files) in types {
        if *files > MOST_FILES {
            let remedy = "make types of the state that belongs together";
            let fault = format!("methods of {name} in {files} files, more than {MOST_FILES}");
            return Err(format!("{fault}; {remedy}").into());
        }
    }
    Ok(())
}

/// `cargo xtask map [WORD]`: the files with `WORD` in their path, or all of them. `cargo xtask map --blocking` writes
/// `docs/blocking.md`.
///
/// # Errors
/// If the workspace cannot be read, or no file has the word in its path.
pub(crate) fn map(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|arg| arg == "--blocking") {
        return write();
    }
    let word = args.first().map_or("", String::as_str);
    let lines = lines(&Tree::read(&shell::root())?, word);
    if lines.is_empty() {
        return Err(format!("no source file has '{word}' in its path").into());
    }
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// A line for each source file with `word` in its path, in the order of paths; tests are left out.
fn lines(tree: &Tree, word: &str) -> Vec<String> {
    let files = tree.rust().filter(|(file, rust)| {
        file.path.contains("/src/") && file.path.contains(word) && !rust.scopes.whole_file_is_test
    });
    let mut lines: Vec<String> =
        files.map(|(file, _)| format!("{}: {}", file.path, header(&file.text))).collect();
    lines.sort_unstable();
    lines
}

/// The first sentence of the comment at the beginning of a file.
fn header(text: &str) -> String {
    let first = text.lines().map_while(|line| line.strip_prefix("//!"));
    let words: Vec<&str> =
        first.take_while(|line| !line.is_empty()).flat_map(str::split_whitespace).collect();
    let ends = |word: &&str| word.ends_with('.');
    let last = words.iter().position(ends).map_or(words.len(), |at| at + 1);
    words[..last].join(" ")
}

const PAGE: &str = "docs/blocking.md";
const HEAD: &str = "\
# Calls that block

Made by `cargo xtask map --blocking` from the comments of the public items. Every other call of the library returns without waiting
for a device or for another thread's I/O, even if the device never answers; a test makes them beside such a device.

Two drops wait. That of a [`Reactor`](../crates/runtime/src/reactor/mod.rs) waits for its I/Os, outside of tasks and of its own
thread; `close` and `closed` end it in bounded time. That of the last holder of a queue waits until the kernel
has let go of buffers that it may still write to; `Service::close` ends it in bounded time. The drops of futures, clients and groups
do not wait.

| call | blocks |
|---|---|
";

/// # Errors
/// If the workspace cannot be read, or the page not be written.
fn write() -> Result<()> {
    fs::write(shell::root().join(PAGE), page(&Tree::read(&shell::root())?))?;
    Ok(())
}

fn page(tree: &Tree) -> String {
    let files = tree.rust().filter(|(file, rust)| {
        file.path.starts_with("crates/")
            && file.path.contains("/src/")
            && !rust.scopes.whole_file_is_test
    });
    let mut rows = Vec::from_iter(files.flat_map(|(file, _)| blocking_rows(&file.text)));
    rows.sort_unstable();
    HEAD.to_owned() + &rows.concat()
}

/// A row for each function with such a section.
fn blocking_rows(text: &str) -> Vec<String> {
    let (mut rows, mut within, mut section, mut is_open) = (Vec::new(), "", Vec::new(), false);
    for line in text.lines() {
        if line.starts_with("impl") {
            within = subject(line);
        } else if line.starts_with('}') {
            within = "";
        }
        let line = line.trim_start();
        if let Some(comment) = line.strip_prefix("///") {
            match comment.trim() {
                "# Blocking" => is_open = true,
                "" => is_open = false,
                words if is_open => section.push(words),
                _ => {}
            }
        } else if let Some((_, call)) = line.split_once("pub fn ")
            && !section.is_empty()
        {
            let name = call.split(['(', '<']).next().unwrap_or(call);
            let of = if within.is_empty() { String::new() } else { format!("{within}::") };
            rows.push(format!("| `{of}{name}` | {} |\n", plain(&section.join(" "))));
            (section, is_open) = (Vec::new(), false);
        } else if !line.starts_with('#') {
            (section, is_open) = (Vec::new(), false);
        }
    }
    rows
}

/// The type of an `impl` block.
fn subject(line: &str) -> &str {
    let behind = line.trim_start_matches("impl");
    let behind = match behind.strip_prefix('<') {
        Some(generic) => generic.split_once("> ").map_or(generic, |(_, behind)| behind),
        None => behind.trim_start(),
    };
    behind.split(['<', ' ', '{']).next().unwrap_or(behind)
}

/// A sentence without the targets of its links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('[') {
        let Some((name, after)) = behind.split_once(']') else { break };
        plain.push_str(before);
        plain.push_str(name);
        rest =
            after.strip_prefix('(').and_then(|it| it.split_once(')')).map_or(after, |(_, it)| it);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "//! A.\n\n/// One.\nstruct One;\nimpl One {\n    const F: &str = \"// no\n\nyes\";\n}\n\
                     #[cfg(test)]\nmod tests {\n    impl super::One {}\n}\n";

    fn tree() -> Tree {
        Tree::of(&[
            ("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
            ("crates/x/src/a/mod.rs", A),
            ("crates/x/src/a/deep.rs", "use crate::b::B;\nimpl<T: Into<u8>> super::Two<T> {}\n"),
            ("crates/x/src/b.rs", "use crate::a::One;\nimpl B for One {}\nimpl One {}\n"),
            ("crates/x/tests/naive.rs", "fn f() {}\n"),
            ("crates/x/examples/e.rs", "fn main() {}\n"),
            ("crates/lab/src/soak.rs", "fn f()  {} // why\n"),
            ("fuzz/targets/f.rs", "fn f() {}\n"),
            ("xtask/src/main.rs", "fn main() {}\n"),
        ])
    }

    #[test]
    fn each_line_counts_once_and_by_its_kind() {
        let tree = tree();
        let rows = rows(&tree);
        assert_eq!(rows["x"][..8], [12, 0, 0, 5, 1, 2, 2, 6]);
        assert_eq!(rows["lab"], [0, 1, 0, 0, 0, 0, 0, 1, "fnf(){}".len()]);
        assert_eq!((rows["fuzz"][1], rows["xtask"][2]), (1, 1));
        let lines: usize = tree.rust().map(|(file, _)| file.text.lines().count()).sum();
        assert_eq!(rows["all"][..7].iter().sum::<usize>(), lines);
        assert_eq!(table(&rows).lines().count(), 1 + rows.len());
    }

    #[test]
    fn circles_and_spread_types_are_found() {
        let tree = tree();
        assert_eq!(edges::circles_of_folders(&tree), [["crates/x/src/a", "crates/x/src/b"]]);
        assert_eq!(types(&tree), [("x::One".to_owned(), 2)]);
        assert_eq!(inherent("<T: Into<u8>> Two<T> {"), Some("Two"));
    }

    #[test]
    fn methods_of_a_type_stand_in_a_few_files() {
        let types = |files| [("x::One".to_owned(), files), ("x::Two".to_owned(), 1)];
        assert!(gathered(&types(MOST_FILES)).is_ok());
        let fault = gathered(&types(MOST_FILES + 1)).expect_err("one more");
        assert!(fault.to_string().starts_with("methods of x::One in 4 files"), "{fault}");
    }

    #[test]
    fn a_count_may_rise_by_the_margin_only() {
        let accepted = [(Count::Product, "lines", 1000)];
        let row = |product| [product, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(within(&row(1020), &accepted).is_ok() && within(&row(1021), &accepted).is_err());
    }

    #[test]
    fn each_file_has_the_first_sentence_of_its_header() {
        let tree = Tree::of(&[
            ("crates/a/src/b.rs", "//! Does one\n//! thing. And more.\n//!\n//! Details.\n"),
            ("crates/a/src/a.rs", "//! A heading\n//!\n//! Text.\nfn f() {}\n"),
            ("crates/a/tests/all.rs", "//! No part of the map.\n"),
        ]);
        let both = ["crates/a/src/a.rs: A heading", "crates/a/src/b.rs: Does one thing."];
        assert_eq!(lines(&tree, ""), both);
        assert_eq!(lines(&tree, "b.rs"), both[1..]);
        assert!(lines(&tree, "c.rs").is_empty());
    }

    #[test]
    fn each_section_is_a_row() {
        let text = "impl<P: Payload> Service<P> {\n    /// Ends.\n    ///\n    /// # Blocking\n    /// As [`edit`](Self::edit).\n    \
                    ///\n    /// # Errors\n    /// None.\n    #[must_use]\n    pub fn close(self) {}\n    /// Other.\n    pub fn \
                    other(&self) {}\n}\n\n/// # Blocking\n/// A\n/// while.\npub fn wait_any<P>() {}\n";
        assert_eq!(
            blocking_rows(text),
            ["| `Service::close` | As `edit`. |\n", "| `wait_any` | A while. |\n"]
        );
    }

    #[test]
    fn the_page_is_up_to_date() {
        let root = shell::root();
        let page_now = page(&Tree::read(&root).expect("the workspace"));
        let there = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
        assert!(there == page_now, "`cargo xtask map --blocking` writes {PAGE}");
    }
}
