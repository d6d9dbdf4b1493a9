//! The layers that change bytes, as codecs. `crypt` encrypts with AES in XTS mode, like dm-crypt's `aes-xts-plain64`.
//! `checksum` keeps a sector behind each block of 4 KiB, with the block's checksum and its number.

#![forbid(unsafe_code)]

use crate::{Codec, Coded, Findings, Layer};
use aes::cipher::consts::U16;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes256};
use blkmq_core::{IoError, IoResult, SECTOR_SIZE};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xts_mode::{Xts128, get_tweak_default};
use zeroize::Zeroizing;

/// Bytes that are read from a key file: one more than the longest key.
const MAX_KEY_READ: usize = 65;

/// The key of an encrypted device. Never shown, and overwritten when the last copy is dropped.
#[derive(Clone)]
pub(crate) struct Key(Arc<Zeroizing<Vec<u8>>>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Why a file is not accepted as a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the key file '{}': {why}", .path.display())]
pub struct KeyError {
    /// The file.
    pub path: PathBuf,
    why: String,
}

impl Key {
    /// # Errors
    /// If the file cannot be read, or does not contain a key.
    pub(crate) fn read(path: &Path) -> Result<Self, KeyError> {
        let refused = |why: String| KeyError { path: path.to_owned(), why };
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_KEY_READ));
        // One byte more than a key has, whatever the length of the file.
        let read = File::open(path)
            .and_then(|file| file.take(MAX_KEY_READ as u64).read_to_end(&mut bytes));
        read.map_err(|e| refused(e.to_string()))?;
        Self::of(bytes).map_err(|why| refused(why.to_owned()))
    }

    fn of(bytes: Zeroizing<Vec<u8>>) -> Result<Self, &'static str> {
        if ![32, 64].contains(&bytes.len()) {
            return Err("accepted: exactly 64 bytes (AES-256), or 32 (AES-128)");
        }
        let (first, second) = bytes.split_at(bytes.len() / 2);
        if first == second {
            return Err("its halves are equal, which makes XTS weak; accepted: random bytes");
        }
        Ok(Self(Arc::new(bytes)))
    }
}

/// The layer that encrypts blocks of `block` bytes with `key`.
pub(crate) fn crypt(key: &Key, block: usize) -> Box<dyn Layer> {
    match key.0.len() {
        32 => Box::new(Coded(Crypt::<Aes128>::new(key, block))),
        _ => Box::new(Coded(Crypt::<Aes256>::new(key, block))),
    }
}

/// Encrypts a block at a time. Its tweak is the number of its first sector.
struct Crypt<C: Cipher> {
    xts: Xts128<C>,
    block: usize,
}

trait Cipher:
    KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>
{
}
impl Cipher for Aes128 {}
impl Cipher for Aes256 {}

impl<C: Cipher> Crypt<C> {
    /// `block`: the bytes of a block.
    fn new(key: &Key, block: usize) -> Self {
        let (first, second) = key.0.split_at(key.0.len() / 2);
        let cipher = |half| C::new_from_slice(half).expect("half of a key of the cipher's length");
        Self { xts: Xts128::new(cipher(first), cipher(second)), block }
    }

    fn tweak(&self, at: u64) -> Array<u8, U16> {
        let sectors = self.block as u64 / u64::from(SECTOR_SIZE);
        get_tweak_default(u128::from(at * sectors))
    }
}

impl<C: Cipher + Send> Codec for Crypt<C> {
    fn block(&self) -> usize {
        self.block
    }

    fn stored(&self) -> usize {
        self.block
    }

    fn encode(&mut self, at: u64, plain: &[u8], stored: &mut [u8]) {
        stored.copy_from_slice(plain);
        self.xts.encrypt_sector(stored, self.tweak(at));
    }

    fn decode(&mut self, at: u64, stored: &[u8], plain: &mut [u8]) -> IoResult {
        plain.copy_from_slice(stored);
        self.xts.decrypt_sector(plain, self.tweak(at));
        Ok(())
    }
}

/// The bytes of a block with a checksum.
pub(crate) const CHECKED: usize = 4096;
/// The bytes that such a block takes on the leg: its data and the sector of its checksum.
pub(crate) const CHECKED_STORED: usize = CHECKED + SECTOR_SIZE as usize;
/// The first bytes of the sector behind a block that was written.
const MAGIC: [u8; 8] = *b"blkmqsum";
/// The bytes of the sector that are used: `MAGIC`, the number of the block, its checksum.
const USED: usize = 20;

/// Checks blocks when they are read.
pub(crate) struct Checksum(pub(crate) Findings);

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
        CHECKED
    }

    fn stored(&self) -> usize {
        CHECKED_STORED
    }

    fn encode(&mut self, at: u64, plain: &[u8], stored: &mut [u8]) {
        let (data, behind) = stored.split_at_mut(CHECKED);
        data.copy_from_slice(plain);
        behind.fill(0);
        behind[..USED].copy_from_slice(&label(at, plain));
    }

    fn decode(&mut self, at: u64, stored: &[u8], plain: &mut [u8]) -> IoResult {
        let (data, behind) = stored.split_at(CHECKED);
        if let Some(fault) = fault(at, data, behind) {
            let (from, place) = (at * CHECKED as u64, at * CHECKED_STORED as u64);
            self.0.fault(format!(
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

    fn key(bytes: &[u8]) -> Result<Key, &'static str> {
        Key::of(Zeroizing::new(bytes.to_vec()))
    }

    /// A vector of IEEE 1619: key 1 of `0x11`, key 2 of `0x22`, data unit `0x3333333333`, plain text of `0x44`.
    #[test]
    fn it_encrypts_as_the_standard_says() {
        let halves = [[0x11; 16], [0x22; 16]].concat();
        let crypt = Crypt::<Aes128>::new(&key(&halves).expect("a key"), 512);
        let mut data = [0x44; 32];
        crypt.xts.encrypt_sector(&mut data, get_tweak_default(0x33_3333_3333));
        let expected = [
            0xc4, 0x54, 0x18, 0x5e, 0x6a, 0x16, 0x93, 0x6e, 0x39, 0x33, 0x40, 0x38, 0xac, 0xef,
            0x83, 0x8b, 0xfb, 0x18, 0x6f, 0xff, 0x74, 0x80, 0xad, 0xc4, 0x28, 0x93, 0x82, 0xec,
            0xd6, 0xd3, 0x94, 0xf0,
        ];
        assert_eq!(data, expected);
    }

    #[test]
    fn blocks_with_equal_contents_differ_and_are_what_they_were() {
        let bytes = Vec::from_iter(0..64);
        let mut crypt = Crypt::<Aes256>::new(&key(&bytes).expect("a key"), 4096);
        let plain = [7; 4096];
        let [mut one, mut two, mut again] = [[0; 4096]; 3];
        crypt.encode(0, &plain, &mut one);
        crypt.encode(1, &plain, &mut two);
        assert!(one != two && one != plain);
        // Its second block begins at sector 8.
        again.copy_from_slice(&plain);
        crypt.xts.encrypt_sector(&mut again, get_tweak_default(8));
        assert!(again == two);
        assert_eq!(crypt.decode(1, &two, &mut again), Ok(()));
        assert_eq!(again, plain);
    }

    #[test]
    fn what_is_no_key_is_refused_and_no_key_is_shown() {
        assert!(key(&[1; 63]).is_err_and(|why| why.contains("exactly 64 bytes")));
        assert!(key(&[1; 64]).is_err_and(|why| why.contains("halves are equal")));
        let key = key(&Vec::from_iter(0..64)).expect("a key");
        assert_eq!(format!("{key:?}"), "Key");
        #[cfg(unix)]
        {
            let endless = Key::read(Path::new("/dev/zero")).expect_err("it has no end");
            assert!(endless.to_string().contains("exactly 64 bytes"), "{endless}");
        }
        let missing = Key::read(Path::new("/nowhere/key")).expect_err("there is none");
        assert!(missing.to_string().starts_with("the key file '/nowhere/key': "), "{missing}");
    }

    #[test]
    fn a_block_is_what_was_written_or_named() {
        let findings = Findings::default();
        let mut codec = Checksum(findings.clone());
        let (mut stored, mut read) = ([0; CHECKED_STORED], [1; CHECKED]);
        assert_eq!(codec.decode(3, &stored, &mut read), Ok(()), "it was never written");
        assert_eq!(read, [0; CHECKED]);
        let plain = [7; CHECKED];
        codec.encode(3, &plain, &mut stored);
        assert_eq!((codec.decode(3, &stored, &mut read), read), (Ok(()), plain));
        assert!(findings.take().is_empty());
        // Any bit of data or label.
        for at in (0..CHECKED).step_by(97).chain(CHECKED..CHECKED + USED) {
            stored[at] ^= 4;
            assert_eq!(codec.decode(3, &stored, &mut read), Err(IoError::PROTECTION), "byte {at}");
            stored[at] ^= 4;
        }
        assert_eq!(codec.decode(4, &stored, &mut read), Err(IoError::PROTECTION));
        let other = "block 4, at byte 16384, is another block (byte 18432 of the device below)";
        assert_eq!(findings.take().last(), Some(&Finding::Fault(other.into())));
        // A torn write: new data with the label of the old data.
        let torn = stored[CHECKED..].to_vec();
        codec.encode(3, &[8; CHECKED], &mut stored);
        stored[CHECKED..].copy_from_slice(&torn);
        assert_eq!(codec.decode(3, &stored, &mut read), Err(IoError::PROTECTION));
        stored[CHECKED..].fill(0);
        assert_eq!(codec.decode(3, &stored, &mut read), Err(IoError::PROTECTION));
        assert!(findings.take()[1].to_string().contains("has no checksum"));
    }
}
