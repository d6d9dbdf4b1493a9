//! The results as a table for people, as JSON for programs, and as a page with plots: for each figure both sides, every
//! run a dot and the median a line. The page is a single file that loads no other.

use super::Plan;
use super::figures::{Cell, Figures, Kind, LATENCY, Middle, Name, RATE};
use super::load::{DEVICES, LOADS, Side};
use crate::measurement::Machine;
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

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--dim:#666;--line:#ccc;--back:#fff;--linux:#0072b2;--blkmq:#d55e00}\
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--dim:#999;--line:#444;--back:#181818;--linux:#56b4e9;--blkmq:#f0963c}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:left;border-bottom:1px solid var(--line)}\
td.n{text-align:right;font-variant-numeric:tabular-nums}p{color:var(--dim);margin:.3rem 0}\
.worse{font-weight:bold}.linux{fill:var(--linux);stroke:var(--linux)}.blkmq{fill:var(--blkmq);stroke:var(--blkmq)}\
circle{fill-opacity:.45;stroke-opacity:.8}svg text{font-size:10px;fill:var(--dim);stroke:none}.axis{stroke:var(--line)}\
.scroll{overflow-x:auto}";

/// Pixels: the plot of a figure.
const WIDTH: f64 = 300.0;
const MARGIN: f64 = 40.0;

pub(super) fn html(report: &Report<'_>) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page +=
        "<meta name=\"viewport\" content=\"width=device-width\"><title>blkmq beside Linux</title>";
    page += &format!("<style>{STYLE}</style></head>\n<body><h1>Beside Linux</h1>\n");
    for (name, value) in report.machine.rows() {
        page += &format!("<p>{name}: {}</p>", escaped(&value));
    }
    page += "<h2>How</h2>";
    for sentence in report.about() {
        page += &format!("<p>{}</p>\n", escaped(&sentence));
    }
    let mut device = "";
    for cell in &report.figures.cells {
        if cell.device != device {
            if !device.is_empty() {
                page += "</table></div>\n";
            }
            device = cell.device;
            page += &format!(
                "<h2>{device}</h2><p>{}</p><div class=\"scroll\"><table>",
                escaped(words(device))
            );
            page += "<tr><th>load</th><th>scheduler</th><th>figure</th><th>runs</th><th>Linux</th><th>blkmq</th>\
                     <th>ratio</th><th></th></tr>\n";
        }
        for name in report.figures.names(cell) {
            page += &row(report, cell, name);
        }
    }
    if !device.is_empty() {
        page += "</table></div>\n";
    }
    page + "</body></html>\n"
}

fn row(report: &Report<'_>, cell: &Cell, name: &Name) -> String {
    let median = |side| {
        let middle = Middle::of(report.figures.values(cell, name, side));
        middle.map_or_else(|| "-".into(), |middle| digits(middle.median))
    };
    let ratio = report.figures.ratio(cell, name).map_or_else(|| "-".into(), |r| format!("{r:.2}"));
    let verdict = report.verdict(cell, name);
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{ratio}</td><td class=\"{verdict}\">{verdict}</td></tr>\n",
        cell.load,
        escaped(&cell.scheduler),
        escaped(&name.text),
        plot(report, cell, name),
        median(Side::Linux),
        median(Side::Ours),
    )
}

/// Both sides over one scale from zero.
fn plot(report: &Report<'_>, cell: &Cell, name: &Name) -> String {
    let sides = Side::BOTH.map(|side| (side, report.figures.values(cell, name, side)));
    let all = sides.iter().flat_map(|(_, values)| *values);
    let most = all.copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let x = |value: f64| MARGIN + value / most * (WIDTH - MARGIN - 10.0);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"44\" role=\"img\" aria-label=\"{}\">",
        escaped(&name.text)
    );
    svg += &format!("<line class=\"axis\" x1=\"{MARGIN}\" y1=\"0\" x2=\"{MARGIN}\" y2=\"44\"/>");
    for ((side, values), y) in sides.into_iter().zip([13.0, 33.0]) {
        let class = side.name().to_lowercase();
        svg +=
            &format!("<g class=\"{class}\"><text x=\"0\" y=\"{}\">{}</text>", y + 3.0, side.name());
        for value in values {
            let title = digits(*value);
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{y}\" r=\"4\"><title>{title}</title></circle>",
                x(*value)
            );
        }
        if let Some(middle) = Middle::of(values) {
            let at = x(middle.median);
            svg += &format!(
                "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke-width=\"2\"/>\
                 <line x1=\"{:.1}\" y1=\"{y}\" x2=\"{:.1}\" y2=\"{y}\"/>",
                y - 9.0,
                y + 9.0,
                x(middle.low),
                x(middle.high)
            );
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beside_linux::Lateness;
    use crate::beside_linux::figures::Sample;

    fn report() -> Report<'static> {
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

    #[test]
    fn every_run_is_a_dot_and_the_page_asks_for_nothing() {
        let page = html(&report());
        assert_eq!(page.matches("<circle").count(), 10, "five runs, two figures");
        assert!(page.contains("<td class=\"worse\">worse</td>"), "{page}");
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
        for outside in ["src=", "href=", "http:", "https:", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn words_of_others_are_text() {
        assert_eq!(escaped("a<b>&\""), "a&lt;b&gt;&amp;&quot;");
    }
}
