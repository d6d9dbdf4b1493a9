//! The metadata contexts that queries of a client select (`docs/spec/nbd.md`, section 4).
//!
//! A query that selects nothing, in an unknown namespace or without one, is no error.

use crate::export::{Context, ExportInfo};

/// The contexts of `export` with their ids.
fn all(export: &ExportInfo) -> impl Iterator<Item = Context> + '_ {
    let ids = 1..;
    ids.zip(&export.contexts).map(|(id, name)| Context { id, name: name.clone() })
}

/// Those that LIST_META_CONTEXT names: all without a query; a query is a name, or a namespace with its colon.
pub(super) fn listed(export: &ExportInfo, queries: &[&str]) -> Vec<Context> {
    let is_asked = |name: &str| {
        queries.is_empty()
            || queries
                .iter()
                .any(|query| *query == name || query.ends_with(':') && name.starts_with(query))
    };
    all(export).filter(|context| is_asked(&context.name)).collect()
}

/// Those that SET_META_CONTEXT chooses: the ones that a query names in full.
pub(super) fn chosen(export: &ExportInfo, queries: &[&str]) -> Vec<Context> {
    all(export).filter(|context| queries.contains(&context.name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> ExportInfo {
        let contexts = ["base:allocation", "x-blkmq:tier", "x-blkmq:zone"];
        ExportInfo { contexts: contexts.map(str::to_owned).to_vec(), ..ExportInfo::default() }
    }

    fn ids(contexts: &[Context]) -> Vec<u32> {
        contexts.iter().map(|context| context.id).collect()
    }

    #[test]
    fn a_list_takes_names_namespaces_or_nothing() {
        let export = export();
        assert_eq!(ids(&listed(&export, &[])), [1, 2, 3]);
        assert_eq!(ids(&listed(&export, &["x-blkmq:"])), [2, 3]);
        assert_eq!(ids(&listed(&export, &["base:", "x-blkmq:zone", "base:allocation"])), [1, 3]);
        assert_eq!(ids(&listed(&export, &["qemu:", "base", "x-blkmq:z"])), [0; 0]);
    }

    #[test]
    fn a_choice_takes_names_only() {
        let export = export();
        assert_eq!(ids(&chosen(&export, &["x-blkmq:zone", "base:allocation"])), [1, 3]);
        assert_eq!(ids(&chosen(&export, &["x-blkmq:tier", "x-blkmq:tier"])), [2]);
        assert_eq!(ids(&chosen(&export, &["base:", "qemu:dirty-bitmap:x", ""])), [0; 0]);
        assert_eq!(ids(&chosen(&export, &[])), [0; 0]);
    }
}
