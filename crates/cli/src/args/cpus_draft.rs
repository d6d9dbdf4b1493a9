//! The options about the CPUs of a job.

use crate::plan::Cpus;

/// `cpus_allowed` and its policy.
#[derive(Clone, Debug, Default)]
pub struct CpusDraft {
    /// `cpus_allowed` or `cpumask`.
    pub list: Option<Cpus>,
    /// `cpus_allowed_policy=split`.
    pub is_split: bool,
}

impl CpusDraft {
    /// The CPUs, if any were named.
    pub fn finish(&self) -> Option<Cpus> {
        self.list.clone().map(|cpus| Cpus { is_split: self.is_split, ..cpus })
    }
}
