//! The plots of the page: rates, latencies, merges, shares, and courses over time, as inline SVG without scripts.
//!
//! Geometry is here; colours and fonts are classes defined by the page's style sheet, so that a plot follows the
//! reader's light or dark theme. Every mark has its figure as a `title`, which browsers show as a tooltip and screen
//! readers read.

mod course;
mod distribution;
mod graph;
mod latency;
pub mod look;
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

use super::markup::{Attributes, Markup, Px};
use super::model::{Report, Run};
use look::{Shape, mark};

/// Width of a plot with curves, in the units of its view box; the page scales it.
const WIDTH: f64 = 860.0;
/// The maximum number of curves in one plot: beyond that none can be followed.
const MOST_CURVES: usize = 24;

/// The runs that get a curve.
pub fn drawn(report: &Report) -> impl Iterator<Item = (usize, &Run)> {
    report.runs.iter().enumerate().take(MOST_CURVES)
}

/// The mark beside a name in a legend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swatch {
    /// A marker on a piece of a curve.
    Curve(Shape),
    /// A piece of a curve.
    Line,
    /// A piece of a bar.
    Bar,
}

/// Draws a sample of `class`, for a legend.
pub fn swatch(m: &mut Markup, kind: Swatch, class: &str) {
    let hidden: Attributes = &[("viewBox", &"0 0 44 12"), ("aria-hidden", &"true")];
    m.element("svg", hidden, |m| match kind {
        Swatch::Curve(shape) => {
            line(m, &format!("curve {class}"), (2.0, 6.0), (42.0, 6.0));
            mark(m, shape, &format!("fill {class}"), (22.0, 6.0), 4.5, "");
        }
        Swatch::Line => line(m, &format!("curve {class}"), (2.0, 6.0), (42.0, 6.0)),
        Swatch::Bar => bar(m, &format!("fill {class}"), (13.0, 0.0), (18.0, 12.0), ""),
    });
}

/// Adds a plot of the given height, with a textual description.
fn plot(m: &mut Markup, height: f64, says: &str, content: impl FnOnce(&mut Markup)) {
    sized(m, "plot", (WIDTH, height), says, content);
}

/// Adds a plot of a given class and size.
fn sized(
    m: &mut Markup,
    class: &str,
    (width, height): (f64, f64),
    says: &str,
    content: impl FnOnce(&mut Markup),
) {
    let view = format!("0 0 {width} {}", Px(height));
    let attributes: Attributes = &[("viewBox", &view), ("role", &"img"), ("aria-label", &says)];
    m.element("div", &[("class", &class)], |m| m.element("svg", attributes, content));
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

/// Adds an upright rectangle with the tooltip `title`.
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

#[cfg(test)]
mod palette_tests;
