//! Scheduler attributes: names, units and ranges of sysfs, parsed as the kernel parses them.
//!
//! Numbers out of range are clamped, as in the kernel; values that are not numbers and unknown names are errors that
//! list the accepted ones.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// The unit of an attribute's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
    /// Sectors.
    Sectors,
    /// Kibibytes.
    Kib,
    /// A plain number.
    Count,
    /// 0 or 1.
    Flag,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Millis => "ms",
            Self::Micros => "us",
            Self::Nanos => "ns",
            Self::Sectors => "sectors",
            Self::Kib => "KiB",
            Self::Count => "count",
            Self::Flag => "0/1",
        })
    }
}

/// A setting of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// As in `iosched/`.
    pub name: &'static str,
    /// What the number counts.
    pub unit: Unit,
    /// The value if the user gives none.
    pub default: i64,
    /// Smaller values are raised to this.
    pub min: i64,
    /// Larger values are lowered to this.
    pub max: i64,
    /// Its effect, in a line.
    pub help: &'static str,
}

/// Values for the attributes of one policy: those set by the user, and defaults.
#[derive(Clone, Debug)]
pub struct Options {
    attributes: &'static [Attribute],
    values: Vec<i64>,
    set: Vec<bool>,
}

/// The reason why options were refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionError {
    /// No attribute of that name; the second field lists those that exist.
    Unknown(String, String),
    /// The value of the attribute is not an integer.
    NotANumber(&'static Attribute, String),
    /// A part is not of the form `key=value`.
    NoValue(String),
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name, accepted) if accepted.is_empty() => {
                write!(f, "no option '{name}': this scheduler has none")
            }
            Self::Unknown(name, accepted) => write!(f, "no option '{name}'; accepted: {accepted}"),
            Self::NotANumber(Attribute { name, unit, min, max, .. }, value) => {
                write!(f, "{name}={value}: accepted: a whole number from {min} to {max} ({unit})")
            }
            Self::NoValue(text) => write!(f, "'{text}' is not of the form key=value"),
        }
    }
}

impl core::error::Error for OptionError {}

impl Options {
    /// Every attribute at its default.
    #[must_use]
    pub fn defaults(attributes: &'static [Attribute]) -> Self {
        Self {
            attributes,
            values: attributes.iter().map(|a| a.default).collect(),
            set: attributes.iter().map(|_| false).collect(),
        }
    }

    /// Reads `key=value` pairs separated by commas; an empty text sets nothing.
    ///
    /// # Errors
    /// For the first pair that names an unknown attribute or has a value that is not an integer.
    pub fn parse(attributes: &'static [Attribute], text: &str) -> Result<Self, OptionError> {
        let mut options = Self::defaults(attributes);
        for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| OptionError::NoValue(pair.to_string()))?;
            options.set(name.trim(), value.trim())?;
        }
        Ok(options)
    }

    /// Sets one attribute from text, clamping to its range.
    ///
    /// # Errors
    /// If there is no such attribute or `value` is not an integer.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let Some(at) = self.attributes.iter().position(|a| a.name == name) else {
            let accepted: Vec<&str> = self.attributes.iter().map(|a| a.name).collect();
            return Err(OptionError::Unknown(name.to_string(), accepted.join(", ")));
        };
        let attribute = &self.attributes[at];
        let number: i128 =
            value.parse().map_err(|_| OptionError::NotANumber(attribute, value.to_string()))?;
        self.values[at] = number.clamp(attribute.min.into(), attribute.max.into()) as i64;
        self.set[at] = true;
        Ok(())
    }

    /// The value of attribute `name`.
    ///
    /// # Panics
    /// If the policy's attribute table has no such name; that is a bug in the policy.
    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        let at = self.position(name);
        self.values[at]
    }

    /// The value of attribute `name` if the user gave one.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn given(&self, name: &str) -> Option<i64> {
        let at = self.position(name);
        self.set[at].then(|| self.values[at])
    }

    fn position(&self, name: &str) -> usize {
        self.attributes
            .iter()
            .position(|a| a.name == name)
            .unwrap_or_else(|| panic!("attribute table lacks '{name}'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Attribute] = &[
        Attribute { name: "depth", unit: Unit::Count, default: 4, min: 1, max: 9, help: "" },
        Attribute { name: "front", unit: Unit::Flag, default: 1, min: 0, max: 1, help: "" },
    ];

    #[test]
    fn values_out_of_range_are_clamped_as_in_sysfs() {
        let options = Options::parse(TWO, "depth=-99999999999999999999").expect("a number");
        assert_eq!(options.get("depth"), 1);
        assert_eq!(options.given("depth"), Some(1));
        assert_eq!(options.given("front"), None);
        assert_eq!(options.get("front"), 1);
    }

    #[test]
    fn errors_say_what_would_be_accepted() {
        let message = |text| Options::parse(TWO, text).expect_err("bad input").to_string();
        assert_eq!(message("deep=1"), "no option 'deep'; accepted: depth, front");
        assert_eq!(
            message("depth=many"),
            "depth=many: accepted: a whole number from 1 to 9 (count)"
        );
        assert_eq!(message("depth"), "'depth' is not of the form key=value");
    }
}
