//! Records of blktrace: a record that was read is written and read again unchanged, except for the categories that
//! version 1, the version written, does not have.

#![no_main]

use blkmq_lab::trace::record::{Record, records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for record in records(bytes) {
        let Ok(record) = record else { return };
        let mut out = Vec::new();
        record.encode(&mut out);
        let (again, length) = Record::decode(&out, 0).expect("written here").expect("one record");
        let action = u64::from(record.action as u32);
        assert_eq!((again, length), (Record { action, ..record }, out.len()));
    }
});
