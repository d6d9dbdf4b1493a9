//! Every request, in every form of headers: its effect, what remains of it after the power is cut, and its latency; and
//! the present state of a device as clients see it: its size, its access mode, and zeroes of the requested kind.
//!
//! The power of a modelled device with a volatile cache is cut: data that the protocol calls durable must survive. The
//! latency of a modelled device is the latency that a client sees. Shares and latencies under load depend on the
//! machine, and are measured with real clients (`cargo xtask serve-isolation`).

use crate::rig::{Client, Rig, serve, serve_on, until};
use blkmq::Device;
use blkmq::core::Class;
use blkmq_nbd::server::{Config, Handshake, Next};
use blkmq_nbd::{
    BlockSizes, Command, CommandFlags, ErrorCode, ExportInfo, Exports, HeaderStyle,
    TransmissionFlags,
};
use blkmq_server::control::{Answer, ExportSettings, Request};
use blkmq_server::{Bounds, Cache, Export, Format, Region};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

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

const MIB: u64 = 1 << 20;
const WRITES: [Command; 3] = [Command::Write, Command::Trim, Command::WriteZeroes];

/// A file of `mib` MiB of data in a temporary folder.
struct Image {
    path: PathBuf,
    _folder: TempDir,
}

impl Image {
    fn new(mib: u64) -> Self {
        Self::new_in(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder"), mib)
    }

    fn new_in(folder: TempDir, mib: u64) -> Self {
        let path = folder.path().join("disk.img");
        let mut file = File::create(&path).expect("the folder is ours");
        (0..mib).for_each(|_| file.write_all(&[0x5a; 1 << 20]).expect("there is room"));
        Self { path, _folder: folder }
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).expect("it is there")
    }

    /// The number of bytes allocated by the file system.
    fn stored(&self) -> u64 {
        std::fs::metadata(&self.path).expect("it is there").blocks() * 512
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).expect("it is there").len()
    }

    /// Serves the file. Returns `None`, and prints a line with the name of the test, if io_uring is unavailable.
    fn serve(&self, test: &str, options: &str) -> Option<Rig> {
        self.serve_as(test, options, &[Export::new("disk", 0)])
    }

    fn serve_as(&self, test: &str, options: &str, exports: &[Export]) -> Option<Rig> {
        let device = format!("uring:{}{options}", self.path.display());
        if let Err(error) = blkmq::open(&device)
            && error.is_unavailable()
        {
            println!("skipped {test}: {error}");
            return None;
        }
        Some(serve_on(&device, exports, Bounds::default()))
    }
}

/// Changes the range by each command. Returns the answers.
fn change(client: &mut Client, at: u64) -> [Result<Vec<u8>, ErrorCode>; 3] {
    WRITES.map(|command| {
        let data = if command == Command::Write { &[7; 64 << 10][..] } else { &[] };
        client.call(command, NONE, at, 64 << 10, data)
    })
}

/// Regression test: a large read beyond the end of a truncated file was answered as a hole, so that copies of the file
/// succeeded with zeroes in place of lost data.
#[test]
fn a_file_that_was_cut_short_fails_behind_its_end_and_shows_no_zeroes() {
    let test = "a_file_that_was_cut_short_fails_behind_its_end";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    image.file().set_len(MIB).expect("it can be cut");
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        assert_eq!(client.read(0, MIB), Ok(vec![0x5a; 1 << 20]), "{style:?}");
        for (at, length) in [(2 * MIB, 4096), (2 * MIB, 64 << 10), (MIB, MIB), (MIB / 2, MIB)] {
            let answer = client.read(at, length);
            assert_eq!(answer, Err(ErrorCode::Io), "{style:?}: {length} bytes at {at}");
        }
    }
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let mut client = Client::connect_for_status(&rig.socket, "disk", style);
        assert_eq!(client.status(2 * MIB, MIB, NONE), Ok(vec![(MIB, 0)]), "behind the end");
        assert_eq!(client.status(0, 4 * MIB, NONE), Ok(vec![(4 * MIB, 0)]), "across it");
    }
}

/// Regression test: a write beyond the end of a truncated file extended it again, with a hole that read as zeroes in
/// place of data; TRIM and WRITE_ZEROES succeeded where reads failed.
#[test]
fn nothing_is_changed_behind_the_end_of_a_file_that_was_cut_short() {
    let test = "nothing_is_changed_behind_the_end_of_a_file";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    image.file().set_len(MIB).expect("it can be cut");
    assert_eq!(client.read(3 * MIB, 4096), Err(ErrorCode::Io), "it is noticed");
    assert_eq!(change(&mut client, 3 * MIB), [const { Err(ErrorCode::Io) }; 3]);
    assert_eq!(image.len(), MIB);
    assert_eq!(change(&mut client, MIB / 2), [const { Ok(Vec::new()) }; 3], "before the end");
}

/// A client keeps the size that it agreed on; the next one gets that of the file. A region with a fixed size does not
/// grow.
#[test]
fn a_file_that_has_grown_is_offered_to_the_next_client() {
    let test = "a_file_that_has_grown_is_offered";
    let image = Image::new(4);
    let region = |offset, size| Some(Region { offset, size });
    let exports = [
        Export::new("disk", 0),
        Export { region: region(MIB, None), ..Export::new("rest", 0) },
        Export { region: region(0, Some(2 * MIB)), ..Export::new("part", 0) },
    ];
    let Some(rig) = image.serve_as(test, "", &exports) else { return };
    let mut before = rig.client("disk");
    assert_eq!(before.agreed.details.size, 4 * MIB);
    image.file().set_len(8 * MIB + 100).expect("it can grow");
    let size = |name: &str| rig.client(name).agreed.details.size;
    let sizes = || match rig.server.handle().ask(Request::List) {
        Answer::List { exports, .. } => Vec::from_iter(exports.iter().map(|export| export.bytes)),
        other => panic!("no list but {other:?}"),
    };
    until(|| sizes() == [8 * MIB, 7 * MIB, 2 * MIB]);
    assert_eq!([size("disk"), size("rest"), size("part")], [8 * MIB, 7 * MIB, 2 * MIB]);
    assert_eq!(before.read(6 * MIB, 4096), Err(ErrorCode::Invalid), "its own end");
    let mut client = Client::connect_for_status(&rig.socket, "disk", HeaderStyle::Structured);
    assert_eq!(client.status(4 * MIB, 4 * MIB, NONE), Ok(vec![(4 * MIB, 3)]), "a hole");
    assert_eq!(client.read(6 * MIB, 4096), Ok(vec![0; 4096]));
    assert_eq!(change(&mut client, 7 * MIB), [const { Ok(Vec::new()) }; 3]);
    assert_eq!(client.read(8 * MIB, 512), Err(ErrorCode::Invalid), "no whole block");
}

/// TRIM and WRITE_ZEROES check the end themselves: for the kernel, a hole beyond it is no error.
#[test]
fn zeroes_and_trims_behind_a_new_end_fail_before_a_read_has_noticed_it() {
    let test = "zeroes_and_trims_behind_a_new_end_fail";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    for command in [Command::Trim, Command::WriteZeroes] {
        image.file().set_len(4 * MIB).expect("it can be made longer");
        assert_eq!(client.read(3 * MIB, 4096).map(|data| data.len()), Ok(4096), "long again");
        image.file().set_len(MIB).expect("it can be cut");
        assert_eq!(client.call(command, NONE, 3 * MIB, 4096, &[]), Err(ErrorCode::Io));
    }
}

/// A hole ends with the last whole block of the file: a client that copies block by block gets the error.
#[test]
fn a_hole_in_front_of_a_crooked_end_has_whole_blocks() {
    let test = "a_hole_in_front_of_a_crooked_end";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = Client::connect_for_status(&rig.socket, "disk", HeaderStyle::Structured);
    let file = image.file();
    file.set_len(MIB).and_then(|()| file.set_len(2 * MIB + 100)).expect("a hole at the end");
    assert_eq!(client.status(2 * MIB, MIB, NONE), Ok(vec![(MIB, 0)]));
    let across = client.status(MIB, 2 * MIB, NONE).expect("a map");
    assert!([vec![(MIB, 3), (MIB, 0)], vec![(2 * MIB, 0)]].contains(&across), "{across:?}");
    assert_eq!(client.read(2 * MIB, 4096), Err(ErrorCode::Io));
}

/// Regression test: only the setting of the export was considered, so that clients got errors although writes had been
/// announced.
#[test]
fn a_device_that_is_opened_for_reading_is_announced_so() {
    let test = "a_device_that_is_opened_for_reading";
    let image = Image::new(1);
    let Some(rig) = image.serve(test, ",readonly=1") else { return };
    let mut client = rig.client("disk");
    is_announced_as_read_only(&client);
    assert_eq!(change(&mut client, 0), [const { Err(ErrorCode::NotPermitted) }; 3]);
    assert_eq!(client.read(0, 4096), Ok(vec![0x5a; 4096]));
}

fn is_announced_as_read_only(client: &Client) {
    let flags = client.agreed.details.flags;
    assert!(flags.contains(TransmissionFlags::READ_ONLY), "{flags:?}");
    for never in [
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        TransmissionFlags::SEND_FAST_ZERO,
    ] {
        assert!(!flags.contains(never), "{never:?}");
    }
}

#[test]
fn a_gateway_to_a_read_only_export_is_read_only() {
    let exports = [Export { read_only: true, ..Export::new("store", 0) }];
    let store = serve_on("memory,size=16", &exports, Bounds::default());
    let peer = format!("nbd+unix:///store?socket={}", store.socket.display());
    for device in [peer.clone(), format!("faults,late=0.5:{peer}")] {
        let gateway = serve_on(&device, &[Export::new("disk", 0)], Bounds::default());
        let mut client = gateway.client("disk");
        is_announced_as_read_only(&client);
        assert_eq!(change(&mut client, 0), [const { Err(ErrorCode::NotPermitted) }; 3]);
    }
    let store = serve_on("memory,size=16", &[Export::new("store", 0)], Bounds::default());
    let peer = format!("nbd+unix:///store?socket={},readonly=1", store.socket.display());
    let gateway = serve_on(&peer, &[Export::new("disk", 0)], Bounds::default());
    is_announced_as_read_only(&gateway.client("disk"));
}

/// Regression test: WRITE_ZEROES that may leave a hole allocated its whole range, and NO_HOLE wrote every zero.
#[test]
fn zeroes_that_may_be_holes_are_and_others_keep_their_room() {
    let test = "zeroes_that_may_be_holes_are";
    let image = Image::new(8);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = Client::connect_for_status(&rig.socket, "disk", HeaderStyle::Structured);
    let before = image.stored();
    let all = client.call(Command::WriteZeroes, NONE, 0, 4 * MIB, &[]);
    assert_eq!(all, Ok(vec![]));
    if image.stored() == before {
        assert!(image.serve(test, "").is_none(), "the file system makes holes");
    }
    assert!(image.stored() <= before - 4 * MIB, "{} of {before} bytes", image.stored());
    assert_eq!(client.status(0, 4 * MIB, NONE), Ok(vec![(4 * MIB, 3)]));
    let thin = image.stored();
    let flags = CommandFlags::NO_HOLE;
    assert_eq!(client.call(Command::WriteZeroes, flags, 0, 4 * MIB, &[]), Ok(vec![]));
    assert!(image.stored() >= thin + 4 * MIB, "{} of {before} bytes", image.stored());
    assert!(client.read(0, 4 * MIB) == Ok(vec![0; 4 << 20]));
    assert!(client.read(4 * MIB, 4 * MIB) == Ok(vec![0x5a; 4 << 20]), "nothing else");
}

/// Regression test: fast zeroes that must stay allocated were refused by every device.
#[test]
fn fast_zeroes_without_holes_are_done_where_the_file_system_can() {
    let test = "fast_zeroes_without_holes";
    let image = Image::new(2);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    let flags = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    let answer = client.call(Command::WriteZeroes, flags, 0, MIB, &[]);
    let can = can_zero(&image.path);
    assert_eq!(answer, if can { Ok(vec![]) } else { Err(ErrorCode::NotSupported) });
    assert_eq!(client.read(0, 4096), Ok(vec![if can { 0 } else { 0x5a }; 4096]));
}

/// Returns whether the file system of the file has FALLOC_FL_ZERO_RANGE.
fn can_zero(path: &Path) -> bool {
    let copy = path.with_extension("trial");
    std::fs::write(&copy, [1; 4096]).expect("the folder is ours");
    let mode = rustix::fs::FallocateFlags::ZERO_RANGE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(File::options().write(true).open(&copy).expect("ours"), mode, 0, 4096)
        .is_ok()
}

/// A server without fast zeroes. It negotiates its export and answers no request.
struct Slow;

impl Exports for Slow {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        Some(ExportInfo {
            name: name.to_owned(),
            description: String::new(),
            size: 16 * MIB,
            flags: TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_WRITE_ZEROES,
            blocks: BlockSizes::DEFAULT,
            contexts: Vec::new(),
        })
    }

    fn list(&self, _: &mut dyn FnMut(&str, &str)) {}
}

impl Slow {
    fn agree(mut socket: UnixStream) -> UnixStream {
        let mut handshake = Handshake::new(Config::default());
        let (mut out, mut got) = (Vec::new(), Vec::new());
        handshake.greeting(&mut out);
        loop {
            socket.write_all(&out).expect("the gateway reads");
            out.clear();
            let mut bytes = [0; 4096];
            let read = socket.read(&mut bytes).expect("the gateway asks");
            got.extend_from_slice(&bytes[..read]);
            let progress = handshake.feed(&got, &Self, &mut out);
            got.drain(..progress.consumed);
            if read == 0 || !matches!(progress.next, Next::NeedMore) {
                socket.write_all(&out).expect("the gateway reads");
                return socket;
            }
        }
    }
}

/// Regression test: a gateway announced fast zeroes for a server that has none, and passed them on as ordinary ones.
#[test]
fn a_gateway_has_fast_zeroes_if_its_server_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("peer");
    let listener = UnixListener::bind(&path).expect("the path is free");
    // The thread ends with the process.
    std::thread::spawn(move || Vec::from_iter(listener.incoming().flatten().map(Slow::agree)));
    let gateway = |path: &Path| {
        let peer = format!("nbd+unix:///store?socket={}", path.display());
        serve_on(&peer, &[Export::new("disk", 0)], Bounds::default())
    };
    let slow = gateway(&path);
    let mut client = slow.client("disk");
    let flags = client.agreed.details.flags;
    assert!(flags.contains(TransmissionFlags::SEND_WRITE_ZEROES), "{flags:?}");
    assert!(!flags.contains(TransmissionFlags::SEND_FAST_ZERO), "{flags:?}");
    let fast = client.call(Command::WriteZeroes, CommandFlags::FAST_ZERO, 0, 4096, &[]);
    assert!(fast.is_err(), "{fast:?}");
    let store = serve_on("memory,size=16", &[Export::new("store", 0)], Bounds::default());
    let fast = gateway(&store.socket);
    assert!(fast.client("disk").agreed.details.flags.contains(TransmissionFlags::SEND_FAST_ZERO));
}

/// tmpfs punches holes but cannot zero a range in place: zeroes that must stay allocated are written, and fast ones are
/// refused.
#[test]
fn zeroes_that_the_file_system_lacks_are_written() {
    let test = "zeroes_that_the_file_system_lacks";
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped {test}: no tmpfs");
        return;
    };
    let image = Image::new_in(folder, 4);
    if can_zero(&image.path) {
        println!("skipped {test}: this file system has them");
        return;
    }
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    let before = image.stored();
    let fast = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    let refused = client.call(Command::WriteZeroes, fast, 0, MIB, &[]);
    assert_eq!(refused, Err(ErrorCode::NotSupported));
    assert_eq!(client.read(0, 4096), Ok(vec![0x5a; 4096]), "nothing is changed");
    let written = client.call(Command::WriteZeroes, CommandFlags::NO_HOLE, 0, 2 * MIB, &[]);
    assert_eq!((written, image.stored()), (Ok(vec![]), before));
    assert_eq!(client.call(Command::WriteZeroes, NONE, 2 * MIB, MIB, &[]), Ok(vec![]));
    assert!(image.stored() <= before - MIB);
    assert!(client.read(0, 3 * MIB) == Ok(vec![0; 3 << 20]));
}

/// Regression test: a file of the maximum size of its file system had neither TRIM nor fast zeroes, because holes were
/// probed beyond its end.
#[test]
fn a_file_of_the_largest_size_keeps_trim_and_fast_zeroes() {
    let test = "a_file_of_the_largest_size";
    let image = Image::new(1);
    let file = image.file();
    let can = |bytes: u64| file.set_len(bytes).is_ok();
    let most = (12..63)
        .rev()
        .fold(0, |most, bit| if can(most | 1 << bit) { most | 1 << bit } else { most });
    file.set_len(most).expect("it was possible");
    let Some(rig) = image.serve(test, "") else { return };
    let flags = rig.client("disk").agreed.details.flags;
    assert!(
        flags.contains(TransmissionFlags::SEND_TRIM | TransmissionFlags::SEND_FAST_ZERO),
        "{most} bytes: {flags:?}"
    );
    let mut client = rig.client("disk");
    assert_eq!(client.call(Command::Trim, NONE, most - 4096, 4096, &[]), Ok(vec![]));
    assert_eq!(client.read(0, 4096), Ok(vec![0x5a; 4096]), "the trial left it alone");
}

/// The end of a file bounds each request, not each export.
#[test]
fn an_export_in_front_of_a_new_end_goes_on_beside_one_behind_it() {
    let image = Image::new(4);
    let test = "an_export_in_front_of_a_new_end";
    if image.serve(test, "").is_none() {
        return;
    }
    let region = |offset: u64| Some(Region { offset, size: Some(2 * MIB) });
    let exports = [
        Export { region: region(0), ..Export::new("front", 0) },
        Export { region: region(2 * MIB), ..Export::new("behind", 0) },
    ];
    let rig = serve_on(&format!("uring:{}", image.path.display()), &exports, Bounds::default());
    let (mut front, mut behind) = (rig.client("front"), rig.client("behind"));
    image.file().set_len(2 * MIB).expect("it can be cut");
    for _ in 0..3 {
        assert!(front.read(0, 2 * MIB).is_ok_and(|data| data == vec![0x5a; 2 << 20]));
        assert_eq!(change(&mut front, MIB).map(|answer| answer.is_ok()), [true; 3]);
        front.write(MIB, &[0x5a; 64 << 10]).expect("it is in front");
        assert_eq!(behind.read(0, 4096), Err(ErrorCode::Io));
        assert_eq!(change(&mut behind, 0).map(|answer| answer.is_ok()), [false; 3]);
    }
    assert_eq!(image.len(), 2 * MIB);
}

/// A file may end within a sector: the sector's first bytes exist, but the sector does not.
#[test]
fn a_sector_that_a_crooked_end_divides_fails() {
    let image = Image::new(2);
    let Some(rig) = image.serve("a_sector_that_a_crooked_end_divides", "") else { return };
    image.file().set_len(MIB + 100).expect("it can be cut");
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        assert_eq!(client.read(MIB - 512, 512), Ok(vec![0x5a; 512]), "{style:?}");
        for length in [512, 4096, 64 << 10] {
            assert_eq!(client.read(MIB, length), Err(ErrorCode::Io), "{style:?}: {length}");
        }
        assert_eq!(change(&mut client, MIB).map(|answer| answer.is_ok()), [false; 3], "{style:?}");
    }
    assert_eq!(image.len(), MIB + 100);
}

/// A file truncated to zero has no data to flush. When it is extended again, it is served on the same connection.
#[test]
fn a_file_that_is_cut_to_nothing_and_grows_back_is_served_on_the_same_connection() {
    let image = Image::new(2);
    let Some(rig) = image.serve("a_file_that_is_cut_to_nothing", "") else { return };
    let mut client = rig.client("disk");
    for _ in 0..3 {
        image.file().set_len(0).expect("it can be cut");
        assert_eq!(client.read(0, 512), Err(ErrorCode::Io));
        assert_eq!(client.read(0, MIB), Err(ErrorCode::Io));
        assert_eq!(client.call(Command::Flush, NONE, 0, 0, &[]), Ok(vec![]));
        image.file().set_len(2 * MIB).expect("it can grow");
        assert_eq!(client.read(MIB, MIB), Ok(vec![0; 1 << 20]));
        assert_eq!(client.write(MIB, &[9; 4096]), Ok(vec![]));
        assert_eq!(client.read(MIB, 4096), Ok(vec![9; 4096]));
    }
}

/// If another file replaces it by name, the original is served, and no write goes to the other one.
#[test]
fn a_file_that_is_replaced_is_served_as_it_was() {
    let image = Image::new(1);
    let Some(rig) = image.serve("a_file_that_is_replaced", "") else { return };
    let other = image.path.with_extension("new");
    std::fs::write(&other, vec![0xee; 1 << 20]).expect("there is room");
    std::fs::rename(&other, &image.path).expect("the folder is ours");
    for _ in 0..2 {
        // On a connection made before, and on one made after.
        let mut client = rig.client("disk");
        assert_eq!(client.read(8192, 4096), Ok(vec![0x5a; 4096]));
        assert_eq!(client.write(0, &[7; 4096]), Ok(vec![]));
        assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]));
    }
    assert_eq!(std::fs::read(&image.path).expect("it is there"), vec![0xee; 1 << 20]);
}

/// A full file system is not a failure of the connection: reads, and writes of allocated blocks, succeed.
#[test]
fn a_connection_goes_on_where_its_device_is_full() {
    let device = "faults,write_error=1,errno=28,space=3:memory,size=4";
    let rig = serve_on(device, &[Export::new("disk", 0)], Bounds::default());
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        let answers: Vec<_> = (0..20).map(|n| client.write(n * 8192, &[7; 4096])).collect();
        let full = answers.iter().filter(|answer| **answer == Err(ErrorCode::NoSpace)).count();
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(full + done == 20 && full > 0, "{style:?}: {answers:?}");
        assert_eq!(client.read(0, 4096).map(|data| data.len()), Ok(4096), "{style:?}");
        assert_eq!(client.call(Command::Flush, NONE, 0, 0, &[]), Ok(vec![]), "{style:?}");
    }
    rig.check_at_rest();
}

/// Names like those of other servers and orchestrators, and the longest name.
#[test]
fn names_of_any_text_are_listed_served_and_changed() {
    let names = [
        "nbd:unix:/run/disk.sock:exportname=a b?c{d}#%2F".to_owned(),
        "\u{e9}\u{4e2d}\u{1f4be}\"'\\$(reboot)`".to_owned(),
        " ".to_owned(),
        "..".to_owned(),
        "n".repeat(4096),
    ];
    let exports = Vec::from_iter(names.iter().map(|name| Export::new(name, 0)));
    let rig = serve_on("memory,size=4", &exports, Bounds::default());
    let handle = rig.server.handle();
    for name in &names {
        let mut client = rig.client(name);
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "{name}");
        let settings = ExportSettings { weight: Some(7), ..ExportSettings::default() };
        let change = Request::Export { name: name.clone(), settings };
        assert!(matches!(handle.ask(change), Answer::Done(_)), "{name}");
    }
    let Answer::List { exports, .. } = handle.ask(Request::List) else { panic!("no list") };
    assert!(exports.iter().all(|export| export.weight == 7), "{exports:?}");
    assert!(handle.metrics(Format::OpenMetrics).is_ok_and(|text| text.ends_with("# EOF\n")));
}

/// Exports that are added and removed beside a client leave no group, however often.
#[test]
fn exports_that_come_and_go_leave_no_group() {
    let rig = serve_on("memory,size=4", &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    let handle = rig.server.handle();
    let groups = || rig.server.disks()[0].service().queue().plan().groups.iter().count();
    let before = groups();
    for round in 0..20 {
        for n in 0..50 {
            handle.add_export(&Export::new(&format!("e{n}"), 0)).expect("its name is free");
        }
        let mut guest = rig.client("e7");
        assert_eq!(guest.read(0, 512), Ok(vec![0; 512]), "round {round}");
        for n in 0..50 {
            assert!(handle.remove_export(&format!("e{n}")));
        }
        assert_eq!(guest.read(0, 512), Err(ErrorCode::Shutdown), "round {round}");
        drop(guest);
        // The name is taken until its connection is closed.
        until(|| handle.add_export(&Export::new("e7", 0)).is_ok());
        assert!(handle.remove_export("e7"));
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "round {round}");
    }
    until(|| groups() == before);
}
