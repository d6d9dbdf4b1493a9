//! The defaults of fio's options whose other values are refused: a job file may state defaults explicitly.

/// An option, and every spelling of its default.
pub type Default = (&'static str, &'static [&'static str]);

const OFF: &[&str] = &["0"];
const ON: &[&str] = &["1"];
const NONE: &[&str] = &["none"];

/// By the names of the table.
pub const DEFAULTS: &[Default] = &[
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
pub fn all() -> impl Iterator<Item = &'static Default> {
    DEFAULTS.iter()
}

/// Returns whether `value` is fio's default of the option called `name`.
pub fn is_default(name: &str, value: &str) -> bool {
    DEFAULTS.iter().any(|(known, values)| *known == name && values.contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::options::{self, Meaning};

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
