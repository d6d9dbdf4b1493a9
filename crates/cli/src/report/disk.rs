//! The figures of a disk under the files of a run, with fio's names.

/// The counts of the kernel's block layer for all programs during the runs.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Disk {
    /// The name of the disk in sysfs.
    pub name: String,
    /// Reads completed.
    pub read_ios: u64,
    /// Writes completed.
    pub write_ios: u64,
    /// Reads merged into others.
    pub read_merges: u64,
    /// Writes merged into others.
    pub write_merges: u64,
    /// Milliseconds that reads took, all together.
    pub read_ticks: u64,
    /// Milliseconds that writes took.
    pub write_ticks: u64,
    /// Milliseconds that requests were in the queue, all together.
    pub in_queue: u64,
    /// The percentage of time in which the disk was busy.
    pub util: f64,
}
