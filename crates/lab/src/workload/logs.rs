//! The meaning of fio's `write_*_log` and their companions, as a job has it.
//!
//! The logs themselves are written by the code that drives a worker, from its [`Journal`](super::Journal).

use blkmq_core::Nanos;

/// The logs of a job's completed I/Os. Fields carry the names of fio's options, without `log_`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logs {
    /// `write_bw_log`: the beginning of the file's name.
    pub bw: Option<String>,
    /// `write_iops_log`.
    pub iops: Option<String>,
    /// `write_lat_log`: three files, of submission, completion and total latency.
    pub lat: Option<String>,
    /// `write_hist_log`: histograms of completion latency.
    pub hist: Option<String>,
    /// `write_iolog`: the file for the I/Os that are issued, which fio can replay.
    pub io: Option<String>,
    /// `log_avg_msec`: an entry for each so long time; zero is an entry for each I/O.
    pub avg: Nanos,
    /// `log_hist_msec`: a histogram for each so long time; zero is none.
    pub hist_window: Nanos,
    /// `log_hist_coarseness`: 0 to 6, each halves the number of bins.
    pub coarseness: u8,
    /// `log_offset`: entries have the place of the I/O.
    pub offset: bool,
    /// `log_prio`: entries have the priority of the I/O, and not only whether it is a realtime one.
    pub prio: bool,
    /// `log_unix_epoch`: times are those since the epoch, not since counting began.
    pub unix_epoch: bool,
    /// `log_max_value`: with `avg`, the largest latency instead of the mean.
    pub max_value: bool,
    /// `per_job_logs`: each thread has files of its own.
    pub per_job: bool,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            bw: None,
            iops: None,
            lat: None,
            hist: None,
            io: None,
            avg: Nanos::ZERO,
            hist_window: Nanos::ZERO,
            coarseness: 0,
            offset: false,
            prio: false,
            unix_epoch: false,
            max_value: false,
            per_job: true,
        }
    }
}

impl Logs {
    /// Returns whether any log is wanted.
    #[must_use]
    pub fn any(&self) -> bool {
        [&self.bw, &self.iops, &self.lat, &self.hist, &self.io].iter().any(|name| name.is_some())
    }
}
