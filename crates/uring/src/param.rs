//! Parameters by name: the table that help is made of, and refusals that say what would have been accepted.

use std::fmt;
use std::ops::RangeInclusive;

/// One thing about a file that can be set; a line of the device's help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// As one writes it.
    pub name: &'static str,
    /// As one would write it; empty if it is off unless given.
    pub default: &'static str,
    /// What it does and in which unit, in a line.
    pub help: &'static str,
}

/// Why a description was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParamError {
    /// There is no parameter of that name.
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
    /// Not of the form `PATH[,KEY=VALUE]...`.
    Syntax {
        /// The word that is no pair.
        word: String,
    },
    /// No path was given.
    NoPath,
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
            Self::Syntax { word } => {
                write!(f, "'{word}' is no KEY=VALUE; accepted: PATH[,KEY=VALUE]...")
            }
            Self::NoPath => {
                f.write_str("no path; name a file or block device: PATH[,KEY=VALUE]...")
            }
        }
    }
}

impl std::error::Error for ParamError {}

/// A pair whose name is known.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    /// As the table spells it.
    pub(crate) name: &'static str,
    /// As the user wrote it.
    pub(crate) value: &'a str,
}

impl<'a> Given<'a> {
    /// Looks `name` up in `table`.
    pub(crate) fn find(
        table: &[Parameter],
        name: &str,
        value: &'a str,
    ) -> Result<Self, ParamError> {
        match table.iter().find(|parameter| parameter.name == name) {
            Some(parameter) => Ok(Self { name: parameter.name, value }),
            None => Err(ParamError::Unknown {
                name: name.to_owned(),
                accepted: Vec::from_iter(table.iter().map(|p| p.name)).join(", "),
            }),
        }
    }

    fn refuse(&self, accepted: String) -> ParamError {
        ParamError::Value { name: self.name, value: self.value.to_owned(), accepted }
    }

    /// A switch, as the kernel reads one.
    pub(crate) fn flag(&self) -> Result<bool, ParamError> {
        match self.value {
            "1" | "y" | "Y" | "on" => Ok(true),
            "0" | "n" | "N" | "off" => Ok(false),
            _ => Err(self.refuse("0, 1, n, y, off, on".into())),
        }
    }

    /// A whole number, decimal, within `range`.
    pub(crate) fn number<N>(&self, range: RangeInclusive<N>) -> Result<N, ParamError>
    where
        N: Copy + PartialOrd + fmt::Display + std::str::FromStr,
    {
        let number = self.value.parse().ok().filter(|n| range.contains(n));
        number.ok_or_else(|| {
            self.refuse(format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }
}
