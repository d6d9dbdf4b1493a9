//! Options of fio for logs, for priorities by chance and for the end of jobs: known by name, and refused.

use super::Opt;
use super::foreign::{bare, not_built, valued};

const LOGS: &str = "no logs are written; see --output-format=json+";
const OFF: &[&str] = &["0"];
const CONTROL: &str = "jobs do not steer each other or themselves";

/// The table.
pub const OPTIONS: &[Opt] = &[
    not_built("fill_device", "a full disk ends a run as an error").flag().or(&["fill_fs"]),
    not_built("latency_run", CONTROL).flag(),
    bare("per_job_logs", LOGS),
    valued("log_entries", LOGS),
    not_built("log_hist_coarseness", LOGS),
    not_built("log_max_value", LOGS).flag(),
    not_built("log_offset", LOGS).flag(),
    not_built("log_prio", LOGS).flag(),
    valued("log_compression", LOGS),
    valued("log_compression_cpus", LOGS),
    not_built("log_store_compressed", LOGS).flag(),
    not_built("log_unix_epoch", LOGS).flag(),
    not_built("log_alternate_epoch", LOGS).flag(),
    not_built("log_alternate_epoch_clock_id", LOGS),
    not_built("cmdprio", "priorities by chance are not built"),
];

/// Their defaults, and those of others of their kind.
pub const DEFAULTS: &[(&str, &[&str])] = &[
    ("end_fsync", OFF),
    ("exitall", OFF),
    ("fill_device", OFF),
    ("latency_percentile", &["100", "100.0"]),
    ("latency_run", OFF),
    ("latency_target", OFF),
    ("latency_window", OFF),
    ("log_alternate_epoch", OFF),
    ("log_alternate_epoch_clock_id", OFF),
    ("log_avg_msec", OFF),
    ("log_hist_coarseness", OFF),
    ("log_hist_msec", OFF),
    ("log_max_value", OFF),
    ("log_offset", OFF),
    ("log_prio", OFF),
    ("log_store_compressed", OFF),
    ("log_unix_epoch", OFF),
    ("rate_process", &["linear"]),
    ("verify_dump", OFF),
];
