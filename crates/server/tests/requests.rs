//! Every request, in every form of headers.

use crate::client::Client;
use crate::rig::{serve, serve_on};
use blkmq_nbd::{Command, CommandFlags, ErrorCode, HeaderStyle, TransmissionFlags};
use blkmq_server::{Bounds, Export, Region};
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
