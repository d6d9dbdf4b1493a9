//! `--showcmd`: the sections of a command line and its job files as one command line, as fio prints it.

use super::quote::quote;
use super::section::Section;
use crate::plan::Time;
use blkmq_terminal::UsageError;

/// The command line equivalent to `sections`, if they contain `showcmd`.
///
/// # Errors
/// If they come from several job files: on a command line, the globals of one would apply to the next.
pub fn of(sections: &[Section], time: Time) -> Result<Option<String>, UsageError> {
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
