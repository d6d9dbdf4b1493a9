//! fio's options for features that a study of schedulers does not need: recognised, and refused with the reason unless
//! at their default; and options without effect here that are only used together with refused ones.

use super::Opt;
use super::foreign::{bare, not_built, valued};

const FILES: &str = "files are opened for the whole run, and nothing else is done to them";
const ALIGNMENT: &str = "places and lengths are whole sectors";
const ERRORS: &str = "a job ends with its first failed I/O";
const BARRIERS: &str = "only whole flushes are built: fsync, fdatasync, sync";
const MERGED: &str = "traces are not merged; see blkmq trace convert and blkmq replay";
const PROGRAMS: &str = "no other program is run";
const ZONES: &str = "zones are not built";
const CONTROL: &str = "jobs do not steer each other or themselves";
const LOGS: &str = "this variant of a log is not built; see write_bw_log";
const STREAMED: &str = "logs are written as the run goes on";
const AVERAGES: &str = "rates are averaged over half a second";
const STEADY: &str = "steady states are not looked for";
const RIGHTS: &str = "jobs have the rights of the command";
const REMOTE: &str = "runs are local";
const FORMAT: &str = "the format of results is fixed; see --output-format";
const OTHER_WORK: &str = "fio itself does this";
const ENDS: &str = "groups end with the run";
const NETWORK: &str = "only clients in a network need it";
const MEMORY: &str = "memory is not reserved in advance";

/// The table.
pub const OPTIONS: &[Opt] = &[
    not_built("lockfile", FILES),
    not_built("opendir", FILES),
    not_built("file_append", FILES),
    not_built("create_only", FILES).flag(),
    not_built("unlink_each_loop", FILES).flag(),
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
    not_built("zonecapacity", ZONES),
    not_built("read_beyond_wp", ZONES).flag(),
    not_built("job_max_open_zones", ZONES),
    not_built("ignore_zone_limits", ZONES).flag(),
    not_built("zone_reset_threshold", ZONES),
    not_built("zone_reset_frequency", ZONES),
    not_built("rate_ignore_thinktime", CONTROL).flag(),
    valued("bwavgtime", AVERAGES),
    valued("iopsavgtime", AVERAGES),
    valued("log_compression", STREAMED),
    valued("log_compression_cpus", STREAMED),
    not_built("log_store_compressed", LOGS).flag(),
    not_built("log_alternate_epoch", LOGS).flag(),
    not_built("log_alternate_epoch_clock_id", LOGS),
    not_built("block_error_percentiles", FORMAT).flag(),
    not_built("stats", FORMAT).flag(),
    valued("hugepage_size", MEMORY),
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
    valued("alloc_size", MEMORY),
    valued("max_jobs", MEMORY),
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
