//! The layout of a written block, and the checksums and digests of its data.
//!
//! A block begins with a header that identifies the block and its write, and describes the rest, which is drawn from a
//! seed or is a pattern. All numbers are little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0-3 | magic |
//! | 4-7 | length of the block |
//! | 8-15 | its offset on the device |
//! | 16-23 | the seed of the rest, which follows from `randseed`, offset and generation |
//! | 24-27 | generation: which write of this block it is |
//! | 28-31 | method |
//! | 32-39 | checksum of the rest, or the first bytes of its digest |
//! | 40-43 | CRC-32C of all of the above |
//!
//! The remaining bytes of a digest follow the header.
//!
//! The format is blkmq's own: fio cannot check it. With `verify=pattern` there is no header, and with `verify=null`
//! no contents are checked.

use super::{Fault, Method, Pattern};
use blkmq_core::Rng;
use md5::Digest as _;

const MAGIC: u32 = u32::from_le_bytes(*b"bqV1");
/// The offset of the checksum of the header, which ends it.
const CHECKSUM: usize = 40;
/// Bytes of the header.
const HEADER: usize = CHECKSUM + 4;

/// The data that a block is expected to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expect {
    /// The data of this generation.
    Generation(u32),
    /// Data of any generation, written by another job.
    Any,
}

/// How the blocks of a job are filled and checked.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) method: Method,
    pub(super) pattern: Option<Pattern>,
    pub(super) randseed: u64,
}

impl Layout {
    /// Fills `block` with generation `generation` of the block at `offset` bytes.
    pub(super) fn fill(&self, offset: u64, generation: u32, block: &mut [u8]) {
        if matches!(self.method, Method::Pattern | Method::Null) {
            if let Some(pattern) = &self.pattern {
                pattern.fill(offset, block);
            }
            return;
        }
        let len = block.len() as u32;
        let seed = self.seed(offset, generation);
        let (header, rest) = block.split_at_mut(HEADER);
        let (tail, data) = rest.split_at_mut(Digest::length(self.method) - WORD);
        match &self.pattern {
            Some(pattern) => pattern.fill(offset, data),
            None => draw(seed, data),
        }
        let digest = Digest::of(self.method, data);
        let (first, others) = digest.bytes().split_at(WORD);
        tail.copy_from_slice(others);
        header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&len.to_le_bytes());
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..24].copy_from_slice(&seed.to_le_bytes());
        header[24..28].copy_from_slice(&generation.to_le_bytes());
        header[28..32].copy_from_slice(&number(self.method).to_le_bytes());
        header[32..40].copy_from_slice(first);
        let checksum = crc32c::crc32c(&header[..CHECKSUM]);
        header[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Checks that `block` holds the data written at `offset` bytes.
    pub(super) fn check(&self, offset: u64, expect: Expect, block: &[u8]) -> Result<(), Fault> {
        match self.method {
            Method::Null => Ok(()),
            Method::Pattern => self.check_pattern(offset, block),
            _ => self.check_header(offset, expect, block),
        }
    }

    fn check_pattern(&self, offset: u64, block: &[u8]) -> Result<(), Fault> {
        match self.pattern.as_ref().and_then(|pattern| pattern.differs(offset, block)) {
            None => Ok(()),
            Some((at, expected)) => {
                Err(Fault::Pattern { at: at as u32, expected, found: block[at] })
            }
        }
    }

    /// The most serious fault is reported first: bytes that are no header, then a wrong header, then wrong data.
    fn check_header(&self, offset: u64, expect: Expect, block: &[u8]) -> Result<(), Fault> {
        let (header, rest) = block.split_at(HEADER);
        let (tail, data) = rest.split_at(Digest::length(self.method) - WORD);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        same(MAGIC, word(0)).map_err(|(expected, found)| Fault::NoHeader { expected, found })?;
        same(crc32c::crc32c(&header[..CHECKSUM]), word(CHECKSUM))
            .map_err(|(expected, found)| Fault::Header { expected, found })?;
        if word(28) != number(self.method) {
            let found = Method::NAMES.iter().map(|(method, _)| *method);
            let found = found.into_iter().find(|method| number(*method) == word(28));
            return Err(Fault::Method { expected: self.method, found });
        }
        same(block.len() as u32, word(4))
            .map_err(|(expected, found)| Fault::Length { expected, found })?;
        same(offset, long(8)).map_err(|(expected, found)| Fault::Offset { expected, found })?;
        let generation = word(24);
        if let Expect::Generation(expected) = expect {
            same(expected, generation)
                .map_err(|(expected, found)| Fault::Generation { expected, found })?;
        }
        same(self.seed(offset, generation), long(16))
            .map_err(|(expected, found)| Fault::Seed { expected, found })?;
        let digest = Digest::of(self.method, data);
        let differs = digest.differs(&header[32..CHECKSUM], tail);
        differs.map_or(Ok(()), |(expected, found)| {
            Err(Fault::Checksum { generation, expected, found })
        })
    }

    fn seed(&self, offset: u64, generation: u32) -> u64 {
        let place = Rng::new(offset ^ u64::from(generation) << 40).next_u64();
        Rng::new(self.randseed ^ place).next_u64()
    }
}

/// The number of a method in a header. Blocks on a disk contain it, so numbers are never reused.
fn number(method: Method) -> u32 {
    match method {
        Method::Crc32c => 1,
        Method::Xxhash => 3,
        Method::Pattern => 4,
        Method::Null => 5,
        Method::Md5 => 9,
        Method::Sha256 => 11,
        Method::Meta => 17,
    }
}

fn same<T: PartialEq>(expected: T, found: T) -> Result<(), (T, T)> {
    if expected == found { Ok(()) } else { Err((expected, found)) }
}

/// Fills `data` with the stream of `seed`.
fn draw(seed: u64, data: &mut [u8]) {
    let mut rng = Rng::new(seed);
    let mut chunks = data.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let rest = chunks.into_remainder();
    let last = rng.next_u64().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Bytes of a checksum; a digest has at least twice as many.
pub(super) const WORD: usize = 8;
/// Bytes of the longest digest.
const LONGEST: usize = 32;

/// A checksum, lowest byte first, or a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Digest {
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

    /// The first eight bytes in which it differs from a digest that was stored in two parts, as (stored, own).
    pub(super) fn differs(&self, first: &[u8], others: &[u8]) -> Option<(u64, u64)> {
        let stored = first.chunks(WORD).chain(others.chunks(WORD));
        let mut both = stored.zip(self.bytes().chunks(WORD));
        both.find(|(stored, own)| stored != own)
            .map(|(stored, own)| (little_endian(stored), little_endian(own)))
    }
}

/// Up to eight bytes, lowest first.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |little_endian, byte| little_endian << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: u64 = 0x1234_5600;

    fn layout(method: Method, pattern: Option<&str>) -> Layout {
        let pattern = pattern.map(|text| Pattern::parse(text).expect(text));
        Layout { method, pattern, randseed: 0x89 }
    }

    fn filled(layout: &Layout, generation: u32, len: usize) -> Vec<u8> {
        let mut block = vec![0; len];
        layout.fill(AT, generation, &mut block);
        block
    }

    fn layouts() -> [Layout; 6] {
        [
            layout(Method::Crc32c, None),
            layout(Method::Xxhash, None),
            layout(Method::Md5, None),
            layout(Method::Sha256, None),
            layout(Method::Crc32c, Some("0xdeadbeef%o")),
            layout(Method::Pattern, Some("\"abc\"%o")),
        ]
    }

    #[test]
    fn every_single_bit_counts() {
        for layout in layouts() {
            let mut block = filled(&layout, 3, 512);
            for expect in [Expect::Generation(3), Expect::Any] {
                assert_eq!(layout.check(AT, expect, &block), Ok(()), "{:?}", layout.method);
                for bit in 0..block.len() * 8 {
                    block[bit / 8] ^= 1 << (bit % 8);
                    assert!(
                        layout.check(AT, expect, &block).is_err(),
                        "{:?} bit {bit}",
                        layout.method
                    );
                    block[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }

    proptest! {
        /// Damage of any kind and length is detected, in blocks of any length.
        #[test]
        fn any_damage_is_found(
            which in 0..6usize,
            sectors in 1..40usize,
            generation in 1..1000u32,
            at in any::<proptest::sample::Index>(),
            damage in proptest::collection::vec(any::<u8>(), 1..64),
        ) {
            let layout = &layouts()[which];
            let whole = filled(layout, generation, sectors * 512);
            prop_assert_eq!(layout.check(AT, Expect::Generation(generation), &whole), Ok(()));
            let mut block = whole.clone();
            let at = at.index(block.len());
            for (byte, damage) in block[at..].iter_mut().zip(damage) {
                *byte ^= damage;
            }
            let found = layout.check(AT, Expect::Generation(generation), &block);
            prop_assert_eq!(found.is_err(), block != whole);
        }
    }

    #[test]
    fn each_lie_of_a_header_is_told_apart() {
        let layout = layout(Method::Crc32c, None);
        let block = filled(&layout, 3, 1024);
        let check = |layout: &Layout, at, generation, block: &[u8]| {
            layout.check(at, Expect::Generation(generation), block).expect_err("wrong")
        };
        let zeroes = vec![0; 1024];
        assert_eq!(
            check(&layout, AT, 3, &zeroes),
            Fault::NoHeader { expected: MAGIC, found: 0 },
            "never written"
        );
        assert_eq!(
            check(&layout, AT, 4, &block),
            Fault::Generation { expected: 4, found: 3 },
            "a lost write"
        );
        assert_eq!(
            check(&layout, AT + 512, 3, &block),
            Fault::Offset { expected: AT + 512, found: AT },
            "a write that went elsewhere"
        );
        assert_eq!(
            check(&layout, AT, 3, &block[..512]),
            Fault::Length { expected: 512, found: 1024 }
        );
        let other = Layout { method: Method::Xxhash, ..layout.clone() };
        assert_eq!(
            check(&other, AT, 3, &block),
            Fault::Method { expected: Method::Xxhash, found: Some(Method::Crc32c) }
        );
        let other = Layout { randseed: 1, ..layout.clone() };
        assert!(matches!(check(&other, AT, 3, &block), Fault::Seed { .. }), "another run's");
        let mut torn = block.clone();
        torn[512..].copy_from_slice(&filled(&layout, 2, 1024)[512..]);
        assert!(matches!(check(&layout, AT, 3, &torn), Fault::Checksum { generation: 3, .. }));
        torn.copy_from_slice(&block);
        torn[16] ^= 1;
        assert!(matches!(check(&layout, AT, 3, &torn), Fault::Header { .. }));
    }

    #[test]
    fn blocks_and_generations_differ() {
        let layout = layout(Method::Crc32c, None);
        let mut other = vec![0; 512];
        layout.fill(AT + 512, 1, &mut other);
        let (first, second) = (filled(&layout, 1, 512), filled(&layout, 2, 512));
        assert!(first[HEADER..] != second[HEADER..] && first[HEADER..] != other[HEADER..]);
    }

    /// As in fio, `meta` checks the offset and the generation of a block, but not its data.
    #[test]
    fn meta_looks_at_headers() {
        let layout = layout(Method::Meta, Some("0xaaa"));
        let mut block = filled(&layout, 3, 512);
        block[HEADER] ^= 1;
        assert_eq!(layout.check(AT, Expect::Generation(3), &block), Ok(()));
        assert!(layout.check(AT + 512, Expect::Generation(3), &block).is_err());
        assert!(layout.check(AT, Expect::Generation(4), &block).is_err());
        block[HEADER - 1] ^= 1;
        assert!(layout.check(AT, Expect::Any, &block).is_err());
    }

    #[test]
    fn null_looks_at_nothing() {
        let layout = layout(Method::Null, None);
        assert_eq!(filled(&layout, 1, 512), vec![0; 512]);
        assert_eq!(layout.check(AT, Expect::Generation(9), &[7; 512]), Ok(()));
    }

    fn hex(method: Method) -> String {
        let digest = Digest::of(method, b"123456789");
        assert_eq!(digest.bytes().len(), Digest::length(method), "{method}");
        digest.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_have_their_published_values() {
        let word = |method| little_endian(Digest::of(method, b"123456789").bytes());
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
