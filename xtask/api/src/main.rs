//! `blkmq-api JSON`: prints the public items of a crate, one a line, from rustdoc's JSON.
//!
//! Redundant lines are left out: methods that a trait declares, auto traits that a type has (an auto trait that it
//! lacks is listed, as `impl !Sync`), and the second of two equal lines. Paths into the workspace's other crates leave
//! out modules, which may be private there: moving a type between files changes nothing for users.

use public_api::{Builder, PublicItem};
use std::collections::BTreeSet;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: blkmq-api JSON")?;
    let api = Builder::from_rustdoc_json(path).omit_blanket_impls(true).build()?;
    let items: Vec<&PublicItem> = api.items().collect();
    let name = items.first().map_or_else(String::new, ToString::to_string);
    let name = name.rsplit(' ').next().unwrap_or_default().to_owned();
    for line in lines(&items) {
        println!("{}", without_modules(&line, &name));
    }
    Ok(())
}

fn lines(items: &[&PublicItem]) -> Vec<String> {
    let of_a_trait = |item: &&&PublicItem| is_of_a_trait(&item.to_string());
    let impls: BTreeSet<_> = items.iter().filter(of_a_trait).map(|item| item.id()).collect();
    let is_declared_elsewhere =
        |item: &PublicItem| item.parent_id().is_some_and(|parent| impls.contains(&parent));
    let mut seen = BTreeSet::new();
    let wanted = items.iter().filter(|item| {
        let line = item.to_string();
        let is_type = line.starts_with("pub type ");
        (is_type || !is_declared_elsewhere(item)) && !is_implied(&line) && first(&mut seen, &line)
    });
    wanted.map(ToString::to_string).collect()
}

fn first<T: Ord + Clone>(seen: &mut BTreeSet<T>, item: &T) -> bool {
    seen.insert(item.clone())
}

fn is_of_a_trait(line: &str) -> bool {
    line.starts_with("impl") && line.contains(" for ")
}

/// Returns whether `line` is an implementation of an auto trait, or one that comes with a derived trait.
fn is_implied(line: &str) -> bool {
    const BORING: [&str; 6] =
        ["Freeze", "Unpin", "UnsafeUnpin", "RefUnwindSafe", "UnwindSafe", "StructuralPartialEq"];
    let Some((head, _)) = line.split_once(" for ").filter(|_| line.starts_with("impl")) else {
        return false;
    };
    let name = head.rsplit([':', ' ', '!']).next().unwrap_or(head);
    BORING.contains(&name) || (matches!(name, "Send" | "Sync") && !head.contains('!'))
}

/// `blkmq_core::Instant` for `blkmq_core::time::Instant`, unless its crate is `own`.
fn without_modules(line: &str, own: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut short = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_part) {
        let (before, from) = rest.split_at(start);
        let (path, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
        short.push_str(before);
        let parts: Vec<&str> = path.split("::").collect();
        let is_ours = parts[0].starts_with("blkmq") && parts[0] != own;
        let last = parts.len() - 1;
        let kept = parts.iter().enumerate().filter(|(at, part)| {
            !is_ours || *at == 0 || *at == last || !part.starts_with(char::is_lowercase)
        });
        short.push_str(&kept.map(|(_, part)| *part).collect::<Vec<_>>().join("::"));
        rest = after;
    }
    short + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_our_other_crates_are_left_out() {
        let line = "pub fn blkmq_a::m::f(&blkmq_b::n::T, core::m::U) -> <P as blkmq_b::n::X>::Y";
        let short = "pub fn blkmq_a::m::f(&blkmq_b::T, core::m::U) -> <P as blkmq_b::X>::Y";
        assert_eq!(without_modules(line, "blkmq_a"), short);
    }

    #[test]
    fn implied_traits_are_left_out_unless_they_are_missing() {
        assert!(is_implied("impl core::marker::Send for blkmq_b::T"));
        assert!(is_implied(
            "impl<P> core::marker::Sync for blkmq_b::T<P> where P: core::marker::Sync"
        ));
        assert!(is_implied("impl !core::marker::Unpin for blkmq_b::T"));
        assert!(!is_implied("impl !core::marker::Sync for blkmq_b::T"));
        assert!(!is_implied("impl core::clone::Clone for blkmq_b::T"));
        assert!(!is_implied("pub fn blkmq_b::T::send(&self)"));
    }
}
