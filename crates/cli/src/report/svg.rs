//! The plots of the page: rates, latencies, merges, shares, and courses over time, as inline SVG without scripts.
//!
//! Geometry is here; colours and fonts are classes that the page's style sheet defines, so that a plot follows the
//! reader's light or dark theme. Every mark carries its figure as a `title`, which browsers show under the pointer
//! and screen readers read.

mod course;
mod distribution;
mod graph;
mod latency;
mod merges;
mod occupancy;
mod rates;
pub mod rows;
pub mod scale;
mod shares;

pub use course::{Quantity, courses};
pub use distribution::distributions;
pub use latency::latencies;
pub use merges::{KINDS, merges};
pub use occupancy::{ACTIVITIES, occupancy};
pub use rates::rates;
pub use shares::shares;

use super::label::{Series, scheduler, series};
use super::markup::{Attributes, Markup, Px};
use super::model::{Report, Run};

/// Width of every plot, in the units of its view box; the page scales it.
const WIDTH: f64 = 860.0;
/// Colours in the style sheet.
const COLOURS: usize = 8;
/// Line patterns in the style sheet, for series that share a colour.
const PATTERNS: [&str; 3] = ["", " dashed", " dotted"];

/// The classes that give each series its look: a colour of its own while there are enough, and otherwise the colour
/// of its scheduler, with a pattern.
pub fn series_classes(report: &Report, all: &[Series]) -> Vec<String> {
    if all.len() <= COLOURS {
        return (0..all.len()).map(|index| format!("c{index}")).collect();
    }
    let mut seen: Vec<(String, usize)> = Vec::new();
    let class = |one: &Series| {
        let name = scheduler(&report.runs[one.runs[0]]);
        let place = seen.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            seen.push((name, 0));
            seen.len() - 1
        });
        let pattern = PATTERNS[seen[place].1 % PATTERNS.len()];
        seen[place].1 += 1;
        format!("c{}{pattern}", place % COLOURS)
    };
    all.iter().map(class).collect()
}

/// Runs that have a curve of their own in one plot: as many as differ by colour or pattern.
const MOST_CURVES: usize = COLOURS * PATTERNS.len();

/// The runs that have curves of their own.
pub fn drawn(report: &Report) -> impl Iterator<Item = (usize, &Run)> {
    report.runs.iter().enumerate().take(MOST_CURVES)
}

/// The class of run `index` where every run has a curve of its own.
pub fn distinct(index: usize) -> String {
    format!("c{}{}", index % COLOURS, PATTERNS[index / COLOURS % PATTERNS.len()])
}

/// The classes of each run, which are those of its series.
fn run_classes(report: &Report) -> Vec<String> {
    let all = series(report);
    let mut classes = vec![String::new(); report.runs.len()];
    for (series, class) in all.iter().zip(series_classes(report, &all)) {
        for &run in &series.runs {
            classes[run].clone_from(&class);
        }
    }
    classes
}

/// The mark that a legend shows beside a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swatch {
    /// A piece of a curve.
    Curve,
    /// A piece of a bar.
    Bar,
}

/// Draws a sample of `class`, for a legend.
pub fn swatch(m: &mut Markup, kind: Swatch, class: &str) {
    let hidden: Attributes = &[("viewBox", &"0 0 44 12"), ("aria-hidden", &"true")];
    m.element("svg", hidden, |m| match kind {
        Swatch::Curve => {
            line(m, &format!("curve {class}"), (2.0, 6.0), (42.0, 6.0));
            dot(m, &format!("fill {class}"), (22.0, 6.0), 4.5, "");
        }
        Swatch::Bar => bar(m, &format!("fill {class}"), (13.0, 0.0), (18.0, 12.0), ""),
    });
}

/// A plot of the given height, with a description in words.
fn plot(m: &mut Markup, height: f64, says: &str, content: impl FnOnce(&mut Markup)) {
    let view = format!("0 0 {WIDTH} {}", Px(height));
    m.element("svg", &[("viewBox", &view), ("role", &"img"), ("aria-label", &says)], content);
}

/// A line.
pub fn line(m: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ends: Attributes = &[
        ("class", &class),
        ("x1", &Px(from.0)),
        ("y1", &Px(from.1)),
        ("x2", &Px(to.0)),
        ("y2", &Px(to.1)),
    ];
    m.empty("line", ends);
}

/// Text with its `anchor` (`start`, `middle`, `end`) at the point.
fn text(m: &mut Markup, class: &str, anchor: &str, at: (f64, f64), text: &str) {
    let place: Attributes =
        &[("class", &class), ("text-anchor", &anchor), ("x", &Px(at.0)), ("y", &Px(at.1))];
    m.leaf("text", place, text);
}

/// A circle that shows `title` under the pointer.
fn dot(m: &mut Markup, class: &str, at: (f64, f64), radius: f64, title: &str) {
    let place: Attributes =
        &[("class", &class), ("cx", &Px(at.0)), ("cy", &Px(at.1)), ("r", &Px(radius))];
    titled(m, "circle", place, title);
}

/// An upright rectangle that shows `title` under the pointer.
pub fn bar(m: &mut Markup, class: &str, from: (f64, f64), size: (f64, f64), title: &str) {
    let place: Attributes = &[
        ("class", &class),
        ("x", &Px(from.0)),
        ("y", &Px(from.1)),
        ("width", &Px(size.0.max(0.0))),
        ("height", &Px(size.1)),
    ];
    titled(m, "rect", place, title);
}

/// A shape with a title, if it is not empty.
fn titled(m: &mut Markup, tag: &'static str, place: Attributes, title: &str) {
    if title.is_empty() {
        m.empty(tag, place);
    } else {
        m.element(tag, place, |m| m.leaf("title", &[], title));
    }
}
