//! The mutants of a module as cargo-mutants lists them: what each is called, and the text that it changes.
//!
//! Knows nothing of building them.

use crate::Result;
use crate::shell::Cmd;
use serde::Deserialize;
use std::ops::Range;

/// A change of one place in one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mutant {
    /// File, line, column and change, as cargo-mutants prints them.
    pub(super) name: String,
    pub(super) file: String,
    /// The place where lines of `file` become bytes: see [`Place`].
    place: Place,
    genre: String,
    replacement: String,
}

/// Lines and columns, both from 1; the end is excluded.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
struct Place {
    start: Point,
    end: Point,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
struct Point {
    line: usize,
    column: usize,
}

impl Point {
    /// The byte of `text` here. Sources are ASCII, so a column is a byte.
    fn byte(self, text: &str) -> usize {
        let lines = text.split_inclusive('\n').take(self.line - 1);
        lines.map(str::len).sum::<usize>() + self.column - 1
    }
}

/// A line of `cargo mutants --list --json`.
#[derive(Deserialize)]
struct Listed {
    name: String,
    file: String,
    genre: String,
    replacement: String,
    span: Place,
}

/// The mutants of `files`, which may have asterisks, in `package`.
///
/// # Errors
/// If cargo-mutants is not there, or prints another form.
pub(super) fn of(package: &str, files: &[&str]) -> Result<Vec<Mutant>> {
    let mut cmd = Cmd::new("cargo mutants --list --json --colors never --package").arg(package);
    for file in files {
        cmd = cmd.arg("--file").arg(*file);
    }
    parse(&cmd.output()?)
}

fn parse(json: &str) -> Result<Vec<Mutant>> {
    let listed: Vec<Listed> = serde_json::from_str(json)?;
    let mutant = |of: Listed| Mutant {
        name: of.name,
        file: of.file,
        place: of.span,
        genre: of.genre,
        replacement: of.replacement,
    };
    Ok(listed.into_iter().map(mutant).collect())
}

impl Mutant {
    /// The bytes of its file that it changes.
    pub(super) fn range(&self, text: &str) -> Range<usize> {
        let (start, mut end) = (self.place.start.byte(text), self.place.end.byte(text));
        // A field goes with its comma, which is not in the place that is listed.
        if self.genre == "StructField" {
            let rest = &text[end..];
            let after = rest.trim_start();
            if after.starts_with(',') {
                end += rest.len() - after.len() + 1;
            }
        }
        start..end
    }

    /// The part `of` its file, changed.
    pub(super) fn applied(&self, text: &str, of: Range<usize>) -> String {
        let at = self.range(text);
        // A blank keeps the words apart on whose border it stands.
        [&text[of.start..at.start], &self.replacement, " ", &text[at.end..of.end]].concat()
    }
}

/// `file.rs: replace ...` for `file.rs:12:34: replace ...`: lines move, and the change is the same.
pub(super) fn without_place(line: &str) -> String {
    let (place, change) = line.split_once(": ").unwrap_or((line, ""));
    let file = place.split(':').next().unwrap_or(place);
    format!("{file}: {change}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A mutant that puts `replacement` in the place of the first `old` in `text`.
    pub(in super::super) fn mutant(
        text: &str,
        old: &str,
        replacement: &str,
        genre: &str,
    ) -> Mutant {
        let point = |byte: usize| Point {
            line: text[..byte].matches('\n').count() + 1,
            column: byte - text[..byte].rfind('\n').map_or(0, |at| at + 1) + 1,
        };
        let start = text.find(old).expect("it is there");
        let place = Place { start: point(start), end: point(start + old.len()) };
        let (line, column) = (place.start.line, place.start.column);
        Mutant {
            name: format!("a.rs:{line}:{column}: replace {old} with {replacement}"),
            file: "a.rs".to_owned(),
            place,
            genre: genre.to_owned(),
            replacement: replacement.to_owned(),
        }
    }

    #[test]
    fn a_survivor_is_named_without_its_line() {
        let line = "crates/a/src/b.rs:76:5: replace <impl A for B>::c -> u32 with 1";
        let name = "crates/a/src/b.rs: replace <impl A for B>::c -> u32 with 1";
        assert_eq!(without_place(line), name);
    }

    #[test]
    fn a_change_is_one_of_text() {
        let text = "fn f() {\n    a - b\n}\n";
        let minus = mutant(text, "-", "+", "BinaryOperator");
        assert_eq!(minus.range(text), 15..16);
        assert_eq!(minus.applied(text, 0..text.len()), "fn f() {\n    a +  b\n}\n");
        assert_eq!(minus.applied(text, 8..18), "\n    a +  b");
    }

    #[test]
    fn a_field_takes_its_comma_with_it() {
        let text = "X { key, ..x }";
        let field = mutant(text, "key", "", "StructField");
        assert_eq!(field.applied(text, 0..text.len()), "X {   ..x }");
    }

    #[test]
    fn the_list_of_cargo_mutants_is_read() {
        let json = r#"[{"diff": "", "file": "a.rs", "function": null, "genre": "UnaryOperator", "name": "a.rs:2:3: x",
            "package": "a", "replacement": "", "span": {"start": {"line": 2, "column": 3}, "end": {"line": 2, "column": 4}}}]"#;
        let [mutant] = &parse(json).unwrap()[..] else { panic!("one") };
        assert_eq!((mutant.name.as_str(), mutant.range("ab\nc !d")), ("a.rs:2:3: x", 5..6));
        assert!(parse(r#"[{"name": "a"}]"#).is_err());
    }
}
