//! Splits a command line into options with their values, and job files.
//!
//! As in fio, one dash is as good as two, and a value follows `=` or is the next word. A boolean takes the next word
//! only if that is `0` or `1`, so that the file in `--time_based jobs.fio` is not taken as a value.

use super::options::Kind;
use super::setting::{Origin, Setting};
use blkmq_terminal::UsageError;

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
}
