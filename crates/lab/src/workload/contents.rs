//! [`Contents`]: the bytes that writes carry where none are verified, and [`Filler`], which makes them.
//!
//! Storage that compresses, or keeps equal blocks once, takes zeroes for next to nothing. So buffers begin with random bytes
//! as fio's do, and a few bytes of each sector change with each write.

use super::verify::Pattern;
use blkmq_core::{Rng, SECTOR_SIZE};

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
        }
    }
}

/// Makes the bytes of the buffers of one thread.
#[derive(Clone, Debug)]
pub struct Filler {
    rng: Rng,
    contents: Contents,
    /// The thread writes at all.
    writes: bool,
}

impl Filler {
    /// For a thread that writes these contents, or that does not write. Each thread has a seed of its own.
    #[must_use]
    pub fn new(contents: &Contents, writes: bool, seed: u64) -> Self {
        // Other bytes than places: the two streams must not repeat each other.
        Self { rng: Rng::new(seed ^ 0x6275_6666), contents: contents.clone(), writes }
    }

    /// Fills a buffer that has just been made.
    pub fn begin(&mut self, bytes: &mut [u8]) {
        if self.writes && !self.contents.is_zero {
            self.fill(bytes);
        }
    }

    /// Makes the bytes of the next write in a buffer that was used before.
    #[inline]
    pub fn next(&mut self, bytes: &mut [u8]) {
        let Contents { is_zero, refills, scrambles, .. } = self.contents;
        if is_zero {
            // A read may have left its bytes.
            bytes.fill(0);
        } else if refills || self.contents.pattern.is_some() {
            self.fill(bytes);
        } else if scrambles {
            for sector in bytes.chunks_mut(SECTOR_SIZE as usize) {
                let stamp = self.rng.next_u64().to_le_bytes();
                let len = sector.len().min(stamp.len());
                sector[..len].copy_from_slice(&stamp[..len]);
            }
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let share = self.contents.compress.unwrap_or(match self.contents.pattern {
            Some(_) => 100,
            None => 0,
        });
        for chunk in bytes.chunks_mut(self.contents.chunk as usize) {
            let fixed = chunk.len() * usize::from(share) / 100;
            let (random, fixed) = chunk.split_at_mut(chunk.len() - fixed);
            for word in random.chunks_mut(8) {
                let value = self.rng.next_u64().to_le_bytes();
                word.copy_from_slice(&value[..word.len()]);
            }
            match &self.contents.pattern {
                Some(pattern) => pattern.fill(0, fixed),
                None => fixed.fill(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filler(contents: &Contents) -> Filler {
        Filler::new(contents, true, 7)
    }

    fn zeroes(bytes: &[u8]) -> usize {
        bytes.iter().filter(|byte| **byte == 0).count()
    }

    /// Regression test: every write carried zeroes, which compressing storage takes for nothing.
    #[test]
    fn buffers_are_random_and_no_two_writes_are_alike() {
        let mut filler = filler(&Contents::default());
        let mut bytes = [0; 4096];
        filler.begin(&mut bytes);
        assert!(zeroes(&bytes) < 64);
        let first = bytes;
        filler.next(&mut bytes);
        for (before, after) in first.chunks(512).zip(bytes.chunks(512)) {
            assert!(before != after && before[8..] == after[8..]);
        }
    }

    #[test]
    fn refilled_buffers_are_new_in_every_byte() {
        let mut filler = filler(&Contents { refills: true, ..Contents::default() });
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        filler.next(&mut one);
        filler.next(&mut other);
        assert!(one.iter().zip(&other).filter(|(a, b)| a == b).count() < 64);
    }

    #[test]
    fn a_share_of_each_chunk_is_fixed() {
        let compress = |compress, chunk, pattern| {
            let pattern = Some(pattern).filter(|text: &&str| !text.is_empty());
            let pattern = pattern.map(|text| Pattern::parse(text).expect("a pattern"));
            let contents = Contents {
                compress: Some(compress),
                chunk,
                pattern,
                refills: true,
                ..Contents::default()
            };
            let mut bytes = [1; 4096];
            filler(&contents).next(&mut bytes);
            bytes
        };
        let half = compress(50, 512, "");
        assert!(
            half.chunks(512)
                .all(|chunk| zeroes(&chunk[256..]) == 256 && zeroes(&chunk[..256]) < 16)
        );
        let most = compress(75, 4096, "");
        assert_eq!(zeroes(&most[1024..]), 3072);
        let marked = compress(50, 512, "0xab");
        assert!(marked.chunks(512).all(|chunk| chunk[256..].iter().all(|byte| *byte == 0xab)));
    }

    #[test]
    fn zeroes_and_patterns_are_so_behind_a_read_as_well() {
        let mut bytes = [7; 1024];
        filler(&Contents { is_zero: true, ..Contents::default() }).next(&mut bytes);
        assert_eq!(zeroes(&bytes), 1024);
        let pattern = Pattern::parse("0xabcd").ok();
        filler(&Contents { pattern, ..Contents::default() }).next(&mut bytes);
        assert!(bytes.chunks(2).all(|pair| pair == [0xab, 0xcd]));
    }
}
