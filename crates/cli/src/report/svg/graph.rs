//! Curves over two axes: the frame that distributions and courses over time are drawn in.

use super::super::markup::{Attributes, Markup, Px};
use super::look::{Shape, mark};
use super::{WIDTH, line, plot, text, titled};

const HEIGHT: f64 = 300.0;
/// Its area, in pixels.
pub(super) const LEFT: f64 = 72.0;
/// The right edge leaves room for half of the last tick's text.
pub(super) const RIGHT: f64 = WIDTH - 36.0;
pub(super) const TOP: f64 = 14.0;
pub(super) const BOTTOM: f64 = 252.0;

/// Places on an axis, with their labels.
pub(super) type Ticks = Vec<(f64, String)>;

/// The surroundings of the curves.
pub(super) struct Frame<'a> {
    /// The textual description of the graph.
    pub(super) says: &'a str,
    /// The quantity on the horizontal axis.
    pub(super) across: &'a str,
    /// Ticks from left to right.
    pub(super) columns: Ticks,
    /// Ticks from bottom to top.
    pub(super) rows: Ticks,
}

pub(super) struct Curve {
    /// The classes that determine its style.
    pub(super) class: String,
    /// The name, shown as a tooltip.
    pub(super) name: String,
    /// The points from left to right.
    pub(super) points: Vec<(f64, f64)>,
    /// The marker of some of the points.
    pub(super) shape: Shape,
    /// The values of the points, shown as tooltips; without them the curve has no markers.
    pub(super) values: Vec<String>,
}

/// Draws the frame, and in it the drawing of `content`.
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

const MARKERS: usize = 7;

/// Draws curves, with staggered markers so that coinciding curves can be distinguished.
pub(super) fn curves(m: &mut Markup, all: &[Curve]) {
    for (number, Curve { class, name, points, shape, values }) in all.iter().enumerate() {
        let line: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", Px(*x), Px(*y))).collect();
        let path = format!("path {class}");
        let place: Attributes = &[("class", &path), ("points", &line.join(" "))];
        titled(m, "polyline", place, name);
        let step = (points.len() / MARKERS).max(1);
        let marked = points.iter().zip(values).skip(step * number / all.len()).step_by(step);
        for (at, value) in marked {
            let says = format!("{name}: {value}");
            mark(m, *shape, &format!("fill {class}"), *at, 3.5, &says);
        }
    }
}
