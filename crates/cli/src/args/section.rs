//! The settings of one job, or of all jobs.

use super::setting::Setting;

/// Settings that belong together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Section {
    /// The name in brackets, or behind `--name`; `None` for globals.
    pub name: Option<String>,
    /// The settings, in order.
    pub settings: Vec<Setting>,
    /// The number of the file that holds the section, from 1; 0 is the command line.
    pub file: usize,
}

impl Section {
    /// An empty section; the name `global` stands for globals, as in fio.
    pub fn named(name: &str) -> Self {
        let name = (name != "global").then(|| name.to_owned());
        Self { name, ..Self::default() }
    }

    /// The name of the job: that of the last `name=` in its section of a file, or else the name of the section.
    /// `None` for globals, whose `name=` no job gets, as in fio.
    pub fn job(&self) -> Option<&str> {
        let name = self.name.as_deref()?;
        let given = self.settings.iter().rfind(|setting| setting.name == "name");
        Some(given.and_then(|setting| setting.value.as_deref()).unwrap_or(name))
    }
}
