//! The settings of one job, or of all jobs.

use super::setting::Setting;

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
