//! Devices over the fake librbd, which fails, stalls and resizes on command.

use crate::sys::fake::{FAKE, OBJECT, Store};
use crate::{ImageSpec, OpenError, Options, RbdDevice};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, IoError, Rng};
use blkmq_engine::{BlockDevice, Io};
use blkmq_runtime::{Client, Service};
use std::sync::Arc;

const BLOCK: usize = 4096;
const SIZE: usize = 2 << 20;
const BLOCKS: u64 = (SIZE / BLOCK) as u64;

fn open(store: &str, options: &str) -> Result<RbdDevice, OpenError> {
    let (spec, options) = Options::parse(&format!("pool/image,conf={store}{options}"))?;
    RbdDevice::open_by(&FAKE, &spec, &options)
}

fn start(store: &str, options: &str) -> (RbdDevice, Service<AlignedBuf>) {
    let device = open(store, options).expect("it is there");
    let config = device.config().expect("queues");
    (device, Service::start(config).expect("a service"))
}

/// Returns whether the store has no open handles.
fn is_closed(store: &Store) -> bool {
    store.state().open == [0; 4]
}

/// The bytes of block `n` in round `round`.
fn pattern(n: u64, round: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(BLOCK);
    let mut rng = Rng::new(n << 32 | round);
    let words = buf.as_mut_slice().chunks_exact_mut(8);
    words.for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
    buf
}

/// Writes every block in random order, and reads all of them back, in plugs.
fn round_trip(client: &mut Client<AlignedBuf>, round: u64, blocks: u64) {
    let mut order = Vec::from_iter(0..blocks);
    let mut rng = Rng::new(round);
    (1..order.len()).rev().for_each(|n| order.swap(n, rng.below(n as u64 + 1) as usize));
    // Neighbouring blocks, which merge into requests of several pieces.
    order[..blocks as usize / 4].sort_unstable();
    for is_write in [true, false] {
        for batch in order.chunks(24) {
            for n in batch {
                let at = Bytes(n * BLOCK as u64);
                let io = if is_write {
                    Io::write(at, pattern(*n, round))
                } else {
                    Io::read(at, AlignedBuf::new(BLOCK))
                };
                client.push(io.cookie(*n)).expect("there is credit");
            }
            let all = batch.len() as u32;
            let done = client.wait(all, all, |mut io| {
                assert_eq!(io.result, Ok(()), "block {}", io.cookie);
                let mut expected = pattern(io.cookie, round);
                assert!(io.payload.as_mut_slice() == expected.as_mut_slice(), "{}", io.cookie);
            });
            assert_eq!(done, all);
        }
    }
}

#[test]
fn blocks_come_back_through_one_hardware_queue_and_through_several() {
    for (name, options) in [("one", ""), ("four", ",hw_queues=4,hw_queue_depth=3")] {
        let store = Store::new(name, SIZE);
        let (device, service) = start(name, options);
        for round in 0..2 {
            round_trip(&mut service.client().expect("a client"), round, BLOCKS);
        }
        assert_eq!(store.state().bytes[..BLOCK], *pattern(0, 1).as_mut_slice());
        assert_eq!(device.state().given_up, 0);
        drop(service);
        assert!(is_closed(&store), "{:?}", store.state().open);
    }
}

/// A hardware queue is signalled, and its threads wake up, when another queue finds its replies.
#[test]
fn replies_reach_the_hardware_queue_that_they_belong_to() {
    let store = Store::new("sorted", SIZE);
    let device = open("sorted", ",hw_queues=4").expect("it is there");
    let mut config = device.config().expect("queues");
    config.submitters = 4;
    let service = Service::<AlignedBuf>::start(config).expect("a service");
    store.state().is_stalled = true;
    std::thread::scope(|scope| {
        for n in 0..4 {
            let mut client = service.client().expect("a client");
            scope.spawn(move || {
                client.push(Io::write(Bytes(n * 65536), pattern(n, 9))).expect("credit");
                assert_eq!(client.wait(1, 1, |io| assert_eq!(io.result, Ok(()))), 1);
            });
        }
        while store.waiting() < 4 {
            std::thread::yield_now();
        }
        store.release();
    });
    drop(service);
    assert!(is_closed(&store));
}

#[test]
fn discards_zeroes_and_flushes_reach_the_image() {
    let store = Store::new("others", SIZE);
    store.state().bytes.fill(7);
    let (device, service) = start("others", "");
    let limits = device.shape().limits;
    assert_eq!((limits.chunk_sectors, limits.discard_granularity), ((OBJECT / 512) as u32, 65536));
    let mut disk = service.blocking().expect("a client");
    for io in [
        Io::discard(Bytes(0)..Bytes(65536)),
        Io::write_zeroes(Bytes(131_072)..Bytes(135_168)),
        Io::flush(),
        Io::write(Bytes(200_704), pattern(3, 3)).fua(),
    ] {
        assert_eq!(disk.call(io).expect("taken").0, Ok(()));
    }
    let state = store.state();
    let is = |range: std::ops::Range<usize>, byte| state.bytes[range].iter().all(|it| *it == byte);
    assert!(is(0..65536, 0) && is(65536..131_072, 7) && is(131_072..135_168, 0));
    assert!(is(135_168..200_704, 7));
    // One explicit flush, and one that makes the last write durable.
    assert_eq!(state.flushes, 2);
}

#[test]
fn errors_keep_their_number_and_free_everything() {
    let store = Store::new("errors", SIZE);
    let (_, service) = start("errors", "");
    let mut disk = service.blocking().expect("a client");
    let mut read = || disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0;
    for errno in [libc::ENOENT, libc::ESHUTDOWN, libc::ENOSPC, libc::EPERM] {
        store.state().answers = [errno].into();
        assert_eq!(read(), Err(IoError(errno as u16)));
        store.state().refuses = Some(errno);
        assert_eq!(read(), Err(IoError(errno as u16)));
    }
    assert_eq!(read(), Ok(()));
    drop((disk, service));
    assert!(is_closed(&store));
}

#[test]
fn a_resize_is_noticed_and_the_new_end_is_one() {
    let store = Store::new("resized", SIZE);
    let (device, service) = start("resized", "");
    let mut disk = service.blocking().expect("a client");
    let last = Bytes((SIZE - BLOCK) as u64);
    let mut read = |at| disk.call(Io::read(at, AlignedBuf::new(BLOCK))).expect("taken").0;
    assert_eq!((read(last), device.state().resized), (Ok(()), 0));
    store.resize(SIZE / 2);
    assert_eq!(device.state().resized, 1, "no I/O is needed for that");
    assert_eq!((read(Bytes(0)), read(last)), (Ok(()), Err(IoError::INVALID)));
    let state = device.state();
    assert_eq!((state.size, state.resized), (SIZE as u64 / 2, 1));
    assert!(device.queues::<AlignedBuf>().is_err(), "it has become smaller");
    drop(service);
    store.resize(SIZE * 2);
    assert_eq!(device.queues::<AlignedBuf>().expect("larger").len(), 1);
}

/// Requests in flight when the service ends are returned, with their memory, when the cluster answers.
#[test]
fn the_end_waits_for_what_is_in_flight() {
    let store = Store::new("ending", SIZE);
    let (device, service) = start("ending", "");
    let mut client = service.client().expect("a client");
    store.state().is_stalled = true;
    for n in 0..8 {
        client.push(Io::read(Bytes(n * 65536), AlignedBuf::new(BLOCK))).expect("credit");
    }
    client.flush();
    assert!(store.waiting() > 0);
    drop(client);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(service));
        while store.waiting() < 8 {
            std::thread::yield_now();
        }
        store.release();
    });
    assert_eq!(device.state().given_up, 0);
    assert!(is_closed(&store), "{:?}", store.state().open);
}

/// An unresponsive cluster does not keep a program from ending. Memory that the cluster may still write to is leaked.
#[test]
fn the_end_does_not_wait_for_ever() {
    let store = Store::new("gone", SIZE);
    let (device, service) = start("gone", "");
    let mut client = service.client().expect("a client");
    store.state().is_stalled = true;
    client.push(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("credit");
    client.flush();
    drop((client, service));
    assert_eq!(device.state().given_up, 1);
    assert_eq!(store.state().open, [1; 4]);
    // Too late, but the memory still exists.
    store.state().bytes.fill(1);
    store.release();
}

/// The loss of one image does not affect another.
#[test]
fn a_stalled_image_does_not_touch_another() {
    let (stalled, sound) = (Store::new("stalled", SIZE), Store::new("sound", SIZE));
    let (_, first) = start("stalled", "");
    let (_, second) = start("sound", "");
    stalled.state().is_stalled = true;
    let mut client = first.client().expect("a client");
    client.push(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("credit");
    client.flush();
    round_trip(&mut second.client().expect("a client"), 1, 64);
    drop(second);
    assert!(is_closed(&sound));
    stalled.release();
    assert_eq!(client.wait(1, 1, |io| assert_eq!(io.result, Ok(()))), 1);
}

#[test]
fn a_snapshot_and_a_device_that_may_not_write_refuse_to() {
    let _store = Store::new("readonly", SIZE);
    let snapshot = ImageSpec { snapshot: Some("s".into()), ..spec("pool/image") };
    let options = Options { conf: Some("readonly".into()), ..Options::default() };
    let snapshot = RbdDevice::open_by(&FAKE, &snapshot, &options).expect("a snapshot");
    for device in [snapshot, open("readonly", ",readonly=1").expect("it is there")] {
        let service = Service::start(device.config().expect("queues")).expect("a service");
        let mut disk = service.blocking().expect("a client");
        let write = disk.call(Io::write(Bytes(0), pattern(0, 0))).expect("taken").0;
        assert_eq!(write, Err(IoError(libc::EROFS as u16)));
        assert_eq!(disk.call(Io::flush()).expect("taken").0, Ok(()));
    }
}

fn spec(text: &str) -> ImageSpec {
    ImageSpec::parse(text).expect(text)
}

#[test]
fn what_is_not_there_is_named_and_leaves_nothing_open() {
    let store = Store::new("refusals", SIZE);
    let open = |name: &str, conf: Option<&str>| {
        let options = Options { conf: conf.map(str::to_owned), ..Options::default() };
        RbdDevice::open_by(&FAKE, &spec(name), &options).expect_err(name).to_string()
    };
    let conf = Some("refusals");
    assert_eq!(open("pond/image", conf), "the cluster has no pool 'pond'");
    assert_eq!(open("pool/imago", conf), "there is no image 'pool/imago'");
    assert!(open("pool/image", Some("/nowhere")).starts_with("/nowhere: No such file"));
    assert!(open("pool/image", None).contains("accepted: conf=PATH"));
    assert!(is_closed(&store));
    store.resize(100);
    assert!(open("pool/image", conf).contains("the image has 100 bytes"));
    assert!(is_closed(&store));
}

#[test]
fn the_cache_and_the_times_are_settings_of_the_client() {
    let store = Store::new("settings", SIZE);
    let device = open("settings", ",cache=writeback,timeout=7,connect_timeout=9").expect("there");
    let of = |name: &str| {
        let found = store.state().settings.iter().find(|(it, _)| it == name).cloned();
        found.expect(name).1
    };
    assert_eq!((of("rbd_cache"), of("rbd_cache_policy")), ("true".into(), "writeback".into()));
    // Opening an image has its own time limit, however long an I/O may take.
    assert_eq!((of("client_mount_timeout"), of("rados_osd_op_timeout")), ("9".into(), "9".into()));
    let queues = device.queues::<AlignedBuf>().expect("queues");
    assert_eq!(of("rados_osd_op_timeout"), "7");
    drop(queues);
    let _: Arc<Store> = store;
}
