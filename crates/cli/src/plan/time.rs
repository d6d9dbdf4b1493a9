//! The two kinds of time that a plan can be carried out in, each with its command.

use blkmq_device::MachineShape;

/// Which time passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// That of the clock: `blkmq bench`.
    Real,
    /// That of a simulation: `blkmq sim`.
    Virtual {
        /// What everything that is left to chance comes from.
        seed: u64,
    },
}

/// The machine of every simulation, so that a run does not depend on the one that it is made on.
const VIRTUAL: MachineShape = MachineShape { cpus: 8, nodes: 1 };

impl Time {
    /// The command that runs plans in this time.
    pub fn command(self) -> &'static str {
        match self {
            Self::Real => "bench",
            Self::Virtual { .. } => "sim",
        }
    }

    /// The seed, if chance comes from one.
    pub fn seed(self) -> Option<u64> {
        match self {
            Self::Real => None,
            Self::Virtual { seed } => Some(seed),
        }
    }

    /// The machine, on which defaults such as the number of hardware queues depend.
    pub fn machine(self) -> MachineShape {
        match self {
            Self::Real => MachineShape {
                cpus: blkmq_runtime::available_cpus(),
                nodes: blkmq_runtime::numa_nodes(),
            },
            Self::Virtual { .. } => VIRTUAL,
        }
    }
}
