//! The project's targets of speed, as ratios of two measured cells.

use super::figures::{Cell, Figures, Fio, Workload};
use super::plan::{CONTENDED, Plan, SCHEDULERS};

/// The least number of cores of a large machine, of which more is required.
const MANY: u32 = 16;

/// A claim about two cells: `left` is at least `target` times `right`.
pub(super) struct Target {
    pub(super) what: String,
    left: Cell,
    right: Cell,
    pub(super) target: f64,
}

impl Target {
    /// The measured ratio, if both sides were measured.
    pub(super) fn ratio(&self, figures: &Figures) -> Option<f64> {
        Some(figures.median(&self.left)? / figures.median(&self.right)?)
    }

    /// The verdict, in words for a table.
    pub(super) fn verdict(&self, figures: &Figures) -> &'static str {
        match self.ratio(figures) {
            Some(ratio) if ratio >= self.target => "met",
            Some(_) => "missed",
            None => "not measured",
        }
    }
}

/// Every target that the plan can check on a machine with `cores` cores.
pub(super) fn targets(plan: &Plan, cores: u32) -> Vec<Target> {
    let contended = CONTENDED.map(|scheduler| (Workload::Contention, scheduler));
    let shared = contended.into_iter().chain([(Workload::Plugs, "mq-deadline")]);
    let shared = shared.flat_map(|(workload, scheduler)| {
        plan.threads.iter().flat_map(move |n| contention(workload, scheduler, *n, cores))
    });
    let most = plan.queues.iter().copied().max().unwrap_or(1);
    let alone = SCHEDULERS.iter().map(|scheduler| alone(scheduler));
    shared.chain(per_queue(most)).chain(alone).collect()
}

fn contention(workload: Workload, scheduler: &str, threads: u32, cores: u32) -> Vec<Target> {
    let of = match workload {
        Workload::Plugs => format!("{scheduler} in plugs of 8, {threads} threads"),
        _ => format!("{scheduler}, {threads} threads"),
    };
    let cell = |access, threads| Cell::new(workload, scheduler, access, threads);
    let against = |right: Cell, name: &str, target: f64| Target {
        what: format!("{of}, against {name}"),
        left: cell("combining", threads),
        right,
        target,
    };
    let mut targets = Vec::new();
    if threads > 1 {
        targets.push(against(cell("combining", 1), "one uncontended core", 0.9));
    }
    // With more threads than cores, a spin lock measures the scheduler of the operating system.
    let (spin, mutex) = match scheduler {
        _ if threads == 1 || threads > cores => (None, 1.0),
        _ if threads >= MANY => (Some(3.0), 3.0),
        "bfq" => (Some(2.5), 1.2),
        _ => (Some(3.0), 1.3),
    };
    if let Some(spin) = spin {
        targets.push(against(cell("spin", threads), "the spin lock", spin));
    }
    targets.push(against(cell("mutex", threads), "the mutex", mutex));
    targets
}

fn per_queue(queues: u32) -> Vec<Target> {
    if queues == 1 {
        return Vec::new();
    }
    let cell = |scheduler, threads| Cell::new(Workload::PerQueue, scheduler, "combining", threads);
    let against = |right, name: &str, target| Target {
        what: format!("an mq-deadline for each of {queues} hardware queues, against {name}"),
        left: cell("mq-deadline", queues),
        right,
        target,
    };
    let mut targets = vec![against(cell("none", queues), "none", 0.8)];
    if queues >= MANY {
        targets.push(against(cell("mq-deadline", 1), "one core", 12.0));
    }
    targets
}

fn alone(scheduler: &str) -> Target {
    Target {
        what: format!("{scheduler}, one thread, against fio's null engine"),
        left: Cell::alone(scheduler),
        right: Cell::fio_beside(scheduler, Fio::Plain),
        target: match scheduler {
            "none" => 1.2,
            "bfq" => 0.3,
            _ => 0.6,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_only_beaten_by_far_where_cores_suffice() {
        let asked = |scheduler, threads, cores| -> Vec<f64> {
            let targets = contention(Workload::Contention, scheduler, threads, cores);
            targets.into_iter().map(|target| target.target).collect()
        };
        assert_eq!(asked("mq-deadline", 1, 2), [1.0]);
        assert_eq!(asked("mq-deadline", 2, 2), [0.9, 3.0, 1.3]);
        assert_eq!(asked("bfq", 2, 2), [0.9, 2.5, 1.2]);
        assert_eq!(asked("bfq", 16, 2), [0.9, 1.0]);
        assert_eq!(asked("bfq", 16, 16), [0.9, 3.0, 3.0]);
    }

    #[test]
    fn twelve_cores_worth_are_asked_of_sixteen() {
        let asked = |queues| per_queue(queues).iter().map(|t| t.target).collect::<Vec<_>>();
        assert_eq!((asked(1), asked(2), asked(16)), (vec![], vec![0.8], vec![0.8, 12.0]));
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
