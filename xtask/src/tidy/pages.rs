//! Every entry of a registry has a page of documentation.
//!
//! A policy or device is one file, one page and one registry line; this rule finds the line without a page.

use super::tree::{File, Finding, Tree};

/// Registries, and the crate whose `doc/` holds their pages.
const CRATES: [&str; 2] = ["sched", "device"];

/// Finds registry lines without a page.
pub(super) fn check(tree: &Tree, out: &mut Vec<Finding>) {
    for krate in CRATES {
        if let Some(registry) = tree.file(&format!("crates/{krate}/src/registry.rs")) {
            check_registry(tree, krate, registry, out);
        }
    }
}

fn check_registry(tree: &Tree, krate: &str, registry: &File, out: &mut Vec<Finding>) {
    let modules = registered(registry);
    if modules.is_empty() {
        let what = "no registry line found".into();
        out.push(registry.finding(1, what, "name its module::FACTORY, or module::ABOUT"));
    }
    for (at, module) in modules {
        let line = registry.line(at);
        let Some(name) = public_name(tree, krate, module) else {
            let what = format!("module {module} does not give its name");
            out.push(registry.finding(line, what, "set name: \"...\" in its FACTORY or ABOUT"));
            continue;
        };
        let page = format!("crates/{krate}/doc/{name}.md");
        let is_written = tree.file(&page).is_some_and(|page| !page.text.trim().is_empty());
        if !is_written {
            let what = format!("{name} has no page {page}");
            out.push(registry.finding(line, what, "write it: idea, options, bounds, deviations"));
        }
    }
}

/// The modules that the registry names, with their offsets: `none` in `&none::FACTORY`, `null` in `null::ABOUT`.
fn registered(registry: &File) -> Vec<(usize, &str)> {
    let Some(rust) = &registry.rust else { return Vec::new() };
    let code = rust.masked.code.as_str();
    let ends = ["::FACTORY", "::ABOUT"].iter().flat_map(|tail| code.match_indices(tail));
    let mut modules =
        Vec::from_iter(ends.filter(|(at, _)| !rust.scopes.is_test(*at)).map(|(at, _)| {
            let from =
                code[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |at| at + 1);
            (from, &code[from..at])
        }));
    modules.sort_unstable();
    modules.dedup_by_key(|(_, module)| *module);
    modules
}

/// The public name of the policy or device: the first `name: "..."` of its module.
fn public_name<'a>(tree: &'a Tree, krate: &str, module: &str) -> Option<&'a str> {
    let file = ["", "/mod"]
        .iter()
        .find_map(|tail| tree.file(&format!("crates/{krate}/src/{module}{tail}.rs")))?;
    // The code half gives the offset, the text the name, so that a name in a comment does not count.
    let code = &file.rust.as_ref()?.masked.code;
    let start = code.find("name: \"")? + "name: \"".len();
    file.text[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str =
        "//! x\npub const ALL: &[&Factory] = &[&none::FACTORY, &late::FACTORY];\n";
    const NONE: (&str, &str) = ("crates/sched/src/none.rs", "const F: X = X { name: \"none\" };\n");
    const LATE: (&str, &str) =
        ("crates/sched/src/late/mod.rs", "// name: \"x\"\nconst F: X = X { name: \"so-late\" };\n");

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let all = [&[("crates/sched/src/registry.rs", REGISTRY)], files].concat();
        let mut out = Vec::new();
        check(&Tree::of(&all), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_line_without_a_page_is_found() {
        let found = findings(&[NONE, LATE, ("crates/sched/doc/none.md", "# none\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("so-late has no page crates/sched/doc/so-late.md"));
    }

    #[test]
    fn an_empty_page_is_no_page() {
        let pages = [("crates/sched/doc/none.md", "x\n"), ("crates/sched/doc/so-late.md", "\n")];
        assert_eq!(findings(&[NONE, LATE, pages[0], pages[1]]).len(), 1);
    }

    #[test]
    fn lines_with_pages_are_fine() {
        let pages = [("crates/sched/doc/none.md", "x\n"), ("crates/sched/doc/so-late.md", "y\n")];
        assert_eq!(findings(&[NONE, LATE, pages[0], pages[1]]).len(), 0);
    }

    #[test]
    fn a_module_without_a_name_is_found() {
        let found = findings(&[NONE, ("crates/sched/doc/none.md", "x\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("module late does not give its name"));
    }

    #[test]
    fn a_registry_that_cannot_be_read_is_found() {
        let tree = Tree::of(&[("crates/device/src/registry.rs", "//! x\n")]);
        let mut out = Vec::new();
        check(&tree, &mut out);
        assert_eq!(out.len(), 1);
    }
}
