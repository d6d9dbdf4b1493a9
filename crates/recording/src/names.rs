//! Maps names to small numbers, in order of appearance.

use std::collections::BTreeMap;

/// The most tenants, and the most volumes, of a trace. Each costs about 100 bytes.
pub const MOST_NAMES: usize = 1 << 17;

/// A table of names.
#[derive(Debug, Default)]
pub struct Names {
    ids: BTreeMap<Box<[u8]>, u32>,
    names: Vec<String>,
    /// A cache of recent lookups, indexed by a few bits of the name's hash: a trace uses few names at a time, and a
    /// tree takes several comparisons. [`NONE`] marks a free slot. Names that are not UTF-8 are not cached.
    recent: Vec<u32>,
    /// The number of I/Os whose name found no room, and shares the number of another.
    shared: u64,
}

const RECENT: usize = 1 << 12;
const NONE: u32 = u32::MAX;

impl Names {
    /// The number of `name`, or `None` if it is new and the table is full. O(1) for recent names, else O(log n).
    pub(crate) fn id(&mut self, name: &[u8]) -> Option<u32> {
        if self.recent.is_empty() {
            self.recent = vec![NONE; RECENT];
        }
        let slot = hash(name) as usize % RECENT;
        let recent = self.recent[slot];
        if self.names.get(recent as usize).is_some_and(|known| known.as_bytes() == name) {
            return Some(recent);
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
        if self.name(id).as_bytes() == name {
            self.recent[slot] = id;
        }
        Some(id)
    }

    /// The number of `name`. If the table is full, a new name shares the number that its hash selects, which is
    /// counted.
    pub(crate) fn id_or_shared(&mut self, name: &[u8]) -> u32 {
        self.id(name).unwrap_or_else(|| {
            self.shared += 1;
            hash(name) % MOST_NAMES as u32
        })
    }

    /// Returns the number of I/Os with names beyond [`MOST_NAMES`], which share the numbers of other names.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.shared
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

/// Hashes eight bytes at a time. A collision only costs another comparison.
fn hash(name: &[u8]) -> u32 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let (eights, rest) = name.as_chunks::<8>();
    let last = rest.iter().fold(name.len() as u64, |value, byte| value << 8 | u64::from(*byte));
    let step = |hash: u64, value: u64| (hash.rotate_left(5) ^ value).wrapping_mul(ODD);
    let hash = eights.iter().fold(0, |hash, eight| step(hash, u64::from_le_bytes(*eight)));
    (step(hash, last) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of a file system has more files than the table can hold.
    #[test]
    fn names_without_a_place_share_and_are_counted() {
        let mut names = Names::default();
        for number in 0..MOST_NAMES as u32 {
            assert_eq!(names.id_or_shared(&number.to_le_bytes()), number);
        }
        assert_eq!((names.id(b"another"), names.shared()), (None, 0));
        let shared = names.id_or_shared(b"another");
        assert!((shared as usize) < MOST_NAMES);
        assert_eq!((names.id_or_shared(b"another"), names.shared()), (shared, 2));
    }

    /// Names that are not UTF-8 may be displayed alike.
    #[test]
    fn names_differ_by_their_bytes() {
        let mut names = Names::default();
        let all =
            [&b"\xff"[..], b"\xfe", "\u{fffd}".as_bytes(), b"", b"a", b"a long name of 24 bytes."];
        for _ in 0..2 {
            for (number, name) in all.iter().enumerate() {
                assert_eq!(names.id(name), Some(number as u32));
            }
        }
        assert_eq!(
            (names.name(0), names.name(2), names.name(5)),
            ("\u{fffd}", "\u{fffd}", "a long name of 24 bytes.")
        );
    }
}
