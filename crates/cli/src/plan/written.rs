//! [`Written`]: the options of jobs as they were written, for reports.

/// Names as in the table of options, and values as the user gave them. As in fio, an option without a value is not there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Those of all jobs.
    pub globals: Vec<(String, String)>,
    /// Those of each job alone, in the order of the jobs; empty if the jobs are those of a command without options.
    pub jobs: Vec<Vec<(String, String)>>,
}

impl Written {
    /// Adds a global option; the last value counts, at the place of the first.
    pub fn add_global(&mut self, (name, value): (String, String)) {
        match self.globals.iter_mut().find(|(known, _)| *known == name) {
            Some((_, last)) => *last = value,
            None => self.globals.push((name, value)),
        }
    }
}
