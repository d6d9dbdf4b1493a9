//! Device parameters by name: the tables from which help is generated, the parsing of values, and errors that list the
//! accepted values. [`RealDevice`] is a kind of device outside of the program, such as a file or a server's export, as
//! programs offer it by name; its crate opens it.
//!
//! Each device rounds and clamps its own values, because it knows which of them Linux clamps. (Attributes of a policy
//! have their own ranges, in `blkmq_sched`.)

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// A setting of a device; a line of its help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name; as in null_blk, where null_blk has it.
    pub name: &'static str,
    /// Its default, as text; empty if it is off unless given.
    pub default: &'static str,
    /// Its effect and unit, in a line.
    pub help: &'static str,
}

/// The reason why a pair was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PairError {
    /// There is no parameter of that name.
    Unknown {
        /// The name that was given.
        name: String,
        /// All existing names, separated by commas.
        accepted: String,
    },
    /// The parameter cannot have this value.
    Value {
        /// The parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The accepted values.
        accepted: String,
    },
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, accepted } => {
                write!(f, "no parameter '{name}'; accepted: {accepted}")
            }
            Self::Value { name, value, accepted } => {
                write!(f, "{name}={value} is not possible; accepted: {accepted}")
            }
        }
    }
}

impl core::error::Error for PairError {}

/// A pair with a known name.
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
    /// If there is no such name; the error lists the existing ones.
    pub fn find(table: &[Parameter], name: &str, value: &'a str) -> Result<Self, PairError> {
        match table.iter().find(|p| p.name == name) {
            Some(parameter) => Ok(Self { name: parameter.name, value }),
            None => Err(PairError::Unknown {
                name: name.to_owned(),
                accepted: Vec::from_iter(table.iter().map(|p| p.name)).join(", "),
            }),
        }
    }

    /// The error that refuses this value.
    #[must_use]
    pub fn refuse(&self, accepted: impl Into<String>) -> PairError {
        self.refusal(accepted.into())
    }

    #[cold]
    fn refusal(&self, accepted: String) -> PairError {
        PairError::Value { name: self.name, value: self.value.to_owned(), accepted }
    }

    /// The error for a number of any type.
    #[cold]
    fn refuse_number(&self, least: &dyn fmt::Display, most: &dyn fmt::Display) -> PairError {
        self.refusal(format!("a whole number from {least} to {most}"))
    }

    /// A switch, in the forms that the kernel accepts.
    ///
    /// # Errors
    /// If it is neither 1, y or on, nor 0, n or off.
    pub fn flag(&self) -> Result<bool, PairError> {
        match self.value {
            "1" | "y" | "Y" | "on" => Ok(true),
            "0" | "n" | "N" | "off" => Ok(false),
            _ => Err(self.refuse("0, 1, n, y, off, on")),
        }
    }

    /// A whole number, decimal, within `range`.
    ///
    /// # Errors
    /// If it is not a number or out of range.
    pub fn number<N>(&self, range: RangeInclusive<N>) -> Result<N, PairError>
    where
        N: Copy + PartialOrd + fmt::Display + FromStr,
    {
        let number = self.value.parse().ok().filter(|n| range.contains(n));
        number.ok_or_else(|| self.refuse_number(range.start(), range.end()))
    }
}

/// A kind of device outside of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RealDevice {
    /// Its name, as used with `--device`.
    pub name: &'static str,
    /// The form of the text after the name and a colon, for help: `PATH`.
    pub target: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

impl RealDevice {
    /// The form of a description: `NAME:TARGET[,KEY=VALUE]...`.
    #[must_use]
    pub fn form(&self) -> String {
        format!("{}:{}[,KEY=VALUE]...", self.name, self.target)
    }

    /// The description without the name; `None` if `text` describes another kind of device.
    #[must_use]
    pub fn description<'a>(&self, text: &'a str) -> Option<&'a str> {
        let rest = text.strip_prefix(self.name)?;
        match rest.strip_prefix(':') {
            Some(rest) => Some(rest),
            None if rest.is_empty() || rest.starts_with(',') => Some(rest),
            None => None,
        }
    }

    /// The first parameter that `page` does not name in backquotes, for tests.
    #[must_use]
    pub fn undocumented(&self, page: &str) -> Option<&'static str> {
        let mut names = self.parameters.iter().map(|parameter| parameter.name);
        names.find(|name| !page.contains(&format!("`{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

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

    const PARAMETER: Parameter = Parameter { name: "image", default: "", help: "" };
    const RBD: RealDevice =
        RealDevice { name: "rbd", target: "POOL/IMAGE", summary: "", parameters: &[PARAMETER] };

    #[test]
    fn a_description_is_known_by_the_name_of_the_device() {
        for (text, expected) in [
            ("rbd:p/i,id=x", Some("p/i,id=x")),
            ("rbd,image=p/i", Some(",image=p/i")),
            ("rbd", Some("")),
            ("rbdx", None),
            ("uring:/a/rbd:", None),
        ] {
            assert_eq!(RBD.description(text), expected, "{text}");
        }
        assert_eq!(RBD.form(), "rbd:POOL/IMAGE[,KEY=VALUE]...");
    }

    #[test]
    fn a_parameter_that_the_page_lacks_is_found() {
        const ID: Parameter = Parameter { name: "id", ..PARAMETER };
        const PAGE: &str = "| `image` | |";
        assert_eq!(RBD.undocumented(PAGE), None);
        let other = RealDevice { parameters: &[PARAMETER, ID], ..RBD };
        assert_eq!(other.undocumented(PAGE), Some("id"));
    }
}
