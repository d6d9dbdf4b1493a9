//! The committed list: survivors, and sites that no model reaches, each with a justification.

use crate::Result;
use std::collections::BTreeMap;

/// Justifications, by the names of the mutants or sites.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    /// Mutants that no model distinguishes from the original.
    pub(super) survivors: BTreeMap<String, String>,
    /// Sites that no model reaches.
    pub(super) unmodelled: BTreeMap<String, String>,
}

impl List {
    /// Entries are lines `` - `NAME`: ARGUMENT `` under the headings `## Survivors` and `## Unmodelled`. All other
    /// lines are prose.
    ///
    /// # Errors
    /// If an entry has no justification, occurs twice, or is under another heading.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (mut list, mut heading) = (Self::default(), "");
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                heading = title.trim();
            }
            let Some(entry) = line.strip_prefix("- `") else { continue };
            let (name, argument) =
                entry.split_once("`: ").ok_or_else(|| format!("no argument in: {line}"))?;
            let entries = match heading {
                "Survivors" => &mut list.survivors,
                "Unmodelled" => &mut list.unmodelled,
                other => return Err(format!("an entry under {other:?}: {line}").into()),
            };
            if entries.insert(name.to_owned(), argument.to_owned()).is_some() {
                return Err(format!("two entries for {name}").into());
            }
        }
        Ok(list)
    }
}

/// The differences between the results and the list: unexplained results, and stale entries. Checks only entries for
/// which `was_asked` is true.
pub(super) fn complaints(
    kind: &str,
    found: &[String],
    listed: &BTreeMap<String, String>,
    was_asked: impl Fn(&str) -> bool,
) -> Vec<String> {
    let unexplained = found.iter().filter(|name| !listed.contains_key(*name));
    let stale = listed.keys().filter(|name| was_asked(name) && !found.contains(name));
    unexplained
        .map(|name| format!("{name} is {kind}, and the list does not say why that may be"))
        .chain(stale.map(|name| format!("{name} is listed as {kind}, and is not")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_from_prose() {
        let text = "# Title\n\n- a point\n## Survivors\nProse.\n- `a.rs f x`: because\n  of it\n\
                    ## Unmodelled\n- `b.rs g y`: a hint\n";
        let list = List::parse(text).unwrap();
        assert_eq!(list.survivors["a.rs f x"], "because");
        assert_eq!(list.unmodelled["b.rs g y"], "a hint");
    }

    #[test]
    fn an_entry_without_an_argument_or_a_heading_or_twice_is_an_error() {
        assert!(List::parse("## Survivors\n- `a`\n").is_err());
        assert!(List::parse("- `a`: b\n").is_err());
        assert!(List::parse("## Survivors\n- `a`: b\n- `a`: c\n").is_err());
    }

    #[test]
    fn the_unexplained_and_the_stale_are_found() {
        let list = List::parse("## Survivors\n- `a`: x\n- `b`: x\n- `c`: x\n").unwrap();
        let found = ["a".to_owned(), "d".to_owned()];
        let complaints = complaints("a survivor", &found, &list.survivors, |name| name != "c");
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("d is a survivor"));
        assert!(complaints[1].starts_with("b is listed as a survivor, and is not"));
    }
}
