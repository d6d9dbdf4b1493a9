//! Finds the parts of a Rust file that are tests, and its functions.
//!
//! It reads tokens, not a syntax tree, so that it also sees the functions inside macros. It does not expand macros.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::Range;

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
