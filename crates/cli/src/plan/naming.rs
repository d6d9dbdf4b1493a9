//! Names that distinguish the cases of a plan, in the jobs of a report and in the files of a run.
//!
//! A plan with one case needs none. Otherwise the name contains everything that is compared: `mq-deadline`, or
//! `mq-deadline-fifo_batch=8.spin.4threads`. It is valid in file names and unique.

use super::Plan;
use super::runs::RunSpec;

impl Plan {
    /// The name of the case of `spec`; empty if there is only one.
    pub fn case_name(&self, spec: &RunSpec<'_>) -> String {
        let name = self.plain_case_name(spec);
        // Replacing characters that are invalid in a file name may make names equal.
        let runs = self.runs();
        let earlier = runs.iter().take(self.cases()).filter(|other| other.case < spec.case);
        let like = earlier.filter(|other| self.plain_case_name(other) == name).count();
        if like == 0 { name } else { format!("{name}-{}", like + 1) }
    }

    fn plain_case_name(&self, spec: &RunSpec<'_>) -> String {
        let threads = spec.threads.len();
        let parts = [
            (self.schedulers.len() > 1, spec.scheduler.text.clone()),
            (self.access.len() > 1, spec.access.text.clone()),
            (self.threads.len() > 1, format!("{threads}threads")),
            (self.devices.len() > 1, spec.device.text.clone()),
        ];
        let shown = parts.into_iter().filter_map(|(shown, part)| shown.then(|| fit(&part)));
        Vec::from_iter(shown).join(".")
    }

    /// The name of a file of `spec` that begins with `prefix`. It contains the case if there are several, and the
    /// repetition, from 0, if there are several of those.
    pub fn file_of(&self, spec: &RunSpec<'_>, prefix: &str) -> String {
        let mut name = prefix.to_owned();
        if self.cases() > 1 {
            name.push_str(&format!(".{}", self.case_name(spec)));
        }
        if self.repeat > 1 {
            name.push_str(&format!(".rep{}", spec.repetition));
        }
        name
    }
}

/// `text` with a dash for each character that has a meaning to shells or in paths.
fn fit(text: &str) -> String {
    let keeps = |c: char| c.is_ascii_alphanumeric() || "-_=".contains(c);
    text.chars().map(|c| if keeps(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Request, parse};
    use crate::plan::Time;

    fn plan(line: &str) -> Box<Plan> {
        let args = Vec::from_iter(line.split_whitespace().map(String::from));
        match parse(&args, Time::Virtual { seed: 0 }).expect(line) {
            Request::Plan(plan) => plan,
            Request::Help | Request::Command(_) => panic!("{line} is no plan"),
        }
    }

    fn names(line: &str) -> Vec<String> {
        let plan = plan(line);
        plan.runs().iter().map(|spec| plan.file_of(spec, "p")).collect()
    }

    #[test]
    fn one_case_has_no_name() {
        assert_eq!(names("--rw=read --size=1m --scheduler=bfq"), ["p"]);
        let repeated = names("--rw=read --size=1m --scheduler=bfq --repeat=2");
        assert_eq!(repeated, ["p.rep0", "p.rep1"]);
    }

    #[test]
    fn several_cases_are_named_by_what_differs() {
        let two =
            names("--rw=read --size=1m --scheduler=none,mq-deadline:fifo_batch=8,read_expire=9");
        assert_eq!(two, ["p.none", "p.mq-deadline-fifo_batch=8-read_expire=9"]);
        let four = names("--rw=read --size=1m --scheduler=none,bfq --threads=1,2 --repeat=2");
        assert_eq!(four.len(), 8);
        assert_eq!(
            (four[0].as_str(), four[7].as_str()),
            ("p.none.1threads.rep0", "p.bfq.2threads.rep1")
        );
    }

    #[test]
    fn no_two_cases_share_a_name() {
        let same = names("--rw=read --size=1m --scheduler=none,none");
        assert_eq!(same, ["p.none", "p.none-2"]);
    }
}
