//! The CPUs that threads run on, and how many there are. Threads are bound to CPUs on Linux only.

use std::io;

/// Where pump threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// The kernel places them.
    #[default]
    Anywhere,
    /// Binds the pump of hardware queue `n` to the `n`th CPU, modulo the number of CPUs. On Linux; elsewhere as
    /// `Anywhere`.
    Spread,
}

impl Placement {
    /// Binds the calling thread for hardware queue `n`. Returns false if the kernel refused, or for `Anywhere`.
    pub(crate) fn apply(self, n: u16) -> bool {
        if self == Self::Anywhere {
            return false;
        }
        let cpus = usable_cpus().unwrap_or_default();
        let cpu = cpus.get(usize::from(n) % cpus.len().max(1));
        cpu.is_some_and(|cpu| bind_thread(&[*cpu]).is_ok())
    }
}

/// Returns the numbers of the CPUs that the calling thread may use, ascending.
///
/// # Errors
/// The error of the system.
#[cfg(target_os = "linux")]
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    Ok((0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true)).collect())
}

/// Binds the calling thread to these CPUs.
///
/// # Errors
/// The error of the system if none of them exists.
#[cfg(target_os = "linux")]
pub fn bind_thread(cpus: &[usize]) -> io::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu))?;
    Ok(nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

/// Always an error: threads are bound on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Always an error: threads are bound on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn bind_thread(_: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// CPUs that this process may use; at least 1.
#[must_use]
pub fn available_cpus() -> u16 {
    std::thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX))
}

/// NUMA nodes that are online, as sysfs lists them; 1 where it does not say.
#[must_use]
pub fn numa_nodes() -> u16 {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    count_ranges(nodes.trim()).unwrap_or(1).max(1)
}

/// The number of values in a list such as `0-3,8`.
fn count_ranges(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_counted() {
        assert_eq!(count_ranges("0"), Some(1));
        assert_eq!(count_ranges("0-3,8"), Some(5));
        assert_eq!(count_ranges(""), None);
        assert!(available_cpus() >= 1 && numa_nodes() >= 1);
    }
}
