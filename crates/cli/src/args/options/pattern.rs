//! fio's options for the I/Os of a job: the engine and the files, the pattern, the contents of writes, and the check
//! that a read returns the data that was written; and for logs of I/Os, written and replayed.

use super::super::file_draft::{self, Engine};
use super::super::job_draft::{
    Parsed, Value, block_size, block_sizes, distribution, pattern, put, put_each, range,
    unless_zero,
};
use super::{Opt, flag, job};
use blkmq_core::{Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::verify::{Method, Pattern};
use blkmq_lab::workload::{Amount, BlockSize};
use blkmq_terminal::UsageError;
use std::fs::File;
use std::io::Read;

/// Returns whether a size is written in KiB, MiB or GiB.
fn says_kib(text: &str) -> bool {
    text.to_ascii_lowercase().contains("ib")
}

/// `io_size`; 0 is `size`.
fn amount_of_io(value: Value<'_>) -> Parsed<Option<Amount>> {
    value.amount().map(|amount| Some(amount).filter(|amount| *amount != Amount::ZERO))
}

/// The options for the pattern.
pub const OPTIONS: &[Opt] = &[
    job("rw", |d, v| {
        (d.job.rw, d.job.run, d.job.hole) = pattern(v)?;
        Ok(())
    })
    .or(&["readwrite"])
    .takes(
        "PATTERN[:NUMBER]",
        "read, write, trim, rw, trimwrite, or rand and one of them; NUMBER: I/Os in \
         sequence at each random place, or bytes to leave out between sequential ones \
         (negative: backwards)",
    ),
    job("rwmixread", |d, v| put(&mut d.job.rwmixread, v.percent()))
        .takes("0-100", "reads in a mix, in percent (default 50)"),
    job("rwmixwrite", |d, v| put(&mut d.job.rwmixread, v.percent().map(|writes| 100 - writes)))
        .takes("0-100", "writes in a mix, in percent"),
    job("bs", |d, v| {
        d.says_kib = says_kib(v.text);
        put_each(&mut d.job.bs, v.directions(|v| block_size(v).map(BlockSize::Fixed)))
    })
    .or(&["blocksize"])
    .takes("SIZE[,SIZE[,SIZE]]", "block size of reads, writes, trims (default 4k)"),
    job("bsrange", |d, v| {
        d.says_kib = says_kib(v.text);
        put_each(&mut d.bsrange, v.directions(range))
    })
    .or(&["blocksize_range"])
    .takes("MIN-MAX[,MIN-MAX...]", "block sizes are multiples of MIN, and MAX; wins over bs"),
    job("bssplit", |d, v| {
        d.says_kib = says_kib(v.text);
        put(&mut d.bssplit, v.directions(block_sizes))
    })
    .takes("SIZE/PERCENT:...", "block sizes with their shares; wins over bs and bsrange"),
    job("blockalign", |d, v| put_each(&mut d.job.blockalign, v.directions(block_size)))
        .or(&["ba"])
        .takes("SIZE[,SIZE[,SIZE]]", "grid of random places (default bs); implies norandommap"),
    job("random_generator", |d, v| {
        let words = [(false, "tausworthe"), (false, "tausworthe64"), (true, "lfsr")];
        put(&mut d.lfsr, v.word(&words, "tausworthe, tausworthe64, lfsr"))
    })
    .takes(
        "NAME",
        "lfsr: each block once also with norandommap, if all have one size; tausworthe \
         and tausworthe64 are alike",
    ),
    flag("norandommap", |d| &mut d.job.norandommap)
        .switch("draw blocks independently, instead of each once per pass"),
    job("random_distribution", |d, v| put(&mut d.job.random_distribution, distribution(v))).takes(
        "KIND",
        "random, zipf:THETA, pareto:POWER, normal:DEVIATION (fio's bell; all three with \
         :CENTRE, 0 to 1, the place of the hottest block), zoned:SHARE/PERCENT:... or \
         zoned_abs:SHARE/SIZE:... (shares of the I/Os, in percent)",
    ),
    job("percentage_random", |d, v| {
        put_each(&mut d.job.percentage_random, v.directions(Value::percent))
    })
    .takes("0-100[,0-100...]", "random share of a random job (default 100)"),
    job("randseed", |d, v| put(&mut d.job.randseed, v.count(0..=u64::MAX)))
        .takes("NUMBER", "seed of all random choices (default 0x89)"),
    job("size", |d, v| put(&mut d.job.size, v.amount()))
        .takes("SIZE or PERCENT%", "region of each thread (default: to the end of the device)"),
    job("io_size", |d, v| put(&mut d.job.io_size, amount_of_io(v))).or(&["io_limit"]).takes(
        "SIZE or PERCENT%",
        "what a thread issues in a pass (default: size, of which PERCENT is)",
    ),
    job("offset", |d, v| put(&mut d.job.offset, v.amount()))
        .or(&["fileoffset"])
        .takes("SIZE or PERCENT%", "where the first thread's region begins (default 0)"),
    job("offset_increment", |d, v| put(&mut d.job.offset_increment, v.amount()))
        .takes("SIZE or PERCENT%", "each further thread begins this much later"),
    job("direct", |d, v| put(&mut d.files.direct, v.flag()))
        .switch("writes are waited for, hence sync to a scheduler, as with O_DIRECT"),
    job("buffered", |d, v| put(&mut d.files.direct, v.opposite()))
        .switch("the opposite of direct: writes are async, as writeback is"),
    job("sync", |d, v| {
        let words = [(false, "none"), (false, "0"), (true, "sync"), (true, "1"), (true, "dsync")];
        put(&mut d.job.sync, v.word(&words, "none, 0, sync, 1, dsync"))
    })
    .takes("none, sync, dsync", "each write is durable before it completes (FUA)"),
    job("fsync", |d, v| put(&mut d.job.fsync, v.count(0..=u32::MAX)))
        .takes("COUNT", "flush the device between every COUNT writes (default 0, never)"),
    job("fdatasync", |d, v| put(&mut d.job.fdatasync, v.count(0..=u32::MAX)))
        .takes("COUNT", "the same, beside fsync (default 0, never)"),
    // `kb_base` is read before all other options, because their values depend on it.
    job("kb_base", |_, _| Ok(()))
        .takes("1024 or 1000", "what k means in sizes (default 1024; kib is then 1000, as in fio)"),
];

/// The table.
pub const CONTENTS: &[Opt] = &[
    flag("zero_buffers", |d| &mut d.job.contents.is_zero)
        .switch("write zeroes (default: random bytes)"),
    flag("refill_buffers", |d| &mut d.job.contents.refills)
        .switch("make every byte anew for each write"),
    flag("scramble_buffers", |d| &mut d.job.contents.scrambles)
        .switch("make some bytes of each sector anew (default: 1)"),
    job("buffer_pattern", |d, v| {
        let pattern = repeated(v)?;
        if pattern.has_offsets() {
            let text = "%o belongs to verify_pattern; accepted: 0xHEX, NUMBER, \"TEXT\", 'FILE'";
            return Err(UsageError::new(text));
        }
        d.job.contents.pattern = Some(pattern);
        Ok(())
    })
    .takes(
        "0xHEX, NUMBER, \"TEXT\", 'FILE'",
        "write this over and over; with buffer_compress_percentage, in place of zeroes",
    ),
    job("buffer_compress_percentage", |d, v| {
        let share = v.percent()?;
        d.job.contents.compress = Some(share);
        // As in fio: equal random bytes in neighbours would compress further.
        d.job.contents.refills |= share < 100;
        Ok(())
    })
    .takes("0..100", "zeroes in this share of each chunk, random bytes in the rest"),
    job("buffer_compress_chunk", |d, v| put(&mut d.job.contents.chunk, v.count(1..=1u32 << 30)))
        .takes("BYTES", "the length of such a chunk (512)"),
    job("dedupe_percentage", |d, v| {
        d.job.contents.dedupe = v.percent()?;
        // As in fio: otherwise all writes from one buffer would be alike.
        d.job.contents.refills |= d.job.contents.dedupe > 0;
        Ok(())
    })
    .takes("0..100", "writes that repeat the bytes of another one"),
    job("dedupe_mode", |d, v| put(&mut d.job.contents.dedupe_mode, v.choice())).takes(
        "WORD",
        "these are the last unique write (repeat, default) or some of a working_set",
    ),
    job("dedupe_working_set_percentage", |d, v| put(&mut d.job.contents.working_set, v.percent()))
        .takes("0..100", "the working set, as a share of the blocks of the job (5)"),
    flag("dedupe_global", |d| &mut d.job.contents.is_global)
        .switch("all jobs have one working set"),
];

/// A pattern of bytes, some of which may be those of a file.
fn repeated(value: Value<'_>) -> Parsed<Pattern> {
    Pattern::parse_with(value.text, bytes_of).map_err(UsageError::new)
}

/// The bytes of a file that is part of a pattern; of a long one, enough to see that it is too long.
fn bytes_of(name: &str) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| e.to_string();
    // A device has no end, and opening a pipe may block for ever.
    if !std::fs::metadata(name).map_err(failed)?.is_file() {
        return Err("no regular file".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(name).map_err(failed)?;
    file.take(Pattern::MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The method of `verify`; `None` for 0.
fn method(value: Value<'_>) -> Parsed<Option<Method>> {
    if value.text == "0" {
        return Ok(None);
    }
    let found = Method::parse(value.text).map(Some);
    found.ok_or_else(|| {
        let words = Method::NAMES.map(|(_, words)| words[0]).join(", ");
        UsageError::new(format!("not built; accepted: {words}, 0 (none)"))
    })
}

/// The table.
pub const VERIFY: &[Opt] = &[
    job("verify", |d, v| put(&mut d.method, method(v))).takes(
        "METHOD",
        "read back what was written, and check it; or check what is read: with a checksum \
         (crc32c, xxhash), a digest (md5, sha256), meta (headers only), pattern or null",
    ),
    job("verify_pattern", |d, v| put(&mut d.verify.pattern, repeated(v))).takes(
        "0xHEX, NUMBER, \"TEXT\", 'FILE', %o",
        "fill blocks with this, %o being their offset (default: from a seed)",
    ),
    job("verify_interval", |d, v| {
        let bs = block_size(v)?;
        let checked = BlockSize::Fixed(bs).validate();
        checked.map_err(UsageError::new)?;
        d.verify.interval = Some(bs);
        Ok(())
    })
    .takes("SIZE", "block with a header of its own (default: what all block sizes have in common)"),
    flag("do_verify", |d| &mut d.verify.do_verify)
        .switch("read back at the end of the job (default 1)"),
    flag("verify_fatal", |d| &mut d.verify.fatal).switch("end the job at the first wrong block"),
    job("verify_backlog", |d, v| put(&mut d.verify.backlog, v.count(0..=u32::MAX)))
        .takes("COUNT", "read back after every COUNT writes (default 0, at the end)"),
    flag("verify_state_save", |d| &mut d.verify.state_save).switch(
        "keep what each block holds in local-NAME-THREAD-verify.state, in a form of blkmq \
         (default 0)",
    ),
    flag("verify_state_load", |d| &mut d.verify.state_load)
        .switch("with verify_only, or in a job that reads: check what such a file says"),
    flag("verify_only", |d| &mut d.verify.only)
        .switch("write nothing; check what the same job has written before"),
];

/// The most files of a thread.
const MAX_FILES: u32 = 65_536;

/// The options for files.
pub const FILES: &[Opt] = &[
    job("filename", |d, v| {
        put(&mut d.files.filename, v.non_empty("the path of a file or block device"))
    })
    .takes(
        "PATH[:PATH...]",
        "the files or the block device for I/O, unless there is --device; laid out if \
         needed",
    ),
    job("ioengine", |d, v| put(&mut d.files.engine, Engine::named(v.text)))
        .takes("NAME", "null, or an engine for files; all of them go through io_uring"),
    job("directory", |d, v| put(&mut d.files.directory, v.non_empty("the path of a folder")))
        .takes("PATH", "the folder of filename; alone, of files JOB.THREAD.FILE"),
    job("nrfiles", |d, v| put(&mut d.files.nrfiles, v.count(1..=MAX_FILES)))
        .or(&["nr_files"])
        .takes("1-65536", "files of each thread, which share size (default 1)"),
    job("filename_format", |d, v| put(&mut d.files.format, file_draft::format(v.text)))
        .takes("NAME", "names with $jobname, $jobnum, $filenum in them"),
    job("file_service_type", |d, v| put(&mut d.files.service, file_draft::service(v.text))).takes(
        "ORDER[:COUNT]",
        "the next of several files: roundrobin (default), random or sequential; and the \
         I/Os of its turn",
    ),
    job("openfiles", |d, v| put(&mut d.files.openfiles, unless_zero(v.count(0..=MAX_FILES))))
        .takes("1-65536", "files that a thread visits at a time (default nrfiles)"),
    job("filesize", |d, v| {
        if v.text.contains('-') {
            return Err(UsageError::new("a range of sizes is not built; accepted: one size"));
        }
        put(&mut d.files.filesize, unless_zero(v.bytes()))
    })
    .takes("SIZE", "the size of each file to lay out; bounds size"),
    flag("allow_file_create", |d| &mut d.files.may_create)
        .switch("a file that does not exist may be laid out (default 1)"),
];

/// The longest time of a line: a day.
const MAX_MSEC: u64 = 86_400_000;

/// A time in milliseconds, of a line of a log.
fn window(value: Value<'_>) -> Parsed<Nanos> {
    value.count(0..=MAX_MSEC).map(Nanos::from_millis)
}

/// `replay_align`: a power of two, and at least a sector.
fn alignment(value: Value<'_>) -> Parsed<u32> {
    match value.count(0..=1 << 30)? {
        0 => Ok(SECTOR_SIZE),
        align if u32::is_power_of_two(align) => Ok(align.max(SECTOR_SIZE)),
        _ => Err(UsageError::new("accepted: a power of two")),
    }
}

/// `replay_skip`: the kinds of I/O that a replay leaves out.
fn skipped(value: Value<'_>) -> Parsed<Vec<Op>> {
    let kinds =
        [(Op::Read, "read"), (Op::Write, "write"), (Op::Discard, "trim"), (Op::Flush, "sync")];
    let accepted = "read, write, trim, sync, with commas between them";
    value.list().map(|kind| kind.word(&kinds, accepted)).collect()
}

/// The table. Without a value, the files of a log are named after the job, whose name is not known yet.
pub const LOGS: &[Opt] = &[
    job("write_bw_log", |d, v| put(&mut d.job.logs.bw, Ok(v.text.to_owned())))
        .optional()
        .takes("PREFIX", "log of bandwidth: PREFIX_bw.1.log and so on (default: the job's name)"),
    job("write_iops_log", |d, v| put(&mut d.job.logs.iops, Ok(v.text.to_owned())))
        .optional()
        .takes("PREFIX", "log of I/Os per second: PREFIX_iops.1.log and so on"),
    job("write_lat_log", |d, v| put(&mut d.job.logs.lat, Ok(v.text.to_owned())))
        .optional()
        .takes("PREFIX", "logs of latencies: PREFIX_slat.1.log, _clat and _lat"),
    job("write_hist_log", |d, v| put(&mut d.job.logs.hist, Ok(v.text.to_owned())))
        .optional()
        .takes("PREFIX", "log of latencies as histograms: PREFIX_clat_hist.1.log"),
    job("write_iolog", |d, v| put(&mut d.job.logs.io, v.non_empty("the name of a file"))).takes(
        "FILE",
        "log of the I/Os as they are issued, for fio's read_iolog; FILE.1 and so on if \
         there are several threads",
    ),
    job("read_iolog", |d, v| put(&mut d.iolog.file, v.non_empty("the name of a file"))).takes(
        "FILE",
        "replay the I/Os of a trace, as it is, instead of a pattern: fio's iolog, \
         blktrace, or any form of blkmq trace",
    ),
    flag("replay_no_stall", |d| &mut d.iolog.no_stall)
        .switch("with read_iolog: without the times of the trace"),
    job("replay_time_scale", |d, v| put(&mut d.iolog.time_scale, v.count(1..=1_000_000u32))).takes(
        "PERCENT",
        "with read_iolog: the rate of the trace; 200 is twice as fast (default 100)",
    ),
    job("replay_scale", |d, v| put(&mut d.iolog.scale, v.count(1..=1u32 << 20)))
        .takes("NUMBER", "with read_iolog: divide offsets by this (default 1)"),
    job("replay_align", |d, v| put(&mut d.iolog.align, alignment(v))).takes(
        "BYTES",
        "with read_iolog: round offsets down to multiples of this power of two (default \
         512)",
    ),
    job("replay_skip", |d, v| put(&mut d.iolog.skip, skipped(v)))
        .takes("read, write, trim, sync", "with read_iolog: leave out the I/Os of these kinds"),
    job("log_avg_msec", |d, v| put(&mut d.job.logs.avg, window(v)))
        .takes("MSEC", "a line for each so long time (default 0, for each I/O)"),
    job("log_hist_msec", |d, v| put(&mut d.job.logs.hist_window, window(v)))
        .takes("MSEC", "a histogram for each so long time (default 0, none)"),
    job("log_hist_coarseness", |d, v| put(&mut d.job.logs.coarseness, v.count(0..=6u8)))
        .takes("0-6", "each step halves the 1856 bins (default 0)"),
    flag("log_offset", |d| &mut d.job.logs.offset).switch("lines have the offset of the I/O"),
    flag("log_prio", |d| &mut d.job.logs.prio).switch("lines have the priority of the I/O"),
    flag("log_unix_epoch", |d| &mut d.job.logs.unix_epoch)
        .switch("times since the epoch, in a real run"),
    flag("log_max_value", |d| &mut d.job.logs.max_value)
        .switch("with log_avg_msec: the largest latency, not the mean"),
    flag("per_job_logs", |d| &mut d.job.logs.per_job)
        .switch("files of its own for each thread (default 1)"),
];
