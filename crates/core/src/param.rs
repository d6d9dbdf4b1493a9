//! Device parameters by name: the tables from which help is generated, the parsing of values, and the errors of
//! descriptions; every refusal names the accepted values. [`RealDevice`] is a kind of device outside of the program,
//! such as a file or a server's export, as programs offer it by name; its crate opens it. A [`Finding`] is an event at
//! a device, for its operator.
//!
//! Each device rounds and clamps its own values, because it knows which of them Linux clamps. (Attributes of a policy
//! have their own ranges, in `blkmq_sched`.) Pairs of names and values are read by [`Given`]. Tables of names are
//! statics: each unit of code that uses a constant table would have a copy of it.
//!
//! Sizes and times have the units of fio: `512k`, `16m`, `10us` ([`Unit`]). A number without a unit is in the unit of
//! its parameter; [`Given::number`] reads parameters without a unit.

use crate::LimitsError;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::{error, fmt};

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

impl error::Error for PairError {}

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

/// An event at a device, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A device below has failed, or returned bytes other than those written.
    Fault(String),
    /// A mirror has begun to copy, has copied a part, or is complete again.
    Progress(String),
}

impl Finding {
    /// Puts the number of the device below a layer at the beginning of the sentence.
    #[must_use]
    pub fn of_leg(self, number: usize) -> Self {
        let named = |text| format!("device {number}: {text}");
        match self {
            Self::Fault(text) => Self::Fault(named(text)),
            Self::Progress(text) => Self::Progress(named(text)),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Fault(text) | Self::Progress(text)) = self;
        f.write_str(text)
    }
}

/// The unit of a parameter: the quantity that a number without a unit counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number of bytes, at least 1.
    Bytes(u64),
    /// A number of nanoseconds, at least 1.
    Nanos(u64),
}

/// A KiB in bytes.
const KIB: u64 = 1 << 10;

impl Unit {
    /// MiB.
    pub const MIB: Self = Self::Bytes(1 << 20);
    /// GiB.
    pub const GIB: Self = Self::Bytes(1 << 30);
    /// KiB.
    pub const KIB: Self = Self::Bytes(KIB);
    /// Nanoseconds.
    pub const NS: Self = Self::Nanos(1);

    /// The number of these units in `text`, which is a whole number with a unit of fio's. `None` if it is of another
    /// form, does not fit, or is not a whole number of these units.
    fn count(self, text: &str) -> Option<u64> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().ok()?;
        let word = text[digits..].to_ascii_lowercase();
        let (scale, one) = match self {
            Self::Bytes(one) => (bytes_in(&word)?, one),
            Self::Nanos(one) => (nanos_in(&word)?, one),
        };
        let whole = number.checked_mul(scale)?;
        whole.is_multiple_of(one).then(|| whole / one)
    }

    /// Examples of accepted amounts.
    fn examples(self) -> &'static str {
        match self {
            Self::Bytes(one) if one > 1 => "512m, 1g",
            Self::Bytes(_) => "4k, 1m",
            Self::Nanos(_) => "500ns, 10us, 5ms, 1s",
        }
    }
}

/// The plural of the unit.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(1) => f.write_str("bytes"),
            Self::KIB => f.write_str("KiB"),
            Self::MIB => f.write_str("MiB"),
            Self::GIB => f.write_str("GiB"),
            Self::Nanos(1) => f.write_str("ns"),
            Self::Bytes(one) => write!(f, "units of {one} bytes"),
            Self::Nanos(one) => write!(f, "units of {one} ns"),
        }
    }
}

/// As in fio, `k` is 1024 and `ki` is 1000, and a `b` at the end changes nothing.
fn bytes_in(word: &str) -> Option<u64> {
    if word == "b" {
        return Some(1);
    }
    let word = word.strip_suffix('b').unwrap_or(word);
    let (word, base): (_, u64) = match word.strip_suffix('i') {
        Some(word) => (word, 1000),
        None => (word, KIB),
    };
    let power = ["k", "m", "g", "t", "p", "e"].iter().position(|prefix| *prefix == word)?;
    Some(base.pow(power as u32 + 1))
}

fn nanos_in(word: &str) -> Option<u64> {
    Some(match word {
        "ns" | "nsec" => 1,
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" | "hour" => 3_600_000_000_000,
        "d" | "day" => 86_400_000_000_000,
        _ => return None,
    })
}

impl Given<'_> {
    /// A size or a time within `range`, counted in `unit`: a whole number, or a number with a unit of fio's.
    ///
    /// # Errors
    /// If it is neither, not a whole number of `unit`, or out of range.
    pub fn measure<N>(&self, unit: Unit, range: RangeInclusive<N>) -> Result<N, PairError>
    where
        N: Copy + PartialOrd + fmt::Display + FromStr + TryFrom<u64>,
    {
        let plain = self.value.parse().ok();
        let number = plain.or_else(|| unit.count(self.value).and_then(|n| N::try_from(n).ok()));
        number
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.refuse_measure(unit, range.start(), range.end()))
    }

    /// Bytes from 1 to `most`: a whole number of `unit`, or a number with a unit of fio's, which need be no whole
    /// number of `unit`.
    ///
    /// # Errors
    /// If it is neither, or out of range.
    pub fn bytes(&self, unit: Unit, most: u64) -> Result<u64, PairError> {
        let one = match unit {
            Unit::Bytes(one) | Unit::Nanos(one) => one.max(1),
        };
        let plain = self.value.parse::<u64>().ok();
        let bytes = match plain {
            Some(number) => number.checked_mul(one),
            None => Unit::Bytes(1).count(self.value),
        };
        bytes
            .filter(|bytes| (1..=most).contains(bytes))
            .ok_or_else(|| self.refuse_measure(unit, &1, &(most / one)))
    }

    /// The error for a number of any type.
    #[cold]
    fn refuse_measure(
        &self,
        unit: Unit,
        least: &dyn fmt::Display,
        most: &dyn fmt::Display,
    ) -> PairError {
        let examples = unit.examples();
        self.refuse(format!(
            "a whole number of {unit} from {least} to {most}, or with a unit: {examples}"
        ))
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

    const SIZE: &[Parameter] = &[Parameter { name: "size", default: "", help: "" }];

    fn given_size(value: &str) -> Given<'_> {
        Given::find(SIZE, "size", value).expect("in the table")
    }

    #[test]
    fn a_bare_number_counts_units_and_fios_units_are_converted() {
        for (text, unit, expected) in [
            ("7", Unit::MIB, 7_u64),
            ("16m", Unit::MIB, 16),
            ("16M", Unit::MIB, 16),
            ("16MB", Unit::MIB, 16),
            ("1g", Unit::MIB, 1024),
            ("1024k", Unit::MIB, 1),
            ("2t", Unit::GIB, 2048),
            ("64ki", Unit::Bytes(1000), 64),
            ("4k", Unit::Bytes(1), 4096),
            ("512b", Unit::Bytes(1), 512),
            ("10us", Unit::NS, 10_000),
            ("10", Unit::NS, 10),
            ("7ns", Unit::NS, 7),
            ("5ms", Unit::NS, 5_000_000),
            ("1s", Unit::NS, 1_000_000_000),
        ] {
            assert_eq!(
                given_size(text).measure(unit, 0..=u64::MAX),
                Ok(expected),
                "{text} of {unit}"
            );
        }
    }

    #[test]
    fn what_is_no_size_or_no_time_is_refused_with_examples() {
        for text in ["", "k", "1x", "1.5g", "-1m", "512k", "99999999999g", "1us", "1 m", "i", "1i"]
        {
            let error = given_size(text).measure(Unit::MIB, 1..=1_u64 << 43).expect_err(text);
            let expected =
                "accepted: a whole number of MiB from 1 to 8796093022208, or with a unit: 512m, 1g";
            assert!(error.to_string().ends_with(expected), "{error}");
        }
        let error = given_size("3k").measure(Unit::NS, 0..=9_u64).expect_err("no time").to_string();
        assert!(
            error.ends_with(
                "a whole number of ns from 0 to 9, or with a unit: 500ns, 10us, 5ms, 1s"
            )
        );
        assert!(
            given_size("70k").measure(Unit::Bytes(1), 0..=u16::MAX).is_err(),
            "it does not fit"
        );
    }

    #[test]
    fn bytes_may_be_finer_than_the_unit() {
        assert_eq!(given_size("3").bytes(Unit::MIB, u64::MAX), Ok(3 << 20));
        assert_eq!(given_size("10240b").bytes(Unit::MIB, u64::MAX), Ok(10_240));
        assert_eq!(given_size("512k").bytes(Unit::MIB, 1 << 20), Ok(512 << 10));
        for text in ["0", "2", "0k", "2m", "ten", "99999999999999999999"] {
            let error = given_size(text).bytes(Unit::MIB, 1 << 20).expect_err(text).to_string();
            assert!(error.contains("a whole number of MiB from 1 to 1, or with a unit"), "{error}");
        }
    }
}
