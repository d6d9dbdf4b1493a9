//! Removes the options of a job file that a difference does not need.

use super::draw::{JobFile, NEEDED};
use crate::Result;

/// The smallest file that still `fails`, found by removing jobs and options one at a time.
///
/// # Errors
/// Those of `fails`.
pub(super) fn shrink(
    file: &JobFile,
    mut fails: impl FnMut(&JobFile) -> Result<bool>,
) -> Result<JobFile> {
    let mut least = file.clone();
    'again: loop {
        for smaller in smaller(&least) {
            if fails(&smaller)? {
                least = smaller;
                continue 'again;
            }
        }
        return Ok(least);
    }
}

/// The files with one job less, then those with one option less.
fn smaller(file: &JobFile) -> Vec<JobFile> {
    let mut all = Vec::new();
    let without = |change: &dyn Fn(&mut JobFile)| {
        let mut smaller = file.clone();
        change(&mut smaller);
        smaller
    };
    for at in 0..file.jobs.len() {
        if file.jobs.len() > 1 {
            all.push(without(&|file| drop(file.jobs.remove(at))));
        }
    }
    if file.laid.is_some() {
        all.push(without(&|file| file.laid = None));
    }
    for at in 0..file.global.len() {
        if !NEEDED.contains(&file.global[at].name) {
            all.push(without(&|file| drop(file.global.remove(at))));
        }
    }
    for job in 0..file.jobs.len() {
        for at in 0..file.jobs[job].settings.len() {
            all.push(without(&|file| drop(file.jobs[job].settings.remove(at))));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_failure_needs_is_left() {
        let file = (1..).map(JobFile::draw).find(|file| {
            let has = |name| {
                file.jobs.last().is_some_and(|job| job.settings.iter().any(|it| it.name == name))
            };
            file.jobs.len() == 3 && has("rw") && has("bs") && file.len() > 15
        });
        let file = file.expect("some seed has three jobs");
        let fails = |file: &JobFile| {
            let job = file.jobs.iter().find(|job| job.name == "third");
            Ok(job.is_some_and(|job| job.settings.iter().any(|it| it.name == "bs")))
        };
        let least = shrink(&file, fails).unwrap();
        assert_eq!(least.jobs.len(), 1);
        assert!(least.jobs[0].settings.iter().all(|it| it.name == "bs"), "{least}");
        assert!(least.global.iter().all(|it| NEEDED.contains(&it.name)), "{least}");
        assert_eq!(least.laid, None);
    }

    #[test]
    fn a_failure_that_needs_everything_keeps_everything() {
        let file = JobFile::draw(7);
        let whole = file.to_string();
        assert_eq!(shrink(&file, |smaller| Ok(smaller.to_string() == whole)).unwrap(), file);
    }
}
