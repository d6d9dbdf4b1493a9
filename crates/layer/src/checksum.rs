//! `checksum`: each block of 4 KiB is followed by a sector with its checksum and its number.

#![forbid(unsafe_code)]

use crate::layer::{Codec, Findings};
use blkmq_core::{IoError, IoResult, SECTOR_SIZE};

/// The bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// The bytes that a block takes on the leg: its data and the sector of its checksum.
pub(crate) const STORED: usize = BLOCK + SECTOR_SIZE as usize;
/// The first bytes of the sector behind a block that was written.
const MAGIC: [u8; 8] = *b"blkmqsum";
/// The bytes of the sector that are used: `MAGIC`, the number of the block, its checksum.
const USED: usize = 20;

/// Checks blocks when they are read.
pub(crate) struct Checksum {
    findings: Findings,
}

impl Checksum {
    pub(crate) fn new(findings: Findings) -> Self {
        Self { findings }
    }
}

/// The start of the sector behind a block.
fn label(at: u64, data: &[u8]) -> [u8; USED] {
    let mut label = [0; USED];
    label[..8].copy_from_slice(&MAGIC);
    label[8..16].copy_from_slice(&at.to_le_bytes());
    // The checksum covers the number, so that the label of another block does not match.
    let sum = crc32c::crc32c_append(crc32c::crc32c(&label[..16]), data);
    label[16..].copy_from_slice(&sum.to_le_bytes());
    label
}

/// The fault of a stored block; `None` if its label matches.
fn fault(at: u64, data: &[u8], found: &[u8]) -> Option<&'static str> {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if found[..USED] == label(at, data) || (is_zero(found) && is_zero(data)) {
        return None;
    }
    Some(if found[..8] != MAGIC {
        "has no checksum"
    } else if found[8..16] != at.to_le_bytes() {
        "is another block"
    } else {
        "does not match its checksum"
    })
}

impl Codec for Checksum {
    fn block(&self) -> usize {
        BLOCK
    }

    fn stored(&self) -> usize {
        STORED
    }

    fn encode(&mut self, at: u64, plain: &[u8], stored: &mut [u8]) {
        let (data, behind) = stored.split_at_mut(BLOCK);
        data.copy_from_slice(plain);
        behind.fill(0);
        behind[..USED].copy_from_slice(&label(at, plain));
    }

    fn decode(&mut self, at: u64, stored: &[u8], plain: &mut [u8]) -> IoResult {
        let (data, behind) = stored.split_at(BLOCK);
        if let Some(fault) = fault(at, data, behind) {
            let (from, place) = (at * BLOCK as u64, at * STORED as u64);
            self.findings.fault(format!(
                "block {at}, at byte {from}, {fault} (byte {place} of the device below)"
            ));
            return Err(IoError::PROTECTION);
        }
        plain.copy_from_slice(data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Finding;

    #[test]
    fn a_block_is_what_was_written_or_named() {
        let findings = Findings::default();
        let mut codec = Checksum::new(findings.clone());
        let (mut stored, mut read) = ([0; STORED], [1; BLOCK]);
        assert_eq!(codec.decode(3, &stored, &mut read), Ok(()), "it was never written");
        assert_eq!(read, [0; BLOCK]);
        let plain = [7; BLOCK];
        codec.encode(3, &plain, &mut stored);
        assert_eq!((codec.decode(3, &stored, &mut read), read), (Ok(()), plain));
        assert!(findings.take().is_empty());
        // Any bit of data or label.
        for at in (0..BLOCK).step_by(97).chain(BLOCK..BLOCK + USED) {
            stored[at] ^= 4;
            assert_eq!(codec.decode(3, &stored, &mut read), Err(IoError::PROTECTION), "byte {at}");
            stored[at] ^= 4;
        }
        assert_eq!(codec.decode(4, &stored, &mut read), Err(IoError::PROTECTION));
        let other = "block 4, at byte 16384, is another block (byte 18432 of the device below)";
        assert_eq!(findings.take().last(), Some(&Finding::Fault(other.into())));
        // A torn write: new data with the label of the old data.
        let torn = stored[BLOCK..].to_vec();
        codec.encode(3, &[8; BLOCK], &mut stored);
        stored[BLOCK..].copy_from_slice(&torn);
        assert_eq!(codec.decode(3, &stored, &mut read), Err(IoError::PROTECTION));
        stored[BLOCK..].fill(0);
        assert_eq!(codec.decode(3, &stored, &mut read), Err(IoError::PROTECTION));
        assert!(findings.take()[1].to_string().contains("has no checksum"));
    }
}
