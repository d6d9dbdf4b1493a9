//! Rust source as tokens: split into code and comments, so that a rule about calls ignores prose and strings, and a
//! rule about prose ignores code; and the parts of a file that are tests, and its functions.
//!
//! The tokens are those of `proc-macro2`; each is put back into its place. Both halves keep every byte offset and every
//! line break of the source. There is no syntax tree, so functions inside macros are seen, too, but no macro is
//! expanded.

use crate::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::Range;

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
pub(crate) fn tokens(source: &str) -> Result<TokenStream> {
    source.parse().map_err(|error: proc_macro2::LexError| {
        format!("line {}: {error}", error.span().start().line).into()
    })
}

/// Splits `source`, which has these tokens.
pub(super) fn mask(source: &str, tokens: &TokenStream) -> Masked {
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
    pub(super) test_modules: Vec<String>,
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
