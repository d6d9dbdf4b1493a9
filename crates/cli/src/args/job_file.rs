//! fio's job files: `[section]` headers, `key=value` lines, bare booleans, comments behind `;` and `#`, and
//! `${VARIABLE}` from the environment.

use super::options;
use super::section::Section;
use super::setting::{Origin, Setting};
use crate::bounded;
use crate::error::UsageError;
use std::rc::Rc;

/// The longest file that is read; a job file is written by hand.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the job file at `path`.
///
/// # Errors
/// If it cannot be read or understood; the message names the line.
pub fn read(path: &str) -> Result<Vec<Section>, UsageError> {
    let bytes = bounded::read(path, "a job file", MAX_BYTES)?;
    let no_text = |_| UsageError::new("not a job file; accepted: text in UTF-8").at(path);
    let text = String::from_utf8(bytes).map_err(no_text)?;
    parse(path, &text, |name| std::env::var(name).ok())
}

/// Parses the text of a job file called `path`.
///
/// # Errors
/// For the first line that is not understood.
pub fn parse(
    path: &str,
    text: &str,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Section>, UsageError> {
    let path: Rc<str> = path.into();
    let mut sections: Vec<Section> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let origin = Origin::File(Rc::clone(&path), at + 1);
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let line = expand(line, &environment).map_err(|e| e.at(&origin))?;
        if let Some(header) = line.strip_prefix('[') {
            let name = header.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
            let malformed = "malformed section header; accepted: [global] or [job name]";
            let name = name.ok_or_else(|| UsageError::new(malformed).at(&origin))?;
            sections.push(Section::named(name));
            continue;
        }
        let setting = setting(&line, origin)?;
        let section = sections.last_mut().ok_or_else(|| {
            let accepted =
                "stands before the first section; accepted: [global] or [job name] first";
            setting.refuse(&UsageError::new(accepted))
        })?;
        section.settings.push(setting);
    }
    if sections.iter().all(|section| section.name.is_none()) {
        let empty = "no job in this file; accepted: at least one section like [job name]";
        return Err(UsageError::new(empty).at(path));
    }
    Ok(sections)
}

fn setting(line: &str, origin: Origin) -> Result<Setting, UsageError> {
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim().to_owned())),
        None => (line, None),
    };
    let setting = Setting { name: name.into(), value, origin };
    if name.is_empty() || name.contains(char::is_whitespace) {
        let malformed = "malformed line; accepted: key=value, a bare boolean, or a comment";
        return Err(setting.refuse(&UsageError::new(malformed)));
    }
    let bare = Setting { value: None, ..setting.clone() };
    options::find(name).map(|_| setting).ok_or_else(|| bare.refuse(&options::unknown(name)))
}

/// Replaces each `${NAME}`.
fn expand(line: &str, environment: &impl Fn(&str) -> Option<String>) -> Result<String, UsageError> {
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
        expanded.push_str(&environment(name).ok_or_else(unset)?);
        rest = behind;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Section>, UsageError> {
        parse("j.fio", text, |name| (name == "DEPTH").then(|| "8".into()))
    }

    #[test]
    fn sections_comments_booleans_and_variables() {
        let text =
            "; head\n[global]\nrw = randread # inline\ntime_based\n\n[a job]\niodepth=${DEPTH}\n";
        let sections = read(text).expect("well formed");
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
            ("[a]\niodpeth=4\n", "j.fio:2: iodpeth: unknown option; nearest: iodepth"),
            ("[a]\nbs=${NONE}\n", "j.fio:2: ${NONE} is not set"),
            ("[a]\nbs=${NONE\n", "j.fio:2: '${' without"),
            ("[global]\nrw=read\n", "j.fio: no job"),
            ("", "j.fio: no job"),
        ] {
            let message = read(text).expect_err(text).to_string();
            assert!(message.starts_with(place), "{message}");
            assert!(message.contains("accepted") || message.contains("nearest"), "{message}");
        }
    }
}
