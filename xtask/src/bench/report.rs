//! The result of a run as Markdown for people and as JSON for programs. Both hold the same.

use super::figures::{Cell, Figures, Fio, Workload};
use super::plan::{Plan, SCHEDULERS};
use super::targets::targets;
use crate::machine::Machine;
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
    page += &alone(figures);
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

fn alone(figures: &Figures) -> String {
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
}
