//! Traces of other programs, by content and in each format: records, or an error with a text.

#![no_main]

use blkmq_recording::{Format, Options, PRESETS, Reader, Summary};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

const OTHERS: [&str; 6] = ["blktrace", "blkparse", "iolog2", "iolog3", "vscsi1", "vscsi2"];
/// Records of one input; bytes that are compressed may become many.
const MOST: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).chain(OTHERS).collect();
    let name = names.get(usize::from(*choice) % (names.len() + 1));
    let format = name.map(|name| Format::parse(name).expect("a name of the table"));
    let options = Options { format, skip_bad: 100, ..Options::default() };
    let mut reader = match Reader::new(Cursor::new(bytes.to_vec()), &options) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let mut summary = Summary::default();
    for _ in 0..MOST {
        match reader.next_record() {
            Ok(Some(record)) if record.length <= 1 << 20 => summary.add(&record),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    assert!(summary.total() <= reader.records());
});
