//! The settings of one job, or of all jobs.

use super::setting::Setting;

/// Settings that belong together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Section {
    /// The job's name; `None` for globals.
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
}
