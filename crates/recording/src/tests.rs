//! Every format with made-up lines, and with bad ones.
//!
//! And a recording from Linux 6.12, of a loop device under mq-deadline: two direct writes and a flush, two writes from
//! the page cache, two direct reads by a process whose name has two words, and a discard. The records are as blktrace
//! left them; beside them are blkparse's texts.

use crate::*;
use blkmq_core::{Class, Op};
use std::io::Cursor;

fn options(skip_bad: u64) -> Options {
    Options { skip_bad, ..Options::default() }
}

fn read(bytes: &[u8], options: &Options) -> Result<(Vec<Record>, Reader), Error> {
    let mut reader = Reader::new(Cursor::new(bytes.to_vec()), options)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        records.push(record);
    }
    Ok((records, reader))
}

/// The header of a format, and its row for I/O number `i`. I/Os arrive 2 s apart, those with odd numbers write, at
/// sector (i + 1) * 8, 4096 bytes, alternating between tenants `a` and `b` if names are free.
struct Sample {
    format: &'static str,
    header: &'static str,
    row: fn(u64) -> String,
    tenants: [&'static str; 2],
    /// A row with an unknown operation, one that ends early, one with a negative number, and one with 2^63.
    bad: [&'static str; 4],
}

fn rw(i: u64) -> &'static str {
    ["R", "W"][i as usize % 2]
}

fn word(i: u64) -> &'static str {
    ["Read", "Write"][i as usize % 2]
}

const SAMPLES: &[Sample] = &[
    Sample {
        format: "cloudphysics",
        header: "time_us,op,sector,bytes\n",
        row: |i| format!("{},{},{},4096", i * 2_000_000, rw(i), (i + 1) * 8),
        tenants: ["", ""],
        bad: ["1,Q,8,4096", "1,R,8", "1,R,-8,4096", "1,R,9223372036854775808,4096"],
    },
    Sample {
        format: "msr",
        header: "",
        row: |i| {
            let time = 128_166_372_003_061_629 + i * 20_000_000;
            format!(
                "{time},{},0,{},{},4096,1331",
                ["a", "b"][i as usize % 2],
                word(i),
                (i + 1) * 4096
            )
        },
        tenants: ["a.0", "b.0"],
        bad: [
            "1,a,0,Erase,8,4096,1",
            "1,a,0,Read,8",
            "1,a,0,Read,-8,4096,1",
            "1,a,0,Read,9223372036854775808,4096,1",
        ],
    },
    Sample {
        format: "alibaba",
        header: "",
        row: |i| {
            format!(
                "{},{},{},4096,{}",
                7 + i % 2,
                rw(i),
                (i + 1) * 4096,
                1_577_808_000_000_000 + i * 2_000_000
            )
        },
        tenants: ["7", "8"],
        bad: ["7,X,0,4096,1", "7,R,0,4096", "7,R,-1,4096,1", "7,R,9223372036854775808,4096,1"],
    },
    Sample {
        format: "tencent",
        header: "",
        row: |i| format!("{},{},8,{},{}", 1_538_323_200 + i * 2, (i + 1) * 8, i % 2, 1283 + i % 2),
        tenants: ["1283", "1284"],
        bad: ["1,8,8,2,1", "1,8,8,1", "1,-8,8,1,1", "1,9223372036854775808,8,1,1"],
    },
    Sample {
        format: "systor17",
        header: "Timestamp,Response,IOType,LUN,Offset,Size\n",
        row: |i| {
            format!(
                "{}.005,0.0012,{},{},{},4096",
                1_455_592_000 + i * 2,
                rw(i),
                i % 2,
                (i + 1) * 4096
            )
        },
        tenants: ["0", "1"],
        bad: [
            "1,0.1,,0,8,4096",
            "1,0.1,R,0",
            "1,-0.1,R,0,8,4096",
            "1,0.1,R,0,9223372036854775808,4096",
        ],
    },
    Sample {
        format: "thesios",
        header: "filename,file_offset,application,c_time,io_zone,redundancy_type,op_type,service_class,from_flash_cache,\
                 cache_hit,request_io_size_bytes,disk_io_size_bytes,response_io_size_bytes,start_time,disk_time,\
                 simulated_disk_start_time,simulated_latency\n",
        row: |i| {
            let class = ["LATENCY_SENSITIVE", "THROUGHPUT_ORIENTED", "OTHER"][i as usize % 3];
            let (app, op, time) = (
                ["a", "b"][i as usize % 2],
                ["READ", "WRITE"][i as usize % 2],
                1_700_000_000 + i * 2,
            );
            format!(
                "f,{},{app},1,WARM,R,{op},{class},0,0,4096,4096,4096,{time}.25,0.004,{time}.25,0.004",
                (i + 1) * 4096
            )
        },
        tenants: ["a", "b"],
        bad: [
            "f,0,a,1,W,R,SEEK,OTHER,0,0,4096,0,0,1.5,0,0,0",
            "f,0,a,1,W,R,READ,OTHER,0,0,4096",
            "f,-1,a,1,W,R,READ,OTHER,0,0,4096,0,0,1.5,0,0,0",
            "f,9223372036854775808,a,1,W,R,READ,OTHER,0,0,4096,0,0,1.5,0,0,0",
        ],
    },
    Sample {
        format: "spc",
        header: "",
        row: |i| format!("{},{},4096,{},{}.000000", i % 2, (i + 1) * 8, rw(i), i * 2),
        tenants: ["0", "1"],
        bad: [
            "0,8,4096,x,1.0",
            "0,8,4096,r",
            "0,8,-4096,r,1.0",
            "0,9223372036854775808,4096,r,1.0",
        ],
    },
    Sample {
        format: "fiu",
        header: "",
        row: |i| {
            let name = ["a", "b"][i as usize % 2];
            format!(
                "{} 4892 {name} {} 8 {} 6 0 531e779",
                89_966_180_568_918 + i * 2_000_000_000,
                (i + 1) * 8,
                rw(i)
            )
        },
        tenants: ["a", "b"],
        bad: [
            "1 2 a 8 8 Q 6 0 m",
            "1 2 a 8 8",
            "1 2 a -8 8 R 6 0 m",
            "1 2 a 9223372036854775808 8 R 6 0 m",
        ],
    },
    Sample {
        format: "mqsim",
        header: "",
        row: |i| format!("{} {} {} 8 {}", i * 2_000_000_000, i % 2, (i + 1) * 8, 1 - i % 2),
        tenants: ["0", "1"],
        bad: ["1 0 8 8 3", "1 0 8", "1 0 8 -8 1", "1 0 9223372036854775808 8 1"],
    },
    Sample {
        format: "disksim",
        header: "",
        row: |i| format!("{}.0 {} {} 8 {}", i * 2_000, i % 2, (i + 1) * 8, 1 - i % 2),
        tenants: ["0", "1"],
        bad: ["1.0 0 8 8 3", "1.0 0 8", "-1.0 0 8 8 1", "1.0 0 9223372036854775808 8 1"],
    },
    Sample {
        format: "biosnoop",
        header: "TIME(s)     COMM           PID    DISK    T SECTOR     BYTES  LAT(ms)\n",
        row: |i| {
            let name = ["a", "kworker/u8:2 b"][i as usize % 2];
            format!("{}.500000 {name} 77 sda {} {} 4096 500.0", i * 2, rw(i), (i + 1) * 8)
        },
        tenants: ["a", "kworker/u8:2 b"],
        bad: [
            "1.0 a 1 sda X 8 4096 0.1",
            "1.0 a 1 sda R 8",
            "1.0 a 1 sda R -8 4096 0.1",
            "1.0 a 1 sda R 9223372036854775808 4096 0.1",
        ],
    },
    Sample {
        format: "io-tracer",
        header: "timestamp,pid,command,sector,operation,size,latency_ms,tid,nr_sectors,cpu_id,ppid\n",
        row: |i| {
            let name = ["a", "b"][i as usize % 2];
            format!(
                "2024-05-01 12:00:{:02}.250000,7,{name},{},{},4096,0.25,7,8,1,1",
                i * 2,
                (i + 1) * 8,
                word(i)
            )
        },
        tenants: ["a", "b"],
        bad: [
            "2024-05-01 12:00:00,7,a,8,seek,4096,1,7,8,1,1",
            "2024-05-01 12:00:00,7,a,8,read",
            "2024-05-01 12:00:00,7,a,-8,read,4096,1,7,8,1,1",
            "2024-05-01 12:00:00,7,a,9223372036854775808,read,4096,1,7,8,1,1",
        ],
    },
];

/// 20 rows.
fn good(sample: &Sample) -> String {
    let rows = (0..20).map(|i| (sample.row)(i) + "\n");
    [sample.header.to_owned()].into_iter().chain(rows).collect()
}

#[test]
fn each_preset_has_a_sample_and_is_found_by_content() {
    for preset in PRESETS.iter().filter(|preset| preset.name != "csv") {
        let sample = SAMPLES.iter().find(|sample| sample.format == preset.name);
        let text = good(sample.unwrap_or_else(|| panic!("{} has no sample", preset.name)));
        if preset.name == "mqsim" {
            let error = read(text.as_bytes(), &options(0)).err().expect("DiskSim has such rows");
            assert!(error.to_string().contains("--format=mqsim, --format=disksim"), "{error}");
            continue;
        }
        let (records, reader) = read(text.as_bytes(), &options(0)).expect(preset.name);
        assert_eq!(reader.format().name(), preset.name);
        assert_eq!(records.len(), 20, "{}", preset.name);
    }
}

/// Returns options for a sample, with its format if the rows do not reveal it.
fn of(sample: &Sample, skip_bad: u64) -> Options {
    let format = (sample.format == "mqsim").then(|| Format::parse("mqsim").expect("a preset"));
    Options { format, ..options(skip_bad) }
}

#[test]
fn units_places_and_tenants_are_those_of_each_format() {
    for sample in SAMPLES {
        let (records, reader) = read(good(sample).as_bytes(), &of(sample, 0)).expect(sample.format);
        for (i, record) in records.iter().enumerate() {
            let n = i as u64;
            let name = sample.format;
            assert_eq!(record.arrival, i as i64 * 2_000_000_000, "{name} {i}");
            assert_eq!(record.op, [Op::Read, Op::Write][i % 2], "{name} {i}");
            assert_eq!((record.offset, record.length), ((n + 1) * 4096, 4096), "{name} {i}");
            assert_eq!(reader.tenants().name(record.tenant), sample.tenants[i % 2], "{name} {i}");
        }
    }
}

#[test]
fn bad_rows_are_named_with_their_line_and_skipped_only_if_told() {
    for sample in SAMPLES {
        let lines = good(sample).lines().count() as u64;
        for bad in sample.bad {
            let text = good(sample) + bad + "\n" + &(sample.row)(20) + "\n";
            let error = read(text.as_bytes(), &of(sample, 0)).err();
            let error = error.unwrap_or_else(|| panic!("{}: {bad}", sample.format)).to_string();
            assert!(
                error.starts_with(&format!("line {}: ", lines + 1)),
                "{}: {error}",
                sample.format
            );
            let (records, reader) = read(text.as_bytes(), &of(sample, 1)).expect(sample.format);
            assert_eq!((records.len(), reader.skipped().bad), (21, 1));
            assert_eq!(reader.skipped().first[0].0, lines + 1);
        }
    }
}

/// A wrong unit makes lengths that no I/O can have.
#[test]
fn a_wrong_unit_is_an_error() {
    let columns = "time=us,1 op=word,2 offset=sectors,3 size=sectors,4 header=no";
    let wrong = Options { format: Some(Format::parse(columns).expect("columns")), ..options(0) };
    let error = read(b"0,R,8,4194304\n", &wrong).err().expect("2 GiB");
    assert_eq!(error.to_string(), "line 1: size: 2147483648 bytes; accepted: 1 to 1073741824");
}

#[test]
fn shuffled_rows_are_counted_and_arrive_before_the_first() {
    let (records, reader) =
        read(b"time_us,op,sector,bytes\n50,R,8,512\n20,R,8,512\n60,R,8,512\n", &options(0))
            .expect("good rows");
    assert_eq!(Vec::from_iter(records.iter().map(|record| record.arrival)), [0, -30_000, 10_000]);
    assert_eq!((reader.stamps().unordered, reader.stamps().most_back), (1, 30_000));
}

#[test]
fn whole_seconds_are_coarse_where_most_of_them_repeat() {
    let rows: String = (0..100).map(|i| format!("{},8,8,0,1\n", 1_538_323_200 + i / 20)).collect();
    let (_, reader) = read(rows.as_bytes(), &options(0)).expect("good rows");
    assert!(reader.stamps().is_coarse(reader.records()));
    let (_, reader) = read(good(&SAMPLES[2]).as_bytes(), &options(0)).expect("good rows");
    assert!(!reader.stamps().is_coarse(reader.records()));
}

#[test]
fn classes_of_thesios_become_those_of_schedulers() {
    let sample = SAMPLES.iter().find(|sample| sample.format == "thesios").expect("a sample");
    let (records, _) = read(good(sample).as_bytes(), &options(0)).expect("good rows");
    let count = |class| records.iter().filter(|it| it.prio.class() == class).count();
    assert_eq!([Class::Realtime, Class::BestEffort, Class::Idle].map(count), [7, 7, 6]);
}

#[test]
fn columns_can_be_grouped_and_classed_anew() {
    let by = |group: &str, class: Option<&str>| Options {
        group_by: Some(group.into()),
        class_by: class.map(String::from),
        ..options(0)
    };
    let (records, reader) = read(
        b"7,R,0,4096,1,2\n8,W,0,4096,2,3\n",
        &Options {
            format: Some(Format::parse("alibaba").expect("a preset")),
            ..by("2", Some("6"))
        },
    )
    .expect("good rows");
    assert_eq!(reader.tenants().name(records[1].tenant), "W");
    assert_eq!(records[1].prio.class(), Class::Idle);
    let error = read(b"7,R,0,4096,1\n", &by("device", None)).err().expect("no header");
    assert!(error.to_string().contains("accepted: a number from 1"), "{error}");
    let error = read(b"fio version 3 iolog\n", &by("1", None)).err().expect("no columns");
    assert!(error.to_string().contains("has no columns"), "{error}");
}

#[test]
fn iologs_of_both_versions_tell_the_same() {
    let v2 = b"fio version 2 iolog\nf add\nf open\nf read 0 4096\nf wait 200 0\nf write 4096 512\nf sync\nf close\n";
    let v3 = b"fio version 3 iolog\n0 f add\n0 f open\n0 f read 0 4096\n200 f write 4096 512\n200 f sync 0 0\n200 f close\n";
    let (two, _) = read(v2, &options(0)).expect("version 2");
    let (three, _) = read(v3, &options(0)).expect("version 3");
    assert_eq!(two, three);
    assert_eq!(
        Vec::from_iter(two.iter().map(|it| (it.arrival, it.op))),
        [(0, Op::Read), (200_000, Op::Write), (200_000, Op::Flush)]
    );
    let error = read(b"fio version 3 iolog\n0 f seek 0 1\n", &options(0)).err().expect("unknown");
    assert!(error.to_string().starts_with("line 2: op: \"seek\""), "{error}");
}

const BLKPARSE: &str = "\
  8,0    1        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    1        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    1        3     0.000010000   697  D   W 223490 + 8 [kjournald]
  8,0    0        4     0.500000000    12  Q  RA 16 + 1 [cat]
  8,0    0        5     0.600000000    12  Q FWS [sync]
  8,0    0        6     0.700000000    12  C   W 223490 + 8 [0]
CPU0 (8,0):
 Reads Queued:           1,        4KiB
";

#[test]
fn lines_of_blkparse_count_once() {
    let (records, reader) = read(BLKPARSE.as_bytes(), &options(0)).expect("lines");
    assert_eq!(reader.format().name(), "blkparse");
    let facts = |it: &Record| (it.arrival, it.op, it.offset / 512, it.length);
    assert_eq!(
        Vec::from_iter(records.iter().map(facts)),
        [
            (0, Op::Write, 223_490, 4096),
            (500_000_000, Op::Read, 16, 512),
            (600_000_000, Op::Flush, 0, 0)
        ]
    );
    assert_eq!(reader.tenants().name(records[1].tenant), "cat");
    let issued = Options { event: Event::Issued, ..options(0) };
    assert_eq!(read(BLKPARSE.as_bytes(), &issued).expect("lines").0.len(), 1);
    let error = read(b"time_us,op,sector,bytes\n0,R,8,512\n", &issued).err().expect("no events");
    assert!(error.to_string().ends_with("accepted: blktrace, blkparse"), "{error}");
}

/// A recording of issued requests has no queued I/Os.
#[test]
fn a_trace_without_the_event_that_counts_says_so() {
    let issued: String =
        BLKPARSE.lines().filter(|line| line.contains("  D ")).flat_map(|it| [it, "\n"]).collect();
    let (records, reader) = read(issued.as_bytes(), &options(0)).expect("lines");
    assert!(records.is_empty() && reader.lacks_event());
    let (_, reader) = read(BLKPARSE.as_bytes(), &options(0)).expect("lines");
    assert!(!reader.lacks_event());
}

/// Regression test: the numbers of volumes lost their upper bits, so that blocks of the first volume counted as those
/// of the 8193rd.
#[test]
fn blocks_of_many_volumes_are_counted_apart() {
    let mut summary = Summary::default();
    let (records, _) = read(good(&SAMPLES[2]).as_bytes(), &options(0)).expect("rows");
    for volume in 0..20_000 {
        summary.add(&Record { volume, offset: 0, op: Op::Read, ..records[0] });
    }
    assert!((19_000..21_000).contains(&summary.working_set()), "{}", summary.working_set());
}

#[test]
fn records_of_blktrace_tell_the_same_as_blkparse() {
    use blkmq_core::IoFlags;
    use blkmq_trace::record::{Act, Record as Event, action, category, process_name};
    let mut bytes = Vec::new();
    let mut event = |time: u64, pid: u32, sector, length, action, payload: &[u8]| {
        let device = 8 << 20;
        let (sequence, cpu, error, bytes_) = (0, 0, 0, length);
        let action = u64::from(action);
        Event { sequence, time, sector, bytes: bytes_, action, pid, device, cpu, error, payload }
            .encode(&mut bytes);
    };
    event(0, 697, 0, 0, category::NOTIFY << 16, &process_name("kjournald"));
    event(0, 12, 0, 0, category::NOTIFY << 16, &process_name("cat"));
    let flags = IoFlags::NONE;
    event(5, 697, 223_490, 4096, action(Act::Queue, Op::Write, flags), &[]);
    event(6, 697, 223_490, 4096, action(Act::Issue, Op::Write, flags), &[]);
    event(500_000_005, 12, 16, 512, action(Act::Queue, Op::Read, flags), &[]);
    event(600_000_005, 12, 0, 0, action(Act::Queue, Op::Flush, flags), &[]);
    let (records, reader) = read(&bytes, &options(0)).expect("records");
    let (text, _) = read(BLKPARSE.as_bytes(), &options(0)).expect("lines");
    let facts = |it: &Record| (it.arrival, it.op, it.offset, it.length);
    assert_eq!(Vec::from_iter(records.iter().map(facts)), Vec::from_iter(text.iter().map(facts)));
    assert_eq!(reader.tenants().name(records[0].tenant), "kjournald");
    // The recorder was killed while it wrote.
    let cut = &bytes[..bytes.len() - 1];
    let error = read(cut, &options(0)).err().expect("cut");
    assert!(error.to_string().contains("ends within the record"), "{error}");
    let (records, reader) = read(cut, &options(1)).expect("all but the last");
    assert_eq!((records.len(), reader.skipped().bad), (2, 1));
}

#[test]
fn both_versions_of_vscsi_are_read() {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for i in 0..20u64 {
        let (command, length) = ([0x28u16, 0x2a][i as usize % 2], 4096u32);
        one.extend(
            (i as u32)
                .to_le_bytes()
                .into_iter()
                .chain(length.to_le_bytes())
                .chain(1u32.to_le_bytes()),
        );
        one.extend(command.to_le_bytes().into_iter().chain(0x100u16.to_le_bytes()));
        two.extend(command.to_le_bytes().into_iter().chain(0x200u16.to_le_bytes()));
        two.extend(
            (i as u32)
                .to_le_bytes()
                .into_iter()
                .chain(length.to_le_bytes())
                .chain(1u32.to_le_bytes()),
        );
        for out in [&mut one, &mut two] {
            out.extend((i * 8).to_le_bytes().into_iter().chain((7 + i * 10).to_le_bytes()));
        }
        two.extend(3u64.to_le_bytes());
    }
    let (first, reader) = read(&one, &options(0)).expect("version 1");
    assert_eq!(reader.format().name(), "vscsi1");
    let (second, reader) = read(&two, &options(0)).expect("version 2");
    assert_eq!(reader.format().name(), "vscsi2");
    assert_eq!(first, second);
    assert_eq!((first[3].arrival, first[3].offset, first[3].op), (30_000, 24 * 512, Op::Write));
    one.pop();
    let error = read(&one, &options(0)).err().expect("cut");
    assert_eq!(error.to_string(), "byte 608: the trace ends within the record");
}

#[test]
fn compressed_traces_are_read_as_if_they_were_not() {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;
    let text = good(&SAMPLES[0]);
    let plain = read(text.as_bytes(), &options(0)).expect("rows").0;
    let (head, tail) = text.split_at(100);
    let gzip = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).expect("memory");
        encoder.finish().expect("memory")
    };
    let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    // Two members or frames, as parallel compressors write them.
    for bytes in [[gzip(head), gzip(tail)].concat(), [zstd(head), zstd(tail)].concat()] {
        assert_eq!(read(&bytes, &options(0)).expect("rows").0, plain);
        let error = read(&bytes[..bytes.len() - 5], &options(0)).err().expect("cut");
        assert!(error.to_string().starts_with("byte "), "{error}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    for (form, name) in Form::NAMES {
        let sample = &SAMPLES[5];
        let (records, reader) = read(good(sample).as_bytes(), &options(0)).expect("rows");
        let mut bytes = Vec::new();
        let mut writer = Writer::new(form, &mut bytes).expect("memory");
        for record in &records {
            writer.write(record, reader.tenants(), reader.volumes()).expect("memory");
        }
        assert_eq!(writer.finish().expect("memory"), 0);
        let format = (name == "mqsim").then(|| Format::parse(name).expect("a preset"));
        let (again, found) = read(&bytes, &Options { format, ..options(0) }).expect(name);
        assert_eq!(found.format().name(), name);
        let facts = |it: &Record| (it.arrival, it.op, it.offset, it.length);
        assert_eq!(
            Vec::from_iter(again.iter().map(facts)),
            Vec::from_iter(records.iter().map(facts)),
            "{name}"
        );
        if form == Form::Csv {
            assert!(again.iter().zip(&records).all(|(a, b)| a.prio.class() == b.prio.class()));
        }
    }
}

#[test]
fn a_summary_counts_what_was_added() {
    let (records, _) = read(good(&SAMPLES[2]).as_bytes(), &options(0)).expect("rows");
    let mut summary = Summary::default();
    records.iter().for_each(|record| summary.add(record));
    assert_eq!((summary.total(), summary.ios[0], summary.bytes[1]), (20, 10, 40_960));
    assert_eq!((summary.span(), summary.peak, summary.working_set()), (38_000_000_000, 1, 20));
    assert_eq!(summary.burstiness(), Some(0.0));
    assert_eq!((summary.tenants.len(), summary.tenants[1].ios), (2, 10));
    assert_eq!(summary.ends, [20 * 4096, 21 * 4096]);
    assert_eq!(summary.course().0.iter().sum::<u64>(), 20);
}

#[test]
fn volumes_lie_behind_each_other_or_anywhere_on_the_device() {
    let record = |volume, offset| Record {
        arrival: 0,
        op: Op::Read,
        offset,
        length: 4096,
        tenant: 0,
        volume,
        prio: blkmq_core::IoPrio::default(),
        latency: None,
    };
    let placed = Placed::new(Layout::Concat, &[5000, 10_000], 1 << 30).expect("room");
    assert_eq!(placed.place(&record(1, 512)), (1 << 20) + 512);
    assert!(Placed::new(Layout::Concat, &[5000, 10_000], 1 << 20).is_err());
    let placed = Placed::new(Layout::Hash, &[u64::MAX >> 1; 3], 1 << 30).expect("always");
    for offset in [0, 1 << 29, 1 << 40] {
        assert!((0..3).all(|volume| placed.place(&record(volume, offset)) + 4096 <= 1 << 30));
    }
}

/// Random bytes, and good ones with damage, end in records or an error.
#[test]
fn any_bytes_end_in_records_or_an_error() {
    let mut rng = blkmq_core::Rng::new(7);
    let formats = PRESETS.iter().map(|preset| preset.name);
    let others = ["blktrace", "blkparse", "iolog2", "iolog3", "vscsi1", "vscsi2"];
    let formats: Vec<_> =
        formats.chain(others).map(|name| Format::parse(name).expect(name)).collect();
    let goods: Vec<Vec<u8>> = SAMPLES.iter().map(|sample| good(sample).into_bytes()).collect();
    for round in 0..400u64 {
        let mut bytes: Vec<u8> = if round % 2 == 0 {
            (0..rng.next_u64() % 4000).map(|_| rng.next_u64() as u8).collect()
        } else {
            goods[round as usize / 2 % goods.len()].clone()
        };
        for _ in 0..rng.next_u64() % 8 {
            let at = rng.next_u64() as usize % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.next_u64() as u8;
            }
        }
        let format =
            (round % 3 > 0).then(|| formats[rng.next_u64() as usize % formats.len()].clone());
        let options = Options { format, skip_bad: rng.next_u64() % 50, ..Options::default() };
        if let Ok((records, _)) = read(&bytes, &options) {
            let mut summary = Summary::default();
            records.iter().for_each(|record| summary.add(record));
            assert_eq!(summary.total(), records.len() as u64);
        }
    }
}

#[test]
fn a_line_without_an_end_is_cut_and_named() {
    let mut bytes = b"time_us,op,sector,bytes\n".to_vec();
    bytes.extend(vec![b'1'; 3 << 20]);
    bytes.extend(b"\n1,R,8,512\n");
    let error = read(&bytes, &options(0)).err().expect("too long");
    assert_eq!(error.to_string(), "line 2: longer than 65536 bytes");
    assert_eq!(read(&bytes, &options(1)).expect("skipped").0.len(), 1);
}

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
