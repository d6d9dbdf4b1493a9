//! fio's options that have no effect here, and those refused because they are not supported, each with the reason. A
//! refused option is accepted at fio's default: a job file may state defaults explicitly.

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

const fn bare(name: &'static str, why: &'static str) -> Opt {
    no_op(name, Kind::Flag, why)
}

const fn valued(name: &'static str, why: &'static str) -> Opt {
    no_op(name, Kind::Value, why)
}

const fn not_built(name: &'static str, why: &'static str) -> Opt {
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

const OPENED: &str = "files are opened for the whole run, and nothing else is done to them";

const ALIGNMENT: &str = "places and lengths are whole sectors";
const ERRORS: &str = "a job ends with its first failed I/O";
const BARRIERS: &str = "only whole flushes are built: fsync, fdatasync, sync";
const MERGED: &str = "traces are not merged; see blkmq trace convert and blkmq replay";
const PROGRAMS: &str = "no other program is run";

const AVERAGES: &str = "rates are averaged over half a second";
const STEADY: &str = "steady states are not looked for";
const RIGHTS: &str = "jobs have the rights of the command";
const REMOTE: &str = "runs are local";

const OTHER_WORK: &str = "fio itself does this";
const ENDS: &str = "groups end with the run";
const NETWORK: &str = "only clients in a network need it";

const RESERVED: &str = "memory is not reserved in advance";

/// The table.
pub const REFUSED: &[Opt] = &[
    not_built("lockfile", OPENED),
    not_built("opendir", OPENED),
    not_built("file_append", OPENED),
    not_built("create_only", OPENED).flag(),
    not_built("unlink_each_loop", OPENED).flag(),
    bare("unique_filename", NETWORK),
    not_built("offset_align", ALIGNMENT),
    not_built("ignore_error", ERRORS),
    not_built("exitall_on_error", ERRORS).flag(),
    bare("error_dump", ERRORS),
    not_built("sync_file_range", BARRIERS),
    not_built("write_barrier", BARRIERS),
    not_built("atomic", BARRIERS).flag(),
    not_built("merge_blktrace_file", MERGED),
    not_built("merge_blktrace_scalars", MERGED),
    not_built("merge_blktrace_iters", MERGED),
    not_built("exec_prerun", PROGRAMS),
    not_built("exec_postrun", PROGRAMS),
    not_built("zonecapacity", NO_ZONES),
    not_built("read_beyond_wp", NO_ZONES).flag(),
    not_built("job_max_open_zones", NO_ZONES),
    not_built("ignore_zone_limits", NO_ZONES).flag(),
    not_built("zone_reset_threshold", NO_ZONES),
    not_built("zone_reset_frequency", NO_ZONES),
    not_built("rate_ignore_thinktime", NO_CONTROL).flag(),
    valued("bwavgtime", AVERAGES),
    valued("iopsavgtime", AVERAGES),
    valued("log_compression", STREAMED),
    valued("log_compression_cpus", STREAMED),
    not_built("log_store_compressed", NO_LOGS).flag(),
    not_built("log_alternate_epoch", NO_LOGS).flag(),
    not_built("log_alternate_epoch_clock_id", NO_LOGS),
    not_built("block_error_percentiles", NO_FORMAT).flag(),
    not_built("stats", NO_FORMAT).flag(),
    valued("hugepage_size", RESERVED),
    bare("cgroup_nodelete", ENDS),
    not_built("profile", OTHER_WORK),
    not_built("uid", RIGHTS),
    not_built("gid", RIGHTS),
    not_built("steadystate_duration", STEADY).or(&["ss_dur"]),
    not_built("steadystate_ramp_time", STEADY).or(&["ss_ramp"]),
    not_built("server", REMOTE),
    not_built("client", REMOTE),
    not_built("remote_config", REMOTE),
    not_built("daemonize", REMOTE),
    not_built("debug", OTHER_WORK),
    not_built("merge_blktrace_only", OTHER_WORK).flag(),
    not_built("cpuclock_test", OTHER_WORK).flag(),
    not_built("crctest", OTHER_WORK),
    not_built("cmdhelp", "see --help"),
    not_built("enghelp", "see --help"),
    not_built("idle_prof", OTHER_WORK),
    not_built("inflate_log", OTHER_WORK),
    not_built("trigger_file", PROGRAMS),
    not_built("trigger_timeout", PROGRAMS),
    not_built("trigger", PROGRAMS),
    not_built("trigger_remote", PROGRAMS),
    not_built("aux_path", PROGRAMS),
    valued("alloc_size", RESERVED),
    valued("max_jobs", RESERVED),
    bare("warnings_fatal", "whatever cannot be accepted is an error"),
    not_built("hipri_percentage", "no I/O is polled"),
    not_built("nowait", "an I/O waits where it must").flag(),
];

/// Options of I/O engines that have no equivalent here.
const OF_ENGINES: &[&str] = &[
    "arguments",
    "bindname",
    "brick",
    "busy_poll",
    "busy_wait_polling",
    "chunk_size",
    "clientname",
    "clustername",
    "cmd_type",
    "conf",
    "cont",
    "cpuchunks",
    "cpuload",
    "cpumode",
    "cuda_io",
    "direct_write_to_pmem",
    "donorname",
    "exit_on_io_done",
    "gpu_dev_id",
    "gpu_dev_ids",
    "grace_time",
    "hdfsdirectory",
    "hostname",
    "hdfs_use_direct",
    "http_host",
    "http_mode",
    "http_pass",
    "http_s3_key",
    "http_s3_keyid",
    "http_s3_region",
    "http_s3_sse_customer_algorithm",
    "http_s3_sse_customer_key",
    "http_s3_storage_class",
    "http_swift_auth_token",
    "http_user",
    "http_verbose",
    "https",
    "inplace",
    "interface",
    "listen",
    "md_per_io_size",
    "mss",
    "namenode",
    "nfs_url",
    "nodelay",
    "object_class",
    "pi_act",
    "pi_chk",
    "pingpong",
    "pool",
    "port",
    "program",
    "protocol",
    "rbdname",
    "readfua",
    "serverip",
    "sg_write_mode",
    "single_instance",
    "skip_bad",
    "stat_type",
    "std_redirect",
    "stream_id",
    "svc",
    "thp",
    "touch_objects",
    "ttl",
    "uri",
    "verb",
    "volume",
    "window_size",
    "writefua",
    "xnvme_async",
    "xnvme_dev_nsid",
    "xnvme_iovec",
    "xnvme_sync",
];

/// Returns whether `name` is an option of an I/O engine that has no equivalent here.
pub fn is_of_an_engine(name: &str) -> bool {
    OF_ENGINES.contains(&name)
}

/// An option, and every spelling of its default.
pub type Default = (&'static str, &'static [&'static str]);

const OFF: &[&str] = &["0"];
const ON: &[&str] = &["1"];
const NONE: &[&str] = &["none"];

/// By the names of the table.
const DEFAULTS: &[Default] = &[
    ("atomic", OFF),
    ("block_error_percentiles", OFF),
    ("bs_unaligned", OFF),
    ("create_only", OFF),
    ("exitall_on_error", OFF),
    ("file_append", OFF),
    ("ignore_zone_limits", OFF),
    ("job_max_open_zones", OFF),
    ("lockfile", NONE),
    ("log_alternate_epoch", OFF),
    ("log_alternate_epoch_clock_id", OFF),
    ("log_store_compressed", OFF),
    ("max_open_zones", OFF),
    ("offset_align", OFF),
    ("rate_ignore_thinktime", OFF),
    ("read_beyond_wp", OFF),
    ("rw_sequencer", &["sequential"]),
    ("significant_figures", &["4"]),
    ("stats", ON),
    ("steadystate_duration", OFF),
    ("steadystate_ramp_time", OFF),
    ("thinktime_blocks_type", &["complete"]),
    ("thinktime_iotime", OFF),
    ("thinktime_spin", OFF),
    ("trim_backlog", OFF),
    ("trim_backlog_batch", OFF),
    ("trim_percentage", OFF),
    ("trim_verify_zero", ON),
    ("unlink_each_loop", OFF),
    ("verify_backlog_batch", OFF),
    ("verify_offset", OFF),
    ("write_barrier", OFF),
    ("write_hint", NONE),
    ("zone_reset_frequency", &["0", "0.0"]),
    ("zone_reset_threshold", &["0", "0.0"]),
    ("zonecapacity", OFF),
];

/// All defaults.
#[cfg(test)]
pub fn defaults() -> impl Iterator<Item = &'static Default> {
    DEFAULTS.iter()
}

/// Returns whether `value` is fio's default of the option called `name`.
pub fn is_default(name: &str, value: &str) -> bool {
    DEFAULTS.iter().any(|(known, values)| *known == name && values.contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::options;

    #[test]
    fn each_option_is_refused_otherwise_and_stands_here_once() {
        for (at, (name, values)) in DEFAULTS.iter().enumerate() {
            let option = options::find(name).expect(name);
            assert!(
                option.name == *name && matches!(option.meaning, Meaning::Unsupported(_)),
                "{name}"
            );
            assert!(DEFAULTS[..at].iter().all(|(other, _)| other != name), "{name} stands twice");
            assert!(!values.is_empty(), "{name}");
        }
    }
}
