//! Checksummed blocks, runs of them, and a client that reads and writes them.

use blkmq::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;

/// An error of any kind.
pub type Failure = Box<dyn Error + Send + Sync>;
/// Records by their keys.
pub type Records = BTreeMap<String, String>;

const BLOCK: usize = 4096;
/// Sectors of a block.
pub const SECTORS: u64 = 8;
/// Bytes of a block's header: its checksum, and the number of bytes used.
pub const HEADER: usize = 16;

/// Makes a block of `bytes`, which begin with room for a header, and a checksum that depends on `seed`. Returns both.
pub fn seal(mut bytes: Vec<u8>, seed: u64) -> (AlignedBuf, u64) {
    let used = bytes.len() as u64;
    assert!(bytes.len() <= BLOCK, "it has room for them");
    bytes.resize(BLOCK, 0);
    bytes[8..HEADER].copy_from_slice(&used.to_le_bytes());
    let sum = checksum(seed, &bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    (bytes.into(), sum)
}

/// Returns the bytes in a block, and its checksum; `None` if it was written incompletely, or with another seed.
pub fn unseal(block: &[u8], seed: u64) -> Option<(&[u8], u64)> {
    let [sum, used] = Vec::from_iter(words(&block[..HEADER]))[..] else { return None };
    (sum == checksum(seed, &block[8..])).then_some((block.get(HEADER..used as usize)?, sum))
}

/// FNV-1a, which suffices to find a block that a power cut has left incomplete.
fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, step)
}

pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Appends a record to the last block, or to a new one.
pub fn append(blocks: &mut Vec<Vec<u8>>, key: &str, value: &str) {
    let lens = [key, value].map(|text| (text.len() as u16).to_le_bytes());
    let record = [&lens.concat(), key.as_bytes(), value.as_bytes()].concat();
    match blocks.last_mut() {
        Some(block) if block.len() + record.len() <= BLOCK => block.extend(record),
        _ => blocks.push([vec![0; HEADER], record].concat()),
    }
}

/// The records of a block, in the order in which they were appended.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = (String, String)> {
    std::iter::from_fn(move || {
        let ([a, b, c, d], rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes([*a, *b]).into())?;
        let (value, rest) = rest.split_at_checked(u16::from_le_bytes([*c, *d]).into())?;
        bytes = rest;
        Some((String::from_utf8(key.to_vec()).ok()?, String::from_utf8(value.to_vec()).ok()?))
    })
}

/// The client of one thread, and the group and the priority class of its I/Os.
pub struct Disk {
    client: Client<AlignedBuf>,
    group: GroupId,
    class: IoPrio,
}

impl Disk {
    pub fn new(
        service: &Service<AlignedBuf>,
        group: GroupId,
        class: Class,
    ) -> Result<Self, Failure> {
        let class = IoPrio::new(class, 0).ok_or("0 is a level")?;
        Ok(Self { client: service.client()?, group, class })
    }

    pub fn read(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
        self.push(Io::read(Sectors(number * SECTORS), AlignedBuf::new(BLOCK)))?;
        let mut block = Err(IoError::POISONED);
        self.client.wait(1, 1, |done| block = done.result.map(|()| done.payload.into()));
        Ok(block?)
    }

    /// Writes numbered blocks and waits for them. Adjacent blocks merge in the plug.
    pub fn write(
        &mut self,
        blocks: impl IntoIterator<Item = (u64, AlignedBuf)>,
        flags: IoFlags,
    ) -> Result<(), Failure> {
        for (number, block) in blocks {
            if self.client.in_flight() == self.client.depth() {
                self.wait(1)?;
            }
            self.push(Io::write(Sectors(number * SECTORS), block).with(flags))?;
        }
        self.wait(u32::MAX)
    }

    /// Makes all completed writes durable. After an error they never will be, even if a later flush succeeds.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.push(Io::flush())?;
        self.wait(1)
    }

    /// Writes one block durably, after all completed writes have become durable. It is outside of the compaction's
    /// group, whose ceiling would delay the foreground.
    pub fn write_manifest(&mut self, number: u64, block: AlignedBuf) -> Result<(), Failure> {
        let io = Io::write(Sectors(number * SECTORS), block);
        self.client.push(io.with(IoFlags::PREFLUSH | IoFlags::FUA))?;
        self.wait(1)
    }

    fn push(&mut self, io: Io<AlignedBuf>) -> Result<(), Failure> {
        Ok(self.client.push(io.group(self.group).ioprio(self.class))?)
    }

    /// Waits for `least` I/Os, or for all in flight if they are fewer.
    fn wait(&mut self, least: u32) -> Result<(), Failure> {
        let mut outcome = Ok(());
        self.client.wait(least, u32::MAX, |done| outcome = outcome.and(done.result));
        if self.client.lost().is_some() { Err(IoError::POISONED.into()) } else { Ok(outcome?) }
    }
}

/// A sorted run: its first block, and the first key of each block.
pub struct Run {
    pub start: u64,
    pub firsts: Vec<String>,
}

impl Run {
    pub fn blocks(&self) -> Range<u64> {
        self.start..self.start + self.firsts.len() as u64
    }

    pub fn read(disk: &mut Disk, number: u64) -> Result<Records, Failure> {
        let block = disk.read(number)?;
        let (bytes, _) = unseal(&block, number).ok_or("a block of a run is damaged")?;
        Ok(records(bytes).collect())
    }
}
