//! The errors of device descriptions; every refusal names the accepted values.
//!
//! Pairs of names and values are read by [`Given`](crate::Given). Tables of names are statics: each unit of code that uses a
//! constant table would have a copy of it.

use crate::{LimitsError, PairError};
use alloc::string::String;
use core::{error, fmt};

/// The machine that a device's defaults depend on. The caller passes it, so that a run can pretend to be on another
/// machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineShape {
    /// CPUs that may be used, at least 1.
    pub cpus: u16,
    /// NUMA nodes, at least 1.
    pub nodes: u16,
}

/// Why a pair was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParamError {
    /// The device has no such parameter, or the parameter does not take this value.
    Pair(PairError),
    /// The parameter exists in the model's original and is not modelled here yet.
    NotBuilt {
        /// The parameter.
        name: &'static str,
        /// The value that is accepted, if any.
        accepted: Option<&'static str>,
    },
    /// The parameter exists in the model's original; another device has it.
    Elsewhere {
        /// The parameter.
        name: &'static str,
        /// The device that has it.
        device: &'static str,
        /// The value that is accepted here, if any.
        accepted: Option<&'static str>,
    },
    /// The parameters together describe a device that no request fits.
    Limits(LimitsError),
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair(e) => e.fmt(f),
            Self::NotBuilt { name, accepted: None } => write!(f, "{name} is not built yet"),
            Self::NotBuilt { name, accepted: Some(off) } => {
                write!(f, "{name} is not built yet; accepted: {off}")
            }
            Self::Elsewhere { name, device, accepted: None } => {
                write!(f, "{name} is a parameter of device {device}")
            }
            Self::Elsewhere { name, device, accepted: Some(off) } => {
                write!(f, "{name} is a parameter of device {device}; accepted: {off}")
            }
            Self::Limits(e) => e.fmt(f),
        }
    }
}

impl error::Error for ParamError {}

impl From<PairError> for ParamError {
    fn from(e: PairError) -> Self {
        Self::Pair(e)
    }
}

/// Why a device could not be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// The registry has no device of that name.
    Unknown {
        /// The name that was given.
        name: String,
        /// Every known name, separated by commas.
        accepted: String,
    },
    /// The device exists, but this build leaves it out.
    LeftOut {
        /// The name that was given.
        name: String,
        /// The feature of the crate `blkmq` that adds it.
        feature: &'static str,
    },
    /// A word of a description is not a pair.
    Syntax {
        /// The word.
        word: String,
        /// The form of the device's description.
        accepted: String,
    },
    /// A description has no argument behind its colon, or no colon.
    Argument {
        /// The missing argument.
        what: &'static str,
        /// The form of the device's description.
        accepted: String,
    },
    /// Too many devices are nested.
    Nested {
        /// The most devices that may be nested around the innermost one.
        most: usize,
    },
    /// The device does not take these parameters.
    Parameter {
        /// The device's name in the registry.
        device: &'static str,
        /// The reason.
        why: ParamError,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, accepted } => {
                write!(f, "no device '{name}'; accepted: {accepted}")
            }
            Self::LeftOut { name, feature } => {
                write!(
                    f,
                    "device '{name}' is left out of this build; the feature '{feature}' of blkmq adds it"
                )
            }
            Self::Syntax { word, accepted } => {
                write!(f, "'{word}' is no KEY=VALUE; accepted: {accepted}")
            }
            Self::Argument { what, accepted } => {
                write!(f, "{what} is missing; accepted: {accepted}")
            }
            Self::Nested { most } => write!(
                f,
                "too many devices around one another; accepted: at most {most} around the innermost one"
            ),
            Self::Parameter { device, why } => write!(f, "device {device}: {why}"),
        }
    }
}

impl error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Parameter { why, .. } => Some(why),
            Self::Unknown { .. }
            | Self::LeftOut { .. }
            | Self::Syntax { .. }
            | Self::Argument { .. }
            | Self::Nested { .. } => None,
        }
    }
}
