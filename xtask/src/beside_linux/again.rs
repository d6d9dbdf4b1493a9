//! Runs of an earlier comparison, read from its output: a whole comparison takes hours, and may be split.
//!
//! Printed figures have three digits.

use super::device::DEVICES;
use super::figures::{Cell, Figures, Kind, Name, Sample};
use super::lateness::Lateness;
use super::load::{LOADS, Load};
use super::side::Side;

/// The beginning of a line, before the figures.
struct Head {
    cell: Cell,
    side: Side,
    load: &'static Load,
}

/// Between the figures of a run and the lateness of its timer.
pub(super) const LATE: &str = "; timer late by ";
/// Printed instead of figures.
pub(super) const OVERTIME: &str = "a client failed, or did not end in time";

/// Adds the runs in `text` whose timer was at most `stall` milliseconds late. Other lines are ignored.
pub(super) fn read(text: &str, stall: f64, figures: &mut Figures) {
    for line in text.lines() {
        let Some((head, rest)) = line.split_once(": ").and_then(|(a, b)| Some((head(a)?, b)))
        else {
            continue;
        };
        if rest == OVERTIME {
            *figures.overtime.entry((head.cell, head.side)).or_default() += 1;
            continue;
        }
        let Some((values, late)) = rest.split_once(LATE) else { continue };
        let Some(worst) = number(late) else { continue };
        if worst > stall {
            figures.dropped += 1;
            continue;
        }
        let named = names(head.load).into_iter().filter_map(|name| {
            let value = number(values.split_once(&format!("{} ", name.text))?.1)?;
            Some((name, value))
        });
        let sample = Sample(named.collect());
        figures.keep(&head.cell, head.side, sample, Lateness { worst, sum: 0.0 });
    }
    figures.sort();
}

fn head(text: &str) -> Option<Head> {
    let mut words = text.split(' ');
    let (device, load, scheduler, side) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let device = DEVICES.iter().find(|it| it.name == device)?.name;
    let load = LOADS.iter().find(|it| it.name == load)?;
    let side = Side::BOTH.into_iter().find(|it| it.name() == side)?;
    let cell = Cell { device, load: load.name, scheduler: scheduler.to_owned() };
    words.next().is_none().then_some(Head { cell, side, load })
}

/// The number at the beginning of `text`.
fn number(text: &str) -> Option<f64> {
    let end = text.find([',', ' ']).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The names of the figures that a run of `load` may have, as in [`Sample::of`].
fn names(load: &Load) -> Vec<Name> {
    let mut names = Vec::new();
    let mut add = |text: String, kind| names.push(Name { text, kind });
    for job in load.jobs {
        add(format!("{} {}", job.name, job.unit()), Kind::Rate);
        if job.has_latency() {
            add(format!("{} p99 ms", job.name), Kind::Latency);
        }
    }
    add(format!("share, {}", load.name), Kind::Other);
    add(super::figures::COST.into(), Kind::Other);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_is_read_again() {
        let text = "written elsewhere: no run\n\
                    hdd4 W3a bfq blkmq: light MB/s 30.3, light p99 ms 4.65, heavy MB/s 91.3, heavy p99 ms 3.24, \
                    share, W3a 3.02, CPU of the client, us an I/O 43.6; timer late by 1.2 ms, 3 in all\n\
                    hdd4 W1 bfq Linux: a client failed, or did not end in time\n\
                    hdd4 W1 bfq blkmq: writers IOPS 366, writers p99 ms 6241; timer late by 51.2 ms, 300 in all\n";
        let mut figures = Figures::default();
        read(text, 50.0, &mut figures);
        let cell = Cell { device: "hdd4", load: "W3a", scheduler: "bfq".into() };
        assert_eq!(figures.cells, std::slice::from_ref(&cell));
        let shown: Vec<_> = figures
            .names(&cell)
            .iter()
            .map(|name| (name.text.as_str(), figures.values(&cell, name, Side::Ours)[0]))
            .collect();
        assert_eq!(
            shown,
            [
                ("light MB/s", 30.3),
                ("light p99 ms", 4.65),
                ("heavy MB/s", 91.3),
                ("heavy p99 ms", 3.24),
                ("share, W3a", 3.02),
                ("CPU of the client, us an I/O", 43.6)
            ]
        );
        assert_eq!((figures.kept, figures.dropped, figures.overtime.len()), (1, 1, 1));
    }
}
