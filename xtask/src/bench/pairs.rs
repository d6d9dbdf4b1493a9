//! `bench --pairs`: alternating runs of two sides, and the ratio of each pair of runs, for targets that single rates
//! cannot show.
//!
//! Rates in plugs of 8, compared with fio's null engine; two and sixteen threads that share an elevator by combining,
//! compared with a spin lock, a mutex and one thread; the time of a single I/O from its push to its answer on the null
//! device, compared with an earlier build if one is named; a file at depths 1 and 32, compared with fio's io_uring
//! engine. Nothing is recorded, and slow results do not fail: the figures are only meaningful on an otherwise idle
//! machine.

use super::SCHEDULERS;
use super::report::median;
use crate::Result;
use crate::shell::{BLKMQ, Cmd, is_installed, parse_json, target_dir};
use serde_json::Value;
use std::path::PathBuf;

/// Plugs of 8 with 32 in flight and no clock readings for each I/O, in the spelling of both sides.
const PLUGS: &str = "--bs=4k --iodepth=32 --iodepth_batch_submit=8 --iodepth_batch_complete_min=8 --gtod_reduce=1 \
                     --norandommap --time_based";
/// A null device that answers within the call.
const NULL: &str = "--device null,submit_queues=1,irqmode=0";
const REPORT: &str = "--repeat 1 --output-format json";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Pairs of runs; the medians are reported.
    pub(super) rounds: u32,
    /// The runtimes on the null device and on a file, in fio's spelling.
    runtimes: [&'static str; 2],
    /// The size of the file, in MiB.
    file: u32,
    /// Only the first pair of each kind.
    brief: bool,
    /// An earlier build of `blkmq`.
    pub(super) before: Option<String>,
}

impl Size {
    /// Eight minutes.
    pub(super) fn full() -> Self {
        Self { rounds: 11, runtimes: ["600ms", "1"], file: 256, brief: false, before: None }
    }

    /// Every kind of pair once, to check that it works. The figures mean nothing.
    pub(super) fn test_size() -> Self {
        Self { rounds: 1, runtimes: ["50ms"; 2], file: 16, brief: true, before: None }
    }
}

/// The figure that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Figure {
    /// I/Os for each second: the more the better.
    Rate,
    /// The mean time of an I/O: the less the better.
    Time,
}

/// Two commands that are run in turns.
struct Pair {
    what: String,
    figure: Figure,
    ours: Cmd,
    /// The other side, if it is there.
    other: Option<Cmd>,
    /// The least acceptable ratio: of rates, ours to the other's; of times, the other's to ours.
    wanted: f64,
}

impl Pair {
    /// The ratio, above 1 if ours is better.
    fn ratio(&self, ours: f64, other: f64) -> f64 {
        match self.figure {
            Figure::Rate => ours / other,
            Figure::Time => other / ours,
        }
    }

    fn shown(&self, figure: f64) -> String {
        match self.figure {
            Figure::Rate if figure >= 1e6 => format!("{:.2} M IOPS", figure / 1e6),
            Figure::Rate => format!("{:.1} k IOPS", figure / 1e3),
            Figure::Time => format!("{figure:.0} ns"),
        }
    }
}

/// The figures of a pair: ours, and for each other side its figures with the ratio of each round.
#[derive(Default)]
struct Taken {
    ours: Vec<f64>,
    other: Vec<f64>,
    ratios: Vec<f64>,
}

/// Measures all pairs and prints a table.
///
/// # Errors
/// If a command does not run or reports no I/O.
pub(super) fn main(size: &Size) -> Result<()> {
    let (pairs, skipped) = pairs(size);
    let mut taken: Vec<Taken> = pairs.iter().map(|_| Taken::default()).collect();
    for round in 0..size.rounds {
        for (pair, taken) in pairs.iter().zip(&mut taken) {
            measure(pair, round % 2 == 1, taken)?;
            println!(
                "round {} of {}, {}: {}",
                round + 1,
                size.rounds,
                pair.what,
                newest(pair, taken)
            );
        }
    }
    std::fs::remove_file(path()).ok();
    println!("\n{}", table(&pairs, &taken));
    skipped.iter().for_each(|what| println!("{what}: SKIPPED, fio is not installed"));
    pairs.iter().for_each(|pair| {
        println!("$ {}", pair.ours);
        pair.other.iter().for_each(|cmd| println!("$ {cmd}"));
    });
    Ok(())
}

/// Runs both sides, the other one first if `turned`.
fn measure(pair: &Pair, turned: bool, taken: &mut Taken) -> Result<()> {
    let run = |cmd: &Cmd| figure(pair.figure, &parse_json(&cmd.output()?)?);
    let Some(cmd) = &pair.other else {
        taken.ours.push(run(&pair.ours)?);
        return Ok(());
    };
    let first = if turned { Some(run(cmd)?) } else { None };
    let ours = run(&pair.ours)?;
    let other = match first {
        Some(other) => other,
        None => run(cmd)?,
    };
    taken.ours.push(ours);
    taken.other.push(other);
    taken.ratios.push(pair.ratio(ours, other));
    Ok(())
}

fn newest(pair: &Pair, taken: &Taken) -> String {
    let last = |of: &[f64]| of.last().map_or_else(|| "-".to_owned(), |it| pair.shown(*it));
    let ratio = taken.ratios.last().map_or_else(String::new, |ratio| format!(", {ratio:.2}"));
    format!("{}, {}{ratio}", last(&taken.ours), last(&taken.other))
}

/// The figure in a report of fio's form.
fn figure(of: Figure, report: &Value) -> Result<f64> {
    let jobs = report["jobs"].as_array().ok_or("a report without jobs")?;
    let mut sum = 0.0;
    for job in jobs {
        if job["error"].as_i64() != Some(0) {
            return Err(format!("job {} ended with error {}", job["jobname"], job["error"]).into());
        }
        for direction in ["read", "write"].map(|name| &job[name]) {
            sum += match of {
                Figure::Rate => direction["iops"].as_f64().unwrap_or(0.0),
                Figure::Time => direction["lat_ns"]["mean"].as_f64().unwrap_or(0.0),
            };
        }
        // In our runs, each thread's report contains the whole run as well.
        if of == Figure::Rate
            && let Some(all) = job["blkmq"]["repetitions_iops"][0].as_f64()
        {
            sum = all;
            break;
        }
    }
    if sum <= 0.0 { Err("a run without I/O".into()) } else { Ok(sum) }
}

/// All pairs; and the names of pairs whose programs are missing.
fn pairs(size: &Size) -> (Vec<Pair>, Vec<String>) {
    let kinds = [beside_fio(size), several_threads(size), one_at_a_time(size), file(size)];
    let most = if size.brief { 1 } else { usize::MAX };
    let all = kinds.into_iter().flat_map(|kind| kind.into_iter().take(most));
    let there = |pair: &Pair| {
        let needs_fio = pair.other.as_ref().is_some_and(|cmd| cmd.to_string().starts_with("fio"));
        !needs_fio || is_installed("fio")
    };
    let (present, missing): (Vec<Pair>, Vec<Pair>) = all.partition(there);
    (present, missing.into_iter().map(|pair| pair.what).collect())
}

fn beside_fio(size: &Size) -> Vec<Pair> {
    let [runtime, _] = size.runtimes;
    let pair = |(scheduler, wanted): (&str, f64)| Pair {
        what: format!("{scheduler}, plugs of 8, beside fio's null engine"),
        figure: Figure::Rate,
        ours: Cmd::new(&format!(
            "{BLKMQ} bench {NULL} --scheduler {scheduler} --rw=randread --size=1g {PLUGS} --runtime={runtime} {REPORT}"
        )),
        other: Some(Cmd::new(&format!(
            "fio --name=null --ioengine=null --thread --rw=randread --size=1g {PLUGS} --runtime={runtime} \
             --output-format=json"
        ))),
        wanted,
    };
    SCHEDULERS.into_iter().zip([1.6, 1.2, 1.2, 0.55]).map(pair).collect()
}

/// mq-deadline for all threads.
fn several_threads(size: &Size) -> Vec<Pair> {
    let [runtime, _] = size.runtimes;
    let run = |(access, threads): (&str, u32)| {
        Cmd::new(&format!(
            "{BLKMQ} bench {NULL},hw_queue_depth=1024 --scheduler mq-deadline --access {access} --threads {threads} \
             --rw=randwrite {PLUGS} --runtime={runtime} {REPORT}"
        ))
    };
    let combining = |threads, other: (&str, u32), wanted| Pair {
        what: format!("{threads} threads combining, beside {}", name(other)),
        figure: Figure::Rate,
        ours: run(("combining", threads)),
        other: Some(run(other)),
        wanted,
    };
    vec![
        combining(2, ("spin", 2), 4.0),
        combining(2, ("mutex", 2), 3.0),
        combining(2, ("combining", 1), 1.0),
        combining(16, ("combining", 1), 0.9),
    ]
}

fn name((access, threads): (&str, u32)) -> String {
    match (access, threads) {
        (_, 1) => "one thread".to_owned(),
        ("spin", n) => format!("{n} with a spin lock"),
        (lock, n) => format!("{n} with a {lock}"),
    }
}

fn one_at_a_time(size: &Size) -> Vec<Pair> {
    let [runtime, _] = size.runtimes;
    let run = |blkmq: &str, scheduler: &str| {
        Cmd::new(&format!(
            "{blkmq} bench {NULL} --scheduler {scheduler} --rw=randread --bs=4k --size=1g --iodepth=1 --norandommap \
             --time_based --runtime={runtime} {REPORT}"
        ))
    };
    let beside = if size.before.is_some() { ", beside the earlier build" } else { "" };
    let pair = |scheduler: &str| Pair {
        what: format!("{scheduler}, from push to answer{beside}"),
        figure: Figure::Time,
        ours: run(BLKMQ, scheduler),
        other: size.before.as_ref().map(|blkmq| run(blkmq, scheduler)),
        wanted: 1.0,
    };
    SCHEDULERS.into_iter().map(pair).collect()
}

/// The file, which is there during a measurement.
fn path() -> PathBuf {
    target_dir().join("pairs.file")
}

fn file(size: &Size) -> Vec<Pair> {
    let [_, runtime] = size.runtimes;
    let (path, mib) = (path(), size.file);
    let path = path.display();
    let load = |depth: u32| {
        format!(
            "--rw=randread --bs=4k --iodepth={depth} --norandommap --time_based --runtime={runtime}"
        )
    };
    let pair = |(scheduler, depth): (&str, u32)| Pair {
        what: format!("{scheduler}, a file at depth {depth}, beside fio's io_uring engine"),
        figure: Figure::Rate,
        // The first run makes the file.
        ours: Cmd::new(&format!(
            "{BLKMQ} bench --device uring:{path},size={mib} --scheduler {scheduler} {} {REPORT}",
            load(depth)
        )),
        other: Some(Cmd::new(&format!(
            "fio --name=file --ioengine=io_uring --direct=1 --registerfiles=1 --fixedbufs=1 --thread \
             --filename={path} --size={mib}m {} --output-format=json",
            load(depth)
        ))),
        wanted: 1.0,
    };
    [("none", 1), ("none", 32), ("mq-deadline", 1), ("mq-deadline", 32)].map(pair).into()
}

fn table(pairs: &[Pair], taken: &[Taken]) -> String {
    let mut table = String::from(
        "| medians | blkmq | the other | ratio of each pair | from, to | wanted | |\n|---|---|---|---|---|---|---|\n",
    );
    for (pair, taken) in pairs.iter().zip(taken) {
        let shown = |of: &[f64]| median(of).map_or_else(|| "-".to_owned(), |it| pair.shown(it));
        let (mut ratio, mut range, mut verdict) = ("-".to_owned(), "-".to_owned(), "not compared");
        if let Some(middle) = median(&taken.ratios) {
            let least = taken.ratios.iter().copied().fold(f64::MAX, f64::min);
            let most = taken.ratios.iter().copied().fold(f64::MIN, f64::max);
            ratio = format!("{middle:.3}");
            range = format!("{least:.2}, {most:.2}");
            verdict = if middle >= pair.wanted { "met" } else { "missed" };
        }
        table += &format!(
            "| {} | {} | {} | {ratio} | {range} | {:.2} | {verdict} |\n",
            pair.what,
            shown(&taken.ours),
            shown(&taken.other),
            pair.wanted,
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn two(figure: Figure, other: Option<Cmd>) -> Pair {
        Pair { what: "it".into(), figure, ours: Cmd::new("ours"), other, wanted: 1.0 }
    }

    #[test]
    fn a_ratio_above_one_is_better_for_rates_and_for_times() {
        assert_eq!(two(Figure::Rate, None).ratio(3.0, 2.0), 1.5);
        assert_eq!(two(Figure::Time, None).ratio(200.0, 300.0), 1.5);
        assert_eq!(two(Figure::Rate, None).shown(2_500_000.0), "2.50 M IOPS");
        assert_eq!(two(Figure::Rate, None).shown(2_500.0), "2.5 k IOPS");
        assert_eq!(two(Figure::Time, None).shown(250.4), "250 ns");
    }

    #[test]
    fn figures_are_read_of_both_programs() {
        let direction = |iops: f64| json!({ "iops": iops, "lat_ns": { "mean": 7.0 } });
        let fio = json!({ "jobs": [{ "error": 0, "read": direction(2.0), "write": { "iops": 1.0 } },
                                   { "error": 0, "read": direction(4.0) }] });
        assert_eq!(figure(Figure::Rate, &fio).unwrap(), 7.0);
        let ours = json!({ "jobs": [
            { "error": 0, "read": direction(2.0), "blkmq": { "repetitions_iops": [9.0] } },
            { "error": 0, "read": direction(7.0), "blkmq": { "repetitions_iops": [9.0] } },
        ]});
        assert_eq!(figure(Figure::Rate, &ours).unwrap(), 9.0);
        let one = json!({ "jobs": [{ "error": 0, "read": direction(2.0) }] });
        assert_eq!(figure(Figure::Time, &one).unwrap(), 7.0);
        assert!(figure(Figure::Rate, &json!({ "jobs": [{ "error": 5 }] })).is_err());
        assert!(figure(Figure::Rate, &json!({ "jobs": [{ "error": 0 }] })).is_err());
        assert!(figure(Figure::Rate, &json!({})).is_err());
    }

    #[test]
    fn the_median_of_the_ratios_decides_and_not_the_ratio_of_the_medians() {
        let pair = two(Figure::Rate, Some(Cmd::new("other")));
        let taken = Taken {
            ours: vec![1.0, 2.0, 9.0],
            other: vec![2.0, 2.5, 3.0],
            ratios: vec![0.5, 0.8, 3.0],
        };
        let table = table(&[pair, two(Figure::Time, None)], &[taken, Taken::default()]);
        assert!(table.contains("| 0.800 | 0.50, 3.00 | 1.00 | missed |"), "{table}");
        assert!(table.contains("| - | - | 1.00 | not compared |"), "{table}");
    }

    #[test]
    fn every_target_has_its_pair_and_a_short_run_has_one_of_each_kind() {
        let all =
            [beside_fio, several_threads, one_at_a_time, file].map(|kind| kind(&Size::full()));
        assert_eq!(all.each_ref().map(Vec::len), [4; 4]);
        let wanted: Vec<f64> = all.iter().flatten().map(|pair| pair.wanted).collect();
        assert_eq!(wanted[..8], [1.6, 1.2, 1.2, 0.55, 4.0, 3.0, 1.0, 0.9]);
        let (brief, skipped) = pairs(&Size::test_size());
        assert_eq!(brief.len() + skipped.len(), 4);
        let before = Size { before: Some("old".to_owned()), ..Size::full() };
        let other = one_at_a_time(&before).remove(0).other.expect("an earlier build is named");
        assert!(other.to_string().starts_with("old bench"), "{other}");
    }
}
