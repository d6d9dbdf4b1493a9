//! The longest permitted files and functions.
//!
//! A limit for functions alone does not keep files small, so there are both. To split a long file, move a type into its
//! own file, not a set of free functions.

use super::tree::{Finding, Tree};

/// The most lines of a file.
const FILE: usize = 600;
/// The most lines of a file with nothing but tests.
const TEST_FILE: usize = 800;
/// The most lines of a function, its signature and closing brace included.
const FUNCTION: usize = 70;
/// The most lines of a test.
const TEST_FUNCTION: usize = 100;

/// Finds files and functions that are too long.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        let lines = file.text.lines().count();
        let limit = if rust.scopes.whole_file_is_test { TEST_FILE } else { FILE };
        if lines > limit {
            let what = format!("{lines} lines, the limit is {limit}");
            out.push(file.finding(1, what, "move a type into a file of its own"));
        }
        for function in &rust.scopes.functions {
            let (first, last) = (file.line(function.range.start), file.line(function.range.end));
            let lines = last - first + 1;
            let is_test = rust.scopes.is_test(function.range.start);
            let limit = if is_test { TEST_FUNCTION } else { FUNCTION };
            if lines > limit {
                let what = format!("fn {} has {lines} lines, the limit is {limit}", function.name);
                out.push(file.finding(
                    first,
                    what,
                    "push the loops down and the ifs up, and split it",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    fn findings(path: &str, text: &str) -> Vec<Finding> {
        let mut out = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut out);
        out
    }

    #[test]
    fn a_long_function_is_found_and_one_at_the_limit_is_not() {
        assert_eq!(findings("crates/a/src/a.rs", &function(71)).len(), 1);
        assert_eq!(findings("crates/a/src/a.rs", &function(70)), []);
    }

    #[test]
    fn a_test_may_be_longer_but_not_endless() {
        let module = |lines| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(lines));
        assert_eq!(findings("crates/a/src/a.rs", &module(100)), []);
        assert_eq!(findings("crates/a/src/a.rs", &module(101)).len(), 1);
    }

    #[test]
    fn a_long_file_is_found_and_one_at_the_limit_is_not() {
        assert_eq!(findings("crates/a/src/a.rs", &"//!\n".repeat(601)).len(), 1);
        assert_eq!(findings("crates/a/src/a.rs", &"//!\n".repeat(600)), []);
        assert_eq!(findings("crates/a/tests/a.rs", &"//!\n".repeat(800)), []);
        assert_eq!(findings("crates/a/tests/a.rs", &"//!\n".repeat(801)).len(), 1);
    }
}
