//! The results as a table for people and as JSON for programs.

use super::Plan;
use super::device::DEVICES;
use super::figures::{Cell, Figures, Kind, LATENCY, Middle, Name, RATE};
use super::load::LOADS;
use super::side::Side;
use crate::machine::Machine;
use serde_json::{Value, json};

pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
    pub(super) figures: &'a Figures,
}

/// A figure with three digits.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Report<'_> {
    /// The verdict of a row.
    pub(super) fn verdict(&self, cell: &Cell, name: &Name) -> &'static str {
        match self.figures.is_as_good(cell, name) {
            Some(true) => "as good",
            Some(false) => "worse",
            None if name.kind == Kind::Other => "",
            None => "not measured",
        }
    }

    /// One sentence for each fact that a reader has to know.
    pub(super) fn about(&self) -> Vec<String> {
        let Plan { time, rounds, stall, .. } = self.plan;
        let Figures { kept, dropped, worst, .. } = self.figures;
        let rounds = if self.plan.from.is_empty() {
            let (counted, ramp) = (time.counted, time.ramp);
            format!("Rounds in turns, {rounds} at most; {counted} s each, after {ramp} s.")
        } else {
            "Rounds in turns, in parts that were run at different times.".to_owned()
        };
        let mut about = vec![
            format!(
                "Both sides on the same loop device: fio under the scheduler of Linux, `blkmq bench` with ours above \
                 `none`. {rounds}"
            ),
            format!(
                "{kept} runs; {dropped} dropped, in which a timer was more than {stall} ms late; at most {worst:.1} ms \
                 in those that count."
            ),
            format!(
                "As good: a rate of at least {RATE} of Linux', a p99 of at most {LATENCY} of it, by medians. In \
                 brackets the interval in which the median lies with 95 %, or of all runs if they are fewer than six."
            ),
        ];
        about.extend(self.figures.overtime.iter().map(|((cell, side), runs)| {
            let Cell { device, load, scheduler } = cell;
            let side = side.name();
            format!("{device}, {load}, {scheduler}: {runs} of {side}'s runs failed or had to be ended, and do not count.")
        }));
        about.extend(self.machine.warnings());
        about
    }

    pub(super) fn markdown(&self) -> String {
        let mut page = String::from("# Beside Linux\n\n| machine | |\n|---|---|\n");
        for (name, value) in self.machine.rows() {
            page += &format!("| {name} | {value} |\n");
        }
        for sentence in self.about() {
            page += &format!("\n{sentence}\n");
        }
        let mut device = "";
        for cell in &self.figures.cells {
            if cell.device != device {
                device = cell.device;
                page += &format!("\n## {device}\n\n{}.\n", words(device));
                page += "\n| load | scheduler | figure | Linux | blkmq | ratio | |\n|---|---|---|---|---|---|---|\n";
            }
            for name in self.figures.names(cell) {
                page += &self.row(cell, name);
            }
        }
        page += "\n## Loads\n\n";
        for load in
            LOADS.iter().filter(|load| self.figures.cells.iter().any(|c| c.load == load.name))
        {
            page += &format!("- {}: {}\n", load.name, load.about);
        }
        page
    }

    fn row(&self, cell: &Cell, name: &Name) -> String {
        let shown = |side| {
            let middle = Middle::of(self.figures.values(cell, name, side));
            middle.map_or_else(|| "-".into(), shown)
        };
        let ratio =
            self.figures.ratio(cell, name).map_or_else(|| "-".into(), |r| format!("{r:.2}"));
        let Cell { load, scheduler, .. } = cell;
        let (linux, ours) = (shown(Side::Linux), shown(Side::Ours));
        let verdict = self.verdict(cell, name);
        format!(
            "| {load} | {scheduler} | {} | {linux} | {ours} | {ratio} | {verdict} |\n",
            name.text
        )
    }

    /// The report as data, with every run.
    pub(super) fn json(&self) -> Value {
        let machine: serde_json::Map<String, Value> = (self.machine.rows().into_iter())
            .map(|(name, value)| (name.to_owned(), Value::String(value)))
            .collect();
        let cells = self.figures.cells.iter().flat_map(|cell| {
            self.figures.names(cell).iter().map(move |name| {
                let side = |side| {
                    let values = self.figures.values(cell, name, side);
                    let middle = Middle::of(values);
                    json!({
                        "runs": values,
                        "median": middle.map(|it| it.median),
                        "interval": middle.map(|it| [it.low, it.high]),
                        "confidence": middle.map(|it| it.confidence),
                    })
                };
                json!({
                    "device": cell.device, "load": cell.load, "scheduler": cell.scheduler,
                    "figure": name.text, "linux": side(Side::Linux), "blkmq": side(Side::Ours),
                    "ratio": self.figures.ratio(cell, name),
                    "as_good": self.figures.is_as_good(cell, name),
                })
            })
        });
        let loads = LOADS.iter().map(|load| json!({ "name": load.name, "about": load.about }));
        let devices = DEVICES
            .iter()
            .map(|it| json!({ "name": it.name, "model": it.model, "depth": it.depth }));
        // Parts of a comparison may have been of other lengths.
        let time = self.plan.from.is_empty().then(|| {
            let Plan { rounds, time, .. } = self.plan;
            json!({ "rounds": rounds, "seconds": time.counted, "ramp": time.ramp })
        });
        json!({
            "machine": machine,
            "time": time,
            "kept": self.figures.kept, "dropped": self.figures.dropped,
            "loads": loads.collect::<Vec<_>>(), "devices": devices.collect::<Vec<_>>(),
            "results": cells.collect::<Vec<_>>(),
        })
    }
}

/// A median with its interval.
fn shown(middle: Middle) -> String {
    let Middle { median, low, high, .. } = middle;
    if low == high {
        return digits(median);
    }
    format!("{} ({} to {})", digits(median), digits(low), digits(high))
}

/// The words about a device.
pub(super) fn words(device: &str) -> &'static str {
    DEVICES.iter().find(|known| known.name == device).map_or("", |known| known.about)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::beside_linux::figures::Sample;
    use crate::beside_linux::lateness::Lateness;

    pub(in crate::beside_linux) fn report() -> Report<'static> {
        let machine = Box::leak(Box::new(Machine::describe()));
        let plan = Box::leak(Box::new(Plan::parse(&[]).unwrap()));
        let mut figures = Figures::default();
        let cell = Cell { device: "hdd4", load: "W2", scheduler: "bfq".into() };
        let name = |text: &str, kind| Name { text: text.into(), kind };
        let runs = [
            (Side::Linux, 27.0, 125.0),
            (Side::Ours, 128.0, 39.0),
            (Side::Linux, 25.0, 135.0),
            (Side::Ours, 12.0, 390.0),
            (Side::Ours, 13.0, 39.0),
        ];
        for (side, rate, p99) in runs {
            let names = [name("reader IOPS", Kind::Rate), name("reader p99 ms", Kind::Latency)];
            let sample = Sample(names.into_iter().zip([rate, p99]).collect());
            figures.keep(&cell, side, sample, Lateness { worst: 2.0, sum: 2.0 });
        }
        figures.overtime.insert((cell, Side::Linux), 2);
        Report { machine, plan, figures: Box::leak(Box::new(figures)) }
    }

    #[test]
    fn the_table_has_medians_intervals_ratios_and_verdicts() {
        let page = report().markdown();
        let rate =
            "| W2 | bfq | reader IOPS | 26.0 (25.0 to 27.0) | 13.0 (12.0 to 128) | 0.50 | worse |";
        let p99 =
            "| W2 | bfq | reader p99 ms | 130 (125 to 135) | 39.0 (39.0 to 390) | 0.30 | as good |";
        assert!(page.contains(rate), "{page}");
        assert!(page.contains(p99), "{page}");
        assert!(page.contains("5 runs; 0 dropped"), "{page}");
        assert!(page.contains("- W2: a random reader"), "{page}");
        assert!(
            page.contains("hdd4, W2, bfq: 2 of Linux's runs failed or had to be ended"),
            "{page}"
        );
    }

    #[test]
    fn the_data_has_every_run() {
        let data = report().json();
        let first = &data["results"][0];
        assert_eq!(first["blkmq"]["runs"], json!([128.0, 12.0, 13.0]));
        assert_eq!(first["linux"]["interval"], json!([25.0, 27.0]));
        assert_eq!(first["as_good"], json!(false));
    }
}
