//! A stack returns the data written to it: random stacks, payloads in random ranges, and faults, against a model in
//! memory.
//!
//! `BLKMQ_STACKS` is the number of stacks of a test (default 48); `cargo xtask soak` draws more.

use blkmq_buf::{AlignedBuf, BufList};
use blkmq_core::{Finding, Instant, IoError, IoFlags, IoResult, Nanos, Op, Payload, Rng};
use blkmq_device::{Device, MachineShape, registry};
use blkmq_engine::{BlockDevice, Config, Io, Queue, Submitter};
use blkmq_layer::{
    Codec, Coded, Kind, Layer, MirrorError, Part, Piece, Plan, Request, Stack, StackError,
};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::Once;

const SECTOR: usize = 512;
/// Stacks drawn by each of two tests.
const STACKS: u32 = 48;

/// A leg: a device, or a stack of them.
enum Node {
    Device(Box<Device>),
    Stack(Box<Stack<Node>>),
}

impl<P: blkmq_buf::IoBuf> BlockDevice<P> for Node {
    fn shape(&self) -> blkmq_engine::DeviceShape {
        match self {
            Self::Device(device) => device.shape,
            Self::Stack(stack) => *stack.shape(),
        }
    }

    fn queues(&self) -> std::io::Result<blkmq_engine::DeviceQueues<P>> {
        match self {
            Self::Device(device) => Ok(device.queues()),
            Self::Stack(stack) => stack.queues(),
        }
    }
}

fn device(text: &str) -> Device {
    registry::parse(text, &MachineShape { cpus: 1, nodes: 1 }).expect(text)
}

/// A stack of at most `depth` layers.
fn node(rng: &mut Rng, depth: u32, faults: &str) -> Node {
    if depth == 0 || rng.chance(1, 3) {
        let irqmode = if rng.chance(1, 2) { ",irqmode=2,completion_nsec=5000" } else { "" };
        let depth = 1 + rng.below(8);
        return Node::Device(Box::new(device(&format!(
            "{faults}memory,size=1,discard=1,hw_queue_depth={depth}{irqmode}"
        ))));
    }
    let (kind, legs) = match rng.below(6) {
        0 => (Kind::Concat, 2 + rng.below(3)),
        // A mirror could not be opened on legs that fail.
        3 if faults.is_empty() => {
            (Kind::Mirror { create: true, replace: false, missing: 0 }, 2 + rng.below(2))
        }
        1 => (Kind::Crypt { key: key(), block: 512 << rng.below(4) }, 1),
        2 => (Kind::Checksum, 1),
        _ => (Kind::Stripe { chunk: 8 * (1 + rng.below(5) as u32) }, 2 + rng.below(3)),
    };
    let legs = Vec::from_iter((0..legs).map(|_| node(rng, depth - 1, faults)));
    match Stack::new(kind, legs) {
        Ok(stack) => Node::Stack(Box::new(stack)),
        // Checksums need legs with sectors of 512 bytes, and layers below may have larger blocks.
        Err(StackError::Block { .. }) => node(rng, 0, faults),
        // New memory, decrypted, has wrong checksums, so a mirror cannot look for an earlier record.
        Err(StackError::Mirror(MirrorError::Record { error: IoError::PROTECTION, .. })) => {
            node(rng, 0, faults)
        }
        Err(error) => panic!("{error}"),
    }
}

/// The path of a key file.
fn key() -> PathBuf {
    let path = std::env::temp_dir().join(format!("blkmq-layer-{}.key", std::process::id()));
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::fs::write(&path, Vec::from_iter(0..64)).expect("a folder for files"));
    path
}

/// A queue in virtual time.
struct Rig {
    submitter: Submitter<BufList>,
    _queue: Queue<BufList>,
    now: Instant,
}

impl Rig {
    fn new(device: &dyn BlockDevice<BufList>) -> Self {
        let config = Config { submitters: 1, ..device.config().expect("queues of legs") };
        let queue = Queue::new(config).expect("valid");
        Self { submitter: queue.submitter().expect("one"), _queue: queue, now: Instant::ZERO }
    }

    fn push(&mut self, io: Io<BufList>) {
        self.submitter.push(self.now, io).expect("there is credit");
    }

    /// Runs until every I/O has ended.
    fn finish(&mut self) -> Vec<(u64, IoResult, BufList)> {
        self.submitter.flush(self.now);
        let mut ended = Vec::new();
        for _ in 0..100_000 {
            self.submitter.poll(self.now);
            self.submitter
                .reap(u32::MAX, |done| ended.push((done.cookie, done.result, done.payload)));
            if self.submitter.outstanding() == 0 {
                return ended;
            }
            let next = self.submitter.next_deadline();
            self.now =
                next.filter(|at| *at < Instant::MAX).unwrap_or(self.now).max(self.now + Nanos(1));
        }
        panic!("{} I/Os have not ended", self.submitter.outstanding());
    }
}

/// The contents of `bytes`, in up to five buffers.
fn cut(rng: &mut Rng, bytes: &[u8]) -> BufList {
    let mut rest = bytes;
    let mut bufs = Vec::new();
    while !rest.is_empty() {
        let len =
            if bufs.len() == 4 { rest.len() } else { 1 + rng.below(rest.len() as u64) as usize };
        let (now, behind) = rest.split_at(len);
        bufs.push(AlignedBuf::copy_of(now));
        rest = behind;
    }
    BufList::new(bufs).expect("a few")
}

fn bytes_of(list: &BufList) -> Vec<u8> {
    let mut bytes = vec![0; list.len()];
    list.write_to(0, &mut bytes).expect("within");
    bytes
}

/// Rounds of I/Os to disjoint ranges; the data of each read is compared. Returns the number of errors.
fn compare(device: &dyn BlockDevice<BufList>, rng: &mut Rng, rounds: u32) -> Result<usize, String> {
    let limits = device.shape().limits;
    let capacity = limits.capacity.min(4096);
    let block = u64::from(limits.logical_block_size) / SECTOR as u64;
    let mut model = vec![0; capacity as usize * SECTOR];
    let mut rig = Rig::new(device);
    // Zeroes on the leg of a crypt layer decrypt to other bytes.
    for at in (0..capacity).step_by(64).filter(|_| limits.max_write_zeroes_sectors == 0) {
        let sectors = 64.min(capacity - at) as u32;
        let zeroes = || BufList::from(AlignedBuf::new(sectors as usize * SECTOR));
        let write = || Io::new(Op::Write, at, sectors, 0, zeroes());
        rig.push(write());
        while rig.finish().iter().any(|(_, result, _)| result.is_err()) {
            rig.push(write());
        }
    }
    let mut errors = 0;
    for round in 0..rounds {
        let mut at = rng.below(capacity / 2) / block * block;
        let mut sent = Vec::new();
        while at < capacity && sent.len() < 20 {
            let sectors = (1 + rng.below(100)).next_multiple_of(block).min(capacity - at);
            let op = match rng.below(8) {
                0 if limits.max_discard_sectors > 0 => Op::Discard,
                1 if limits.max_write_zeroes_sectors > 0 => Op::WriteZeroes,
                2..5 => Op::Read,
                _ => Op::Write,
            };
            let len = sectors as usize * SECTOR;
            let bytes = (0..len).map(|_| if op == Op::Write { rng.below(256) as u8 } else { 0xEE });
            let bytes = Vec::from_iter(bytes);
            let payload = cut(rng, &bytes);
            let mut io = Io::new(op, at, sectors as u32, sent.len() as u64, payload);
            if op == Op::Write && rng.chance(1, 5) {
                io = io.with(IoFlags::FUA);
            }
            rig.push(io);
            sent.push((op, at as usize * SECTOR, bytes));
            // Sometimes neighbours, which merge.
            at += sectors + rng.below(2) * rng.below(60) / block * block;
        }
        if rng.chance(1, 3) {
            rig.push(Io::new(Op::Flush, 0, 0, u64::MAX, BufList::default()));
        }
        for (cookie, result, payload) in rig.finish() {
            let Some((op, start, bytes)) = sent.get(cookie as usize) else { continue };
            let place = &mut model[*start..start + bytes.len()];
            if result.is_err() {
                errors += 1;
                // A failed write leaves unknown contents, which are read for the next rounds.
                if *op != Op::Read {
                    let again = Io::new(
                        Op::Write,
                        (start / SECTOR) as u64,
                        (bytes.len() / SECTOR) as u32,
                        u64::MAX,
                        cut(rng, bytes),
                    );
                    rig.push(again);
                    while rig.finish().iter().any(|(_, result, _)| result.is_err()) {
                        rig.push(Io::new(
                            Op::Write,
                            (start / SECTOR) as u64,
                            (bytes.len() / SECTOR) as u32,
                            u64::MAX,
                            cut(rng, bytes),
                        ));
                    }
                    place.copy_from_slice(bytes);
                }
                continue;
            }
            match op {
                Op::Read if bytes_of(&payload) != place => {
                    return Err(format!(
                        "round {round}: a read at byte {start} of {} bytes",
                        bytes.len()
                    ));
                }
                Op::Write if bytes_of(&payload) != *bytes => {
                    return Err(format!("round {round}: the payload of a write has changed"));
                }
                Op::Read | Op::Flush => {}
                Op::Write => place.copy_from_slice(bytes),
                Op::Discard | Op::WriteZeroes => place.fill(0),
            }
        }
    }
    Ok(errors)
}

fn stacks() -> u32 {
    let text = std::env::var("BLKMQ_STACKS");
    text.map_or(STACKS, |n| n.parse().expect("BLKMQ_STACKS is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: stacks(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_is_what_was_written(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let stack = node(&mut rng, 3, "");
        let device: &dyn BlockDevice<BufList> = &stack;
        prop_assert_eq!(compare(device, &mut rng, 12), Ok(0));
    }

    #[test]
    fn errors_and_delays_of_legs_change_no_other_bytes(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let faults = "faults,error=0.02,late=0.2,late_nsec=9000,reorder=0.2,requeue=0.1,resource=0.05:";
        let stack = node(&mut rng, 2, faults);
        let found = compare(&stack as &dyn BlockDevice<BufList>, &mut rng, 12);
        prop_assert!(found.is_ok(), "{found:?}");
    }
}

/// Writes `byte` to the whole device.
fn fill(rig: &mut Rig, capacity: u64, byte: u8) {
    for at in (0..capacity).step_by(8) {
        let payload = BufList::from(AlignedBuf::copy_of(&[byte; 4096]));
        rig.push(Io::new(Op::Write, at, 8, at, payload));
        assert!(rig.finish().iter().all(|(_, result, _)| result.is_ok()));
    }
}

/// Reads a sector of the device.
fn sector(device: &Device, at: u64) -> Vec<u8> {
    let mut rig = Rig::new(device);
    rig.push(Io::new(Op::Read, at, 1, 0, BufList::from(AlignedBuf::new(SECTOR))));
    bytes_of(&rig.finish()[0].2)
}

fn set_sector(device: &Device, at: u64, bytes: &[u8]) {
    let mut rig = Rig::new(device);
    rig.push(Io::new(Op::Write, at, 1, 0, BufList::from(AlignedBuf::copy_of(bytes))));
    assert_eq!(rig.finish()[0].1, Ok(()));
}

#[test]
fn a_flipped_bit_is_named_and_no_wrong_byte_is_read() {
    let below = device("memory,size=1");
    let stack = Stack::new(Kind::Checksum, vec![below.clone()]).expect("a leg that suits");
    // Miri takes a minute for a megabyte.
    let capacity = if cfg!(miri) { 64 } else { stack.shape().limits.capacity };
    let mut rig = Rig::new(&stack);
    fill(&mut rig, capacity, 7);
    // Block 3, since a block takes nine sectors of the leg.
    let place = 3 * 9;
    let mut bytes = sector(&below, place);
    bytes[5] ^= 1;
    set_sector(&below, place, &bytes);
    for at in (0..capacity).step_by(16) {
        let sectors = 16.min(capacity - at) as u32;
        let payload = BufList::from(AlignedBuf::copy_of(&vec![1; sectors as usize * SECTOR]));
        rig.push(Io::new(Op::Read, at, sectors, at, payload));
        let (_, result, payload) = rig.finish().pop().expect("it has ended");
        let bytes = bytes_of(&payload);
        if at == 16 {
            assert_eq!(result, Err(IoError::PROTECTION));
            // The block beside it is intact.
            assert!(bytes[..4096] == [7; 4096] && bytes[4096..] == [1; 4096]);
        } else {
            assert!(result.is_ok() && bytes.iter().all(|byte| *byte == 7), "sector {at}");
        }
    }
    let named =
        "block 3, at byte 12288, does not match its checksum (byte 13824 of the device below)";
    assert_eq!(stack.take_findings(), [Finding::Fault(named.into())]);
    assert!(stack.take_findings().is_empty());
}

#[test]
fn a_wrong_key_is_found_by_checksums_above() {
    let below = device("memory,size=1");
    let stack = |key: PathBuf| {
        let crypt = Stack::new(Kind::Crypt { key, block: 512 }, vec![below.clone()]);
        Stack::new(Kind::Checksum, vec![crypt.expect("a key")]).expect("a leg that suits")
    };
    let right = stack(key());
    fill(&mut Rig::new(&right), 64, 7);
    assert!(
        sector(&below, 0).windows(8).all(|bytes| bytes != [7; 8]),
        "nothing is stored as it is"
    );
    let folder = std::env::temp_dir().join(format!("blkmq-layer-{}.other", std::process::id()));
    std::fs::write(&folder, Vec::from_iter(1..65)).expect("a folder for files");
    let wrong = stack(folder.clone());
    std::fs::remove_file(folder).expect("it was just written");
    for (stack, result) in [(wrong, Err(IoError::PROTECTION)), (right, Ok(()))] {
        let mut rig = Rig::new(&stack);
        rig.push(Io::new(Op::Read, 8, 8, 0, BufList::from(AlignedBuf::new(4096))));
        assert_eq!(rig.finish()[0].1, result);
        assert_eq!(stack.take_findings().len(), usize::from(result.is_err()));
    }
}

/// A device with a layer of the test's own.
struct Own<L>(fn() -> L, [Device; 2]);

impl<P: blkmq_buf::IoBuf, L: Layer + 'static> BlockDevice<P> for Own<L> {
    fn shape(&self) -> blkmq_engine::DeviceShape {
        let shape = self.1[0].shape;
        blkmq_engine::DeviceShape { hw_queues: 1, timeout: Nanos(u64::MAX), ..shape }
    }

    fn queues(&self) -> std::io::Result<blkmq_engine::DeviceQueues<P>> {
        let legs = self.1.each_ref().map(|leg| leg as &dyn BlockDevice<Part>);
        let shape = BlockDevice::<P>::shape(self);
        Ok(vec![blkmq_layer::queue(&shape, Box::new((self.0)()), &legs)?])
    }
}

/// Writes to both legs; reads from the first one, or from the second if that fails.
struct Twins {
    /// Planted: writes to the second leg are one sector too far.
    is_wrong: bool,
}

impl Layer for Twins {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        plan.send(Piece::whole(request, 0));
        if request.op != Op::Read {
            let shift = u64::from(self.is_wrong && request.op == Op::Write && request.sector > 0);
            plan.send(Piece { sector: request.sector - shift, ..Piece::whole(request, 1) });
        }
    }

    fn answered(
        &mut self,
        request: &Request,
        piece: &Piece,
        result: IoResult,
        plan: &mut Plan,
    ) -> IoResult {
        if request.op == Op::Read && piece.leg == 0 && result.is_err() {
            plan.send(Piece::whole(request, 1));
            return Ok(());
        }
        result
    }
}

fn twins(make: fn() -> Twins, errors: &str) -> Own<Twins> {
    let failing = device(&format!("faults,read_error={errors}:memory,size=1,discard=1,irqmode=2"));
    Own(make, [failing, device("memory,size=1,discard=1")])
}

#[test]
fn a_layer_may_ask_again_elsewhere_and_write_bytes_twice() {
    let device = twins(|| Twins { is_wrong: false }, "0.5");
    for seed in 0..20 {
        let device: &dyn BlockDevice<BufList> = &device;
        // Each round begins with a zeroed device.
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(device);
        rig.push(Io::new(Op::WriteZeroes, 0, 2048, 0, BufList::default()));
        assert_eq!(rig.finish()[0].1, Ok(()));
        drop(rig);
        assert_eq!(compare(device, &mut rng, 10), Ok(0), "seed {seed}");
    }
}

#[test]
fn a_planted_fault_is_found() {
    let device = twins(|| Twins { is_wrong: true }, "0.5");
    let found = compare(&device as &dyn BlockDevice<BufList>, &mut Rng::new(1), 50);
    assert!(found.as_ref().is_err_and(|e| e.contains("a read at byte")), "{found:?}");
}

/// RAID 0 with chunks of eight sectors.
struct Raid {
    /// Planted: all chunks of a read come from the device of the first.
    is_wrong: bool,
}

impl Layer for Raid {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        if request.op == Op::Flush {
            (0..2).for_each(|leg| plan.send(Piece::whole(request, leg)));
            return;
        }
        let first = request.sector / 8;
        let (mut at, end) = (request.sector, request.sector + u64::from(request.sectors));
        while at < end {
            let (chunk, next) = (at / 8, (at / 8 + 1) * 8);
            let sectors = (next.min(end) - at) as u32;
            let of = if self.is_wrong && request.op == Op::Read { first } else { chunk };
            let from = (at - request.sector) as u32;
            let sector = chunk / 2 * 8 + at % 8;
            plan.send(Piece { sector, sectors, from, ..Piece::whole(request, (of % 2) as usize) });
            at = next;
        }
    }
}

/// A cipher that maps zeroes to zeroes: each byte times an odd number of its block.
struct Times {
    /// Planted: the second of two blocks is decoded with the number of the first.
    is_wrong: bool,
}

fn factor(block: u64) -> u8 {
    (block % 128) as u8 * 2 + 1
}

impl Codec for Times {
    fn block(&self) -> usize {
        SECTOR
    }

    fn stored(&self) -> usize {
        SECTOR
    }

    fn encode(&mut self, at: u64, plain: &[u8], stored: &mut [u8]) {
        let factor = factor(at);
        plain.iter().zip(stored).for_each(|(plain, stored)| *stored = plain.wrapping_mul(factor));
    }

    fn decode(&mut self, at: u64, stored: &[u8], plain: &mut [u8]) -> IoResult {
        let factor = factor(at & !u64::from(self.is_wrong));
        let inverse = (1..=u8::MAX).find(|it| it.wrapping_mul(factor) == 1).expect("it is odd");
        stored.iter().zip(plain).for_each(|(stored, plain)| *plain = stored.wrapping_mul(inverse));
        Ok(())
    }
}

/// Compares a layer defined by the test with the model.
fn compared<L: Layer + 'static>(make: fn() -> L) -> Result<usize, String> {
    let legs = [(); 2].map(|()| device("memory,size=1,irqmode=2"));
    compare(&Own(make, legs) as &dyn BlockDevice<BufList>, &mut Rng::new(1), 50)
}

#[test]
fn a_stripe_and_a_cipher_of_the_own_are_read_as_written_and_their_faults_are_found() {
    assert_eq!(compared(|| Raid { is_wrong: false }), Ok(0));
    assert_eq!(compared(|| Coded(Times { is_wrong: false })), Ok(0));
    for found in
        [compared(|| Raid { is_wrong: true }), compared(|| Coded(Times { is_wrong: true }))]
    {
        assert!(found.as_ref().is_err_and(|e| e.contains("a read at byte")), "{found:?}");
    }
}

#[test]
fn a_queue_that_ends_with_pieces_under_way_gives_every_buffer_back() {
    let leaked = blkmq_engine::leaked_bios();
    let legs = vec![device("memory,size=1,irqmode=2"), device("memory,size=1,irqmode=2")];
    let stack = Stack::new(Kind::Stripe { chunk: 8 }, legs).expect("legs that suit");
    let mut rig = Rig::new(&stack);
    for n in 0..40 {
        let payload = BufList::from(AlignedBuf::new(20 * SECTOR));
        rig.push(Io::new(Op::Read, n * 40, 20, n, payload));
    }
    rig.submitter.flush(rig.now);
    drop(rig);
    assert_eq!(blkmq_engine::leaked_bios(), leaked);
}

/// Sends a read in place of a write.
struct Backwards;

impl Layer for Backwards {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        plan.send(Piece { op: Op::Read, ..Piece::whole(request, 0) });
    }
}

#[test]
fn a_layer_cannot_have_written_to_what_is_only_lent_for_reading() {
    let legs = || [device("memory,size=1"), device("memory,size=1")];
    let device = Own(|| Backwards, legs());
    let mut rig = Rig::new(&device);
    let payload = BufList::from(AlignedBuf::copy_of(&[7; SECTOR]));
    rig.push(Io::new(Op::Write, 0, 1, 0, payload));
    // The device panics, and the engine ends the I/O with an error.
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rig.submitter.flush(rig.now)));
    let ended = rig.finish();
    assert!(panicked.is_err() || ended[0].1.is_err(), "{ended:?}");
    if let Some((_, result, payload)) = ended.first() {
        assert_ne!(*result, Ok(()));
        assert_eq!(bytes_of(payload), [7; SECTOR]);
    }
    _ = IoError::IO;
}
