//! [`MachineShape`]: the machine that defaults of devices depend on.

/// The machine that a device's defaults depend on. The caller passes it, so that a run can pretend to be on another
/// machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineShape {
    /// CPUs that may be used, at least 1.
    pub cpus: u16,
    /// NUMA nodes, at least 1.
    pub nodes: u16,
}
