//! The state of a verification as bytes: the latest write of each block, for a later run that only checks.
//!
//! The form is blkmq's own, little-endian, and says to which job and region it belongs:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0-3 | magic |
//! | 4-7 | sectors in a block |
//! | 8-15 | first sector of the region |
//! | 16-23 | `randseed` |
//! | 24-31 | number of blocks |
//! | then 4 for each block | the generation that the block holds, or 0 where that is not known |
//! | the last 4 | CRC-32C of all of the above |
//!
//! Files are not here.

/// `bqS1`.
const MAGIC: u32 = u32::from_le_bytes(*b"bqS1");
/// Bytes in front of the blocks.
const HEADER: usize = 32;
/// Bytes of a block and of the checksum.
const WORD: usize = 4;

/// The job and region of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Sectors in a block.
    pub(super) block: u32,
    /// First sector of the region.
    pub(super) start: u64,
    pub(super) randseed: u64,
    pub(super) blocks: u64,
}

/// Bytes that are not the state of a job's verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// They are no state at all.
    #[error("no state of a verification by blkmq; fio's own form is not read")]
    NoState,
    /// They are damaged or cut.
    #[error("a state of a verification that is damaged or cut")]
    Damaged,
    /// They belong to another region, block length or `randseed`.
    #[error(
        "the state of another job; accepted: one with the same offset, size, block sizes, verify_interval and \
         randseed"
    )]
    OtherJob,
}

impl Place {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(self.block.to_le_bytes());
        for word in [self.start, self.randseed, self.blocks] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// The state with these generations, one for each block.
    pub(super) fn encode(self, generations: impl Iterator<Item = u32>) -> Vec<u8> {
        let mut bytes = self.bytes();
        generations.for_each(|generation| bytes.extend(generation.to_le_bytes()));
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The generations of the state in `bytes`.
    ///
    /// # Errors
    /// If there is none, or of another job.
    pub(super) fn decode(self, bytes: &[u8]) -> Result<impl Iterator<Item = u32>, StateError> {
        if !bytes.starts_with(&MAGIC.to_le_bytes()) {
            return Err(StateError::NoState);
        }
        let (body, checksum) = bytes.split_last_chunk::<WORD>().ok_or(StateError::Damaged)?;
        if crc32c::crc32c(body).to_le_bytes() != *checksum || body.len() < HEADER {
            return Err(StateError::Damaged);
        }
        let (header, blocks) = body.split_at(HEADER);
        let (blocks, rest) = blocks.as_chunks::<WORD>();
        if header != self.bytes() {
            return Err(StateError::OtherJob);
        }
        if blocks.len() as u64 != self.blocks || !rest.is_empty() {
            return Err(StateError::Damaged);
        }
        Ok(blocks.iter().map(|block| u32::from_le_bytes(*block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { block: 8, start: 64, randseed: 0x89, blocks: 3 };

    #[test]
    fn a_state_is_read_back() {
        let bytes = PLACE.encode([1, 0, 7].into_iter());
        assert_eq!(PLACE.decode(&bytes).expect("a state").collect::<Vec<_>>(), [1, 0, 7]);
    }

    #[test]
    fn any_other_bytes_are_refused() {
        let bytes = PLACE.encode([1, 0, 7].into_iter());
        let refused = |place: Place, bytes: &[u8]| place.decode(bytes).err();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(PLACE, &damaged).is_some(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(refused(PLACE, &bytes[..length]).is_some(), "{length} bytes");
        }
        for other in [
            Place { block: 1, ..PLACE },
            Place { start: 0, ..PLACE },
            Place { randseed: 1, ..PLACE },
            Place { blocks: 2, ..PLACE },
        ] {
            assert_eq!(refused(other, &bytes), Some(StateError::OtherJob));
        }
        assert_eq!(refused(PLACE, b"FIO"), Some(StateError::NoState));
    }
}
