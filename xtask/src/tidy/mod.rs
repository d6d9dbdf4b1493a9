//! `tidy`: the rules of STYLE.md that a machine can check.
//!
//! A file has the rules of one subject. A rule is a function from the [`Tree`] of files to findings, with a test that
//! shows it a bad example and a good one. The checks of rustfmt, clippy and rustdoc are not repeated here.
//!
//! Rust source is split into code and comments, so that a rule about calls ignores prose and strings, and a rule about
//! prose ignores code; and the parts of a file that are tests are known, and its functions. The tokens are those of
//! `proc-macro2`; each is put back into its place. Both halves keep every byte offset and every line break of the
//! source. There is no syntax tree, so functions inside macros are seen, too, but no macro is expanded.

mod banned;
pub(crate) mod edges;
mod text;

use crate::Result;
use crate::shell::{self, Cmd};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

type Rule = fn(&Tree, &mut Vec<Finding>);

/// Every rule; a new one only needs an entry here.
const RULES: &[Rule] = &[
    edges::check,
    edges::check_circles,
    banned::check_attributes,
    text::check_size,
    banned::check,
    text::check,
    text::check_paths,
    edges::check_reasons_of_all,
    text::check_pages,
    text::check_citations,
    text::check_words,
];

/// `cargo xtask tidy`
///
/// # Errors
/// If any rule is broken; the findings have been printed then.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("tidy takes no argument, got {arg}").into());
    }
    let (files, findings) = findings()?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {files} files, nothing to say");
            Ok(())
        }
        n => Err(format!("{n} findings in {files} files").into()),
    }
}

/// The most bytes of a tracked file: larger data, such as a core dump, stays outside of the repository.
const MOST_BYTES: u64 = 1_000_000;

/// Checks the sizes of tracked files; none are known outside of a repository.
///
/// # Errors
/// If a file has more than [`MOST_BYTES`], or git cannot list the files.
fn check_bytes(root: &Path) -> Result<()> {
    if !root.join(".git").exists() {
        return Ok(());
    }
    let listed = Cmd::new("git ls-files").output_in(root)?;
    let is_large = |path: &&str| root.join(path).metadata().is_ok_and(|it| it.len() > MOST_BYTES);
    match listed.lines().find(is_large) {
        Some(path) => Err(format!("{path} has more than {MOST_BYTES} bytes: untrack it").into()),
        None => Ok(()),
    }
}

/// The number of files, and the findings about them.
fn findings() -> Result<(usize, Vec<Finding>)> {
    let root = shell::root();
    check_bytes(&root)?;
    let tree = Tree::read(&root)?;
    let mut findings = Vec::new();
    for rule in RULES {
        rule(&tree, &mut findings);
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok((tree.files.len(), findings))
}

/// A broken rule: the place, the fault, and the remedy.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counts from 1.
    line: usize,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.what, self.remedy)
    }
}

pub(crate) struct File {
    /// The path from the root of the workspace, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Only for `.rs` files.
    pub(crate) rust: Option<Rust>,
}

/// The facts about a Rust file that the rules need beyond its text.
pub(crate) struct Rust {
    pub(crate) masked: Masked,
    pub(crate) scopes: Scopes,
}

impl File {
    /// # Errors
    /// If it is Rust and cannot be split into tokens.
    fn new((path, text): (String, String)) -> Result<Self> {
        let rust = if path.ends_with(".rs") {
            let tokens = tokens(&text).map_err(|error| format!("{path}: {error}"))?;
            let scopes = Scopes::new(&path, &tokens);
            Some(Rust { masked: mask(&text, &tokens), scopes })
        } else {
            None
        };
        Ok(Self { path, text, rust })
    }

    /// The line of a byte offset, counted from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count()
    }

    fn finding(&self, line: usize, what: String, remedy: &'static str) -> Finding {
        Finding { path: self.path.clone(), line, what, remedy }
    }

    /// The folder under `crates/` that the file is in: `engine` for `crates/engine/src/lib.rs`.
    pub(crate) fn krate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

/// The workspace's own files, sorted by path.
pub(crate) struct Tree {
    root: PathBuf,
    pub(crate) files: Vec<File>,
}

/// The extensions of text files of the project. Other files (lock files, results, pictures) are not checked.
const EXTENSIONS: [&str; 5] = ["rs", "md", "toml", "sh", "yml"];

impl Tree {
    /// Reads every file of the project below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        walk(root, root, &mut paths)?;
        paths.sort();
        let read = |path: String| -> Result<(String, String)> {
            let bytes = std::fs::read(root.join(&path))?;
            Ok((path, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let texts = paths.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        Self::new(root.to_path_buf(), texts)
    }

    fn new(root: PathBuf, texts: Vec<(String, String)>) -> Result<Self> {
        let mut files = texts.into_iter().map(File::new).collect::<Result<Vec<_>>>()?;
        mark_test_modules(&mut files);
        Ok(Self { root, files })
    }

    /// A tree that exists only in memory.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
        Self::new(PathBuf::from("nowhere"), texts).expect("the examples of tests are Rust")
    }

    fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Every Rust file with its lexical halves.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&File, &Rust)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }
}

fn walk(root: &Path, folder: &Path, out: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let relative = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        let name = relative.rsplit('/').next().unwrap_or(&relative);
        if path.is_dir() {
            let ours = !matches!(name, "target" | "results") && !name.starts_with('.');
            if ours || matches!(name, ".ci" | ".cargo" | ".github") {
                walk(root, &path, out)?;
            }
        } else if relative == ".ci/run" || EXTENSIONS.iter().any(|ext| has_extension(name, ext)) {
            out.push(relative);
        }
    }
    Ok(())
}

fn has_extension(name: &str, ext: &str) -> bool {
    name.strip_suffix(ext).is_some_and(|stem| stem.ends_with('.'))
}

/// A file that is only declared under `#[cfg(test)]` is a test, and so is everything below it.
fn mark_test_modules(files: &mut [File]) {
    let mut prefixes = Vec::new();
    for file in files.iter() {
        let Some(rust) = &file.rust else { continue };
        let folder = module_folder(&file.path);
        for name in &rust.scopes.test_modules {
            prefixes.push((format!("{folder}/{name}.rs"), format!("{folder}/{name}/")));
        }
    }
    for file in files {
        let is_test =
            prefixes.iter().any(|(one, many)| file.path == *one || file.path.starts_with(many));
        if let (true, Some(rust)) = (is_test, &mut file.rust) {
            rust.scopes.whole_file_is_test = true;
        }
    }
}

/// The folder of the modules declared in `path`.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    }
}

/// The two halves of a source file: in each, the text of the other half and the contents of literals are blank. A
/// non-ASCII byte becomes a `?`.
pub(crate) struct Masked {
    /// Code, with literals reduced to their quotes.
    pub(crate) code: String,
    /// Comments, including doc comments.
    pub(crate) comments: String,
}

/// The tokens of `source`, in which doc comments are attributes.
///
/// # Errors
/// If a literal, a comment or a bracket has no end.
fn tokens(source: &str) -> Result<TokenStream> {
    source.parse().map_err(|error: proc_macro2::LexError| {
        format!("line {}: {error}", error.span().start().line).into()
    })
}

/// Splits `source`, which has these tokens.
fn mask(source: &str, tokens: &TokenStream) -> Masked {
    let bytes = source.as_bytes();
    let ascii = |byte: &u8| if byte.is_ascii() { *byte } else { b'?' };
    let mut masks = Masks {
        source,
        code: bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect(),
        comments: bytes.iter().map(ascii).collect(),
    };
    masks.take_all(tokens);
    let text = |mask: Vec<u8>| String::from_utf8(mask).expect("masks are ASCII by construction");
    Masked { code: text(masks.code), comments: text(masks.comments) }
}

struct Masks<'a> {
    source: &'a str,
    code: Vec<u8>,
    /// The text without the tokens that have been taken out.
    comments: Vec<u8>,
}

impl Masks<'_> {
    fn take_all(&mut self, tokens: &TokenStream) {
        for token in tokens.clone() {
            let range = token.span().byte_range();
            let text = &self.source[range.clone()];
            if text.starts_with("//") || text.starts_with("/*") {
                continue;
            }
            match token {
                TokenTree::Group(group) => {
                    self.take(group.span_open().byte_range());
                    self.take_all(&group.stream());
                    self.take(group.span_close().byte_range());
                }
                TokenTree::Literal(_) => self.take_literal(range),
                TokenTree::Ident(_) | TokenTree::Punct(_) => self.take(range),
            }
        }
    }

    /// Moves a literal into the code half: all of a number; of a text, its quotes, and its prefix and suffix.
    fn take_literal(&mut self, range: Range<usize>) {
        let text = &self.source[range.clone()];
        let is_quote = ['"', '\''];
        if let (Some(open), Some(close)) = (text.find(is_quote), text.rfind(is_quote)) {
            let inside = range.start + open + 1..range.start + close;
            self.take(range.start..inside.start);
            self.blank(inside.clone());
            self.take(inside.end..range.end);
        } else {
            self.take(range);
        }
    }

    /// Moves a range from the comments into the code.
    fn take(&mut self, range: Range<usize>) {
        self.code[range.clone()].copy_from_slice(&self.comments[range.clone()]);
        self.blank(range);
    }

    fn blank(&mut self, range: Range<usize>) {
        self.comments[range]
            .iter_mut()
            .filter(|byte| **byte != b'\n')
            .for_each(|byte| *byte = b' ');
    }
}

/// Returns whether `byte` may be part of an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The parts of one file.
pub(crate) struct Scopes {
    /// Under `tests/`, named `tests.rs`, or only compiled for tests.
    pub(crate) whole_file_is_test: bool,
    /// Byte ranges of items under `#[cfg(test)]` or the like.
    tests: Vec<Range<usize>>,
    /// Modules in files of their own that are declared under `#[cfg(test)]`.
    test_modules: Vec<String>,
    /// Every function that has a body, nested ones too.
    pub(crate) functions: Vec<Function>,
}

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// From `fn` to the closing brace.
    pub(crate) range: Range<usize>,
}

impl Scopes {
    pub(crate) fn new(path: &str, tokens: &TokenStream) -> Self {
        let by_path = path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests");
        let mut scopes = Self {
            whole_file_is_test: by_path,
            tests: Vec::new(),
            test_modules: Vec::new(),
            functions: Vec::new(),
        };
        scopes.read(tokens);
        scopes
    }

    /// Returns whether the byte at `offset` is part of a test.
    pub(crate) fn is_test(&self, offset: usize) -> bool {
        self.whole_file_is_test || self.tests.iter().any(|range| range.contains(&offset))
    }

    fn read(&mut self, tokens: &TokenStream) {
        let tokens = list(tokens);
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.read(&group.stream()),
                TokenTree::Ident(word) if word == "fn" => {
                    self.functions.extend(function(&tokens[at..]));
                }
                TokenTree::Punct(mark) if mark.as_char() == '#' => self.attribute(&tokens[at..]),
                TokenTree::Punct(_) | TokenTree::Ident(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Records the attribute at the beginning of `tokens`, if it marks its item as a test.
    fn attribute(&mut self, tokens: &[TokenTree]) {
        let inner = tokens.get(1).is_some_and(|mark| is_mark(mark, '!'));
        let [TokenTree::Group(attribute), item @ ..] = &tokens[1 + usize::from(inner)..] else {
            return;
        };
        let words = list(&attribute.stream());
        let [TokenTree::Ident(name), TokenTree::Group(predicate)] = &words[..] else { return };
        if name != "cfg" || !implies_test(&predicate.stream()) {
            return;
        }
        if inner {
            self.whole_file_is_test = true;
        } else {
            // A field has neither a body nor a semicolon.
            let comma = || item.iter().position(|token| is_mark(token, ','));
            let last = item.len().saturating_sub(1);
            let end = end_of_item(item).or_else(comma).unwrap_or(last);
            let Some(token) = item.get(end) else { return };
            self.tests.push(start(&tokens[0])..token.span().byte_range().end);
            self.test_modules.extend(declared_module(&item[..=end]));
        }
    }
}

fn list(tokens: &TokenStream) -> Vec<TokenTree> {
    tokens.clone().into_iter().collect()
}

fn start(token: &TokenTree) -> usize {
    token.span().byte_range().start
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

fn is_body(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Returns whether the `cfg` predicate holds only in test builds.
fn implies_test(predicate: &TokenStream) -> bool {
    match &list(predicate)[..] {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] => {
            let parts = list(&group.stream());
            let mut parts = parts
                .split(|token| is_mark(token, ','))
                .filter(|part| !part.is_empty())
                .map(|part| implies_test(&part.iter().cloned().collect()));
            word == "all" && parts.any(|part| part) || word == "any" && parts.all(|part| part)
        }
        _ => false,
    }
}

/// The index of the token that ends the first item: its body or its semicolon.
fn end_of_item(tokens: &[TokenTree]) -> Option<usize> {
    tokens.iter().position(|token| is_body(token) || is_mark(token, ';'))
}

/// `name`, if the item is `mod name;`.
fn declared_module(item: &[TokenTree]) -> Option<String> {
    match item {
        [.., TokenTree::Ident(module), TokenTree::Ident(name), TokenTree::Punct(_)] => {
            (module == "mod").then(|| name.to_string())
        }
        _ => None,
    }
}

/// The function at whose `fn` the tokens begin. `fn (u8)` is a type, and a declaration in a trait has no body.
fn function(tokens: &[TokenTree]) -> Option<Function> {
    let [first, TokenTree::Ident(name), rest @ ..] = tokens else { return None };
    let body = end_of_item(rest).map(|end| &rest[end]).filter(|end| is_body(end))?;
    let range = start(first)..body.span().byte_range().end;
    Some(Function { name: name.to_string(), range })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With this test, `cargo test --workspace` alone finds the same faults as CI.
    #[test]
    fn a_large_file_is_found_once_it_is_tracked() {
        let root = &std::env::temp_dir().join(format!("blkmq-tidy-{}", std::process::id()));
        std::fs::create_dir_all(root).unwrap();
        Cmd::new("git init --quiet").output_in(root).unwrap();
        let write = |bytes: u64| {
            let file = std::fs::File::create(root.join("core")).unwrap();
            file.set_len(bytes).unwrap();
        };
        write(MOST_BYTES + 1);
        check_bytes(root).unwrap();
        Cmd::new("git add core").output_in(root).unwrap();
        let found = check_bytes(root).unwrap_err().to_string();
        assert_eq!(found, "core has more than 1000000 bytes: untrack it");
        write(MOST_BYTES);
        check_bytes(root).unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn tidy_passes() {
        let (files, findings) = findings().unwrap();
        assert!(files > 20, "the workspace was not found");
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn a_module_declared_under_cfg_test_is_a_test() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod model;\nmod real;\n"),
            ("crates/a/src/model.rs", ""),
            ("crates/a/src/model/deep.rs", ""),
            ("crates/a/src/real.rs", "#[cfg(all(test, loom))]\nmod planted;\n"),
            ("crates/a/src/real/planted.rs", ""),
        ]);
        let tests: Vec<&str> = tree
            .rust()
            .filter(|(_, rust)| rust.scopes.whole_file_is_test)
            .map(|(file, _)| file.path.as_str())
            .collect();
        let expected =
            ["crates/a/src/model.rs", "crates/a/src/model/deep.rs", "crates/a/src/real/planted.rs"];
        assert_eq!(tests, expected);
    }

    #[test]
    fn lines_count_from_one() {
        let file = File::new(("a.md".into(), "x\ny\n".into())).unwrap();
        assert_eq!((file.line(0), file.line(2)), (1, 2));
    }

    fn mask(source: &str) -> Masked {
        super::mask(source, &tokens(source).unwrap())
    }

    /// The code half with runs of blanks collapsed.
    fn code(source: &str) -> String {
        mask(source).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_halves_keep_every_offset() {
        let source = "let a = \"x{\"; // why {\nlet b = 'y';\n";
        let masked = mask(source);
        assert_eq!(masked.code.len(), source.len());
        assert_eq!(masked.comments.find("why"), source.find("why"));
        assert_eq!(masked.code.find("let b"), source.find("let b"));
    }

    #[test]
    fn literals_lose_their_inside() {
        assert_eq!(code(r#"f("a \" {", b"}")"#), r#"f(" ", b" ")"#);
        assert_eq!(code("f(r#\"a \" { \"#); g"), "f(r#\" \"#); g");
    }

    #[test]
    fn a_brace_in_a_character_is_not_a_brace() {
        for source in ["'{'", "b'{'", r"'\''", "'\u{e4}'"] {
            assert!(!mask(source).code.contains('{'), "{source}");
        }
        assert_eq!(code("{'{' }"), "{' ' }");
    }

    #[test]
    fn a_lifetime_is_not_a_character() {
        assert_eq!(code("fn f<'a>(x: &'a str);"), "fn f<'a>(x: &'a str);");
    }

    #[test]
    fn comments_nest() {
        let masked = mask("a /* b /* c */ d */ e");
        assert_eq!(masked.code.split_whitespace().collect::<Vec<_>>(), ["a", "e"]);
        assert!(masked.comments.contains("d */"));
    }

    #[test]
    fn a_raw_identifier_is_code() {
        assert_eq!(code("r#type + 1"), "r#type + 1");
    }

    #[test]
    fn a_string_without_an_end_is_an_error() {
        assert!(tokens("fn f() {\n\"abc\n}").unwrap_err().to_string().starts_with("line 2"));
    }

    fn scopes(code: &str) -> Scopes {
        Scopes::new("crates/a/src/a.rs", &code.parse().unwrap())
    }

    #[test]
    fn only_predicates_that_need_test_are_tests() {
        for yes in ["test", "all(test, loom)", "all(loom, all(unix, test))", "any(test, test)"] {
            assert!(implies_test(&yes.parse().unwrap()), "{yes}");
        }
        for no in ["loom", "not(test)", "any(test, loom)", "all(loom, not(test))", "feature = \"\""]
        {
            assert!(!implies_test(&no.parse().unwrap()), "{no}");
        }
    }

    #[test]
    fn a_test_module_ends_at_its_brace() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { if x {} } }\nfn c() {}\n";
        let scopes = scopes(code);
        let is_test = |name: &str| scopes.is_test(code.find(name).expect("it is in the code"));
        assert!(!is_test("fn a") && is_test("fn b") && !is_test("fn c"));
    }

    #[test]
    fn a_field_of_tests_ends_with_its_group() {
        let code = "struct A {\n a: u8,\n #[cfg(test)]\n b: u8,\n}\nfn c() {}\n";
        let scopes = scopes(code);
        let is_test = |text: &str| scopes.is_test(code.find(text).expect("it is in the code"));
        assert!(is_test("b: u8") && !is_test("a: u8") && !is_test("fn c"));
    }

    #[test]
    fn an_inner_attribute_makes_the_file_a_test() {
        assert!(scopes("#![cfg(all(test, shuttle))]\nfn a() {}\n").whole_file_is_test);
        assert!(!scopes("#![cfg(loom)]\nfn a() {}\n").whole_file_is_test);
    }

    #[test]
    fn declared_test_modules_are_named() {
        let code = "#[cfg(test)]\n#[path(x)]\nmod twin;\n#[cfg(test)]\npub(crate) mod kit;\nmod c;";
        assert_eq!(scopes(code).test_modules, ["twin", "kit"]);
    }

    #[test]
    fn functions_are_found_with_their_extent() {
        let code = "trait T { fn no_body(&self, x: [u8; 4]); }\n\
                    fn one(f: fn (u8) -> u8, x: [u8; 2]) -> u8\nwhere\n u8: T,\n{\n fn two() {}\n}\n";
        let scopes = scopes(code);
        let names: Vec<&str> = scopes.functions.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert!(code[scopes.functions[0].range.clone()].ends_with("{}\n}"));
    }
}
