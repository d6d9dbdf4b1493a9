//! The plots of the page: rates, latencies, merges, shares, and courses over time, as inline SVG without scripts.
//!
//! Geometry is here; colours and fonts are classes defined by the page's style sheet, so that a plot follows the
//! reader's light or dark theme. Every mark has its figure as a `title`, which browsers show as a tooltip and screen
//! readers read. [`Looks`] is the style of runs, the same in every plot: each scheduler has its own colour and marker,
//! and a line pattern distinguishes everything else. Values become pixels on a linear scale from zero, or on a
//! logarithmic one.
//!
//! [`Markup`] is HTML and SVG, well-formed by construction: elements nest through closures, text and attributes are
//! escaped on input, and raw markup cannot be added.

mod curves;
pub mod rows;

pub use curves::{ACTIVITIES, Quantity, courses, distributions, occupancy};
pub use rows::{KINDS, latencies, merges, rates, shares};

use super::model::{Report, Run};
use super::wording::{Varying, counted, distinct, scheduler};
use std::fmt::{Display, Write as _};

/// Width of a plot with curves, in the units of its view box; the page scales it.
const WIDTH: f64 = 860.0;
/// The maximum number of curves in one plot: beyond that none can be followed.
const MOST_CURVES: usize = 24;

/// The runs that get a curve.
pub fn drawn(report: &Report) -> impl Iterator<Item = &Run> {
    report.runs.iter().take(MOST_CURVES)
}

/// The mark beside a name in a legend.
#[derive(Clone, Copy, Debug)]
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

/// Adds a plot of a given class and size, with a textual description.
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
    titled_line(m, class, from, to, "");
}

fn titled_line(m: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64), title: &str) {
    let ends: Attributes = &[
        ("class", &class),
        ("x1", &Px(from.0)),
        ("y1", &Px(from.1)),
        ("x2", &Px(to.0)),
        ("y2", &Px(to.1)),
    ];
    titled(m, "line", ends, title);
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

/// A linear scale that starts at zero.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    step: f64,
    /// The value at pixel `to`.
    end: f64,
    from: f64,
    to: f64,
}

/// A logarithmic scale over whole decades.
#[derive(Clone, Copy, Debug)]
struct Log {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Linear {
    /// Zero at pixel `from`; the first round value that is not below `max` at pixel `to`.
    pub fn covering(max: f64, from: f64, to: f64) -> Self {
        let scale = Self::ending(max, from, to);
        Self { end: scale.step * (scale.end / scale.step).ceil().max(1.0), ..scale }
    }

    /// Maps zero to pixel `from` and `max` to pixel `to`: for an axis that ends with its quantity, such as time.
    pub fn ending(max: f64, from: f64, to: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let decade = 10f64.powi((max / 5.0).log10().floor() as i32);
        let steps = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade);
        let step = steps.into_iter().find(|step| step * 5.0 >= max).unwrap_or(10.0 * decade);
        Self { step, end: max, from, to }
    }

    /// The pixel of `value`.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * value / self.end
    }

    /// The pixels of the ticks, with their labels.
    pub fn labels(&self, label: impl Fn(f64) -> String) -> Vec<(f64, String)> {
        self.ticks().map(|value| (self.at(value), label(value))).collect()
    }

    /// Round values, from zero to the last one on the scale.
    pub fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let step = self.step;
        // A whole number of steps may be computed as slightly less.
        let steps = (self.end / step + 1e-6).floor() as u32;
        (0..=steps).map(move |n| step * f64::from(n))
    }
}

impl Log {
    /// The decades that hold `min` and `max`, from pixel `from` to pixel `to`.
    fn covering(min: f64, max: f64, from: f64, to: f64) -> Self {
        let low = min.max(1.0).log10().floor() as i32;
        let high = (max.max(1.0).log10().ceil() as i32).max(low + 1);
        Self { low, high, from, to }
    }

    /// The pixel of `value`; values below the scale are at its start.
    fn at(&self, value: f64) -> f64 {
        let place =
            (value.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + (self.to - self.from) * place.max(0.0)
    }

    fn labels(&self, label: impl Fn(f64) -> String) -> Vec<(f64, String)> {
        self.ticks().map(|value| (self.at(value), label(value))).collect()
    }

    /// The powers of ten.
    fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low..=self.high).map(|exponent| 10f64.powi(exponent))
    }
}

/// Colours in the style sheet.
pub const COLOURS: usize = 8;
/// Line patterns in the style sheet.
const PATTERNS: [&str; 3] = ["", " dashed", " dotted"];

/// The corners of a marker, for a radius of 1; none for a circle.
pub type Shape = &'static [(f64, f64)];

/// A marker for each colour.
const SHAPES: [Shape; COLOURS] = [
    // A circle.
    &[],
    // A square.
    &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    // A square on its corner.
    &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
    // A triangle that points upwards.
    &[(0.0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
    // A triangle that points downwards.
    &[(0.0, 1.3), (1.2, -0.9), (-1.2, -0.9)],
    // An upright cross.
    &[
        (-0.4, -1.3),
        (0.4, -1.3),
        (0.4, -0.4),
        (1.3, -0.4),
        (1.3, 0.4),
        (0.4, 0.4),
        (0.4, 1.3),
        (-0.4, 1.3),
        (-0.4, 0.4),
        (-1.3, 0.4),
        (-1.3, -0.4),
        (-0.4, -0.4),
    ],
    // A narrow upright bar.
    &[(-0.5, -1.4), (0.5, -1.4), (0.5, 1.4), (-0.5, 1.4)],
    // A flat bar.
    &[(-1.4, -0.5), (1.4, -0.5), (1.4, 0.5), (-1.4, 0.5)],
];

/// Draws a marker with the tooltip `title`.
fn mark(m: &mut Markup, shape: Shape, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
    if shape.is_empty() {
        let place: Attributes =
            &[("class", &class), ("cx", &Px(x)), ("cy", &Px(y)), ("r", &Px(radius))];
        return titled(m, "circle", place, title);
    }
    let point = |(dx, dy): &(f64, f64)| format!("{},{}", Px(x + dx * radius), Px(y + dy * radius));
    let points = shape.iter().map(point).collect::<Vec<_>>().join(" ");
    titled(m, "polygon", &[("class", &class), ("points", &points)], title);
}

/// The styles of the runs of a report.
pub struct Looks {
    schedulers: Vec<String>,
    varying: Varying,
    ways: Vec<String>,
}

impl Looks {
    /// The styles of all runs of `report`, which also apply to plots of a subset.
    pub fn of(report: &Report) -> Self {
        let varying = Varying::of(report);
        let mut looks = Self { schedulers: Vec::new(), varying, ways: Vec::new() };
        looks.schedulers = distinct(report.runs.iter().map(scheduler));
        looks.ways = distinct(report.runs.iter().map(|run| looks.way(run)));
        looks
    }

    /// The difference other than the scheduler: the access and the scope, or else the number of threads.
    fn way(&self, run: &Run) -> String {
        match (self.varying.access, self.varying.scope, self.varying.threads) {
            (true, true, _) => format!("{}, {}", run.access, run.scope),
            (true, false, _) => run.access.clone(),
            (false, _, true) => counted(run.threads.into(), "thread"),
            (false, _, false) => String::new(),
        }
    }

    fn place(&self, run: &Run) -> usize {
        self.schedulers.iter().position(|name| *name == scheduler(run)).unwrap_or(0)
    }

    /// The class that has the colour of a run's scheduler.
    fn colour(&self, run: &Run) -> String {
        format!("c{}", self.place(run) % COLOURS)
    }

    /// The marker of a run's scheduler.
    pub fn shape(&self, run: &Run) -> Shape {
        SHAPES[self.place(run) % COLOURS]
    }

    /// The classes of the curve of a run.
    fn curve(&self, run: &Run) -> String {
        let way = self.way(run);
        let place = self.ways.iter().position(|known| *known == way).unwrap_or(0);
        format!("{}{}", self.colour(run), PATTERNS[place % PATTERNS.len()])
    }

    /// The classes of a curve over the number of threads that `run` is on.
    pub fn series(&self, run: &Run) -> String {
        if self.varying.access { self.curve(run) } else { self.colour(run) }
    }

    /// Names, colours and markers of the schedulers.
    pub fn schedulers(&self) -> impl Iterator<Item = (&str, String, Shape)> {
        let named = self.schedulers.iter().enumerate();
        named.map(|(at, name)| (name.as_str(), format!("c{}", at % COLOURS), SHAPES[at % COLOURS]))
    }

    /// The names of these differences, and their line patterns; none if there is only one.
    pub fn ways(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let several = self.ways.len() > 1;
        let named = self.ways.iter().enumerate().filter(move |_| several);
        named.map(|(at, name)| (name.as_str(), PATTERNS[at % PATTERNS.len()]))
    }
}

/// Names and values of attributes; values are escaped.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// A document, or a part of one, under construction.
#[derive(Debug, Default)]
pub struct Markup {
    out: String,
}

impl Markup {
    /// An HTML document, with its first line.
    #[must_use]
    pub fn html() -> Self {
        Self { out: "<!DOCTYPE html>\n".into() }
    }

    /// An element with the content that `content` adds.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: Attributes,
        content: impl FnOnce(&mut Self),
    ) {
        self.start(tag, attributes);
        self.out.push('>');
        content(self);
        write!(self.out, "</{tag}>").expect("a String takes every text");
        if !is_inline(tag) {
            self.out.push('\n');
        }
    }

    /// Adds an element that contains only text.
    pub fn leaf(&mut self, tag: &'static str, attributes: Attributes, text: &str) {
        self.element(tag, attributes, |m| m.text(text));
    }

    /// An element without content.
    pub fn empty(&mut self, tag: &'static str, attributes: Attributes) {
        self.start(tag, attributes);
        self.out.push_str("/>\n");
    }

    /// Text, escaped. Control characters, which neither HTML nor XML can hold, become U+FFFD.
    pub fn text(&mut self, text: &str) {
        escape_into(&mut self.out, text);
    }

    /// Adds a built-in style sheet, unescaped. No text of a report may be passed here.
    pub fn style(&mut self, sheet: &'static str) {
        assert!(!sheet.contains("</"), "a style sheet cannot end its element");
        write!(self.out, "<style>\n{sheet}</style>\n").expect("a String takes every text");
    }

    /// Appends a part that was built separately.
    pub fn append(&mut self, part: &Self) {
        self.out.push_str(&part.out);
    }

    /// The finished text.
    #[must_use]
    pub fn finish(self) -> String {
        self.out
    }

    fn start(&mut self, tag: &'static str, attributes: Attributes) {
        write!(self.out, "<{tag}").expect("a String takes every text");
        for (name, value) in attributes {
            write!(self.out, " {name}=\"").expect("a String takes every text");
            escape_into(&mut self.out, &value.to_string());
            self.out.push('"');
        }
    }
}

/// A coordinate or length, to a tenth of a pixel.
#[derive(Clone, Copy, Debug)]
pub struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Adding zero turns a minus zero into a plain one.
        write!(f, "{}", (self.0 * 10.0).round() / 10.0 + 0.0)
    }
}

/// Whether a line break after the element would be visible as a space.
fn is_inline(tag: &str) -> bool {
    matches!(tag, "b" | "code" | "span" | "text" | "tspan" | "title" | "pre")
}

fn escape_into(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_cover_the_maximum() {
        for max in [0.3, 1.0, 4.9, 5.1, 7.0, 99.0, 101.0, 15_500_000.0, 0.0, f64::NAN] {
            let scale = Linear::covering(max, 0.0, 100.0);
            let ticks: Vec<f64> = scale.ticks().collect();
            assert!((2..=7).contains(&ticks.len()), "{max}: {ticks:?}");
            assert!(ticks[ticks.len() - 1] >= max || max.is_nan(), "{max}: {ticks:?}");
            assert!((scale.at(ticks[ticks.len() - 1]) - 100.0).abs() < 1e-9);
            assert_eq!(scale.at(0.0), 0.0);
        }
        let ticks: Vec<f64> = Linear::covering(7.0, 0.0, 1.0).ticks().collect();
        assert_eq!(ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn a_scale_that_ends_with_its_values_has_ticks_within_them() {
        let scale = Linear::ending(2.1, 0.0, 210.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert!((scale.at(2.0) - 200.0).abs() < 1e-9 && (scale.at(2.1) - 210.0).abs() < 1e-9);
    }

    #[test]
    fn log_ticks_are_decades() {
        let scale = Log::covering(150.0, 42_000.0, 10.0, 310.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [100.0, 1e3, 1e4, 1e5]);
        assert!((scale.at(100.0) - 10.0).abs() < 1e-9 && (scale.at(1e5) - 310.0).abs() < 1e-9);
        assert!((scale.at(1e4) - 210.0).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 10.0);
        assert_eq!(Log::covering(0.0, 0.0, 0.0, 1.0).ticks().count(), 2);
    }

    #[test]
    fn a_scheduler_looks_the_same_wherever_it_is() {
        let report = sample::comparison();
        let looks = Looks::of(&report);
        for run in &report.runs {
            let expected =
                if run.scheduler == "none" { ("c0", SHAPES[0]) } else { ("c1", SHAPES[1]) };
            assert_eq!((looks.colour(run).as_str(), looks.shape(run)), expected);
        }
        assert_eq!(looks.curve(&report.runs[4]), "c1");
        assert_eq!(looks.curve(&report.runs[7]), "c1 dashed");
        let ways: Vec<_> = looks.ways().collect();
        assert_eq!(ways, [("combining", ""), ("spin", " dashed")]);
    }

    #[test]
    fn every_colour_has_a_marker_of_its_own() {
        for (at, shape) in SHAPES.iter().enumerate() {
            assert!(!SHAPES[..at].contains(shape), "{shape:?}");
            assert_eq!(shape.is_empty(), at == 0);
        }
    }

    #[test]
    fn text_and_attributes_are_escaped() {
        let mut m = Markup::default();
        m.leaf("p", &[("class", &"\"><b>"), ("x", &Px(1.26))], "a < b & 'c'\u{1b}");
        m.empty("br", &[]);
        let expected = "<p class=\"&quot;&gt;&lt;b&gt;\" x=\"1.3\">a &lt; b &amp; &#39;c&#39;\u{fffd}</p>\n<br/>\n";
        assert_eq!(m.finish(), expected);
    }

    #[test]
    fn px_is_short() {
        assert_eq!((Px(10.0).to_string(), Px(-0.04).to_string()), ("10".into(), "0".into()));
    }
}
