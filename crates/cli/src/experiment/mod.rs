//! `blkmq experiment`: a grid of runs, and the comparison of one of its axes.

pub mod answer;
pub mod args;
pub mod compare;
pub mod figure;
mod point;
pub mod row;
mod store;
pub mod study;

pub use point::Points;
pub use row::Row;
pub use store::{Shard, Store};

use crate::Failure;
use crate::bench::status::Progress;
use args::Wanted;
use blkmq_terminal::interrupt::Stop;
use blkmq_terminal::output::{complain, print_results};
use blkmq_terminal::screen::{shown, width};
use blkmq_terminal::{UsageError, bounded};
use clap::ArgMatches;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use study::Study;

/// The longest file of a study.
const MAX_BYTES: u64 = 16 << 20;

/// Runs `blkmq experiment` with its arguments.
///
/// # Errors
/// If the study is invalid, a run fails, or a result cannot be written.
pub fn run(found: &ArgMatches) -> Result<(), Failure> {
    match Wanted::of(found)? {
        Wanted::Merge { out } => {
            let points = Points::of(store::study_of(&out)?)?;
            let rows = store::rows_of(&out)?;
            finish(&points, &out, rows)
        }
        Wanted::Run { file, out, shard, threads } => {
            let path = file.display().to_string();
            let bytes = bounded::read(&path, "an experiment", MAX_BYTES)?;
            let text = String::from_utf8(bytes).map_err(|e| UsageError::new(e.to_string()));
            let study = text.and_then(|text| Study::parse(&text)).map_err(|e| e.at(&path))?;
            let points = Points::of(study)?;
            points.check().map_err(|e| e.at(&path))?;
            carry_out(&points, &out, shard, threads)
        }
    }
}

/// Makes the runs that are missing, and the results if all points are in the shard.
fn carry_out(points: &Points, out: &Path, shard: Shard, threads: usize) -> Result<(), Failure> {
    let (store, mut rows) = Store::open(out, points.study(), shard)?;
    let mine = Vec::from_iter((0..points.len()).filter(|index| shard.has(*index)));
    let missing: Vec<usize> =
        mine.iter().copied().filter(|index| !rows.contains_key(&points.id(*index))).collect();
    if missing.len() < mine.len() {
        let (known, all) = (mine.len() - missing.len(), mine.len());
        complain(format_args!("{known} of {all} points are in {} already", out.display()));
    }
    // Runs in real time disturb one another.
    let threads = if points.is_real() { 1 } else { threads };
    let stop = Stop::on_signals();
    let done = side_by_side(points, &missing, threads, &stop, store)?;
    let failed = missing.len() - done.len();
    rows.extend(done.into_iter().map(|row| (row.id.clone(), row)));
    if let Some(signal) = stop.signal() {
        let text = format!(
            "{} of {} points are in {}; the same command continues",
            mine.len() - failed,
            mine.len(),
            out.display()
        );
        return Err(Failure::Interrupted(signal, text));
    }
    if failed > 0 {
        return Err(Failure::Results(format!("{failed} of {} runs failed", missing.len())));
    }
    if shard == Shard::ALL {
        return finish(points, out, rows);
    }
    let text = format!(
        "{} of {} points are in {}; with those of all shards there: blkmq experiment merge --out={0}\n",
        mine.len(),
        points.len(),
        out.display()
    );
    let text = text.replace("{0}", &out.display().to_string());
    Ok(print_results(&shown(&text))?)
}

/// Runs the points in `missing`, and passes each row to `store` as it ends. Prints failures.
fn side_by_side(
    points: &Points,
    missing: &[usize],
    threads: usize,
    stop: &Stop,
    store: Store,
) -> Result<Vec<Row>, Failure> {
    let next = AtomicUsize::new(0);
    let progress = Mutex::new(Progress::new(missing.len(), None, true));
    let kept = Mutex::new((store, Vec::with_capacity(missing.len()), Ok(())));
    let work = || {
        // Relaxed: each index is taken once, and no other data is published with it.
        while let Some(index) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.is_set() {
                return;
            }
            let row = points.run(*index, stop);
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.begin(&points.label(*index));
            progress.end();
            match row {
                _ if stop.is_set() => return,
                Ok(row) => {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    let (store, rows, failed) = &mut *kept;
                    if failed.is_ok() {
                        *failed = store.add(&row);
                    }
                    rows.push(row);
                    if failed.is_err() {
                        return;
                    }
                }
                Err(e) => {
                    progress.aside(|| complain(format_args!("{}: {e}", points.label(*index))));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let handles = Vec::from_iter((0..threads.min(missing.len())).map(|_| scope.spawn(work)));
        for handle in handles {
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    progress.finish();
    let (store, rows, failed) = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed?;
    store.sync()?;
    Ok(rows)
}

/// Writes the results of all points, and prints the answers.
fn finish(points: &Points, out: &Path, rows: BTreeMap<String, Row>) -> Result<(), Failure> {
    let known = rows.len();
    let found = in_order(points, rows);
    let (others, missing) = (known - found.len(), points.len() - found.len());
    let text = answers(points, found, Some(out))?;
    let place = out.display();
    print_results(&shown(&text))?;
    print_results(&format!(
        "\nThe results: {place}/runs.jsonl, runs.csv; with plots: {place}/page.html\n"
    ))?;
    if others > 0 {
        complain(format_args!("{others} rows in {place} are of no point of the study"));
    }
    match missing {
        0 => Ok(()),
        missing => {
            Err(Failure::Results(format!("{missing} of {} points are missing", points.len())))
        }
    }
}

/// The rows of `points`, in the order of the grid.
fn in_order(points: &Points, mut rows: BTreeMap<String, Row>) -> Vec<Row> {
    (0..points.len()).filter_map(|index| rows.remove(&points.id(index))).collect()
}

/// The answers of `rows` as text. Writes the results to files in `folder`, if given.
///
/// # Errors
/// If a figure of the comparison does not exist, or a result cannot be written.
pub fn answers(points: &Points, rows: Vec<Row>, folder: Option<&Path>) -> Result<String, Failure> {
    let rows = in_order(points, rows.into_iter().map(|row| (row.id.clone(), row)).collect());
    let rows = Vec::from_iter(&rows);
    let (study, axes) = (points.study(), points.axes());
    let questions = compare::questions(study, axes, &rows)?;
    let (made, points) = (rows.len(), points.len());
    let result = answer::Result { study, axes, rows: made, points, questions: &questions };
    if let Some(folder) = folder {
        let lines: String = rows.iter().map(|row| row.line()).collect();
        store::write(folder, "runs.jsonl", &lines)?;
        store::write(folder, "runs.csv", &answer::csv(axes, &rows))?;
        let name = folder.file_name().map_or_else(|| "results".into(), |it| it.to_string_lossy());
        store::write(folder, "page.html", &result.page(&name))?;
    }
    Ok(result.text(width()))
}
