//! The CPUs that threads run on, and how many there are.

/// Where pump threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Wherever the kernel puts them.
    #[default]
    Anywhere,
    /// The pump of hardware queue `n` on the `n`th CPU, modulo their number.
    Spread,
}

impl Placement {
    /// Binds the calling thread for hardware queue `n`. False if the kernel refused or nothing was wanted.
    pub(crate) fn apply(self, n: u16) -> bool {
        if self == Self::Anywhere {
            return false;
        }
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        !cpus.is_empty() && core_affinity::set_for_current(cpus[usize::from(n) % cpus.len()])
    }
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
