//! The result of a run as Markdown for people and as JSON for programs, which hold the same; and the project's targets of
//! speed, as ratios of two measured cells.

use super::figures::{Cell, Figures, Fio, Workload};
use super::{CONTENDED, Plan, SCHEDULERS};
use crate::measurement::Machine;
use serde_json::{Value, json};

/// Repetitions further apart than this share of their median are marked.
const NOISY: f64 = 0.2;

/// The page.
pub(super) fn markdown(machine: &Machine, plan: &Plan, figures: &Figures) -> String {
    let mut page = String::from("# Benchmarks\n\n| machine | |\n|---|---|\n");
    for (name, value) in machine.rows() {
        page += &format!("| {name} | {value} |\n");
    }
    page += "\nMillions of I/Os per second, medians; the spread is (max - min) / median.\n";
    page += &together(plan, figures);
    page += &alone_table(figures);
    page += "\n## Targets\n\n| what | ratio | target | |\n|---|---|---|---|\n";
    for target in targets(plan, machine.cores) {
        let ratio = target.ratio(figures).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let verdict = target.verdict(figures);
        page += &format!("| {} | {ratio} | {:.2} | {verdict} |\n", target.what, target.target);
    }
    let warnings = warnings(machine, figures);
    if !warnings.is_empty() {
        page += "\n## Warnings\n\n";
        warnings.iter().for_each(|warning| page += &format!("- {warning}\n"));
    }
    page += "\n## Commands\n\n```\n";
    plan.commands().iter().for_each(|command| page += &format!("{command}\n"));
    page + "```\n"
}

/// The experiments of several threads.
fn together(plan: &Plan, figures: &Figures) -> String {
    let title = |workload| match workload {
        Workload::Contention => "One scheduler for all threads, the load of the published figures",
        Workload::Plugs => "One scheduler for all threads, plugs of 8, 32 in flight",
        Workload::PerQueue => "A scheduler for each hardware queue",
        Workload::Alone => "Alone",
    };
    plan.together()
        .iter()
        .map(|(workload, _)| {
            format!("\n## {}\n\n{}", title(*workload), table(&plan.rows(*workload), figures))
        })
        .collect()
}

fn table(rows: &[Vec<Cell>], figures: &Figures) -> String {
    let mut table = String::from("| scheduler | threads |");
    let ways = rows.first().into_iter().flatten();
    let mut line = String::from("\n|---|---|");
    for way in ways {
        table += &format!(" {} | spread |", way.access);
        line += "---|---|";
    }
    table += &line;
    for row in rows {
        table += &format!("\n| {} | {} |", row[0].scheduler, row[0].threads);
        row.iter().for_each(|cell| table += &format!(" {} |", rate_and_spread(figures, cell)));
    }
    table + "\n"
}

fn alone_table(figures: &Figures) -> String {
    let mut table = String::from(
        "\n## One thread, against fio's null engine\n\n\
         | scheduler | blkmq, plugs of 8 | spread | fio | spread | fio, batches of 8 | spread |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for scheduler in SCHEDULERS {
        let ours = rate_and_spread(figures, &Cell::alone(scheduler));
        let [plain, batched] =
            Fio::ALL.map(|fio| rate_and_spread(figures, &Cell::fio_beside(scheduler, fio)));
        table += &format!("| {scheduler} | {ours} | {plain} | {batched} |\n");
    }
    table
}

/// The fields of a rate and its spread.
fn rate_and_spread(figures: &Figures, cell: &Cell) -> String {
    match (figures.median(cell), figures.spread(cell)) {
        (Some(rate), Some(spread)) => format!("{:.2} | {:.0} %", rate / 1e6, spread * 100.0),
        _ => "- | -".into(),
    }
}

fn warnings(machine: &Machine, figures: &Figures) -> Vec<String> {
    let mut warnings = machine.warnings();
    let noisy = figures.0.keys().filter(|cell| figures.spread(cell).is_some_and(|s| s > NOISY));
    let count = noisy.count();
    if count > 0 {
        let all = figures.0.len();
        let percent = NOISY * 100.0;
        warnings.push(format!("{count} of {all} figures spread over more than {percent:.0} %."));
    }
    warnings
}

/// The report as data, with every repetition.
pub(super) fn json(machine: &Machine, plan: &Plan, figures: &Figures) -> Value {
    let rows = machine.rows();
    let about: serde_json::Map<String, Value> =
        rows.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect();
    let cells = figures.0.iter().map(|(cell, rates)| {
        json!({
            "experiment": cell.workload.name(),
            "scheduler": cell.scheduler,
            "access": cell.access,
            "threads": cell.threads,
            "iops": rates,
            "iops_median": figures.median(cell),
        })
    });
    let targets = targets(plan, machine.cores);
    let targets = targets.iter().map(|target| {
        json!({
            "what": target.what,
            "ratio": target.ratio(figures),
            "target": target.target,
            "verdict": target.verdict(figures),
        })
    });
    json!({
        "machine": about,
        "commands": plan.commands(),
        "results": cells.collect::<Vec<_>>(),
        "targets": targets.collect::<Vec<_>>(),
        "warnings": warnings(machine, figures),
    })
}

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
    let alone = SCHEDULERS.iter().map(|scheduler| alone_target(scheduler));
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

fn alone_target(scheduler: &str) -> Target {
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

    fn figures() -> Figures {
        let mut figures = Figures::default();
        let cell = |threads| Cell::new(Workload::Contention, "bfq", "combining", threads);
        figures.0.insert(cell(1), vec![2e6, 2e6]);
        figures.0.insert(cell(2), vec![1e6, 2e6]);
        figures
    }

    fn machine() -> Machine {
        let mut machine = Machine::describe();
        machine.cores = 2;
        machine.load = "0".into();
        machine.commit = "abc".into();
        machine
    }

    #[test]
    fn the_page_has_figures_ratios_commands_and_gaps() {
        let page = markdown(&machine(), &Plan::test_size(), &figures());
        assert!(page.contains("| bfq | 1 | 2.00 | 0 % | - | - | - | - |"), "{page}");
        assert!(page.contains("against one uncontended core | 0.75 | 0.90 | missed |"), "{page}");
        assert!(page.contains("against the spin lock | - | 2.50 | not measured |"), "{page}");
        assert!(page.contains("1 of 2 figures spread"), "{page}");
        assert!(page.contains("target/dist/blkmq bench"), "{page}");
    }

    #[test]
    fn the_data_keeps_every_repetition() {
        let data = json(&machine(), &Plan::test_size(), &figures());
        assert_eq!(data["results"][1]["iops"], json!([1e6, 2e6]));
        assert_eq!(data["results"][1]["iops_median"], json!(1.5e6));
        assert_eq!(data["results"][0]["experiment"], "contention");
    }

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
        let target = alone_target("mq-deadline");
        let mut figures = Figures::default();
        assert_eq!(target.verdict(&figures), "not measured");
        figures.0.insert(Cell::alone("mq-deadline"), vec![6.0]);
        figures.0.insert(Cell::fio_beside("mq-deadline", Fio::Plain), vec![10.0]);
        assert_eq!(target.verdict(&figures), "met");
        figures.0.insert(Cell::alone("mq-deadline"), vec![5.9]);
        assert_eq!(target.verdict(&figures), "missed");
    }
}
