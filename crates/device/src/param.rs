//! Reading `key=value` pairs: names looked up in a device's table, values typed, refusals that say what
//! would have been accepted.
//!
//! Rounding and clamping is the device's business: it alone knows which of its numbers Linux clamps.

use blkmq_core::LimitsError;
use std::fmt;
use std::ops::RangeInclusive;

/// One thing about a device that can be set; a line of its `--help`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// As in null_blk, where null_blk has it.
    pub name: &'static str,
    /// As one would write it; empty if it is off unless given.
    pub default: &'static str,
    /// What it does and in which unit, in a line.
    pub help: &'static str,
}

/// Why a pair was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParamError {
    /// The device has no parameter of that name.
    Unknown {
        /// What was asked for.
        name: String,
        /// Every name there is, separated by commas.
        accepted: String,
    },
    /// The value is none that the parameter can have.
    Value {
        /// Whose.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// The parameter exists in the model's original and is not modelled here yet.
    NotBuilt {
        /// Which.
        name: &'static str,
        /// What it may still be set to, if anything.
        accepted: Option<&'static str>,
    },
    /// The parameter exists in the model's original; another device has it.
    Elsewhere {
        /// Which.
        name: &'static str,
        /// That device.
        device: &'static str,
        /// What it may be set to here, if anything.
        accepted: Option<&'static str>,
    },
    /// The parameters together describe a device that no request fits.
    Limits(LimitsError),
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, accepted } => {
                write!(f, "no parameter '{name}'; accepted: {accepted}")
            }
            Self::Value { name, value, accepted } => {
                write!(f, "{name}={value} is not possible; accepted: {accepted}")
            }
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

impl std::error::Error for ParamError {}

/// Why a device could not be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// The registry has no device of that name.
    Unknown {
        /// What was asked for.
        name: String,
        /// Every name there is, separated by commas.
        accepted: String,
    },
    /// A word of a description is no pair.
    Syntax {
        /// Which.
        word: String,
        /// How the device is described.
        accepted: String,
    },
    /// Behind the colon of a description there is nothing, or there is no colon.
    Argument {
        /// What should be there.
        what: &'static str,
        /// How the device is described.
        accepted: String,
    },
    /// It does not take these parameters.
    Parameter {
        /// The device's name in the registry.
        device: &'static str,
        /// What was wrong.
        why: ParamError,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, accepted } => {
                write!(f, "no device '{name}'; accepted: {accepted}")
            }
            Self::Syntax { word, accepted } => {
                write!(f, "'{word}' is no KEY=VALUE; accepted: {accepted}")
            }
            Self::Argument { what, accepted } => {
                write!(f, "{what} is missing; accepted: {accepted}")
            }
            Self::Parameter { device, why } => write!(f, "device {device}: {why}"),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Parameter { why, .. } => Some(why),
            Self::Unknown { .. } | Self::Syntax { .. } | Self::Argument { .. } => None,
        }
    }
}

/// One pair whose name is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given<'a> {
    /// As the table spells it.
    pub name: &'static str,
    /// As the user wrote it.
    pub value: &'a str,
}

impl<'a> Given<'a> {
    /// Looks `name` up in `table`. O(table).
    ///
    /// # Errors
    /// If it is not there; the error lists what is.
    pub fn find(table: &[Parameter], name: &str, value: &'a str) -> Result<Self, ParamError> {
        match table.iter().find(|p| p.name == name) {
            Some(parameter) => Ok(Self { name: parameter.name, value }),
            None => Err(ParamError::Unknown {
                name: name.to_owned(),
                accepted: table.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The refusal of this value.
    #[must_use]
    pub fn refuse(&self, accepted: impl Into<String>) -> ParamError {
        ParamError::Value {
            name: self.name,
            value: self.value.to_owned(),
            accepted: accepted.into(),
        }
    }

    /// A switch, as the kernel reads one.
    ///
    /// # Errors
    /// If it is neither 1, y or on, nor 0, n or off.
    pub fn flag(&self) -> Result<bool, ParamError> {
        match self.value {
            "1" | "y" | "Y" | "on" => Ok(true),
            "0" | "n" | "N" | "off" => Ok(false),
            _ => Err(self.refuse("0, 1, n, y, off, on")),
        }
    }

    /// A whole number, decimal, within `range`.
    ///
    /// # Errors
    /// If it is no number or out of range.
    pub fn number<N>(&self, range: RangeInclusive<N>) -> Result<N, ParamError>
    where
        N: Copy + PartialOrd + fmt::Display + std::str::FromStr,
    {
        let number = self.value.parse().ok().filter(|n| range.contains(n));
        number.ok_or_else(|| {
            self.refuse(format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Parameter] = &[
        Parameter { name: "depth", default: "64", help: "" },
        Parameter { name: "fast", default: "0", help: "" },
    ];

    fn given(name: &str, value: &'static str) -> Given<'static> {
        Given::find(TABLE, name, value).expect("in the table")
    }

    #[test]
    fn an_unknown_name_lists_those_that_exist() {
        let error = Given::find(TABLE, "deep", "1").expect_err("no such name");
        assert_eq!(error.to_string(), "no parameter 'deep'; accepted: depth, fast");
    }

    #[test]
    fn switches_are_read_as_the_kernel_reads_them() {
        assert_eq!(given("fast", "Y").flag(), Ok(true));
        assert_eq!(given("fast", "off").flag(), Ok(false));
        let error = given("fast", "2").flag().expect_err("not a switch");
        assert_eq!(error.to_string(), "fast=2 is not possible; accepted: 0, 1, n, y, off, on");
    }

    #[test]
    fn numbers_are_bounded_and_typed() {
        assert_eq!(given("depth", "7").number(1..=9_u16), Ok(7));
        for bad in ["0", "10", "-1", "70000", "7k", ""] {
            let error = given("depth", bad).number(1..=9_u16).expect_err("out of range");
            assert!(error.to_string().ends_with("a whole number from 1 to 9"), "{error}");
        }
    }
}
