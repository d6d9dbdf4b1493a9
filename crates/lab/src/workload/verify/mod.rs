//! Verification: the meaning of fio's `verify` and its companions, and the pure parts that carry it out.
//!
//! A job that verifies works in blocks of `verify_interval` bytes. The data written into a block identifies the block
//! and the write of it (`layout.rs`), a table remembers the latest write of each block (`table.rs`), and [`Verifier`]
//! combines both, for one thread, for the code that drives a queue. Nothing here issues an I/O, owns a buffer, or knows
//! the time.

mod layout;
mod options;
mod table;

use super::{BlockSize, Direction, Generator, GeneratorError, Job, NextIo, Rw};
use blkmq_core::{IoFlags, IoPrio, IoResult, Op, SECTOR_SIZE};
use layout::{Expect, Layout};
pub use options::{Fault, Findings, Method, Mismatch, Pattern, PatternError, Verify, VerifyError};
use std::collections::VecDeque;
use std::ops::Range;
pub use table::StateError;
use table::{Place, Spans, Table};

impl Job {
    /// Checks `verify` and its companions against the rest of the job.
    pub(super) fn validate_verify(&self) -> Result<(), VerifyError> {
        let Some(verify) = &self.verify else { return Ok(()) };
        let unit = self.io_unit();
        if let Some(interval) = verify.interval
            && (interval == 0
                || !interval.is_multiple_of(SECTOR_SIZE)
                || !unit.is_multiple_of(interval))
        {
            return Err(VerifyError::Interval { interval, unit });
        }
        if verify.method == Method::Pattern && verify.pattern.is_none() {
            return Err(VerifyError::NoPattern);
        }
        match self.rw {
            Rw::Trim | Rw::RandTrim => Err(VerifyError::OnlyTrims),
            Rw::Read | Rw::RandRead if verify.only => Err(VerifyError::OnlyReads),
            Rw::Read | Rw::RandRead => Ok(()),
            _ if verify.only && !verify.do_verify => Err(VerifyError::Nothing),
            _ if verify.state_load && !verify.only => Err(VerifyError::StateOfWriter),
            _ if verify.only && self.runtime.is_some() && !verify.state_load => {
                Err(VerifyError::Timed)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the job reads back the data that it has written.
    pub(super) fn is_read_back(&self) -> bool {
        let writes = !matches!(self.rw, Rw::Read | Rw::RandRead);
        writes && self.verify.as_ref().is_some_and(|verify| verify.do_verify)
    }

    /// The longest `verify_interval` that divides `interval` and every I/O, in bytes.
    #[must_use]
    pub fn common_interval(&self, interval: u32) -> u32 {
        gcd(interval, self.io_unit())
    }

    /// The most bytes that divide the length of every I/O, and its distance from the start of the region.
    pub(super) fn io_unit(&self) -> u32 {
        let mut unit = 0;
        for &direction in self.rw.directions() {
            match &self.bs[direction] {
                BlockSize::Fixed(bs) => unit = gcd(unit, *bs),
                // All sizes between are multiples of the smallest.
                BlockSize::Range { min, max } => unit = gcd(gcd(unit, *min), *max),
                BlockSize::Split(parts) => parts.iter().for_each(|(bs, _)| unit = gcd(unit, *bs)),
            }
            unit = gcd(unit, self.blockalign[direction].unwrap_or(0));
        }
        // So much lies between two I/Os, or two zones.
        let zones = self.strided.map_or([0; 2], |zones| [zones.range, zones.skip]);
        for gap in [self.hole.unsigned_abs(), zones[0], zones[1]] {
            let rest = if unit == 0 { 0 } else { gap % u64::from(unit) };
            unit = gcd(unit, rest as u32);
        }
        unit
    }
}

/// The greatest common divisor; 0 divides nothing and is ignored.
fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Fills the blocks that a thread writes, checks those that it reads, and chooses the blocks to be read back.
///
/// # Contract
///
/// Before each I/O of the thread, from the [`Generator`] or from [`next_check`](Self::next_check), the caller asks
/// [`admits`](Self::admits) until the answer is yes; then it calls [`begin`](Self::begin), and [`end`](Self::end)
/// exactly once when the I/O has ended or was not taken. So no two I/Os are ever in flight to one block, and the data
/// that a read must find is known. No other thread may write to the thread's region in the meantime.
///
/// Memory: 4 bytes for each block of the region, which count from when they are first touched. Time: O(blocks) of an
/// I/O, besides its bytes.
#[derive(Clone, Debug)]
pub struct Verifier {
    layout: Layout,
    table: Table,
    verify: Verify,
    /// Whether the job itself writes. A job that only reads accepts any generation.
    writes: bool,
    prio: IoPrio,
    /// The positions of blocks in the regions.
    spans: Spans,
    /// Sectors in a block.
    block: u32,
    /// The number of blocks that are read back together, without a backlog.
    portion: usize,
    /// The next block to read back, without a backlog.
    cursor: usize,
    /// With a backlog: blocks that were written and not yet read back, in the portions in which they were written.
    backlog: VecDeque<Range<usize>>,
    findings: Findings,
    /// Whether the table is that of an earlier run (`verify_state_load`).
    restored: bool,
}

impl Verifier {
    /// A verifier for thread `thread` of `job` on a device of `device_bytes`; `None` if the job does not verify.
    ///
    /// # Errors
    /// As [`Generator::new`].
    pub fn new(job: &Job, thread: u32, device_bytes: u64) -> Result<Option<Self>, GeneratorError> {
        job.validate().map_err(GeneratorError::Job)?;
        let mut regions = job.regions(thread, device_bytes).map_err(GeneratorError::Region)?;
        let has_runs = Direction::ALL.iter().any(|way| job.percentage_random[*way] < 100);
        if job.strided.is_some() || job.hole != 0 || job.run > 1 || has_runs {
            // Zones, runs, and I/Os with holes go beyond the size.
            regions.iter_mut().for_each(|region| region.size = region.room);
        }
        let Some(verify) = job.verify.clone() else { return Ok(None) };
        let interval = verify.interval.unwrap_or_else(|| job.io_unit());
        let longest = job.bs[Direction::Write].max() / job.bs[Direction::Write].min().max(1);
        let portion = longest * job.bs[Direction::Write].min() / interval;
        let spans = Spans::new(&regions, interval);
        let writes = !matches!(job.rw, Rw::Read | Rw::RandRead);
        Ok(Some(Self {
            layout: Layout {
                method: verify.method,
                pattern: verify.pattern.clone(),
                randseed: job.randseed,
            },
            // A job that only reads knows no generations except those of an earlier run, and its I/Os need not wait for
            // each other.
            table: Table::new(if writes || verify.state_load { spans.blocks() } else { 0 }),
            writes,
            verify,
            prio: job.prio,
            spans,
            block: interval / SECTOR_SIZE,
            portion: portion.max(1) as usize,
            cursor: 0,
            backlog: VecDeque::new(),
            findings: Findings::default(),
            restored: false,
        }))
    }

    /// The results so far.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Returns whether the job must end now (`verify_fatal`).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.verify.fatal && self.findings.errors > 0
    }

    /// Returns whether the job writes nothing and only checks (`verify_only`).
    #[must_use]
    pub fn is_only(&self) -> bool {
        self.verify.only
    }

    /// The state of each block, as bytes for [`restore`](Self::restore), if the job wants it saved
    /// (`verify_state_save`).
    #[must_use]
    pub fn state(&self) -> Option<Vec<u8>> {
        self.verify.state_save.then(|| self.place().encode(self.table.generations()))
    }

    /// Returns whether a state of an earlier run is to be restored (`verify_state_load`).
    #[must_use]
    pub fn loads(&self) -> bool {
        self.verify.state_load
    }

    /// From now on, each block must have the contents that it had when `state` was made.
    ///
    /// # Errors
    /// If `state` is no state, or that of another job.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        self.table = Table::of(self.place().decode(state)?);
        self.restored = true;
        Ok(())
    }

    fn place(&self) -> Place {
        let blocks = self.table.len() as u64;
        Place {
            block: self.block,
            start: self.spans.start(),
            randseed: self.layout.randseed,
            blocks,
        }
    }

    /// Marks all I/Os of `ios` as done by an earlier run (`verify_only`), unless the state of that run is known.
    pub fn replay(&mut self, ios: &mut Generator) {
        if self.restored {
            return;
        }
        loop {
            let Some(io) = ios.next() else {
                if ios.next_loop() {
                    continue;
                }
                return;
            };
            let blocks = self.blocks(&io);
            match io.op {
                Op::Write => {
                    self.table.claim_write(blocks.clone());
                    self.table.written(blocks);
                }
                Op::Discard | Op::WriteZeroes => self.table.forget(blocks),
                Op::Read | Op::Flush => {}
            }
        }
    }

    /// Returns whether `io` may leave. If false, an I/O in flight to the same blocks must end first.
    #[must_use]
    pub fn admits(&self, io: &NextIo) -> bool {
        !self.writes || self.table.is_idle(self.blocks(io))
    }

    /// `io` leaves with `bytes`, which have its length, and are filled if it writes.
    pub fn begin(&mut self, io: &NextIo, bytes: &mut [u8]) {
        if !self.writes {
            return;
        }
        let blocks = self.blocks(io);
        if io.op != Op::Write {
            return self.table.claim(blocks);
        }
        self.table.claim_write(blocks.clone());
        for (number, block) in blocks.zip(bytes.chunks_exact_mut(self.block_bytes())) {
            self.layout.fill(self.offset(number), self.table.generation(number), block);
        }
    }

    /// `io` has ended; `bytes` are its data.
    pub fn end(&mut self, io: &NextIo, result: IoResult, bytes: &[u8]) {
        if io.op == Op::Read && result.is_ok() {
            self.compare(self.blocks(io), bytes);
        }
        if !self.writes {
            return;
        }
        let blocks = self.blocks(io);
        match (io.op, result) {
            (Op::Write, Ok(())) => {
                self.table.written(blocks.clone());
                if self.verify.backlog > 0 && self.verify.do_verify {
                    self.backlog.push_back(blocks);
                }
            }
            (Op::Read | Op::Flush, _) => self.table.release(blocks),
            // A failed write may have been done in part, and trimmed blocks may read as any data.
            (Op::Write | Op::Discard | Op::WriteZeroes, _) => self.table.forget(blocks),
        }
    }

    /// Returns whether there are enough writes to read them back (`verify_backlog`).
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.verify.backlog > 0 && self.backlog.len() >= self.verify.backlog as usize
    }

    /// The next verifying read; `None` when all due blocks have been read back. A block that was read back is due again
    /// only after another write.
    pub fn next_check(&mut self) -> Option<NextIo> {
        // A job that only reads has already checked its reads.
        if !self.verify.do_verify || !self.writes {
            return None;
        }
        let blocks = if self.verify.backlog > 0 {
            self.backlog.pop_front()?
        } else {
            let next = self.table.take_due(self.cursor, self.portion);
            // After the next writes, reading back starts over.
            self.cursor = next.as_ref().map_or(0, |next| next.end);
            next?
        };
        Some(NextIo {
            op: Op::Read,
            flags: IoFlags::SYNC,
            prio: self.prio,
            sectors: (blocks.len() as u32) * self.block,
            sector: self.spans.sector(blocks.start),
        })
    }

    fn compare(&mut self, blocks: Range<usize>, bytes: &[u8]) {
        if self.layout.method == Method::Null {
            return;
        }
        let len = self.block_bytes();
        for (number, block) in blocks.zip(bytes.chunks_exact(len)) {
            let expect = match (self.writes || self.restored).then(|| self.table.known(number)) {
                None => Expect::Any,
                Some(Some(generation)) => Expect::Generation(generation),
                Some(None) => continue,
            };
            let offset = self.offset(number);
            self.findings.verified += len as u64;
            if let Err(fault) = self.layout.check(offset, expect, block) {
                self.findings.errors += 1;
                let (block, len) = (number as u64, len as u32);
                self.findings.first.get_or_insert(Mismatch { offset, block, len, fault });
            }
        }
    }

    /// The blocks that `io` touches; none for a flush.
    fn blocks(&self, io: &NextIo) -> Range<usize> {
        if io.sectors == 0 {
            return 0..0;
        }
        debug_assert!(io.sectors.is_multiple_of(self.block), "the interval divides every I/O");
        let first = self.spans.block(io.sector);
        first..first + (io.sectors / self.block) as usize
    }

    fn block_bytes(&self) -> usize {
        (self.block * SECTOR_SIZE) as usize
    }

    /// The offset of a block in its file, in bytes: in another run, the file may be elsewhere on its device.
    fn offset(&self, block: usize) -> u64 {
        self.spans.sector_of_file(block) * u64::from(SECTOR_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, PerDirection, Strided};
    use super::*;
    use blkmq_core::Nanos;

    fn job(rw: Rw, verify: Verify) -> Job {
        Job { rw, verify: Some(verify), ..Job::default() }
    }

    #[test]
    fn the_unit_divides_every_place_and_length() {
        let mut job = job(Rw::RandRw, Verify::new(Method::Crc32c));
        assert_eq!(job.io_unit(), 4096);
        job.bs[Direction::Write] = BlockSize::Split(vec![(8192, 50), (12288, 50)]);
        assert_eq!(job.io_unit(), 4096);
        job.bs[Direction::Write] = BlockSize::Range { min: 1536, max: 6144 };
        assert_eq!(job.io_unit(), 512);
        job.bs = PerDirection::all(BlockSize::Fixed(65536));
        job.blockalign = PerDirection::all(Some(16384));
        assert_eq!(job.io_unit(), 16384);
        job.bs[Direction::Trim] = BlockSize::Fixed(512);
        assert_eq!(job.io_unit(), 16384, "it does not trim");
    }

    /// Regression test: a write of 6 KiB behind a gap of 8 KiB lay across two blocks of verification, and the thread
    /// panicked.
    #[test]
    fn the_unit_divides_gaps() {
        let mut job = job(Rw::Write, Verify::new(Method::Null));
        (job.bs, job.hole) = (PerDirection::all(BlockSize::Fixed(6 * 1024)), 8 * 1024);
        assert_eq!(job.io_unit(), 2048);
        job.hole = -3 * 1024;
        assert_eq!(job.io_unit(), 3072);
        job.hole = 0;
        job.strided = Some(Strided { size: 12288, range: 12288, skip: 512 });
        assert_eq!(job.io_unit(), 512);
    }

    #[test]
    fn what_cannot_be_verified_is_refused_by_name() {
        let verify = Verify::new(Method::Crc32c);
        let interval = |interval| Verify { interval: Some(interval), ..verify.clone() };
        let only = Verify { only: true, ..verify.clone() };
        let loads = Verify { state_load: true, ..verify.clone() };
        let timed = Job { runtime: Some(Nanos::from_secs(1)), ..job(Rw::Write, only.clone()) };
        for (job, expected) in [
            (job(Rw::Write, interval(0)), "verify_interval=0"),
            (job(Rw::Write, interval(256)), "verify_interval=256"),
            (job(Rw::Write, interval(1536)), "verify_interval=1536"),
            (job(Rw::Write, interval(8192)), "verify_interval=8192"),
            (job(Rw::Write, Verify::new(Method::Pattern)), "verify=pattern needs"),
            (job(Rw::RandTrim, verify.clone()), "verify of a job that only trims"),
            (job(Rw::RandRead, only.clone()), "verify_only repeats"),
            (job(Rw::Write, Verify { do_verify: false, ..only }), "verify_only with do_verify=0"),
            (timed, "verify_only of a job that ends by the clock"),
            (job(Rw::Write, loads), "verify_state_load without verify_only"),
        ] {
            let message = job.validate().expect_err(expected).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
        assert_eq!(job(Rw::Write, interval(1024)).validate(), Ok(()));
    }

    #[test]
    fn every_word_is_its_method() {
        for (method, words) in Method::NAMES {
            assert!(words.iter().all(|word| Method::parse(word) == Some(method)));
            assert_eq!(Method::parse(&method.to_string()), Some(method));
        }
        assert_eq!(Method::parse("sha3"), None);
    }
}

#[cfg(test)]
mod verifier_tests {
    //! The verifier of a job against a device of bytes, where I/Os complete in any order.

    use super::*;
    use crate::workload::{Amount, BlockSize, PerDirection};
    use blkmq_core::{IoError, Rng};

    const DEVICE: u64 = 1 << 20;

    fn job(rw: Rw, verify: Verify) -> Job {
        Job {
            rw,
            verify: Some(verify),
            size: Some(Amount::Bytes(256 << 10)),
            offset: Amount::Bytes(512),
            norandommap: true,
            loops: 4,
            ..Job::default()
        }
    }

    fn crc() -> Verify {
        Verify::new(Method::Crc32c)
    }

    /// A device of bytes, and I/Os in flight to it that complete in any order.
    struct Rig {
        verifier: Verifier,
        memory: Vec<u8>,
        in_flight: Vec<(NextIo, Vec<u8>)>,
        rng: Rng,
        /// Writes that are lost, of a thousand.
        lost: u64,
        /// The number of times that an I/O had to wait for another one.
        waits: u64,
    }

    impl Rig {
        fn new(job: &Job, seed: u64) -> Self {
            let verifier = Verifier::new(job, 0, DEVICE).expect("possible").expect("verifies");
            Self {
                verifier,
                memory: vec![0; DEVICE as usize],
                in_flight: Vec::new(),
                rng: Rng::new(seed),
                lost: 0,
                waits: 0,
            }
        }

        /// Carries out one of the I/Os in flight, at random, and completes it.
        fn complete(&mut self) {
            let at = self.rng.below(self.in_flight.len() as u64) as usize;
            let (io, mut bytes) = self.in_flight.swap_remove(at);
            let lost = self.rng.chance(self.lost, 1000);
            let stored =
                &mut self.memory[(io.sector * 512) as usize..][..(io.sectors * 512) as usize];
            match io.op {
                Op::Read => bytes.copy_from_slice(stored),
                Op::Write if !lost => stored.copy_from_slice(&bytes),
                // Trimmed blocks may read as any data.
                Op::Discard => stored.fill(0xdd),
                _ => {}
            }
            self.verifier.end(&io, Ok(()), &bytes);
        }

        fn issue(&mut self, io: NextIo, depth: usize) {
            while self.in_flight.len() == depth || !self.verifier.admits(&io) {
                self.waits += u64::from(self.in_flight.len() < depth);
                self.complete();
            }
            let mut bytes = vec![0x77; (io.sectors * 512) as usize];
            self.verifier.begin(&io, &mut bytes);
            self.in_flight.push((io, bytes));
        }

        fn drain(&mut self) {
            while !self.in_flight.is_empty() {
                self.complete();
            }
        }

        /// Reads back the blocks that are due.
        fn check(&mut self) {
            while let Some(io) = self.verifier.next_check() {
                assert!(io.sectors <= 64, "no longer than the job's writes");
                self.issue(io, 8);
            }
            self.drain();
        }

        fn run(&mut self, job: &Job) {
            let mut ios = Generator::new(job, 0, DEVICE).expect("possible");
            loop {
                for io in ios.by_ref() {
                    self.issue(io, 8);
                    if self.verifier.is_due() {
                        self.check();
                    }
                }
                self.drain();
                self.check();
                if !ios.next_loop() {
                    return;
                }
            }
        }
    }

    fn sizes() -> PerDirection<BlockSize> {
        PerDirection::new(
            BlockSize::Fixed(8192),
            BlockSize::Split(vec![(4096, 50), (12288, 30), (32768, 20)]),
            BlockSize::Range { min: 4096, max: 16384 },
        )
    }

    /// Writes, reads and trims overlap at random, and complete in any order.
    #[test]
    fn what_is_right_is_never_found_wrong() {
        for rw in [Rw::Write, Rw::RandWrite, Rw::ReadWrite, Rw::RandRw, Rw::RandTrimWrite] {
            for backlog in [0, 1, 7] {
                for interval in [None, Some(512)] {
                    for seed in 0..4 {
                        let verify = Verify { backlog, interval, ..crc() };
                        let job = Job { bs: sizes(), randseed: seed, ..job(rw, verify) };
                        let mut rig = Rig::new(&job, seed);
                        rig.run(&job);
                        let found = rig.verifier.findings();
                        assert_eq!((found.errors, found.first), (0, None), "{rw} {seed}");
                        assert!(found.verified >= 4096, "{rw} {seed}: {found:?}");
                        assert!(rw == Rw::Write || rig.waits > 0, "{rw}: no two ever met");
                    }
                }
            }
        }
    }

    /// fio 3.33 writes and reads 48 blocks for three loops over 16; for a mix it reads back the writes of the loop.
    #[test]
    fn what_a_loop_has_written_is_read_back_before_the_next_one() {
        for (rw, map) in
            [(Rw::Write, true), (Rw::RandWrite, true), (Rw::RandRw, true), (Rw::RandRw, false)]
        {
            let job = Job { norandommap: !map, loops: 3, ..job(rw, crc()) };
            let mut rig = Rig::new(&job, 5);
            let mut ios = Generator::new(&job, 0, DEVICE).expect("possible");
            for n in 1..=3u64 {
                let before = rig.verifier.findings().verified;
                let mut written = std::collections::BTreeSet::new();
                for io in ios.by_ref() {
                    if io.op == Op::Write {
                        written.insert(io.sector);
                    }
                    rig.issue(io, 8);
                }
                rig.drain();
                let read = rig.verifier.findings().verified;
                rig.check();
                let checked = rig.verifier.findings().verified - read;
                assert_eq!(checked, written.len() as u64 * 4096, "{rw} {map}");
                assert!(rig.verifier.findings().verified > before);
                assert_eq!(ios.next_loop(), n < 3, "{rw} {map}");
            }
            assert_eq!(rig.verifier.findings().errors, 0);
        }
    }

    /// Zones and holes lead beyond `size` in a longer file: the table had no room for these blocks, and the thread
    /// panicked.
    #[test]
    fn blocks_beyond_the_size_are_read_back() {
        use crate::workload::Strided;
        let strided = Some(Strided { size: 16 << 10, range: 16 << 10, skip: 48 << 10 });
        let zones = Job { strided, ..job(Rw::Write, crc()) };
        let holes = Job { hole: 8192, offset: Amount::ZERO, ..job(Rw::Write, crc()) };
        for job in [zones, holes] {
            let mut rig = Rig::new(&job, 1);
            rig.run(&job);
            let found = rig.verifier.findings();
            assert!(found.errors == 0 && found.verified > 64 << 10, "{found:?}");
        }
    }

    #[test]
    fn everything_written_is_read_back_once() {
        let job = Job { norandommap: false, loops: 1, ..job(Rw::RandWrite, crc()) };
        for verify in
            [crc(), Verify { backlog: 5, ..crc() }, Verify { interval: Some(512), ..crc() }]
        {
            let job = Job { verify: Some(verify), ..job.clone() };
            let mut rig = Rig::new(&job, 1);
            rig.run(&job);
            assert_eq!(rig.verifier.findings().verified, 256 << 10);
            assert_eq!(rig.verifier.next_check(), None);
        }
        let job = Job { verify: Some(Verify { do_verify: false, backlog: 5, ..crc() }), ..job };
        let mut rig = Rig::new(&job, 1);
        rig.run(&job);
        assert_eq!(rig.verifier.findings(), &Findings::default());
    }

    #[test]
    fn lost_writes_are_found_as_older_ones() {
        let job = job(Rw::RandWrite, crc());
        let mut rig = Rig::new(&job, 3);
        // Every block has been written once when writes begin to be lost.
        let first = Job { norandommap: false, loops: 1, ..job.clone() };
        for io in Generator::new(&first, 0, DEVICE).expect("possible") {
            rig.issue(io, 8);
        }
        rig.drain();
        rig.lost = 200;
        rig.run(&job);
        let found = rig.verifier.findings().clone();
        assert!(found.errors > 0 && found.errors < 64, "{found:?}");
        let first = found.first.expect("there are errors");
        let Fault::Generation { expected, found } = first.fault else { panic!("{first}") };
        assert!(found < expected, "{first}");
        assert_eq!(first.offset, 512 + first.block * 4096);
        let text = format!("an older write, expected generation {expected}, found {found}");
        assert!(first.to_string().ends_with(&text), "{first}");
    }

    #[test]
    fn trimmed_and_failed_blocks_are_forgotten() {
        let job = job(Rw::RandWrite, crc());
        let mut rig = Rig::new(&job, 1);
        let at = |op, block: u64| NextIo {
            op,
            flags: IoFlags::NONE,
            prio: IoPrio::default(),
            sectors: 8,
            sector: 1 + 8 * block,
        };
        for block in 0..4 {
            rig.issue(at(Op::Write, block), 8);
        }
        rig.drain();
        rig.issue(at(Op::Discard, 1), 8);
        rig.drain();
        let failing = at(Op::Write, 2);
        rig.verifier.begin(&failing, &mut [0; 4096]);
        rig.verifier.end(&failing, Err(IoError::IO), &[0; 4096]);
        rig.check();
        assert_eq!(rig.verifier.findings(), &Findings { verified: 8192, ..Findings::default() });
        // A read that failed says nothing about contents.
        let failing = at(Op::Read, 0);
        rig.verifier.begin(&failing, &mut [0; 4096]);
        rig.verifier.end(&failing, Err(IoError::IO), &[0; 4096]);
        assert_eq!(rig.verifier.findings().errors, 0);
    }

    #[test]
    fn a_reader_takes_any_generation_of_the_same_seed() {
        let writer = job(Rw::RandWrite, Verify { do_verify: false, ..crc() });
        let mut rig = Rig::new(&writer, 1);
        rig.run(&writer);
        let written = Job { norandommap: false, loops: 1, ..writer.clone() };
        rig.run(&written);
        let memory = rig.memory;
        let read = |reader: &Job| {
            let mut rig = Rig { memory: memory.clone(), ..Rig::new(reader, 2) };
            rig.run(reader);
            rig.verifier.findings().clone()
        };
        let reader = Job { norandommap: false, loops: 1, index: 1, ..job(Rw::RandRead, crc()) };
        assert_eq!(read(&reader), Findings { verified: 256 << 10, ..Findings::default() });
        let found = read(&Job { randseed: 1, ..reader.clone() });
        assert_eq!(found.errors, 64);
        assert!(
            matches!(found.first, Some(Mismatch { fault: Fault::Seed { .. }, .. })),
            "{found:?}"
        );
        let found = read(&Job { size: Some(Amount::Bytes(260 << 10)), ..reader });
        let first = found.first.expect("the last block was never written");
        assert_eq!((found.errors, first.block, first.offset), (1, 64, 512 + (256 << 10)));
    }

    #[test]
    fn what_an_earlier_run_wrote_is_known_from_its_stream() {
        let writer = Job { bs: sizes(), ..job(Rw::RandTrimWrite, crc()) };
        let mut rig = Rig::new(&writer, 1);
        rig.run(&writer);
        let only = Job { verify: Some(Verify { only: true, ..crc() }), ..writer.clone() };
        let replayed = |lose: bool| {
            let mut again = Rig { memory: rig.memory.clone(), ..Rig::new(&only, 2) };
            assert!(again.verifier.is_only());
            let mut stream = Generator::new(&only, 0, DEVICE).expect("possible");
            again.verifier.replay(&mut stream);
            if lose {
                again.memory[512..1024].fill(0);
            }
            again.check();
            again.verifier.findings().clone()
        };
        let right = replayed(false);
        assert!(right.errors == 0 && right.verified > 200 << 10, "{right:?}");
        assert_eq!(replayed(true).errors, 1);
    }

    #[test]
    fn a_fatal_mismatch_is_one_only_when_asked_for() {
        for fatal in [false, true] {
            let job = Job { loops: 1, ..job(Rw::Write, Verify { fatal, ..crc() }) };
            let mut rig = Rig::new(&job, 1);
            rig.lost = 1000;
            rig.run(&job);
            assert_eq!(rig.verifier.is_fatal(), fatal);
            assert_eq!(rig.verifier.findings().errors, 64);
        }
    }

    #[test]
    fn patterns_are_compared_and_null_is_not() {
        let pattern = Pattern::parse("0xab%o").ok();
        let mut verify = Verify { pattern, ..Verify::new(Method::Pattern) };
        let right = job(Rw::RandRw, verify.clone());
        let mut rig = Rig::new(&right, 1);
        rig.run(&right);
        assert_eq!(rig.verifier.findings().errors, 0);
        rig.memory[512 + 4096 + 2] ^= 1;
        // All blocks are due once more.
        let held = Vec::from_iter(rig.verifier.table.generations());
        rig.verifier.table = Table::of(held.into_iter());
        rig.check();
        let first = rig.verifier.findings().first.expect("one byte is wrong");
        assert_eq!(
            (first.block, first.fault),
            (1, Fault::Pattern { at: 2, expected: 0x12, found: 0x13 })
        );
        verify.method = Method::Null;
        let null = job(Rw::RandRw, verify);
        let mut rig = Rig::new(&null, 1);
        rig.lost = 1000;
        rig.run(&null);
        assert_eq!(rig.verifier.findings(), &Findings::default());
    }

    #[test]
    fn a_job_without_verify_has_no_verifier() {
        let job = Job { verify: None, ..job(Rw::Write, crc()) };
        assert!(Verifier::new(&job, 0, DEVICE).expect("possible").is_none());
    }

    /// An interrupted run saves its state. A later run checks that the blocks hold the latest written data.
    #[test]
    fn a_state_is_checked_by_a_later_run() {
        let saves = Verify { state_save: true, do_verify: false, ..crc() };
        let loads = Verify { state_load: true, only: true, ..crc() };
        let mut first = Rig::new(&job(Rw::RandWrite, saves), 7);
        let writes = Generator::new(&job(Rw::RandWrite, crc()), 0, DEVICE).expect("possible");
        writes.take(100).for_each(|io| first.issue(io, 8));
        first.drain();
        let state = first.verifier.state().expect("it is to be kept");
        let check = |memory: &[u8]| {
            let mut later = Rig::new(&job(Rw::RandWrite, loads.clone()), 1);
            later.verifier.restore(&state).expect("the same job");
            assert_eq!(later.verifier.state(), None, "nothing is to be kept again");
            later.memory.copy_from_slice(memory);
            later.check();
            later.verifier.findings().clone()
        };
        let found = check(&first.memory);
        assert!(found.verified > 40 * 4096 && found.errors == 0, "{found:?}");
        // A block that was rewritten after the state was saved, and one that lost its write.
        let again = Generator::new(&job(Rw::RandWrite, crc()), 0, DEVICE).expect("possible");
        again.take(1).for_each(|io| first.issue(io, 8));
        first.drain();
        assert_eq!(check(&first.memory).errors, 1);
        first.memory.fill(0);
        assert_eq!(check(&first.memory).errors, found.verified / 4096);
        let mut other = Rig::new(&Job { randseed: 1, ..job(Rw::RandWrite, loads) }, 1);
        assert!(other.verifier.restore(&state).is_err());
    }
}
