//! Files that cannot be opened, also because another program has locked them, and I/Os that are refused. Also the
//! results of I/Os when the file or the queue ends, or a device of safe code forgets the ring that it wraps.
//!
//! `BLKMQ_ROUNDS` is the number of rounds of the forgetful device, for which sanitizers run more than an ordinary test.
//! No test here starts a process: a forked process holds the locks until it runs another program.

#![cfg(target_os = "linux")]

use crate::{BLOCK, SECTORS, TempFile, block, call, fill, io, is_filled, open, service, start};
use blkmq_buf::{AlignedBuf, BufferPool};
use blkmq_core::{Instant, IoError, Op, Payload};
use blkmq_engine::{
    BioTable, BlockDevice, Config, DeviceQueue, Enqueued, Finished, Inflight, Io, Refusal,
    leaked_bios,
};
use blkmq_runtime::{Client, Service};
use blkmq_uring::{Conflict, OpenError, Permission, UringDevice};
use std::mem::ManuallyDrop;

const EROFS: IoError = IoError(30);

#[test]
pub fn what_is_no_storage_is_refused_with_a_reason() {
    let test = "what_is_no_storage_is_refused";
    let refused = |text: &str| open(test, text).map(|opened| opened.expect_err("refused"));
    let Some(folder) = refused("/") else { return };
    assert!(matches!(folder, OpenError::NotStorage { .. }), "{folder}");
    let text = refused("/nowhere/at/all").expect("io_uring is there").to_string();
    assert!(text.starts_with("cannot open /nowhere/at/all: "), "{text}");
    let file = TempFile::new(test, 0);
    let path = file.path().display();
    let text = refused(&path.to_string()).expect("io_uring is there").to_string();
    assert!(text.contains("has not room for one block of") && text.contains("size="), "{text}");
    let text =
        refused(&format!("{path},size=1,readonly=1")).expect("io_uring is there").to_string();
    assert!(text.ends_with("cannot be extended: it is to be opened with readonly=1"), "{text}");
    let text = refused(&format!("{path},depth=1")).expect("io_uring is there").to_string();
    assert!(text.starts_with("no parameter 'depth'; accepted: path, hw_queues"), "{text}");
}

#[test]
fn a_file_that_cannot_be_polled_is_refused() {
    let test = "a_file_that_cannot_be_polled_is_refused";
    let file = TempFile::new(test, BLOCK as u64);
    // Through the page cache it is refused on any disk.
    let Some(opened) = open(test, &format!("{},iopoll=1,direct=0", file.path().display())) else {
        return;
    };
    let refused = opened.expect_err("it cannot be polled");
    assert!(matches!(refused, OpenError::NotPolled { .. }), "{refused}");
    assert!(refused.to_string().contains("nvme.poll_queues=N"), "{refused}");
}

#[test]
pub fn a_file_is_made_as_large_as_it_is_wanted_and_never_smaller() {
    let test = "a_file_is_made_as_large_as_it_is_wanted";
    let file = TempFile::new(test, 5);
    let Some(device) = file.open(test, ",size=2") else { return };
    assert_eq!(device.shape.limits.capacity, 2 << 11);
    let bytes = file.bytes();
    assert!(bytes[..5] == [0; 5] && bytes[5..].chunks(BLOCK).all(|b| b.iter().any(|b| *b != 0)));
    let device = file.open(test, ",size=1,readonly=1").expect("io_uring is there");
    assert_eq!(device.shape.limits.capacity, 2 << 11, "large enough already");
}

#[test]
pub fn the_capacity_is_in_whole_blocks() {
    let test = "the_capacity_is_in_whole_blocks";
    let file = TempFile::new(test, 3 * BLOCK as u64 + 100);
    let Some(device) = file.open(test, "") else { return };
    assert_eq!(device.shape.limits.capacity, 24);
    assert!(device.notes.iter().any(|note| note.starts_with("the last 100 bytes")));
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    assert_eq!(call(&mut client, io(Op::Read, 2, block(1))).0, Ok(()));
    let now = client.clock().now();
    let refused = client.push_at(now, io(Op::Read, 3, block(1))).expect_err("beyond the end");
    assert_eq!(refused.why, Refusal::OutOfRange { capacity: 24 });
}

#[test]
pub fn memory_that_does_not_fit_is_refused() {
    let test = "memory_that_does_not_fit_is_refused";
    let file = TempFile::new(test, 4 * BLOCK as u64);
    let Some(device) = file.open(test, "") else { return };
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    for op in [Op::Read, Op::Write] {
        for wrong in [AlignedBuf::new(BLOCK - 512), AlignedBuf::new(2 * BLOCK), AlignedBuf::empty()]
        {
            assert_eq!(call(&mut client, io(op, 0, wrong)).0, Err(IoError::INVALID), "{op:?}");
        }
        let crooked = AlignedBuf::new(BLOCK + 1).split_off(1).expect("it can be divided");
        let expected = if device.memory_alignment() > 1 { Err(IoError::INVALID) } else { Ok(()) };
        assert_eq!(call(&mut client, io(op, 0, crooked)).0, expected, "{op:?}");
        assert_eq!(
            call(&mut client, io(op, 0, block(1))).0,
            Ok(()),
            "the device is none the worse"
        );
    }
    let half = Io { sectors: 0, ..io(Op::Read, 0, block(1)) };
    let now = client.clock().now();
    let refused = client.push_at(now, half).expect_err("no blocks at all");
    let block = device.shape.limits.logical_block_size;
    assert_eq!(refused.why, Refusal::Misaligned { block });
}

#[test]
pub fn a_read_only_device_is_not_changed() {
    let test = "a_read_only_device_is_not_changed";
    let file = TempFile::new(test, 4 * BLOCK as u64);
    let Some(device) = file.open(test, ",readonly=1") else { return };
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    assert_eq!(call(&mut client, io(Op::Write, 0, block(1))).0, Err(EROFS));
    assert_eq!(call(&mut client, io(Op::WriteZeroes, 0, AlignedBuf::empty())).0, Err(EROFS));
    let now = client.clock().now();
    let discard = io(Op::Discard, 0, AlignedBuf::empty());
    let refused = client.push_at(now, discard).expect_err("not offered");
    assert_eq!(refused.why, Refusal::Unsupported(Op::Discard));
    let flush = Io::new(Op::Flush, 0, 0, 0, AlignedBuf::empty());
    assert_eq!(call(&mut client, flush).0, Ok(()));
    assert_eq!(call(&mut client, io(Op::Read, 0, block(1))).0, Ok(()));
    assert_eq!(file.bytes(), [0; 4 * BLOCK]);
}

/// Another program shortens the file: reads of the missing part fail.
#[test]
pub fn the_end_of_the_file_is_an_error() {
    let test = "the_end_of_the_file_is_an_error";
    let file = TempFile::new(test, 4 * BLOCK as u64);
    let Some(device) = file.open(test, "") else { return };
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    let handle = std::fs::OpenOptions::new().write(true).open(file.path()).expect("it is there");
    handle.set_len(2 * BLOCK as u64).expect("it can be shortened");
    assert_eq!(call(&mut client, io(Op::Read, 1, block(1))).0, Ok(()));
    assert_eq!(call(&mut client, io(Op::Read, 2, block(1))).0, Err(IoError::IO));
    let across = Io::new(Op::Read, 0, 4 * SECTORS, 0, AlignedBuf::new(4 * BLOCK));
    assert_eq!(call(&mut client, across).0, Err(IoError::IO));
}

/// A queue with more driver tags than its ring has places.
#[test]
pub fn a_full_ring_makes_the_rest_wait() {
    let test = "a_full_ring_makes_the_rest_wait";
    let file = TempFile::new(test, 256 * BLOCK as u64);
    let Some(device) = file.open(test, ",hw_queue_depth=4") else { return };
    let mut config: Config<AlignedBuf> = device.config().expect("a small ring");
    config.device.hw_queue_depth = 64;
    let service = start(config, 1);
    let mut client = service.client().expect("one submitter");
    let now = client.clock().now();
    // Every other block is written, so that no I/Os merge.
    for n in 0..128 {
        client.push_at(now, io(Op::Write, 2 * n, block(n))).expect("there is credit");
    }
    let mut done = 0;
    client.wait(128, 128, |io| {
        assert_eq!(io.result, Ok(()));
        done += 1;
    });
    let stats = service.stats();
    assert_eq!((done, stats.completed_requests), (128, 128));
    assert!(stats.busy > 0, "it was full: {stats:?}");
}

/// The queue ends while the disk still writes into buffers, which return only when the disk is done. Otherwise the data
/// read would overwrite their later contents.
#[test]
pub fn a_queue_that_goes_away_waits_for_the_kernel() {
    const LEN: usize = 256 << 10;
    let test = "a_queue_that_goes_away_waits_for_the_kernel";
    let file = TempFile::new(test, 0);
    // The file is laid out, because holes are read without the disk.
    let Some(mut device) = file.open(test, ",size=16") else { return };
    let pool = BufferPool::new(64, LEN);
    device.register(&pool);
    let submit = |client: &mut Client<AlignedBuf>| {
        let now = client.clock().now();
        for n in 0..64 {
            let buf = pool.take().expect("all came back before");
            let sector = (n * 37 % 64) * (LEN as u64 / 512);
            let read = Io::new(Op::Read, sector, LEN as u32 / 512, n, buf);
            client.push_at(now, read).expect("there is credit");
        }
        client
            .push_at(now, Io::new(Op::Flush, 0, 0, 64, AlignedBuf::empty()))
            .expect("there is credit");
        client.flush_at(now);
    };
    for round in 0..4 {
        let queue = service(&device, 1);
        let mut client = queue.client().expect("one submitter");
        submit(&mut client);
        assert!(client.in_flight() > 0);
        drop((client, queue));
        assert_eq!(pool.free(), 64, "round {round}");
        let mut all = Vec::from_iter((0..64).map_while(|_| pool.take()));
        all.iter_mut().for_each(|buf| fill(buf, u64::MAX));
        // This takes as long as the disk needs for all I/Os in flight.
        let other = service(&device, 1);
        let mut client = other.client().expect("one submitter");
        for n in 0..64 {
            let sector = n * (LEN as u64 / 512);
            let read = Io::new(Op::Read, sector, LEN as u32 / 512, n, AlignedBuf::new(LEN));
            assert_eq!(call(&mut client, read).0, Ok(()));
        }
        let untouched = all.iter_mut().all(|buf| is_filled(buf.as_mut_slice(), u64::MAX));
        assert!(untouched, "round {round}: written to after they had come back");
    }
}

/// The thread that submitted ends before the kernel has begun, and another thread takes over the submitter.
#[test]
pub fn a_thread_may_submit_and_go() {
    let test = "a_thread_may_submit_and_go";
    let file = TempFile::new(test, 64 * BLOCK as u64);
    // Writes through the page cache are done by the kernel's workers, which belong to the submitting thread.
    for options in ["", ",direct=0"] {
        let Some(device) = file.open(test, options) else { return };
        for _ in 0..4 {
            let service = service(&device, 1);
            let clock = service.clock();
            let mut submitter = service.queue().submitter().expect("one submitter");
            let mut submitter = std::thread::scope(|scope| {
                let gone = scope.spawn(move || {
                    for n in 0..32 {
                        submitter
                            .push(clock.now(), io(Op::Write, 2 * n, block(n)))
                            .expect("credit");
                    }
                    let flush = Io::new(Op::Flush, 0, 0, 99, AlignedBuf::empty());
                    submitter.push(clock.now(), flush).expect("credit");
                    submitter.flush(clock.now());
                    submitter
                });
                gone.join().expect("it only submits")
            });
            let mut done = 0;
            while done < 33 {
                submitter.poll(clock.now());
                done += submitter.reap(u32::MAX, |io| assert_eq!(io.result, Ok(())));
                std::thread::yield_now();
            }
        }
    }
}

/// The bytes of an image must not be served as those of a disk, nor may `size` make it longer.
#[test]
pub fn an_image_of_another_format_is_refused_by_its_name_unless_it_is_to_be_raw() {
    let test = "an_image_of_another_format_is_refused";
    let file = TempFile::new(test, 0);
    std::fs::write(file.path(), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 8184]].concat()).expect("ours");
    let path = file.path().display();
    for options in ["", ",size=1", ",readonly=1"] {
        let refused = open(test, &format!("{path}{options}"));
        let Some(refused) = refused else { return };
        let error = refused.expect_err("it is an image");
        assert!(matches!(error, OpenError::Image { format: "qcow2", .. }), "{error}");
        assert!(error.to_string().contains("format=raw"), "{error}");
        assert_eq!(file.bytes().len(), 8192, "nothing is changed");
    }
    assert!(file.try_open(",format=raw").is_ok());
    let other = file.try_open(",format=qcow2").expect_err("only raw").to_string();
    assert_eq!(other, "format=qcow2 is not possible; accepted: raw");
}

/// A server must report that another program has removed its file.
#[test]
pub fn a_file_is_known_to_be_cut_grown_or_removed() {
    let test = "a_file_is_known_to_be_cut_grown_or_removed";
    let file = TempFile::new(test, 4 * BLOCK as u64);
    let Some(device) = file.open(test, "") else { return };
    let state = |blocks: usize, is_removed| {
        let bytes = (blocks * BLOCK) as u64;
        let (is_read_only, has_volatile_cache) = (false, true);
        blkmq_uring::FileState { bytes, is_read_only, is_removed, has_volatile_cache }
    };
    assert_eq!(device.state(), state(4, false));
    for blocks in [1, 9, 4] {
        let handle = std::fs::OpenOptions::new().write(true).open(file.path()).expect("ours");
        handle.set_len((blocks * BLOCK) as u64).expect("it can be resized");
        assert_eq!(device.state(), state(blocks, false));
    }
    std::fs::remove_file(file.path()).expect("it is ours");
    assert_eq!(device.state(), state(4, true));
}

const SIZE: u64 = 16 * BLOCK as u64;

fn in_use(opened: Result<UringDevice, OpenError>) -> (Conflict, String) {
    let error = opened.expect_err("it is in use");
    let text = error.to_string();
    assert!(error.is_busy());
    match error {
        OpenError::InUse { conflict, .. } => (conflict, text),
        other => panic!("{other}"),
    }
}

#[test]
fn one_writer_at_a_time_and_any_number_of_readers() {
    let test = "one_writer_at_a_time";
    let file = TempFile::new(test, SIZE);
    let path = file.path().display().to_string();
    let again = |options| file.try_open(options);
    let Some(first) = file.open(test, "") else { return };
    let (conflict, text) = in_use(again(""));
    assert_eq!(conflict, Conflict::Used(Permission::Write));
    let told = [path.as_str(), "has it open for writing", "readonly=1", "locking=0"];
    assert!(told.iter().all(|word| text.contains(word)), "{text}");
    in_use(again(",size=1"));
    assert_eq!(file.bytes().len() as u64, SIZE, "it was not extended");
    again(",locking=0").expect("as was asked for");
    let readers = [again(",readonly=1"), again(",readonly=1")].map(|it| it.expect("they share"));
    let second = first.clone();
    drop(first);
    in_use(again(""));
    drop(second);
    again("").expect("the writer has gone, and readers let it write");
    drop(readers);
}

/// The rings hold the file, too. The lock is free when they have been dropped.
#[test]
fn the_lock_goes_away_with_the_queues() {
    let test = "the_lock_goes_away_with_the_queues";
    let file = TempFile::new(test, SIZE);
    for options in ["", ",fixed=0", ",direct=0", ",hw_queues=4", ",size=1"] {
        for round in 0..20 {
            let Some(device) = file.open(test, options) else { return };
            let queues = device.queues::<AlignedBuf>().expect("small rings");
            drop(device);
            in_use(file.try_open(options));
            drop(queues);
            assert!(file.try_open("").is_ok(), "{options} round {round}");
        }
    }
}

const FORGOTTEN_IOS: u64 = 64;
const FORGOTTEN_LEN: usize = 32 << 10;
const FORGOTTEN_SECTORS: u32 = FORGOTTEN_LEN as u32 / 512;

struct Forgetful(ManuallyDrop<Box<dyn DeviceQueue<AlignedBuf>>>);

impl DeviceQueue<AlignedBuf> for Forgetful {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<AlignedBuf>, rq: Inflight) -> Enqueued {
        self.0.enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.0.commit(now);
    }

    fn reap(&mut self, _: Instant, _: &BioTable<AlignedBuf>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

#[test]
pub fn what_a_device_forgets_is_leaked_and_not_freed() {
    let test = "what_a_device_forgets_is_leaked_and_not_freed";
    let rounds = std::env::var("BLKMQ_ROUNDS").map_or(3, |n| n.parse().expect("a number"));
    let file = TempFile::new("forgetful", 16 << 20);
    for round in 0..rounds {
        let Some(device) = file.open(test, ",readonly=1,fixed=0") else { return };
        let queues = device.queues().expect("rings can be made");
        let wrap = |queue| Box::new(Forgetful(ManuallyDrop::new(queue))) as Box<_>;
        let config = Config::new(device.shape, queues.into_iter().map(wrap).collect());
        let service = Service::start(config).expect("valid");
        let mut client = service.client().expect("one place");
        let before = leaked_bios();
        for n in 0..FORGOTTEN_IOS {
            let sector = (round * FORGOTTEN_IOS + n) * 128 % 30_000 / 8 * 8;
            let io =
                Io::new(Op::Read, sector, FORGOTTEN_SECTORS, n, AlignedBuf::new(FORGOTTEN_LEN));
            client.push(io).expect("there is credit");
        }
        client.flush();
        drop(client);
        drop(service);
        // Memory of this test, which the kernel must not write to.
        let mine: Vec<Vec<u8>> = (0..80).map(|_| vec![0xAB; FORGOTTEN_LEN]).collect();
        let leaked = leaked_bios() - before;
        assert!(leaked > 0, "the device had some");
        for _ in 0..200 {
            std::thread::yield_now();
        }
        let changed = mine.iter().filter(|bytes| bytes.iter().any(|byte| *byte != 0xAB)).count();
        assert_eq!(changed, 0, "buffers that the kernel has written to");
    }
}
