//! What the project calls fast, as ratios of two measured cells.

use super::figures::{Cell, Figures};
use super::plan::{Fio, Plan, SCHEDULERS};

/// A claim about two cells: `left` is at least `target` times `right`.
pub(super) struct Target {
    pub(super) what: String,
    left: Cell,
    right: Cell,
    pub(super) target: f64,
}

impl Target {
    /// What was measured, if both sides were.
    pub(super) fn ratio(&self, figures: &Figures) -> Option<f64> {
        Some(figures.median(&self.left)? / figures.median(&self.right)?)
    }

    /// In words for a table.
    pub(super) fn verdict(&self, figures: &Figures) -> &'static str {
        match self.ratio(figures) {
            Some(ratio) if ratio >= self.target => "met",
            Some(_) => "missed",
            None => "not measured",
        }
    }
}

/// Every target that the plan can show on a machine with `cores` cores.
pub(super) fn targets(plan: &Plan, cores: u32) -> Vec<Target> {
    plan.threads
        .iter()
        .flat_map(|threads| contention(*threads, cores))
        .chain(SCHEDULERS.iter().map(|scheduler| alone(scheduler)))
        .collect()
}

fn contention(threads: u32, cores: u32) -> Vec<Target> {
    let against = |right: Cell, name: &str, target: f64| Target {
        what: format!("combining, {threads} threads, against {name}"),
        left: Cell::contention("combining", threads),
        right,
        target,
    };
    let mut targets = Vec::new();
    if threads > 1 {
        targets.push(against(Cell::contention("combining", 1), "one uncontended core", 0.9));
    }
    // With more threads than cores a spin lock measures the scheduler of the operating system.
    if threads > 1 && threads <= cores {
        targets.push(against(Cell::contention("spin", threads), "the spin lock", 3.0));
        targets.push(against(Cell::contention("mutex", threads), "the mutex", 1.3));
    } else {
        targets.push(against(Cell::contention("mutex", threads), "the mutex", 1.0));
    }
    targets
}

fn alone(scheduler: &str) -> Target {
    Target {
        what: format!("{scheduler}, one thread, against fio's null engine"),
        left: Cell::alone(scheduler),
        right: Cell::fio_beside(scheduler, Fio::Plain),
        target: if scheduler == "none" { 1.2 } else { 0.6 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_only_beaten_by_far_where_cores_suffice() {
        let whats = |threads, cores| -> Vec<(String, f64)> {
            contention(threads, cores).into_iter().map(|t| (t.what, t.target)).collect()
        };
        let names = |targets: Vec<(String, f64)>| -> Vec<f64> {
            targets.into_iter().map(|(_, target)| target).collect()
        };
        assert_eq!(names(whats(1, 2)), [1.0]);
        assert_eq!(names(whats(2, 2)), [0.9, 3.0, 1.3]);
        assert_eq!(names(whats(16, 2)), [0.9, 1.0]);
    }

    #[test]
    fn a_target_is_met_at_its_ratio() {
        let target = alone("mq-deadline");
        let mut figures = Figures::default();
        assert_eq!(target.verdict(&figures), "not measured");
        figures.0.insert(Cell::alone("mq-deadline"), vec![6.0]);
        figures.0.insert(Cell::fio_beside("mq-deadline", Fio::Plain), vec![10.0]);
        assert_eq!(target.verdict(&figures), "met");
        figures.0.insert(Cell::alone("mq-deadline"), vec![5.9]);
        assert_eq!(target.verdict(&figures), "missed");
    }
}
