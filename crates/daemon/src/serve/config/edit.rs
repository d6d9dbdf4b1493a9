//! Changes values in the text of a configuration, and preserves all other bytes, including comments.

use std::fmt;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table of a configuration, identified by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Device(String),
    Export(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => write!(f, "device '{name}'"),
            Self::Export(name) => write!(f, "export '{name}'"),
        }
    }
}

/// A value to be set in a table.
#[derive(Clone, Debug)]
pub struct Edit {
    pub place: Place,
    pub key: String,
    pub value: String,
}

/// The text with these values, or `None` if a named table does not exist.
pub fn edited(text: &str, edits: &[Edit]) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let mut pieces: Vec<(Range<usize>, String)> = Vec::new();
    for edit in edits {
        let (tables, name) = match &edit.place {
            Place::Device(name) => ("device", name),
            Place::Export(name) => ("export", name),
        };
        let DeValue::Array(all) = document.get_ref().get(tables)?.get_ref() else { return None };
        let table = all.iter().find(|table| named(table).is_some_and(|(it, _)| it == name))?;
        let (_, at) = named(table)?;
        let value = spelled(&edit.value);
        let present = table.get_ref().as_table()?.get(edit.key.as_str());
        pieces.push(match present {
            Some(present) => (present.span(), value),
            // A new key goes after the name: on its own line, or within the braces of an inline table.
            None if text[table.span()].starts_with('{') => {
                (at.end..at.end, format!(", {} = {value}", edit.key))
            }
            None => {
                let end = text[at.end..].find('\n').map_or(text.len(), |line| at.end + line);
                (end..end, format!("\n{} = {value}", edit.key))
            }
        });
    }
    pieces.sort_by_key(|(range, _)| range.start);
    let mut text = text.to_owned();
    for (range, piece) in pieces.into_iter().rev() {
        text.replace_range(range, &piece);
    }
    Some(text)
}

/// The name of a table and its range in the text.
fn named<'a>(table: &'a Spanned<DeValue<'_>>) -> Option<(&'a str, Range<usize>)> {
    let name = table.get_ref().as_table()?.get("name")?;
    Some((name.get_ref().as_str()?, name.span()))
}

/// Formats a value: a number as it is, a word in quotes.
fn spelled(value: &str) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { value.to_owned() } else { format!("\"{value}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(place: Place, key: &str, value: &str) -> Edit {
        Edit { place, key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn values_change_and_nothing_else_does() {
        let text = "# A file.\n[[device]]\nname = 'a' # the disk\ndevice = 'null'\n\
                    [[export]]\nname = \"x\"\nweight = 5   # to be seen\n[[export]]\nname = 'y'";
        let export = |name: &str| Place::Export(name.to_owned());
        let edits = [
            edit(export("x"), "weight", "70"),
            edit(export("y"), "rbps", "max"),
            edit(export("y"), "weight", "7"),
            edit(Place::Device("a".to_owned()), "scheduler", "bfq:low_latency=0"),
        ];
        let expected = "# A file.\n[[device]]\nname = 'a' # the disk\nscheduler = \"bfq:low_latency=0\"\n\
                        device = 'null'\n[[export]]\nname = \"x\"\nweight = 70   # to be seen\n[[export]]\n\
                        name = 'y'\nrbps = \"max\"\nweight = 7";
        assert_eq!(edited(text, &edits).as_deref(), Some(expected));
        let inline = "export = [{ name = 'x' }]\n";
        let expected = "export = [{ name = 'x', weight = 7 }]\n";
        let weight = [edit(export("x"), "weight", "7")];
        assert_eq!(edited(inline, &weight).as_deref(), Some(expected));
        assert_eq!(edited("device = 5\n", &weight), None);
        assert_eq!(edited("[[export]]\nweight = 5\n", &weight), None);
    }
}
