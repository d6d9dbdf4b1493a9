//! A recording from Linux 6.12, of a loop device under mq-deadline: two direct writes and a flush, two writes from the
//! page cache, two direct reads by a process whose name has two words, and a discard. The records are as blktrace left
//! them; beside them are blkparse's texts.

use blkmq_core::Op;
use blkmq_recording::{Event, Options, Reader};

const RECORDS: &[u8] = include_bytes!("loop/blktrace.bin");
const TEXT: &[u8] = include_bytes!("loop/blkparse.txt");
/// With the times that requests waited (`-t`).
const TIMED: &[u8] = include_bytes!("loop/blkparse-t.txt");

type Io = (i64, Op, u64, u64, String);

fn ios(recording: &'static [u8], event: Event) -> Vec<Io> {
    let options = Options { event, ..Options::default() };
    let mut reader = Reader::new(recording, &options).expect("a known format");
    let mut ios = Vec::new();
    while let Some(it) = reader.next_record().expect("an I/O") {
        let tenant = reader.tenants().name(it.tenant).to_owned();
        ios.push((it.arrival, it.op, it.offset / 512, it.length / 512, tenant));
    }
    ios
}

fn io(arrival: i64, op: Op, sector: u64, sectors: u64, tenant: &str) -> Io {
    (arrival, op, sector, sectors, tenant.to_owned())
}

#[test]
fn the_records_and_both_texts_of_them_are_the_same_ios() {
    let queued = [
        io(0, Op::Write, 64, 8, "dd"),
        io(10_039_346, Op::Write, 72, 8, "dd"),
        io(17_972_462, Op::Flush, 0, 0, "dd"),
        io(69_258_083, Op::Write, 800, 8, "kworker/u8:0"),
        io(69_884_738, Op::Write, 808, 8, "kworker/u8:0"),
        io(126_178_910, Op::Read, 64, 32, "busybox two"),
        io(129_898_524, Op::Read, 96, 32, "busybox two"),
        io(148_056_443, Op::Discard, 16384, 8192, "blkdiscard"),
    ];
    let issued = [
        io(0, Op::Write, 64, 8, "dd"),
        io(6_651_447, Op::Write, 72, 8, "dd"),
        io(16_835_907, Op::Flush, 0, 0, "kworker/0:1H"),
        io(68_461_309, Op::Write, 800, 16, "kworker/u8:0"),
        io(123_303_339, Op::Read, 64, 32, "busybox two"),
        io(126_452_885, Op::Read, 96, 32, "busybox two"),
        io(145_079_231, Op::Discard, 16384, 8192, "kworker/1:1H"),
    ];
    for (name, recording) in [("records", RECORDS), ("text", TEXT), ("timed", TIMED)] {
        assert_eq!(ios(recording, Event::Queued), queued, "{name}");
        assert_eq!(ios(recording, Event::Issued), issued, "{name}");
    }
}
