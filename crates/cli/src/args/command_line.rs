//! Splits a command line into settings, which are options with their values and origins, and job files; `--showcmd`
//! writes the [`Section`]s of jobs as one command line again, as fio prints it.
//!
//! As in fio, one dash is as good as two, and a value follows `=` or is the next word. A boolean takes the next word
//! only if that is `0` or `1`, so that the file in `--time_based jobs.fio` is not taken as a value.

use super::options::{self, Kind, Opt};
use crate::plan::{Time, quote};
use blkmq_terminal::UsageError;
use std::fmt;
use std::rc::Rc;

/// A command line, taken apart.
#[derive(Debug, Default)]
pub struct Words {
    /// Options in order.
    pub settings: Vec<Setting>,
    /// Job files in order.
    pub files: Vec<String>,
    /// Whether help was requested.
    pub help: bool,
    /// Whether the version was requested.
    pub version: bool,
}

/// Takes `args` apart.
///
/// # Errors
/// If an option is unknown or lacks its value.
pub fn read(args: &[String]) -> Result<Words, UsageError> {
    let mut words = Words::default();
    let mut rest = args.iter().peekable();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            words.files.extend(rest.by_ref().cloned());
            break;
        }
        if arg == "-" {
            words.files.push(arg.clone());
            continue;
        }
        let Some(option) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            words.files.push(arg.clone());
            continue;
        };
        if matches!(option, "h" | "help") {
            words.help = true;
            continue;
        }
        if matches!(option, "v" | "version") {
            words.version = true;
            continue;
        }
        if option.is_empty() {
            let text = "accepted: an option such as --bs=4k, or the path of a job file";
            return Err(UsageError::new(text).at(arg));
        }
        let (name, mut value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        let bare = Setting { name: name.into(), value: None, origin: Origin::CommandLine };
        if value.is_none() {
            // An unknown option is refused later, together with all other faults.
            let takes = |next: &&String| match bare.option().map(|option| option.kind) {
                Some(Kind::Flag) => matches!(next.as_str(), "0" | "1"),
                Some(Kind::Value | Kind::Optional) | None => !looks_like_option(next),
            };
            value = rest.next_if(takes).cloned();
        }
        words.settings.push(Setting { value, ..bare });
    }
    Ok(words)
}

/// `-1` is a value, `-rw` and `--rw` are not.
fn looks_like_option(word: &str) -> bool {
    let second = word.strip_prefix('-').and_then(|rest| rest.chars().next());
    second.is_some_and(|c| c == '-' || c.is_ascii_alphabetic())
}

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

/// Settings that belong together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Section {
    /// The name in brackets, or given by `--name`; `None` for globals.
    pub name: Option<String>,
    /// The settings, in order.
    pub settings: Vec<Setting>,
    /// The number of the file with the section, from 1; 0 for the command line.
    pub file: usize,
}

impl Section {
    /// Creates an empty section; as in fio, the name `global` stands for globals.
    pub fn named(name: &str) -> Self {
        let name = (name != "global").then(|| name.to_owned());
        Self { name, ..Self::default() }
    }

    /// The name of the job: the last `name=` in its section of a file, or else the name of the section. Returns `None`
    /// for globals; as in fio, their `name=` does not apply to jobs.
    pub fn job(&self) -> Option<&str> {
        let name = self.name.as_deref()?;
        let given = self.settings.iter().rfind(|setting| setting.name == "name");
        Some(given.and_then(|setting| setting.value.as_deref()).unwrap_or(name))
    }
}

/// The command line equivalent to `sections`, if they contain `showcmd`.
///
/// # Errors
/// If they come from several job files: on a command line, the globals of one would apply to the next.
pub fn show_command(sections: &[Section], time: Time) -> Result<Option<String>, UsageError> {
    let is_asked = |section: &Section| {
        let given = section.settings.iter().rfind(|setting| setting.name == "showcmd");
        given.is_some_and(|setting| setting.value.as_deref() != Some("0"))
    };
    if !sections.iter().any(is_asked) {
        return Ok(None);
    }
    if sections.iter().any(|section| section.file > 1) {
        return Err(UsageError::new("--showcmd: several job files; accepted: one"));
    }
    let mut words = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        match section.job() {
            Some(name) => words.push(format!("--name={name}")),
            // Options at the beginning of the line are globals anyway.
            None if at > 0 && sections[..at].iter().any(|before| before.name.is_some()) => {
                words.push("--name=global".into());
            }
            None => {}
        }
        let others = |name: &str| !matches!(name, "name" | "showcmd");
        for setting in section.settings.iter().filter(|setting| others(&setting.name)) {
            words.push(match &setting.value {
                Some(value) => format!("--{}={value}", setting.name),
                None => format!("--{}", setting.name),
            });
        }
    }
    Ok(Some(format!("{}\n", quote(time.command(), &words))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Words, UsageError> {
        read(&Vec::from_iter(line.split_whitespace().map(String::from)))
    }

    fn settings(line: &str) -> Vec<String> {
        words(line).expect(line).settings.iter().map(Setting::to_string).collect()
    }

    #[test]
    fn dashes_equals_and_spaces_are_alike() {
        let expected = ["--rw=randread", "--iodepth=32"];
        for line in
            ["--rw=randread --iodepth=32", "-rw=randread -iodepth=32", "--rw randread -iodepth 32"]
        {
            assert_eq!(settings(line), expected, "{line}");
        }
        assert_eq!(settings("--offset -1"), ["--offset=-1"]);
    }

    #[test]
    fn a_boolean_leaves_a_job_file_alone() {
        let words = words("--time_based a.fio --direct 1 --thread 0 b.fio").expect("valid");
        let settings = Vec::from_iter(words.settings.iter().map(Setting::to_string));
        assert_eq!(settings, ["--time_based", "--direct=1", "--thread=0"]);
        assert_eq!(words.files, ["a.fio", "b.fio"]);
        assert_eq!(read(&["--".into(), "--x".into()]).expect("a file").files, ["--x"]);
        assert_eq!(read(&["-".into()]).expect("standard input").files, ["-"]);
    }

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
