//! Finds the parts of a Rust file that are tests, and its functions.
//!
//! It matches braces in the code half of a file (see `lexer.rs`), which is enough for code that rustfmt has
//! formatted. It does not expand macros.

use super::lexer::is_word;
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
    pub(crate) fn new(path: &str, code: &str) -> Self {
        let by_path = path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests");
        let mut scopes = Self {
            whole_file_is_test: by_path,
            tests: Vec::new(),
            test_modules: Vec::new(),
            functions: functions(code),
        };
        scopes.find_tests(code);
        scopes
    }

    /// Is the byte at `offset` part of a test?
    pub(crate) fn is_test(&self, offset: usize) -> bool {
        self.whole_file_is_test || self.tests.iter().any(|range| range.contains(&offset))
    }

    fn find_tests(&mut self, code: &str) {
        for (at, _) in code.match_indices("cfg(") {
            let inner = code[..at].ends_with("#![");
            if !inner && !code[..at].ends_with("#[") {
                continue;
            }
            let open = at + "cfg".len();
            let Some(close) = matching(code, open) else { continue };
            if !implies_test(&code[open + 1..close]) {
                continue;
            }
            if inner {
                self.whole_file_is_test = true;
            } else if let Some(end) = item_end(code, close) {
                self.tests.push(at..end);
                self.test_modules.extend(declared_module(&code[close..end]));
            }
        }
    }
}

/// Does the `cfg` predicate hold only in test builds?
fn implies_test(predicate: &str) -> bool {
    let predicate = predicate.trim();
    let list = |name: &str| predicate.strip_prefix(name)?.trim_end().strip_suffix(')');
    if let Some(list) = list("all(") {
        split_list(list).into_iter().any(implies_test)
    } else if let Some(list) = list("any(") {
        split_list(list).into_iter().all(implies_test)
    } else {
        predicate == "test"
    }
}

/// Splits at the commas that are not inside parentheses.
fn split_list(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// `name`, if the item is `mod name;`.
fn declared_module(item: &str) -> Option<String> {
    let declaration = item.rsplit(']').next()?.trim().strip_suffix(';')?;
    let (_, name) = declaration.rsplit_once("mod ")?;
    name.bytes().all(is_word).then(|| name.to_owned())
}

/// The end of the item that begins after `from`: behind its closing brace or its semicolon.
fn item_end(code: &str, from: usize) -> Option<usize> {
    let stop = body_or_semicolon(code, from)?;
    if code.as_bytes()[stop] == b';' { Some(stop + 1) } else { Some(matching(code, stop)? + 1) }
}

/// The first `{` or `;` behind `from` that is not inside parentheses or brackets opened behind it.
fn body_or_semicolon(code: &str, from: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (at, byte) in code.bytes().enumerate().skip(from + 1) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' | b';' if depth <= 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// The offset of the bracket that closes the one at `open`.
fn matching(code: &str, open: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let close = match bytes[open] {
        b'(' => b')',
        b'[' => b']',
        _ => b'}',
    };
    let mut depth = 0u32;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        if *byte == bytes[open] {
            depth += 1;
        } else if *byte == close {
            depth -= 1;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && is_word(bytes[at - 1]) {
            continue;
        }
        let name: String =
            code[at + 3..].chars().take_while(|c| c.is_ascii() && is_word(*c as u8)).collect();
        // `fn (u8)` is a type, and a declaration in a trait has no body.
        let Some(stop) = body_or_semicolon(code, at + 2).filter(|stop| bytes[*stop] == b'{') else {
            continue;
        };
        if let (false, Some(end)) = (name.is_empty(), matching(code, stop)) {
            found.push(Function { name, range: at..end + 1 });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(code: &str) -> Scopes {
        Scopes::new("crates/a/src/a.rs", code)
    }

    #[test]
    fn only_predicates_that_need_test_are_tests() {
        for yes in ["test", "all(test, loom)", "all(loom, all(unix, test))", "any(test, test)"] {
            assert!(implies_test(yes), "{yes}");
        }
        for no in ["loom", "not(test)", "any(test, loom)", "all(loom, not(test))", "feature = \"\""]
        {
            assert!(!implies_test(no), "{no}");
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
