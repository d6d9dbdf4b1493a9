//! [`Contents`]: the bytes that writes carry where none are verified.
//!
//! Storage that compresses, or keeps equal blocks once, takes zeroes for next to nothing. So buffers begin with random bytes
//! as fio's do, and a few bytes of each sector change with each write.

use super::verify::Pattern;
use blkmq_core::Rng;

/// The bytes that writes carry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// `zero_buffers`: nothing but zeroes.
    pub is_zero: bool,
    /// `refill_buffers`: all bytes are made anew for each write.
    pub refills: bool,
    /// `scramble_buffers`: some bytes of each sector are made anew.
    pub scrambles: bool,
    /// `buffer_pattern`: the bytes that are not random; all of them if no share is compressed.
    pub pattern: Option<Pattern>,
    /// `buffer_compress_percentage`: the share of each chunk that is not random.
    pub compress: Option<u8>,
    /// `buffer_compress_chunk`, in bytes.
    pub chunk: u32,
    /// `dedupe_percentage`: the share of writes that repeat the bytes of another one.
    pub dedupe: u8,
    /// `dedupe_mode`: the writes that are repeated.
    pub dedupe_mode: DedupeMode,
    /// `dedupe_working_set_percentage`: the buffers of the working set, as a share of those that the job writes.
    pub working_set: u8,
    /// `dedupe_global`: all jobs have one working set.
    pub is_global: bool,
}

/// The writes that are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DedupeMode {
    /// The last one that was not a repetition.
    Repeat,
    /// Any one of a working set.
    WorkingSet,
}

impl Default for Contents {
    fn default() -> Self {
        Self {
            is_zero: false,
            refills: false,
            scrambles: true,
            pattern: None,
            compress: None,
            chunk: 512,
            dedupe: 0,
            dedupe_mode: DedupeMode::Repeat,
            working_set: 5,
            is_global: false,
        }
    }
}

impl Contents {
    /// Fills a buffer with the next bytes of `rng`.
    pub(super) fn fill(&self, rng: &mut Rng, bytes: &mut [u8]) {
        let share = self.compress.unwrap_or(if self.pattern.is_some() { 100 } else { 0 });
        for chunk in bytes.chunks_mut(self.chunk as usize) {
            let fixed = chunk.len() * usize::from(share) / 100;
            let (random, fixed) = chunk.split_at_mut(chunk.len() - fixed);
            for word in random.chunks_mut(8) {
                let value = rng.next_u64().to_le_bytes();
                word.copy_from_slice(&value[..word.len()]);
            }
            match &self.pattern {
                Some(pattern) => pattern.fill(0, fixed),
                None => fixed.fill(0),
            }
        }
    }
}
