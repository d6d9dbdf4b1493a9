//! The figures of a run: rates of I/O, read from the JSON of fio and of `blkmq bench`, sorted into cells; and the
//! result as Markdown for people and as JSON for programs, which hold the same, with the project's targets of speed, as
//! ratios of two measured cells.

use super::{CONTENDED, Plan, SCHEDULERS};
use crate::Result;
use crate::measurement::Machine;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The form in which fio does the work of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fio {
    /// One I/O at a time, fio's default.
    Plain,
    /// In batches of 8. fio's null engine does not even see single I/Os then.
    Batched,
}

impl Fio {
    /// Both forms.
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Batched];

    /// The name in place of an access; fio has no access.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "fio",
            Self::Batched => "fio, batches of 8",
        }
    }
}

/// The subject of a measurement: one line of a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cell {
    pub(super) workload: Workload,
    /// A policy's name.
    pub(super) scheduler: String,
    /// `combining`, `spin`, `mutex`, or one of [`Fio`]'s names for runs without a block layer.
    pub(super) access: String,
    pub(super) threads: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Workload {
    /// Several threads, one elevator, the load of the published figures.
    Contention,
    /// Like [`Contention`](Self::Contention), but with larger plugs and more I/Os in flight.
    Plugs,
    /// Several threads, an elevator for each.
    PerQueue,
    /// One thread, random reads.
    Alone,
}

impl Workload {
    /// The name in the data.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Contention => "contention",
            Self::Plugs => "plugs",
            Self::PerQueue => "per-queue",
            Self::Alone => "alone",
        }
    }
}

impl Cell {
    pub(super) fn new(workload: Workload, scheduler: &str, access: &str, threads: u32) -> Self {
        Self { workload, scheduler: scheduler.into(), access: access.into(), threads }
    }

    pub(super) fn alone(scheduler: &str) -> Self {
        Self::new(Workload::Alone, scheduler, "combining", 1)
    }

    /// fio, measured in turns with the policy `scheduler`.
    pub(super) fn fio_beside(scheduler: &str, fio: Fio) -> Self {
        Self { access: fio.name().into(), ..Self::alone(scheduler) }
    }
}

/// I/Os per second of every repetition of every cell.
#[derive(Default)]
pub(super) struct Figures(pub(super) BTreeMap<Cell, Vec<f64>>);

impl Figures {
    /// Adds a result of `blkmq bench` for an experiment: the `blkmq` object of a job names its run, and each run
    /// carries the rates of its repetitions.
    ///
    /// # Errors
    /// If a job failed, lacks a field, or did no I/O.
    pub(super) fn add_ours(&mut self, workload: Workload, report: &Value) -> Result<()> {
        let mut seen = Vec::new();
        for job in jobs(report)? {
            check(job)?;
            let ours = &job["blkmq"];
            // All jobs of a run repeat the run's rates.
            if seen.contains(&&ours["run"]) {
                continue;
            }
            seen.push(&ours["run"]);
            let text = |key: &str| ours[key].as_str().ok_or(format!("a job without blkmq.{key}"));
            let threads = ours["threads"].as_u64().ok_or("a job without blkmq.threads")?;
            let threads = u32::try_from(threads)?;
            let cell = Cell::new(workload, text("scheduler")?, text("access")?, threads);
            let rates = ours["repetitions_iops"].as_array().filter(|rates| !rates.is_empty());
            for rate in rates.ok_or("a job without blkmq.repetitions_iops")? {
                self.add(&cell, rate.as_f64().unwrap_or(0.0))?;
            }
        }
        Ok(())
    }

    /// Adds a result of fio: one run, with the sum of its jobs' rates.
    ///
    /// # Errors
    /// If a job failed or did no I/O.
    pub(super) fn add_fio(&mut self, cell: &Cell, report: &Value) -> Result<()> {
        let mut rate = 0.0;
        for job in jobs(report)? {
            check(job)?;
            for direction in ["read", "write", "trim"] {
                rate += job[direction]["iops"].as_f64().unwrap_or(0.0);
            }
        }
        self.add(cell, rate)
    }

    fn add(&mut self, cell: &Cell, rate: f64) -> Result<()> {
        if rate <= 0.0 {
            return Err(format!("{cell:?} did no I/O").into());
        }
        self.0.entry(cell.clone()).or_default().push(rate);
        Ok(())
    }

    /// The median rate of a cell, if it was measured.
    pub(super) fn median(&self, cell: &Cell) -> Option<f64> {
        median(self.0.get(cell)?)
    }

    /// The difference between the fastest and the slowest repetition of a cell, relative to its median.
    fn spread(&self, cell: &Cell) -> Option<f64> {
        let rates = self.0.get(cell)?;
        let max = rates.iter().copied().fold(f64::MIN, f64::max);
        let min = rates.iter().copied().fold(f64::MAX, f64::min);
        Some((max - min) / median(rates)?)
    }
}

/// The jobs of a report, of which there is at least one.
///
/// # Errors
/// If there is none.
pub(super) fn jobs(report: &Value) -> Result<&Vec<Value>> {
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty());
    Ok(jobs.ok_or("a report without jobs")?)
}

/// Checks that a job succeeded.
///
/// # Errors
/// If it did not.
pub(super) fn check(job: &Value) -> Result<()> {
    match job["error"].as_i64() {
        Some(0) => Ok(()),
        error => Err(format!("job {} ended with error {error:?}", job["jobname"]).into()),
    }
}

/// The middle value, or the mean of the two in the middle.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

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
    use serde_json::json;

    fn job(run: u32, access: &str, rates: &[f64], error: i32) -> Value {
        json!({
            "error": error, "blkmq": { "run": run, "scheduler": "mq-deadline", "access": access, "threads": 2,
                       "repetitions_iops": rates },
        })
    }

    #[test]
    fn jobs_of_one_run_count_once() {
        let rates = [3.0, 1.0, 2.0];
        let report = json!({ "jobs": [job(0, "spin", &rates, 0), job(0, "spin", &rates, 0),
                                      job(1, "mutex", &[7.0], 0)] });
        let mut figures = Figures::default();
        figures.add_ours(Workload::Plugs, &report).unwrap();
        let cell = |access| Cell::new(Workload::Plugs, "mq-deadline", access, 2);
        assert_eq!(figures.median(&cell("spin")), Some(2.0));
        assert_eq!(figures.spread(&cell("spin")), Some(1.0));
        assert_eq!(figures.0[&cell("spin")].len(), 3);
        assert_eq!(figures.median(&cell("mutex")), Some(7.0));
        assert_eq!(figures.median(&cell("combining")), None);
    }

    #[test]
    fn a_failed_or_idle_job_is_an_error() {
        let add = |report: &Value| Figures::default().add_ours(Workload::Plugs, report);
        let report = |job: Value| json!({ "jobs": [job] });
        assert!(add(&report(job(0, "spin", &[1.0], 5))).is_err());
        assert!(add(&report(job(0, "spin", &[0.0], 0))).is_err());
        assert!(add(&report(job(0, "spin", &[], 0))).is_err());
        assert!(add(&json!({ "jobs": [] })).is_err());
    }

    #[test]
    fn fio_is_summed_over_its_jobs() {
        let report = json!({ "jobs": [
            { "error": 0, "read": { "iops": 1.5 }, "write": { "iops": 0.0 } },
            { "error": 0, "read": { "iops": 2.0 } },
        ]});
        let mut figures = Figures::default();
        figures.add_fio(&Cell::fio_beside("none", Fio::Plain), &report).unwrap();
        assert_eq!(figures.median(&Cell::fio_beside("none", Fio::Plain)), Some(3.5));
    }

    #[test]
    fn the_median_of_an_even_number_is_in_between() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

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
