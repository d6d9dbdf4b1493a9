//! Names that become small numbers, in the order of their appearance.

use std::collections::BTreeMap;

/// The most tenants, and the most volumes, of a trace. Each costs some 100 bytes.
pub const MOST_NAMES: usize = 1 << 17;

/// A table of names.
#[derive(Debug, Default)]
pub struct Names {
    ids: BTreeMap<Box<[u8]>, u32>,
    names: Vec<String>,
    /// The last answers, by a few bits of the name. Traces have few names in turns, and a tree takes several comparisons.
    recent: Vec<Option<(Box<[u8]>, u32)>>,
}

const RECENT: usize = 1 << 10;

impl Names {
    /// The number of `name`; `None` if it is new and the table is full. O(1) for recent names, else O(log n).
    pub(crate) fn id(&mut self, name: &[u8]) -> Option<u32> {
        if self.recent.is_empty() {
            self.recent = vec![None; RECENT];
        }
        let slot = slot(name);
        if let Some((known, id)) = &self.recent[slot]
            && **known == *name
        {
            return Some(*id);
        }
        let id = match self.ids.get(name) {
            Some(id) => *id,
            None if self.names.len() >= MOST_NAMES => return None,
            None => {
                let id = self.names.len() as u32;
                self.ids.insert(name.into(), id);
                self.names.push(String::from_utf8_lossy(name).into_owned());
                id
            }
        };
        self.recent[slot] = Some((name.into(), id));
        Some(id)
    }

    /// The name with this number; empty if there is none.
    #[must_use]
    pub fn name(&self, id: u32) -> &str {
        self.names.get(id as usize).map_or("", String::as_str)
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// FNV's hash; a bad one costs a comparison more.
fn slot(name: &[u8]) -> usize {
    let hash = |h: u32, byte: &u8| (h ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, hash);
    (hash ^ hash >> 16) as usize % RECENT
}
