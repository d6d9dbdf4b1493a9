//! An option as written, and its origin.

use super::options::{self, Opt};
use blkmq_terminal::UsageError;
use std::fmt;
use std::rc::Rc;

/// The place where a setting was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// On the command line.
    CommandLine,
    /// A line of a job file, counted from 1.
    File(Rc<str>, usize),
}

/// `name=value` or a bare `name`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The name as written, without dashes.
    pub name: String,
    /// The value; `None` if the option was bare.
    pub value: Option<String>,
    /// The origin of the setting.
    pub origin: Origin,
}

impl Setting {
    /// The option that it sets. On a command line, an unambiguous prefix of a name is enough.
    pub fn option(&self) -> Option<&'static Opt> {
        options::find(&self.name).or_else(|| match self.origin {
            Origin::CommandLine => options::find_beginning(&self.name),
            Origin::File(..) => None,
        })
    }

    /// Returns whether the setting is in a job file.
    pub fn is_in_file(&self) -> bool {
        matches!(self.origin, Origin::File(..))
    }

    /// Prefixes each fault of `error` with the origin and the text of this setting.
    pub fn refuse(&self, error: UsageError) -> UsageError {
        error.at(self)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => Ok(()),
            Self::File(path, line) => write!(f, "{path}:{line}"),
        }
    }
}

impl fmt::Display for Setting {
    /// As the user wrote it: `--bs=0`, or `jobs.fio:3: bs=0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::CommandLine => f.write_str("--")?,
            file @ Origin::File(..) => write!(f, "{file}: ")?,
        }
        f.write_str(&self.name)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, "={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_a_value_has_a_line() {
        let faults = ["a", "b"].map(UsageError::new).into();
        let setting = Setting {
            name: "tenants".into(),
            value: Some("f".into()),
            origin: Origin::CommandLine,
        };
        let refused = setting.refuse(UsageError::all(faults).expect("two"));
        assert_eq!(refused.to_string(), "--tenants=f: a\n--tenants=f: b");
    }
}
