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
        let stored = &mut self.memory[(io.sector * 512) as usize..][..(io.sectors * 512) as usize];
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
    for verify in [crc(), Verify { backlog: 5, ..crc() }, Verify { interval: Some(512), ..crc() }] {
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
    assert!(matches!(found.first, Some(Mismatch { fault: Fault::Seed { .. }, .. })), "{found:?}");
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
