//! Why an attribute cannot be read or written, and which values it accepts.

use super::Unit;
use crate::reconfiguration::change::ChangeError;
use std::borrow::Cow;
use std::fmt;

/// The numbers that an attribute accepts at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The smallest.
    pub min: i64,
    /// The largest.
    pub max: i64,
    /// All accepted numbers are multiples of this; 1 or more.
    pub step: i64,
    /// The unit.
    pub unit: Unit,
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, step, unit } = self;
        match min == max {
            true => write!(f, "only {min}")?,
            false => write!(f, "a whole number from {min} to {max}")?,
        }
        if *step > 1 {
            write!(f, " that is a multiple of {step}")?;
        }
        write!(f, " ({unit})")
    }
}

/// Why an attribute cannot be read or written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttributeError {
    /// There is no attribute of that name.
    Unknown {
        /// The path asked for.
        path: String,
        /// Similar paths, or all paths.
        accepted: Vec<Cow<'static, str>>,
    },
    /// It cannot be written.
    ReadOnly {
        /// The attribute.
        path: String,
    },
    /// The text is no number.
    NotANumber {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted numbers.
        accepted: Accepted,
    },
    /// The number is too large or too small, or not an accepted multiple.
    OutOfRange {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted numbers.
        accepted: Accepted,
    },
    /// The text is not an accepted word.
    NotAWord {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted words.
        accepted: Vec<&'static str>,
    },
    /// With the current settings there is nothing to set.
    NotNow {
        /// The attribute.
        path: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { path, accepted } => {
                write!(f, "{path}: no such attribute; accepted: {}", accepted.join(", "))
            }
            Self::ReadOnly { path } => write!(f, "{path} can only be read"),
            Self::NotANumber { path, text, accepted }
            | Self::OutOfRange { path, text, accepted } => {
                write!(f, "{path}={text}: accepted: {accepted}")
            }
            Self::NotAWord { path, text, accepted } => {
                write!(f, "{path}={text}: accepted: {}", accepted.join(", "))
            }
            Self::NotNow { path, why } => write!(f, "{path} cannot be set: {why}"),
        }
    }
}

impl std::error::Error for AttributeError {}

/// Why an attribute of a queue was not set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetAttributeError {
    /// The attribute cannot be set, or not to this value.
    Attribute(AttributeError),
    /// The queue cannot be changed.
    Change(ChangeError),
}

impl fmt::Display for SetAttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(e) => e.fmt(f),
            Self::Change(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for SetAttributeError {}

impl From<AttributeError> for SetAttributeError {
    fn from(e: AttributeError) -> Self {
        Self::Attribute(e)
    }
}

impl From<ChangeError> for SetAttributeError {
    fn from(e: ChangeError) -> Self {
        Self::Change(e)
    }
}
