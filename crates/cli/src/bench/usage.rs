//! CPU time and events that the kernel charged to a thread or to the process.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// CPU time and events since a starting point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    pub context_switches: u64,
    pub major_faults: u64,
    pub minor_faults: u64,
}

impl Usage {
    /// The usage of the calling thread so far.
    pub fn of_thread() -> Self {
        Self::read(UsageWho::RUSAGE_THREAD)
    }

    /// The usage of the whole process so far.
    pub fn of_process() -> Self {
        Self::read(UsageWho::RUSAGE_SELF)
    }

    fn read(who: UsageWho) -> Self {
        // `getrusage` fails for invalid arguments only.
        let usage = getrusage(who).expect("getrusage knows threads and processes");
        let ns = |t: TimeVal| t.tv_sec() as u64 * 1_000_000_000 + t.tv_usec() as u64 * 1_000;
        Self {
            user_ns: ns(usage.user_time()),
            system_ns: ns(usage.system_time()),
            context_switches: (usage.voluntary_context_switches()
                + usage.involuntary_context_switches()) as u64,
            major_faults: usage.major_page_faults() as u64,
            minor_faults: usage.minor_page_faults() as u64,
        }
    }

    /// The usage since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
        }
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            context_switches: self.context_switches + other.context_switches,
            major_faults: self.major_faults + other.major_faults,
            minor_faults: self.minor_faults + other.minor_faults,
        }
    }
}
