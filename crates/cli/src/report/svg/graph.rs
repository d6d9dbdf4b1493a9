//! Curves over two axes: the frame that distributions and courses over time are drawn in.

use super::super::markup::{Attributes, Markup, Px};
use super::{WIDTH, line, plot, text, titled};

/// Height of a graph.
const HEIGHT: f64 = 300.0;
/// Its area, in pixels.
pub(super) const LEFT: f64 = 72.0;
/// Half of the last tick's text is behind it.
pub(super) const RIGHT: f64 = WIDTH - 36.0;
pub(super) const TOP: f64 = 14.0;
pub(super) const BOTTOM: f64 = 252.0;

/// Places on an axis, with what stands there.
pub(super) type Ticks = Vec<(f64, String)>;

/// What is around the curves.
pub(super) struct Frame<'a> {
    /// What it shows, in words.
    pub(super) says: &'a str,
    /// What is counted from left to right.
    pub(super) across: &'a str,
    /// From left to right.
    pub(super) columns: Ticks,
    /// From bottom to top.
    pub(super) rows: Ticks,
}

/// A curve in pixels.
pub(super) struct Curve {
    /// Its looks.
    pub(super) class: String,
    /// Its name, shown under the pointer.
    pub(super) name: String,
    /// From left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws the frame, and in it whatever `content` draws.
pub(super) fn frame(m: &mut Markup, frame: &Frame<'_>, content: impl FnOnce(&mut Markup)) {
    plot(m, HEIGHT, frame.says, |m| {
        for (y, name) in &frame.rows {
            line(m, "grid", (LEFT, *y), (RIGHT, *y));
            text(m, "tick", "end", (LEFT - 8.0, y + 4.0), name);
        }
        for (x, name) in &frame.columns {
            line(m, "grid", (*x, TOP), (*x, BOTTOM));
            text(m, "tick", "middle", (*x, BOTTOM + 18.0), name);
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        text(m, "tick", "middle", (middle, BOTTOM + 38.0), frame.across);
        content(m);
    });
}

/// Draws curves.
pub(super) fn curves(m: &mut Markup, all: &[Curve]) {
    for Curve { class, name, points } in all {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", Px(*x), Px(*y))).collect();
        let class = format!("path {class}");
        let place: Attributes = &[("class", &class), ("points", &points.join(" "))];
        titled(m, "polyline", place, name);
    }
}
