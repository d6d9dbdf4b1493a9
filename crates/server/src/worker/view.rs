//! [`View`]: the exports that exist for a client.
//!
//! An export that a client may not use is answered exactly as one that there is none of: its name is in no list, and
//! the refusal is the same. The log says which of both it was.

use crate::allow::Identity;
use crate::export::{Served, Table};
use blkmq_nbd::{ExportInfo, Exports};
use std::cell::RefCell;
use std::sync::Arc;

/// Characters of a name that are logged.
const SHOWN: usize = 64;

/// The exports of the server as one client sees them.
pub(super) struct View<'a> {
    exports: &'a Table,
    identity: &'a Identity,
    missed: RefCell<Option<Missed>>,
}

/// A name that a client asked for without success.
pub(super) struct Missed {
    /// Its beginning, without special characters: a name may have 4096 bytes of any kind.
    pub(super) shown: String,
    /// There is such an export, for other clients.
    pub(super) exists: bool,
}

impl<'a> View<'a> {
    pub(super) fn new(exports: &'a Table, identity: &'a Identity) -> Self {
        Self { exports, identity, missed: RefCell::default() }
    }

    fn may(&self, export: &Served) -> bool {
        export.allow.allows(self.identity)
    }

    /// The export of this name. The empty name is also that of the only export that exists for the client.
    pub(super) fn get(&self, name: &str) -> Option<&'a Arc<Served>> {
        self.exports.get_of(name, |export| self.may(export))
    }

    /// The last name that none of them has.
    pub(super) fn missed(self) -> Option<Missed> {
        self.missed.into_inner()
    }
}

impl Exports for View<'_> {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        let found = self.get(name);
        if found.is_none() {
            let shown = name.chars().take(SHOWN).collect::<String>().escape_debug().to_string();
            let exists = self.exports.get(name).is_some();
            self.missed.replace(Some(Missed { shown, exists }));
        }
        found.map(|export| export.info())
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        for export in self.exports.all().filter(|export| self.may(export)) {
            each(&export.info.name, &export.info.description);
        }
    }
}
