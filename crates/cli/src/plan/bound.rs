//! An end for jobs that have none: a pass over a whole disk takes longer than a user expects, and in virtual time its
//! length would not be noticed at all.

use super::{Plan, Time, time};
use blkmq_core::Nanos;

/// The runtime of such a job in virtual time.
const SIMULATED: Nanos = Nanos::from_secs(10);
/// The time of all runs together, in real time.
const BUDGET_MS: u64 = 20_000;
/// The least and the most of it that a job gets in one run.
const SHARE_MS: (u64, u64) = (500, 10_000);

impl Plan {
    /// Gives jobs with neither runtime nor size a runtime, and notes it.
    pub fn bound(&mut self) {
        let phases = 1 + self.jobs.iter().skip(1).filter(|job| job.stonewall).count();
        let turns = (self.cases() * self.repeat as usize * phases).max(1) as u64;
        let (runtime, says) = match self.time {
            Time::Virtual { .. } => (SIMULATED, "10 s of virtual time".to_owned()),
            Time::Real => {
                let ms = (BUDGET_MS / turns).clamp(SHARE_MS.0, SHARE_MS.1) / 100 * 100;
                let runtime = Nanos::from_millis(ms);
                (runtime, format!("it ends after {} in each run", time(runtime)))
            }
        };
        for job in &mut self.jobs {
            let is_sized = job.files.as_ref().is_some_and(|files| files.is_sized);
            let is_bounded = is_sized || job.runtime.is_some() || job.number_ios.is_some();
            let is_bounded = is_bounded || job.tape.is_some();
            if !is_bounded && job.size.is_none() && job.io_size.is_none() {
                (job.runtime, job.time_based) = (Some(runtime), true);
                self.notes.push(format!("job '{}': neither runtime nor size: {says}", job.name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Request};

    fn bounded(line: &str, time: Time) -> Plan {
        let words = Vec::from_iter(line.split_whitespace().map(String::from));
        let Ok(Request::Plan(mut plan)) = args::parse(&words, time) else { panic!("{line}") };
        plan.bound();
        *plan
    }

    /// The command of the README ran for twenty minutes.
    #[test]
    fn all_runs_together_end_in_time_and_the_report_says_so() {
        let readme = "--scheduler none,mq-deadline --access combining,spin --threads 1,2 --rw=randread --bs=4k \
                      --iodepth=32";
        for line in
            [readme, "--rw=read", "--name=a --name=b --stonewall --scheduler=none --repeat=3"]
        {
            let plan = bounded(line, Time::Real);
            let run = plan.run_time().expect("it is bounded");
            assert!(run.0 * plan.runs().len() as u64 <= 25_000_000_000, "{line}: {run}");
            assert!(plan.notes.iter().any(|note| note.contains("neither runtime nor size")));
        }
        let plan = bounded(readme, Time::Real);
        assert_eq!(plan.jobs[0].runtime, Some(Nanos::from_millis(2_500)));
    }

    #[test]
    fn a_job_with_an_end_keeps_it() {
        for time in [Time::Real, Time::Virtual { seed: 0 }] {
            for end in ["--size=1m", "--runtime=600", "--io_size=1m", "--number_ios=7"] {
                let plan = bounded(&format!("--rw=read {end}"), time);
                assert!(
                    plan.notes.is_empty() && !plan.jobs[0].time_based,
                    "{end}: {:?}",
                    plan.notes
                );
            }
        }
        let plan = bounded("--rw=read", Time::Virtual { seed: 0 });
        assert_eq!(plan.jobs[0].runtime, Some(SIMULATED));
    }
}
