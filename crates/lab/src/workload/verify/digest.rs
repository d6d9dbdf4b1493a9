//! Checksums and digests of the data of a block.

use super::Method;
use md5::Digest as _;

/// Bytes of a checksum; a digest has at least twice as many.
pub(super) const WORD: usize = 8;
/// Bytes of the longest digest.
const LONGEST: usize = 32;

/// A checksum, lowest byte first, or a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Digest {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Digest {
    /// Bytes of the digests of `method`.
    pub(super) fn length(method: Method) -> usize {
        match method {
            Method::Crc32c | Method::Xxhash => WORD,
            Method::Meta | Method::Pattern | Method::Null => WORD,
            Method::Md5 => 16,
            Method::Sha256 => 32,
        }
    }

    /// That of `data`. Zero for a method without one.
    pub(super) fn of(method: Method, data: &[u8]) -> Self {
        match method {
            Method::Crc32c => Self::word(crc32c::crc32c(data).into()),
            Method::Xxhash => Self::word(twox_hash::XxHash64::oneshot(0, data)),
            Method::Meta | Method::Pattern | Method::Null => Self::word(0),
            Method::Md5 => Self::new(&md5::Md5::digest(data)),
            Method::Sha256 => Self::new(&sha2::Sha256::digest(data)),
        }
    }

    fn word(word: u64) -> Self {
        Self::new(&word.to_le_bytes())
    }

    fn new(digest: &[u8]) -> Self {
        let mut bytes = [0; LONGEST];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, length: digest.len() }
    }

    /// Its bytes, at least [`WORD`].
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The first eight bytes in which it differs from one that was stored in two parts, as numbers: those stored, and
    /// its own.
    pub(super) fn differs(&self, first: &[u8], others: &[u8]) -> Option<(u64, u64)> {
        let stored = first.chunks(WORD).chain(others.chunks(WORD));
        let mut both = stored.zip(self.bytes().chunks(WORD));
        both.find(|(stored, own)| stored != own).map(|(stored, own)| (number(stored), number(own)))
    }
}

/// Up to eight bytes, lowest first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(method: Method) -> String {
        let digest = Digest::of(method, b"123456789");
        assert_eq!(digest.bytes().len(), Digest::length(method), "{method}");
        digest.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// All have their published values for `123456789`.
    #[test]
    fn digests_have_their_published_values() {
        let word = |method| number(Digest::of(method, b"123456789").bytes());
        assert_eq!(word(Method::Crc32c), 0xe306_9283);
        assert_eq!(word(Method::Xxhash), 0x8cb8_41db_40e6_ae83);
        assert_eq!(hex(Method::Md5), "25f9e794323b453885f5181f1b624d0b");
        let sha256 = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        assert_eq!(hex(Method::Sha256), sha256);
        for (method, _) in Method::NAMES {
            assert_eq!(Digest::of(method, b"").bytes().len(), Digest::length(method));
        }
    }

    #[test]
    fn a_difference_in_any_part_is_found() {
        for (method, _) in Method::NAMES {
            let digest = Digest::of(method, b"data");
            let (first, others) = digest.bytes().split_at(WORD);
            assert_eq!(digest.differs(first, others), None);
            for at in 0..digest.length {
                let mut bytes = digest.bytes().to_vec();
                bytes[at] ^= 1;
                let (first, others) = bytes.split_at(WORD);
                assert!(digest.differs(first, others).is_some(), "{method}, byte {at}");
            }
        }
    }
}
