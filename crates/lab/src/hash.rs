//! A hash of all events of a run, so that two runs can be compared bit for bit.
//!
//! FNV-1a over 64-bit words: not for secrets, and not to be changed lightly, since hashes of old runs may be written
//! down somewhere.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The hash of the events so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventHash(u64);

impl EventHash {
    /// The hash of no events.
    pub(crate) fn new() -> Self {
        Self(OFFSET)
    }

    /// Adds one event, in words. Events of one kind have the same number of words, and begin with their kind.
    pub(crate) fn note(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }

    /// The value of the hash.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_fnv_1a_of_the_bytes() {
        let mut hash = EventHash::new();
        hash.note(&[u64::from_le_bytes(*b"foobar\0\0")]);
        let expected = b"foobar\0\0"
            .iter()
            .fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
        assert_eq!(hash.get(), expected);
    }

    #[test]
    fn order_counts() {
        let of = |words: &[u64]| {
            let mut hash = EventHash::new();
            words.iter().for_each(|word| hash.note(&[*word]));
            hash
        };
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
    }
}
