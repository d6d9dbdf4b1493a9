//! Every request, in every form of headers: its effect, what remains of it after the power is cut, and its latency.
//!
//! The power of a modelled device with a volatile cache is cut: data that the protocol calls durable must survive. The
//! latency of a modelled device is the latency that a client sees. Shares and latencies under load depend on the
//! machine, and are measured with real clients (`cargo xtask serve-isolation`).

use crate::rig::{Client, Rig, serve, serve_on};
use blkmq::Device;
use blkmq::core::Class;
use blkmq_nbd::{Command, CommandFlags, ErrorCode, HeaderStyle, TransmissionFlags};
use blkmq_server::{Bounds, Cache, Export, Region};
use std::io::Write;

const STYLES: [HeaderStyle; 3] =
    [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];
const NONE: CommandFlags = CommandFlags::NONE;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 512) as u8).collect()
}

#[test]
fn what_is_written_is_read() {
    let rig = serve(&[Export::new("disk", 0)]);
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        assert_eq!(client.agreed.style, style);
        for len in [512, 4096, 16 << 10, (16 << 10) + 512, 1 << 20, 5 << 20] {
            let data = pattern(len);
            assert_eq!(client.write(4096, &data), Ok(vec![]), "{style:?}, {len}");
            assert!(client.read(4096, len as u64) == Ok(data), "{style:?}, {len}");
        }
        assert_eq!(client.call(Command::Flush, NONE, 0, 0, &[]), Ok(vec![]));
        let durable = pattern(512);
        assert_eq!(client.call(Command::Write, CommandFlags::FUA, 0, 512, &durable), Ok(vec![]));
        assert_eq!(client.call(Command::Cache, NONE, 0, 4096, &[]), Ok(vec![]));
        assert_eq!(client.read(0, 0), Ok(vec![]), "no bytes are no error");
    }
}

#[test]
fn zeroes_are_written_by_the_disk_or_byte_by_byte() {
    let rig = serve(&[Export::new("disk", 0)]);
    let mut client = rig.client("disk");
    for flags in [NONE, CommandFlags::NO_HOLE, CommandFlags::FUA, CommandFlags::FAST_ZERO] {
        let data = pattern(3 << 20);
        client.write(0, &data).expect("it fits");
        let zeroed = client.call(Command::WriteZeroes, flags, 512, 2 << 20, &[]);
        assert_eq!(zeroed, Ok(vec![]), "{flags:?}");
        let mut expected = data;
        expected[512..512 + (2 << 20)].fill(0);
        assert!(client.read(0, 3 << 20) == Ok(expected), "{flags:?}");
    }
}

#[test]
fn fast_zeroes_without_holes_are_refused_and_change_nothing() {
    let rig = serve(&[Export::new("disk", 0)]);
    let mut client = rig.client("disk");
    client.write(0, &[7; 4096]).expect("it fits");
    let flags = CommandFlags::FAST_ZERO | CommandFlags::NO_HOLE;
    let answer = client.call(Command::WriteZeroes, flags, 0, 4096, &[]);
    assert_eq!(answer, Err(ErrorCode::NotSupported));
    assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]));
}

#[test]
fn a_disk_that_moves_no_bytes_shows_nobody_elses() {
    let rig = serve_on("null", &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    for n in 0..2000 {
        client.write(n * 4096, &[7; 4096]).expect("it fits");
    }
    assert_eq!(rig.client("disk").read(0, 4096), Ok(vec![0; 4096]));
}

#[test]
fn holes_are_where_nothing_was_written() {
    let rig = serve_on("memory,size=16,discard=1", &[Export::new("disk", 0)], Bounds::default());
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let mut client = Client::connect_for_status(&rig.socket, "disk", style);
        let (kib, all) = (1 << 10, 16 << 20);
        client.write(64 * kib, &[7; 8 << 10]).expect("it fits");
        client.write(72 * kib, &[7; 4 << 10]).expect("it fits");
        let data = (12 * kib, 0);
        let expected = [(64 * kib, 3), data, (all - 76 * kib, 3)];
        assert_eq!(client.status(0, all, NONE), Ok(expected.to_vec()));
        assert_eq!(client.status(70 * kib, kib, NONE), Ok(vec![(kib, 0)]));
        let one = client.status(0, all, CommandFlags::REQ_ONE);
        assert_eq!(one, Ok(vec![(64 * kib, 3)]));
        let trimmed = client.call(Command::Trim, NONE, 64 * kib, 12 * kib, &[]);
        assert_eq!(trimmed, Ok(vec![]));
        assert_eq!(client.status(0, all, NONE), Ok(vec![(all, 3)]));
    }
    let mut without = rig.client("disk");
    assert_eq!(without.call(Command::BlockStatus, NONE, 0, 4096, &[]), Err(ErrorCode::Invalid));
}

/// Regression test: ESHUTDOWN of a device, as librbd returns on the cluster's blocklist, was passed on as that of the
/// server. A client that reconnects on it, like ours, kept trying until its timeout.
#[test]
fn a_device_that_is_shut_down_is_no_server_that_is() {
    let rig = serve_on(
        "faults,error=1,errno=108:memory,size=16",
        &[Export::new("disk", 0)],
        Bounds::default(),
    );
    let mut client = rig.client("disk");
    assert_eq!(client.read(0, 4096), Err(ErrorCode::Io));
    assert_eq!(client.write(0, &[7; 4096]), Err(ErrorCode::Io));
}

/// A gateway to another server reports that server's holes.
#[test]
fn holes_behind_a_gateway_are_holes() {
    let store = serve_on("memory,size=16,discard=1", &[Export::new("store", 0)], Bounds::default());
    let device = format!("nbd+unix:///store?socket={}", store.socket.display());
    let gateway = serve_on(&device, &[Export::new("disk", 0)], Bounds::default());
    let (kib, all) = (1 << 10, 16 << 20);
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let mut client = Client::connect_for_status(&gateway.socket, "disk", style);
        client.write(64 * kib, &[7; 4 << 10]).expect("it fits");
        let expected = [(64 * kib, 3), (4 * kib, 0), (all - 68 * kib, 3)];
        assert_eq!(client.status(0, all, NONE), Ok(expected.to_vec()), "{style:?}");
        let mut bytes = vec![0; 128 << 10];
        bytes[64 << 10..68 << 10].fill(7);
        assert!(client.read(0, 128 * kib) == Ok(bytes), "{style:?}");
    }
}

#[test]
fn large_reads_of_holes_move_no_bytes() {
    let rig = serve_on("memory,size=16,discard=1", &[Export::new("disk", 0)], Bounds::default());
    let kib = 1 << 10;
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        let has_holes = style != HeaderStyle::Simple;
        client.write(512 * kib, &[7; 512]).expect("it fits");
        assert!(client.read(0, 512 * kib) == Ok(vec![0; 512 << 10]), "{style:?}");
        assert_eq!(client.holes, if has_holes { 512 * kib } else { 0 }, "{style:?}");
        let mut expected = vec![0; 64 << 10];
        expected[32 << 10..][..512].fill(7);
        assert!(client.read(480 * kib, 64 * kib) == Ok(expected), "{style:?}");
        let whole = client.call(Command::Read, CommandFlags::DF, 1024 * kib, 64 * kib, &[]);
        if has_holes {
            assert!(whole == Ok(vec![0; 64 << 10]), "{style:?}");
        }
        let trimmed = client.call(Command::Trim, NONE, 512 * kib, 4 * kib, &[]);
        assert_eq!(trimmed, Ok(vec![]));
    }
}

#[test]
fn a_read_only_export_drains_what_it_refuses() {
    let exports = [Export { read_only: true, ..Export::new("disk", 0) }];
    let rig = serve(&exports);
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        let denied = Err(ErrorCode::NotPermitted);
        assert_eq!(client.write(0, &pattern(100 << 10)), denied);
        assert_eq!(client.call(Command::Trim, NONE, 0, 4096, &[]), denied);
        assert_eq!(client.call(Command::WriteZeroes, NONE, 0, 4096, &[]), denied);
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "the next request is understood");
    }
}

#[test]
fn regions_are_apart_and_end_where_they_end() {
    let region = |name: &str, offset, size| {
        let region = Some(Region { offset, size: Some(size) });
        Export { region, ..Export::new(name, 0) }
    };
    let rig = serve(&[region("low", 0, 1 << 20), region("high", 1 << 20, 2 << 20)]);
    let (mut low, mut high) = (rig.client("low"), rig.client("high"));
    assert_eq!((low.agreed.details.size, high.agreed.details.size), (1 << 20, 2 << 20));
    low.write(0, &[1; 1 << 20]).expect("all of it");
    high.write(0, &[2; 1 << 20]).expect("half of it");
    assert_eq!(low.read((1 << 20) - 512, 512), Ok(vec![1; 512]));
    assert_eq!(high.read(0, 512), Ok(vec![2; 512]));
    assert_eq!(low.write(1 << 20, &[3; 512]), Err(ErrorCode::NoSpace));
    assert_eq!(low.read(1 << 20, 512), Err(ErrorCode::Invalid));
    assert_eq!(low.read(u64::MAX - 511, 512), Err(ErrorCode::Invalid));
    assert_eq!(high.read(0, 512), Ok(vec![2; 512]), "nothing reached the neighbour");
}

#[test]
fn requests_that_arrive_together_or_in_crumbs_are_the_same() {
    let rig = serve(&[Export::new("disk", 0)]);
    for crumb in [1, 7, 100, 1 << 20] {
        let mut client = rig.client("disk");
        let data = pattern(8192);
        let mut bytes = Vec::new();
        for n in 0..20_u64 {
            let span = blkmq_nbd::Span { offset: n * 8192, length: 8192 };
            let (_, header) = client.request(Command::Write, NONE, span);
            bytes.extend(header);
            bytes.extend_from_slice(&data);
        }
        let end = if crumb == 1 { 3 * (8192 + 32) } else { bytes.len() };
        for part in bytes[..end].chunks(crumb) {
            client.socket.write_all(part).expect("the server reads");
        }
        for _ in 0..end / (8192 + 32) {
            assert_eq!(client.answer().1, Ok(vec![]));
        }
        assert!(client.read(8192, 8192) == Ok(data), "in crumbs of {crumb}");
    }
}

#[test]
fn what_one_connection_wrote_another_reads_and_flushes() {
    let rig = serve(&[Export::new("disk", 0)]);
    let (mut one, mut other) = (rig.client("disk"), rig.client("disk"));
    assert!(one.agreed.details.flags.contains(TransmissionFlags::CAN_MULTI_CONN));
    for n in 0..50 {
        let data = [n; 4096];
        one.write(0, &data).expect("it fits");
        assert_eq!(other.read(0, 4096), Ok(data.to_vec()));
    }
    assert_eq!(other.call(Command::Flush, NONE, 0, 0, &[]), Ok(vec![]));
}

#[test]
fn an_unaligned_request_is_invalid_and_the_next_one_is_understood() {
    let rig = serve(&[Export::new("disk", 0)]);
    let mut client = rig.client("disk");
    assert_eq!(client.write(100, &[1; 100]), Err(ErrorCode::Invalid));
    assert_eq!(client.read(0, 511), Err(ErrorCode::Invalid));
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

/// Blocks of 4 KiB that each connection writes.
const BLOCKS: u64 = 64;
/// The number of power cuts, each with different blocks written back by chance.
const SEEDS: u64 = 8;

fn block(at: u64) -> Vec<u8> {
    (at + 1).to_le_bytes().repeat(512)
}

/// Serves a memory device with a cache for everything that a test writes.
fn cached(cache: Cache) -> Rig {
    let export = Export { cache, ..Export::new("disk", 0) };
    serve_on("memory,size=16,cache_size=16", &[export], Bounds::default())
}

/// Cuts the power. Returns the blocks of `wanted` whose contents are lost.
fn lost(rig: &Rig, seed: u64, wanted: impl Iterator<Item = u64>) -> Vec<u64> {
    let Device::Virtual(device) = rig.server.disks()[0].device() else {
        unreachable!("memory is a virtual device")
    };
    device.memory().expect("it stores").crash(seed);
    let mut client = rig.client("disk");
    wanted.filter(|at| client.read(at * 4096, 4096) != Ok(block(*at))).collect()
}

#[test]
fn a_flush_covers_the_writes_that_other_connections_were_answered() {
    for seed in 0..SEEDS {
        let rig = cached(Cache::Writeback);
        let (mut one, mut other) = (rig.client("disk"), rig.client("disk"));
        for at in 0..BLOCKS {
            assert_eq!(one.write(at * 4096, &block(at)), Ok(Vec::new()));
        }
        assert_eq!(other.call(Command::Flush, NONE, 0, 0, &[]), Ok(Vec::new()));
        assert_eq!(lost(&rig, seed, 0..BLOCKS), Vec::<u64>::new(), "seed {seed}");
    }
}

#[test]
fn a_write_with_fua_is_durable_without_a_flush() {
    let mut all = 0;
    for seed in 0..SEEDS {
        let rig = cached(Cache::Writeback);
        let mut client = rig.client("disk");
        for (range, flags) in [(0..BLOCKS, CommandFlags::FUA), (BLOCKS..2 * BLOCKS, NONE)] {
            for at in range {
                let answer = client.call(Command::Write, flags, at * 4096, 4096, &block(at));
                assert_eq!(answer, Ok(Vec::new()));
            }
        }
        let lost = lost(&rig, seed, 0..2 * BLOCKS);
        assert!(lost.iter().all(|at| *at >= BLOCKS), "seed {seed}: {lost:?}");
        all += lost.len();
    }
    assert!(all > 0, "the device has no cache that could lose anything");
}

/// Regression test: a TRIM with FUA was answered like one without FUA.
#[test]
fn a_trim_with_fua_is_durable_without_a_flush() {
    for seed in 0..SEEDS {
        let export = Export::new("disk", 0);
        let device = "memory,size=16,cache_size=16,discard=1";
        let rig = serve_on(device, &[export], Bounds::default());
        let mut client = rig.client("disk");
        for at in 0..BLOCKS {
            let answer =
                client.call(Command::Write, CommandFlags::FUA, at * 4096, 4096, &block(at));
            assert_eq!(answer, Ok(Vec::new()));
        }
        let all = (0, BLOCKS * 4096);
        assert_eq!(client.call(Command::Trim, CommandFlags::FUA, all.0, all.1, &[]), Ok(vec![]));
        let left = BLOCKS as usize - lost(&rig, seed, 0..BLOCKS).len();
        assert_eq!(left, 0, "seed {seed}: blocks are back that were trimmed");
    }
}

#[test]
fn a_write_through_the_cache_is_durable_without_a_word_about_it() {
    for seed in 0..SEEDS {
        let rig = cached(Cache::Writethrough);
        let mut client = rig.client("disk");
        for at in 0..BLOCKS {
            assert_eq!(client.write(at * 4096, &block(at)), Ok(Vec::new()));
        }
        let zeroed = client.call(Command::WriteZeroes, NONE, 0, 4096, &[]);
        assert_eq!(zeroed, Ok(Vec::new()));
        assert_eq!(lost(&rig, seed, 1..BLOCKS), Vec::<u64>::new(), "seed {seed}");
        assert_eq!(rig.client("disk").read(0, 4096), Ok(vec![0; 4096]), "seed {seed}");
    }
}

/// Regression test: a worker slept in whole milliseconds, so that every I/O of a faster device took one.
#[test]
fn an_io_of_50_microseconds_takes_less_than_a_millisecond() {
    let device = "null,size=16,irqmode=2,completion_nsec=50000";
    let rig = serve_on(device, &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    let clock = rig.server.disks()[0].service().clock();
    let times = (0..500).map(|_| {
        let begun = clock.now();
        client.read(0, 512).expect("it is there");
        (clock.now() - begun).0
    });
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    // A short one: a busy machine delays many I/Os, but never speeds one up.
    let tenth = times[times.len() / 10];
    assert!((50_000..1_000_000).contains(&tenth), "{tenth} ns");
}

/// The device serves one request at a time, in 5 ms. Reads of a real-time export that arrive after 64 others, and
/// follow them on the disk, are served before most of them.
#[test]
fn a_real_time_export_is_served_first() {
    let export = |name: &str, offset, class| {
        let region = Some(Region { offset, size: Some(8 << 20) });
        Export { region, class, ..Export::new(name, 0) }
    };
    let exports = [export("idle", 0, Class::Idle), export("urgent", 8 << 20, Class::Realtime)];
    let device = "null,size=16,irqmode=2,completion_nsec=5000000,hw_queue_depth=1";
    let rig = serve_on(device, &exports, Bounds::default());
    let service = rig.server.disks()[0].service();
    // All of them are in the scheduler.
    service.set_attribute("queue/nr_requests", "128").expect("it can be changed");
    let clock = service.clock();
    let (mut idle, mut urgent) = (rig.client("idle"), rig.client("urgent"));
    let send = |client: &mut Client, count: u64| {
        for at in 0..count {
            client.send(Command::Read, CommandFlags::NONE, at << 16, 512, &[]);
        }
    };
    send(&mut idle, 64);
    // The first ones have reached the device.
    idle.answer().1.expect("it is there");
    send(&mut urgent, 8);
    let last = |mut client: Client, count| {
        std::thread::spawn(move || {
            (0..count).for_each(|_| drop(client.answer().1.expect("it is there")));
            clock.now()
        })
    };
    let [idle, urgent] = [last(idle, 63), last(urgent, 8)].map(|it| it.join().expect("answers"));
    assert!(urgent < idle, "{} ns later than all others", (urgent - idle).0);
}
