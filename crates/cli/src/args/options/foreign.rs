//! fio's options that have no effect here, and those refused because they are not supported.

use super::{Group, Kind, Meaning, Opt};

const THREADS: &str = "jobs are always threads";
const CACHE: &str = "the page cache is passed by, or left as it is";
const MEMORY: &str = "buffers are aligned, and registered with the kernel where that helps";
const ENGINE: &str = "I/O goes through blkmq, not through a system call";
const FILES: &str = "files are laid out before the first run, written through, and stay";
const REPEATS: &str = "streams always repeat; randseed chooses another";
const SUBMISSION: &str = "no submission waits for the device, so none needs a thread of its own";
const PROGRESS: &str = "the progress is one line of a terminal";
const BANDWIDTH: &str = "bandwidth is counted, which costs nothing";
const IN_ORDER: &str =
    "what was written is read back in order of place, or of writing with verify_backlog";

const OWN_THREAD: &str = "a thread checks its blocks itself";
const REMEMBERED: &str = "what was written is remembered, and not drawn again";
const NO_VERIFY: &str = "this variant of verification is not built";
const NO_DUMP: &str = "a wrong block is named with what is wrong with it, and not dumped";
const NO_LOGS: &str = "this variant of a log is not built; see write_bw_log";
const STREAMED: &str = "logs are written as the run goes on";
const NO_ZONES: &str = "zones are not built";
const REDIRECTED: &str = "the I/Os of a trace go to the job's device";
const WHOLE: &str = "a trace is read before the run begins";
const NO_PLACEMENT: &str = "threads are bound to CPUs only: cpus_allowed";
const NO_CONTROL: &str = "jobs do not steer each other or themselves";
const NO_VARIANT: &str = "this variant of the workload is not built";
const NICE: &str = "threads keep the priority of the command";
const UNITS: &str = "rates are in bytes";
const NO_FORMAT: &str = "the format of results is fixed; see --output-format";

const fn no_op(name: &'static str, kind: Kind, why: &'static str) -> Opt {
    let (aliases, group): (&[&str], _) = (&[], Group::Foreign);
    Opt { name, aliases, group, kind, accepts: "", help: "", meaning: Meaning::NoOp(why) }
}

pub(super) const fn bare(name: &'static str, why: &'static str) -> Opt {
    no_op(name, Kind::Flag, why)
}

pub(super) const fn valued(name: &'static str, why: &'static str) -> Opt {
    no_op(name, Kind::Value, why)
}

pub(super) const fn not_built(name: &'static str, why: &'static str) -> Opt {
    let (aliases, group, kind): (&[&str], _, _) = (&[], Group::Foreign, Kind::Value);
    Opt { name, aliases, group, kind, accepts: "", help: "", meaning: Meaning::Unsupported(why) }
}

/// The table.
pub const OPTIONS: &[Opt] = &[
    bare("thread", THREADS),
    bare("invalidate", CACHE),
    bare("uncached", CACHE),
    bare("pre_read", CACHE),
    valued("fadvise_hint", CACHE),
    bare("fixedbufs", MEMORY),
    valued("mem", MEMORY).or(&["iomem"]),
    valued("mem_align", MEMORY).or(&["iomem_align"]),
    valued("lockmem", MEMORY),
    bare("hipri", ENGINE),
    bare("registerfiles", ENGINE),
    bare("sqthread_poll", ENGINE),
    valued("sqthread_poll_cpu", ENGINE),
    bare("nonvectored", ENGINE),
    valued("force_async", ENGINE),
    bare("userspace_reap", ENGINE),
    valued("clocksource", ENGINE),
    valued("fallocate", FILES),
    bare("overwrite", FILES),
    bare("create_serialize", FILES),
    bare("create_fsync", FILES),
    bare("create_on_open", FILES),
    bare("allow_mounted_write", FILES),
    bare("unlink", FILES),
    bare("randrepeat", REPEATS),
    bare("allrandrepeat", REPEATS),
    valued("eta_newline", PROGRESS),
    valued("eta_interval", PROGRESS),
    bare("disable_bw_measurement", BANDWIDTH).or(&["disable_bw"]),
    valued("log_entries", STREAMED),
    bare("verifysort", IN_ORDER),
    valued("verifysort_nr", IN_ORDER),
    not_built("verify_offset", NO_VERIFY),
    bare("verify_dump", NO_DUMP),
    valued("verify_async", OWN_THREAD),
    valued("verify_async_cpus", OWN_THREAD),
    not_built("verify_backlog_batch", NO_VERIFY),
    not_built("verify_header_seed", NO_VERIFY),
    not_built("verify_write_sequence", NO_VERIFY),
    bare("experimental_verify", REMEMBERED),
    not_built("trim_percentage", NO_VERIFY),
    not_built("trim_verify_zero", NO_VERIFY),
    not_built("trim_backlog", NO_VERIFY),
    not_built("trim_backlog_batch", NO_VERIFY),
    not_built("bandwidth_log", NO_LOGS),
    not_built("max_open_zones", NO_ZONES),
    bare("read_iolog_chunked", WHOLE),
    valued("replay_redirect", REDIRECTED),
    valued("nice", NICE),
    not_built("gtod_cpu", NO_PLACEMENT),
    not_built("steadystate", NO_CONTROL).or(&["ss"]),
    not_built("rw_sequencer", NO_VARIANT),
    not_built("bs_unaligned", NO_VARIANT).flag().or(&["blocksize_unaligned"]),
    not_built("thinktime_spin", NO_VARIANT),
    not_built("thinktime_blocks_type", NO_VARIANT),
    not_built("thinktime_iotime", NO_VARIANT),
    valued("io_submit_mode", SUBMISSION),
    not_built("write_hint", NO_VARIANT),
    not_built("significant_figures", NO_FORMAT),
    valued("unit_base", UNITS),
];
