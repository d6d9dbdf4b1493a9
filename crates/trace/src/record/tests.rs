//! Encoding and decoding of records, in both versions and byte orders, and of bytes that are no records.

use super::*;
use proptest::prelude::*;

fn record(payload: &[u8]) -> Record<'_> {
    Record {
        sequence: 7,
        time: 1_234_567,
        sector: 99,
        bytes: 4096,
        action: action(Act::Queue, Op::Read, IoFlags::SYNC).into(),
        pid: 12,
        device: 240 << 20,
        cpu: 3,
        error: 5,
        payload,
    }
}

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// Encodes the record in the given version, in the other byte order.
fn swapped(record: &Record<'_>, version: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |number: &[u8]| bytes.extend(number.iter().rev());
    put(&(MAGIC | u32::from(version)).to_ne_bytes());
    put(&record.sequence.to_ne_bytes());
    put(&record.time.to_ne_bytes());
    put(&record.sector.to_ne_bytes());
    put(&record.bytes.to_ne_bytes());
    if version == 7 {
        put(&(record.action as u32).to_ne_bytes());
        put(&record.pid.to_ne_bytes());
    } else {
        put(&record.pid.to_ne_bytes());
        put(&record.action.to_ne_bytes());
    }
    put(&record.device.to_ne_bytes());
    put(&record.cpu.to_ne_bytes());
    put(&record.error.to_ne_bytes());
    put(&(record.payload.len() as u16).to_ne_bytes());
    if version == 8 {
        bytes.extend([0; 12]);
    }
    bytes.extend(record.payload);
    bytes
}

#[test]
fn what_is_written_is_read() {
    for payload in [&b""[..], b"12345678"] {
        let record = record(payload);
        let bytes = encoded(&record);
        assert_eq!(bytes.len(), HEADER_1 + payload.len());
        assert_eq!(Record::decode(&bytes, 0), Ok(Some((record, bytes.len()))));
        for version in [7, 8] {
            let bytes = swapped(&record, version);
            assert_eq!(Record::decode(&bytes, 0), Ok(Some((record, bytes.len()))));
        }
    }
    assert_eq!(Record::decode(&[], 0), Ok(None));
}

#[test]
fn what_happened_is_found_in_the_action() {
    for act in Act::ALL {
        let record = Record { action: action(act, Op::Write, IoFlags::FUA).into(), ..record(&[]) };
        assert_eq!(record.act(), Some(act));
        assert!(record.has(category::WRITE | category::FUA) && !record.has(category::READ));
    }
    let cgroup = record(&[]).action | 1 << 8;
    assert_eq!(Record { action: cgroup, ..record(&[]) }.act(), Some(Act::Queue));
    let notify = u64::from(category::NOTIFY) << 16;
    assert_eq!(Record { action: notify, ..record(&[]) }.act(), None);
    let unknown = Record { action: 40, ..record(&[]) };
    assert_eq!(unknown.act(), None);
}

#[test]
fn every_beginning_of_a_record_is_truncated() {
    let bytes = encoded(&record(b"12345678"));
    for length in 1..bytes.len() {
        let error = Record::decode(&bytes[..length], 1000).expect_err("not all of it");
        let TraceError::Truncated { offset: 1000, found, wanted } = error else {
            panic!("{length} bytes: {error}")
        };
        assert!(found == length && wanted > found, "{error}");
    }
}

#[test]
fn what_is_no_record_is_said_with_its_place() {
    let good = encoded(&record(b""));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes.extend_from_slice(&good);
        bytes[HEADER_1 + at] = byte;
        let all: Vec<_> = records(&bytes).collect();
        assert_eq!(all.len(), 2, "the error is the last");
        assert_eq!(all[0], Ok(record(b"")));
        all[1].expect_err("the second one is broken").to_string()
    };
    let (version, last) = if cfg!(target_endian = "little") { (0, 3) } else { (3, 0) };
    let message = with(last, 0);
    assert!(message.starts_with("no blktrace record at byte 48: it begins with"), "{message}");
    assert!(with(version, 9).contains("at byte 48 is of version 9; accepted are 7 (v1) and 8"));
    // The most significant byte of the payload's length.
    let high = if cfg!(target_endian = "little") { 47 } else { 46 };
    assert!(with(high, 0xff).contains("claims 65280 bytes of payload; accepted are up to 4096"));
    assert!(with(high, 0x01).contains("48 of its 304 bytes are there"));
}

proptest! {
    /// For any bytes there is an answer, and records do not overlap or leave gaps.
    #[test]
    fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..300) {
        let mut mixed = encoded(&record(b"payload"));
        mixed.extend_from_slice(&bytes);
        let end = mixed.len();
        mixed[at.min(end - 1)] ^= 0x55;
        for bytes in [&bytes, &mixed] {
            let mut used = 0;
            for record in records(bytes) {
                match record {
                    Ok(record) => used += HEADER_1 + record.payload.len(),
                    Err(TraceError::Truncated { offset, wanted, found }) => {
                        prop_assert!(wanted > found && offset as usize + found == bytes.len());
                    }
                    Err(_) => {}
                }
            }
            prop_assert!(used <= bytes.len());
        }
    }
}
