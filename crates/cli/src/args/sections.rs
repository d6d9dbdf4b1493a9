//! Reads a command line and job files into [`Section`]s, the settings of one job or of all jobs. A [`Setting`] is an
//! option with its value and its origin. `--showcmd` writes sections as one command line again, as fio prints it.
//!
//! As in fio, one dash is as good as two, and a value follows `=` or is the next word. A boolean takes the next word
//! only if that is `0` or `1`, so that the file in `--time_based jobs.fio` is not taken as a value.
//!
//! A job file has `[section]` headers, `key=value` lines, bare booleans, `include FILE`, comments behind `;` and `#`,
//! and `${VARIABLE}` from the environment. `-` is standard input.

use super::options::{self, Kind, Opt};
use crate::plan::{Time, quote};
use blkmq_terminal::{UsageError, bounded};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// All sections in the order in which they apply: the command line, then each file. Options before the first `--name`
/// are globals of every job.
///
/// # Errors
/// If a job file cannot be read, or `--section` names a section that does not exist.
pub fn collect(words: Words) -> Result<Vec<Section>, UsageError> {
    let mut sections = vec![Section::default()];
    let mut wanted: Vec<Setting> = Vec::new();
    for setting in words.settings {
        match (setting.name.as_str(), &setting.value) {
            ("name", Some(name)) if !name.is_empty() => sections.push(Section::named(name)),
            ("name", _) => {
                let message = "no value; accepted: the name of a job";
                return Err(UsageError::new(message).at(setting));
            }
            ("section", _) => wanted.push(setting),
            _ => sections.last_mut().expect("begins with globals").settings.push(setting),
        }
    }
    for (at, path) in words.files.iter().enumerate() {
        let file = read_file(path)?.into_iter();
        sections.extend(file.map(|section| Section { file: at + 1, ..section }));
    }
    keep_wanted(sections, &wanted)
}

/// Keeps only the jobs named by `--section`, if the option is given.
fn keep_wanted(sections: Vec<Section>, wanted: &[Setting]) -> Result<Vec<Section>, UsageError> {
    if wanted.is_empty() {
        return Ok(sections);
    }
    for setting in wanted {
        let known = sections.iter().filter_map(|section| section.name.as_deref());
        if !known.clone().any(|name| Some(name) == setting.value.as_deref()) {
            let known = Vec::from_iter(known).join(", ");
            let message = format!("no such section; accepted: {known}");
            return Err(UsageError::new(message).at(setting));
        }
    }
    let is_wanted = |section: &Section| {
        section.name.is_none() || wanted.iter().any(|setting| setting.value == section.name)
    };
    Ok(sections.into_iter().filter(is_wanted).collect())
}

/// The longest file that is read; a job file is written by hand.
const MAX_BYTES: u64 = 1 << 20;

/// The most files inside one another.
const MAX_NESTED: usize = 16;

/// The maximum total number of included files per job file, at any nesting.
const MAX_INCLUDED: usize = 256;

/// The surroundings of the text of job files.
struct Around<'a> {
    /// The value of a variable of the environment.
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// The text of an included file.
    text: &'a dyn Fn(&str) -> Result<String, UsageError>,
}

/// Reads the job file at `path`; `-` stands for standard input.
///
/// # Errors
/// If it cannot be read or parsed; the message gives the line.
fn read_file(path: &str) -> Result<Vec<Section>, UsageError> {
    let around = Around { variable: &|name| std::env::var(name).ok(), text: &text };
    let (name, text) = match path {
        "-" => {
            let bytes = bounded::standard_input("a job file", MAX_BYTES)?;
            ("standard input", utf8(bytes, "standard input")?)
        }
        path => (path, text(path)?),
    };
    parse(name, &text, &around)
}

fn text(path: &str) -> Result<String, UsageError> {
    utf8(bounded::read(path, "a job file", MAX_BYTES)?, path)
}

fn utf8(bytes: Vec<u8>, path: &str) -> Result<String, UsageError> {
    let no_text = |_| UsageError::new("not a job file; accepted: text in UTF-8").at(path);
    String::from_utf8(bytes).map_err(no_text)
}

/// Parses the text of a job file called `path`.
fn parse(path: &str, text: &str, around: &Around<'_>) -> Result<Vec<Section>, UsageError> {
    let mut reading =
        Reading { around, sections: Vec::new(), open: Vec::new(), included: 0, faults: Vec::new() };
    reading.file(path, text)?;
    if let Some(all) = UsageError::all(std::mem::take(&mut reading.faults)) {
        return Err(all);
    }
    if reading.sections.iter().all(|section| section.name.is_none()) {
        let empty = "no job in this file; accepted: at least one section like [job name]";
        return Err(UsageError::new(empty).at(path));
    }
    Ok(reading.sections)
}

/// A job file while it is read.
struct Reading<'a> {
    around: &'a Around<'a>,
    sections: Vec<Section>,
    /// The files that are inside one another, the outermost first.
    open: Vec<PathBuf>,
    included: usize,
    /// The lines that cannot be read.
    faults: Vec<UsageError>,
}

impl Reading<'_> {
    fn file(&mut self, path: &str, text: &str) -> Result<(), UsageError> {
        self.open.push(Path::new(path).components().collect());
        let path: Rc<str> = path.into();
        for (at, line) in text.lines().enumerate() {
            let origin = Origin::File(Rc::clone(&path), at + 1);
            let line = line.split([';', '#']).next().unwrap_or_default().trim();
            if !line.is_empty() {
                let line = expand(line, self.around.variable).map_err(|e| e.at(&origin));
                let read = line.and_then(|line| self.line(&line, origin));
                read.unwrap_or_else(|fault| self.faults.push(fault));
            }
        }
        self.open.pop();
        Ok(())
    }

    fn line(&mut self, line: &str, origin: Origin) -> Result<(), UsageError> {
        if let Some(header) = line.strip_prefix('[') {
            let name = header.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
            let malformed = "malformed section header; accepted: [global] or [job name]";
            let name = name.ok_or_else(|| UsageError::new(malformed).at(&origin))?;
            self.sections.push(Section::named(name));
            return Ok(());
        }
        if let Some((word, file)) = line.split_once(char::is_whitespace)
            && word == "include"
            && !file.trim_start().starts_with('=')
        {
            let before = self.faults.len();
            let included = self.include(file.trim());
            let inside = self.faults.split_off(before);
            self.faults.extend(inside.into_iter().chain(included.err()).map(|e| e.at(&origin)));
            return Ok(());
        }
        let setting = setting(line, origin)?;
        let section = self.sections.last_mut().ok_or_else(|| {
            let accepted =
                "stands before the first section; accepted: [global] or [job name] first";
            UsageError::new(accepted).at(&setting)
        })?;
        section.settings.push(setting);
        Ok(())
    }

    /// Reads the lines of `file`, whose path is relative to the file that includes it, as if they stood here.
    fn include(&mut self, file: &str) -> Result<(), UsageError> {
        let folder = self.open.last().and_then(|path| path.parent());
        let path = folder.map_or_else(|| PathBuf::from(file), |folder| folder.join(file));
        let name = path.to_string_lossy().into_owned();
        let refuse = |what: String| Err(UsageError::new(what).at(format!("include {file}")));
        if self.open.contains(&path) {
            return refuse("this file includes itself; accepted: files without a circle".into());
        }
        self.included += 1;
        if self.open.len() >= MAX_NESTED {
            return refuse(format!("accepted: at most {MAX_NESTED} files inside one another"));
        }
        if self.included > MAX_INCLUDED {
            return refuse(format!("accepted: at most {MAX_INCLUDED} included files"));
        }
        let text = (self.around.text)(&name)?;
        self.file(&name, &text)
    }
}

fn setting(line: &str, origin: Origin) -> Result<Setting, UsageError> {
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim().to_owned())),
        None => (line, None),
    };
    let setting = Setting { name: name.into(), value, origin };
    if name.is_empty() || name.contains(char::is_whitespace) {
        let malformed = "malformed line; accepted: key=value, a bare boolean, or a comment";
        return Err(UsageError::new(malformed).at(setting));
    }
    Ok(setting)
}

/// Replaces each `${NAME}`.
fn expand(line: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, UsageError> {
    let mut expanded = String::new();
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once("${") {
        let unclosed = || UsageError::new("'${' without '}'; accepted: ${VARIABLE}");
        let (name, behind) = behind.split_once('}').ok_or_else(unclosed)?;
        let unset = || {
            UsageError::new(format!(
                "${{{name}}} is not set; accepted: variables of the environment"
            ))
        };
        expanded.push_str(before);
        expanded.push_str(&variable(name).ok_or_else(unset)?);
        rest = behind;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

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
pub fn read_words(args: &[String]) -> Words {
    let mut words = Words::default();
    let mut rest = args.iter().peekable();
    while let Some(arg) = rest.next() {
        let option = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
        match option.filter(|option| !option.is_empty()) {
            None if arg == "--" => words.files.extend(rest.by_ref().cloned()),
            None => words.files.push(arg.clone()),
            Some("h" | "help") => words.help = true,
            Some("v" | "version") => words.version = true,
            Some(option) => {
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
        }
    }
    words
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

    fn read_file(text: &str) -> Result<Vec<Section>, UsageError> {
        read_with(text, &[])
    }

    /// Reads `j.fio` in a folder with these other files.
    fn read_with(text: &str, others: &[(&str, &str)]) -> Result<Vec<Section>, UsageError> {
        let other = |path: &str| {
            let found = others.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).into()).ok_or_else(|| UsageError::new("gone").at(path))
        };
        let around =
            Around { variable: &|name| (name == "DEPTH").then(|| "8".into()), text: &other };
        parse("j.fio", text, &around)
    }

    fn settings(sections: &[Section]) -> Vec<String> {
        sections.iter().flat_map(|section| &section.settings).map(Setting::to_string).collect()
    }

    #[test]
    fn an_included_file_stands_where_it_is_included() {
        let others =
            [("sub/a.inc", "rw=randread\ninclude b.inc\n"), ("sub/b.inc", "bs=8k\n[second]\n")];
        let sections =
            read_with("[first]\ninclude sub/a.inc\niodepth=2\n", &others).expect("well formed");
        let names = Vec::from_iter(sections.iter().map(|section| section.name.as_deref()));
        assert_eq!(names, [Some("first"), Some("second")]);
        let expected = ["sub/a.inc:1: rw=randread", "sub/b.inc:1: bs=8k", "j.fio:3: iodepth=2"];
        assert_eq!(settings(&sections), expected);
    }

    #[test]
    fn circles_and_depths_of_inclusion_are_refused() {
        let refusal = |text, others: &[(&str, &str)]| {
            read_with(text, others).expect_err("refused").to_string()
        };
        let circle = refusal("[a]\ninclude x\n", &[("x", "bs=4k\ninclude j.fio\n")]);
        assert_eq!(
            circle,
            "j.fio:2: x:2: include j.fio: this file includes itself; accepted: files without a circle"
        );
        assert_eq!(refusal("[a]\ninclude x\n", &[]), "j.fio:2: x: gone");
        let names =
            Vec::from_iter((0..17).map(|n| (format!("f{n}"), format!("include f{}\n", n + 1))));
        let chain = Vec::from_iter(names.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        assert!(
            refusal("[a]\ninclude f0\n", &chain).ends_with("at most 16 files inside one another")
        );
        let wide = "include x\n".repeat(257);
        let text = refusal(&format!("[a]\n{wide}"), &[("x", "bs=4k")]);
        assert!(text.ends_with("at most 256 included files"), "{text}");
    }

    #[test]
    fn a_name_in_a_section_is_the_name_of_its_job() {
        let sections = read_file("[global]\nname=none\n[a]\n[b]\nname=own\n").expect("well formed");
        let names = Vec::from_iter(sections.iter().map(Section::job));
        assert_eq!(names, [None, Some("a"), Some("own")]);
    }

    #[test]
    fn sections_comments_booleans_and_variables() {
        let text =
            "; head\n[global]\nrw = randread # inline\ntime_based\n\n[a job]\niodepth=${DEPTH}\n";
        let sections = read_file(text).expect("well formed");
        assert_eq!(sections.len(), 2);
        assert_eq!(
            (sections[0].name.as_deref(), sections[1].name.as_deref()),
            (None, Some("a job"))
        );
        let settings = sections.iter().flat_map(|section| &section.settings);
        let settings = Vec::from_iter(settings.map(Setting::to_string));
        assert_eq!(settings, ["j.fio:3: rw=randread", "j.fio:4: time_based", "j.fio:7: iodepth=8"]);
    }

    #[test]
    fn each_malformed_line_is_named() {
        for (text, place) in [
            ("[a\n", "j.fio:1: malformed section header"),
            ("[]\n", "j.fio:1: malformed section header"),
            ("\nrw=read\n", "j.fio:2: rw=read: stands before"),
            ("[a]\nthis is junk\n", "j.fio:2: this is junk: malformed line"),
            ("[a]\n=4\n", "j.fio:2: =4: malformed line"),
            ("[a]\nbs=${NONE}\n", "j.fio:2: ${NONE} is not set"),
            ("[a]\nbs=${NONE\n", "j.fio:2: '${' without"),
            ("[global]\nrw=read\n", "j.fio: no job"),
            ("", "j.fio: no job"),
        ] {
            let message = read_file(text).expect_err(text).to_string();
            assert!(message.starts_with(place), "{message}");
            assert!(message.contains("accepted") || message.contains("nearest"), "{message}");
        }
    }

    fn words(line: &str) -> Words {
        read_words(&Vec::from_iter(line.split_whitespace().map(String::from)))
    }

    fn written(line: &str) -> Vec<String> {
        words(line).settings.iter().map(Setting::to_string).collect()
    }

    #[test]
    fn dashes_equals_and_spaces_are_alike() {
        let expected = ["--rw=randread", "--iodepth=32"];
        for line in
            ["--rw=randread --iodepth=32", "-rw=randread -iodepth=32", "--rw randread -iodepth 32"]
        {
            assert_eq!(written(line), expected, "{line}");
        }
        assert_eq!(written("--offset -1"), ["--offset=-1"]);
    }

    #[test]
    fn a_boolean_leaves_a_job_file_alone() {
        let words = words("--time_based a.fio --direct 1 --thread 0 b.fio");
        let settings = Vec::from_iter(words.settings.iter().map(Setting::to_string));
        assert_eq!(settings, ["--time_based", "--direct=1", "--thread=0"]);
        assert_eq!(words.files, ["a.fio", "b.fio"]);
        assert_eq!(read_words(&["--".into(), "--x".into()]).files, ["--x"]);
        assert_eq!(read_words(&["-".into()]).files, ["-"]);
    }

    #[test]
    fn each_fault_of_a_value_has_a_line() {
        let faults = ["a", "b"].map(UsageError::new).into();
        let setting = Setting {
            name: "tenants".into(),
            value: Some("f".into()),
            origin: Origin::CommandLine,
        };
        let refused = UsageError::all(faults).expect("two").at(setting);
        assert_eq!(refused.to_string(), "--tenants=f: a\n--tenants=f: b");
    }
}
