//! Poisonous requests, which their server does not survive: only they fail, and other requests do not wait for them.

use crate::contents::{BLOCK, open};
use crate::fake::{Fake, Plan, Poison};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, IoError};
use blkmq_engine::{BlockDevice, Config, Io};
use blkmq_nbd::{Command, ErrorCode, HeaderStyle};
use blkmq_remote::NbdDevice;
use blkmq_runtime::{Client, Service};
use std::collections::BTreeMap;
use std::time::Duration;

/// The plan of a server that treats every request of this kind so, on each of its connections.
fn poisoned(command: Command, n: u64, poison: Poison) -> Plan {
    Plan { poison: Some((command, place(n).0, poison)), ..Plan::default() }
}

/// Uses every other block, so that requests do not merge.
fn place(n: u64) -> Bytes {
    Bytes(2 * n * BLOCK as u64)
}

fn read(n: u64) -> Io<AlignedBuf> {
    Io::read(place(n), AlignedBuf::new(BLOCK)).cookie(n)
}

fn write(n: u64) -> Io<AlignedBuf> {
    Io::write(place(n), AlignedBuf::new(BLOCK)).cookie(n)
}

/// A client with as many I/Os in flight as the test needs.
fn client(device: &NbdDevice) -> (Service<AlignedBuf>, Client<AlignedBuf>) {
    let config = Config { depth: 1024, ..device.config().expect("connections") };
    let service = Service::start(config).expect("a service");
    let client = service.client().expect("a client");
    (service, client)
}

/// The result of each I/O, and the time of its answer.
fn results(
    client: &mut Client<AlignedBuf>,
    ios: impl Iterator<Item = Io<AlignedBuf>>,
) -> BTreeMap<u64, (Result<(), IoError>, Duration)> {
    let clock = client.clock();
    let begin = clock.now();
    let mut count = 0;
    for io in ios {
        client.push(io).expect("there is credit");
        count += 1;
    }
    let mut found = BTreeMap::new();
    while found.len() < count {
        client.wait(1, 1, |io| {
            found.insert(io.cookie, (io.result, Duration::from_nanos((clock.now() - begin).0)));
        });
    }
    found
}

/// Regression test: requests behind one at which the server closes each connection waited for the whole
/// `reconnect_delay`, and failed with it.
#[test]
fn one_poisoned_request_beside_a_thousand_good_ones() {
    let close = poisoned(Command::Write, 7, Poison::Close);
    let fake = Fake::start(vec![close; 100]);
    let device = open(&fake, ",hw_queue_depth=1024");
    let (_service, mut client) = client(&device);
    let good = (0..1000).map(|n| read(n % 128).cookie(1000 + n));
    let mut found = results(&mut client, std::iter::once(write(7)).chain(good));
    let (result, time) = found.remove(&7).expect("it has an end");
    assert_eq!(result, Err(IoError::IO));
    assert!(time < Duration::from_secs(5), "{time:?}");
    assert_eq!(found.len(), 1000);
    for (block, (result, time)) in found {
        assert_eq!(result, Ok(()), "{block}");
        assert!(time < Duration::from_secs(1), "{block}: {time:?}");
    }
    let outages = device.outages();
    assert_eq!(outages.given_up, 1);
    let last = outages.last_given_up.expect("it is named");
    assert!(last.contains("write of 4096 bytes at 57344"), "{last}");
}

/// Each reaction of a server to a poisonous request ends only that request, with its error.
#[test]
fn every_kind_of_poison_fails_its_own_request() {
    let no_space = IoError(28);
    for (poison, most, error) in [
        (Poison::Close, HeaderStyle::Simple, IoError::IO),
        (Poison::CloseEarly, HeaderStyle::Extended, IoError::IO),
        (Poison::ShutDown, HeaderStyle::Structured, IoError::IO),
        // Chunks that break the protocol: an empty hole, and data beyond the request.
        (Poison::Chunk(2, &[0; 12]), HeaderStyle::Structured, IoError::IO),
        (Poison::Chunk(1, &[0xff; 9]), HeaderStyle::Extended, IoError::IO),
        // Errors of unknown types.
        (Poison::Chunk(0x8055, &[0, 0, 0, 28, 0, 0]), HeaderStyle::Structured, no_space),
        (Poison::Chunk(0x8000, &[0, 0, 0, 28, 0, 1, b'x', 9, 9]), HeaderStyle::Extended, no_space),
        (Poison::ErrorAndClose(ErrorCode::NoSpace), HeaderStyle::Extended, no_space),
    ] {
        for command in [Command::Read, Command::Write] {
            let plan = Plan { most, ..poisoned(command, 3, poison) };
            let fake = Fake::start(vec![plan; 100]);
            let device = open(&fake, "");
            let (_service, mut client) = client(&device);
            let io = |n| if command == Command::Read { read(n) } else { write(n) };
            let found = results(&mut client, (0..20).map(io));
            for (block, (result, time)) in found {
                let expected = if block == 3 { Err(error) } else { Ok(()) };
                assert_eq!(result, expected, "{poison:?}, {command:?} of block {block}");
                assert!(time < Duration::from_secs(2), "{poison:?}: {block} after {time:?}");
            }
        }
    }
}

/// An error of an unknown type is an answer like any other: the connection stays.
#[test]
fn an_unknown_error_costs_no_connection() {
    let chunk = Poison::Chunk(0x8055, &[0, 0, 0, 28, 0, 0]);
    let fake = Fake::start(vec![poisoned(Command::Read, 3, chunk)]);
    let device = open(&fake, "");
    let (_service, mut client) = client(&device);
    assert_eq!(results(&mut client, (0..9).map(read))[&3].0, Err(IoError(28)));
    assert_eq!(device.outages().lost, 0);
}

/// With a single request, no other answer shows that the server works: it is tried more often.
#[test]
fn a_poisoned_request_that_is_alone_fails_long_before_the_delay() {
    let fake = Fake::start(vec![poisoned(Command::Read, 0, Poison::Close); 100]);
    let device = open(&fake, "");
    let (_service, mut client) = client(&device);
    let (result, time) = results(&mut client, std::iter::once(read(0)))[&0];
    assert_eq!(result, Err(IoError::IO));
    assert!(time < Duration::from_secs(5), "{time:?}");
    let (result, time) = results(&mut client, std::iter::once(read(1)))[&1];
    assert_eq!(result, Ok(()), "the link goes on");
    assert!(time < Duration::from_secs(1), "{time:?}");
}

/// Of two poisonous requests, both are found.
#[test]
fn several_poisoned_requests_are_found_one_by_one() {
    let fake = Fake::start(vec![poisoned(Command::Read, 3, Poison::Close); 100]);
    let device = open(&fake, ",hw_queue_depth=256");
    let (_service, mut client) = client(&device);
    let ios = (0..150).map(|n| read(if n % 50 == 0 { 3 } else { 4 + n % 100 }).cookie(n));
    for (n, (result, time)) in results(&mut client, ios) {
        let expected = if n % 50 == 0 { Err(IoError::IO) } else { Ok(()) };
        assert_eq!(result, expected, "{n}");
        assert!(n % 50 == 0 || time < Duration::from_secs(1), "{n}: {time:?}");
    }
}

/// A request that is never answered costs a connection at each `timeout`; other requests were answered in between, so
/// that each outage ended, and the request never failed.
#[test]
fn a_request_without_any_answer_ends_after_some_timeouts() {
    let fake = Fake::start(vec![poisoned(Command::Read, 3, Poison::Ignore); 100]);
    let device = open(&fake, ",timeout=1");
    let (_service, mut client) = client(&device);
    let mut found = results(&mut client, (0..20).map(read));
    let (result, time) = found.remove(&3).expect("it has an end");
    assert_eq!(result, Err(IoError::IO));
    assert!(time < Duration::from_secs(10), "{time:?}");
    assert!(found.values().all(|(result, time)| result.is_ok() && *time < Duration::from_secs(1)));
}
