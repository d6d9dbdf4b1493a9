//! Assigns settings to jobs: globals, `--name`, `[sections]`, and several job files.

use super::command_line::Words;
use super::job_file;
use super::section::Section;
use super::setting::Setting;
use blkmq_terminal::UsageError;

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
                let message = UsageError::new("no value; accepted: the name of a job");
                return Err(setting.refuse(message));
            }
            ("section", _) => wanted.push(setting),
            _ => sections.last_mut().expect("begins with globals").settings.push(setting),
        }
    }
    for (at, path) in words.files.iter().enumerate() {
        let file = job_file::read(path)?.into_iter();
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
            let message = UsageError::new(format!("no such section; accepted: {known}"));
            return Err(setting.refuse(message));
        }
    }
    let is_wanted = |section: &Section| {
        section.name.is_none() || wanted.iter().any(|setting| setting.value == section.name)
    };
    Ok(sections.into_iter().filter(is_wanted).collect())
}
