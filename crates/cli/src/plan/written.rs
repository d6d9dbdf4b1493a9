//! [`Written`]: the options of jobs as they were written, for reports.

/// Names as in the table of options, and values as the user gave them. As in fio, an option without a value is not there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Options that hold for all jobs.
    pub globals: Vec<(String, String)>,
    /// Options of each job, in the order of the jobs; empty for a command without options.
    pub jobs: Vec<Vec<(String, String)>>,
}

impl Written {
    /// Adds an option to `options`; the last value counts, at the place of the first.
    pub fn add(options: &mut Vec<(String, String)>, (name, value): (String, String)) {
        match options.iter_mut().find(|(known, _)| *known == name) {
            Some((_, last)) => *last = value,
            None => options.push((name, value)),
        }
    }
}
