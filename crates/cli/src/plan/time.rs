//! The two kinds of time in which a plan can run, each with its command.

use blkmq_device::MachineShape;

/// The kind of time of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Real time: `blkmq bench`.
    Real,
    /// The virtual time of a simulation: `blkmq sim`.
    Virtual {
        /// The source of all randomness.
        seed: u64,
    },
}

/// The machine of every simulation, so that a run does not depend on the host.
const VIRTUAL: MachineShape = MachineShape { cpus: 8, nodes: 1 };

impl Time {
    /// The command that runs plans in this time.
    pub fn command(self) -> &'static str {
        match self {
            Self::Real => "bench",
            Self::Virtual { .. } => "sim",
        }
    }

    /// The seed, if there is one.
    pub fn seed(self) -> Option<u64> {
        match self {
            Self::Real => None,
            Self::Virtual { seed } => Some(seed),
        }
    }

    /// The machine, which determines defaults such as the number of hardware queues.
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
