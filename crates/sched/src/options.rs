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
    /// The name, as in `iosched/`.
    pub name: &'static str,
    /// The unit of the number.
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

impl Attribute {
    /// An attribute, in the order of a table's columns.
    pub(crate) const fn new(
        name: &'static str,
        unit: Unit,
        default: i64,
        (min, max): (i64, i64),
        help: &'static str,
    ) -> Self {
        Self { name, unit, default, min, max, help }
    }
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

    /// Calls `set` with the default of every attribute, and then with every value that the user gave, both in the order
    /// of the table: of two attributes that are one setting in two units, the given one holds. `set` returns false for
    /// a name that it does not know; that is a bug in the policy.
    pub(crate) fn apply(&self, mut set: impl FnMut(&'static str, i64) -> bool) {
        let defaults = self.attributes.iter().map(|a| (a.name, a.default));
        let given = self.attributes.iter().zip(&self.values).zip(&self.set);
        let given = given.filter(|(_, set)| **set).map(|((a, value), _)| (a.name, *value));
        for (name, value) in defaults.chain(given) {
            let known = set(name, value);
            assert!(known, "{name} is listed but cannot be set");
        }
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
        Attribute::new("depth", Unit::Count, 4, (1, 9), ""),
        Attribute::new("front", Unit::Flag, 1, (0, 1), ""),
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
    fn given_values_are_applied_after_every_default() {
        let options = Options::parse(TWO, "depth=7").expect("a number");
        let mut calls = Vec::new();
        options.apply(|name, value| {
            calls.push((name, value));
            true
        });
        assert_eq!(calls, [("depth", 4), ("front", 1), ("depth", 7)]);
    }

    #[test]
    #[should_panic(expected = "front is listed but cannot be set")]
    fn an_attribute_that_the_policy_does_not_know_is_a_bug() {
        Options::defaults(TWO).apply(|name, _| name == "depth");
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
