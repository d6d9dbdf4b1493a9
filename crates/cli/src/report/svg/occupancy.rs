//! The activity of a modelled device over time: the path of a disk's heads, or the activities of each part of a flash
//! device.

use super::super::label::scheduler;
use super::super::markup::{Markup, Px};
use super::super::model::Run;
use super::super::number::{nanos, tick};
use super::graph::{BOTTOM, Curve, Frame, LEFT, RIGHT, TOP, curves, frame};
use super::look::Shape;
use super::scale::Linear;
use super::titled;
use blkmq_device::{Activity, Span};

/// The most spans that are drawn of one run: more would be a blot.
const MOST: usize = 2_000;

/// The activities of devices, with names and colours.
pub const ACTIVITIES: [(Activity, &str, &str); 6] = [
    (Activity::Read, "read", "c0"),
    (Activity::Write, "write", "c1"),
    (Activity::Transfer, "transfer", "c2"),
    (Activity::Erase, "erase", "c6"),
    (Activity::Housekeeping, "housekeeping", "c3"),
    (Activity::Position, "position", "c7"),
];

/// The contents of a plot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// Spans in the plot.
    pub spans: usize,
    /// Spans in all.
    pub of: u64,
    /// Whether the plot shows the path of heads, rather than parallel parts.
    pub heads: bool,
}

/// Draws the activity of the device of `run`; `None` if the device did not record it.
pub fn occupancy(m: &mut Markup, run: &Run) -> Option<Drawn> {
    let courses = run.courses.as_ref().filter(|courses| !courses.spans.is_empty())?;
    let spans = &courses.spans[..courses.spans.len().min(MOST)];
    let heads = spans.iter().any(|span| span.activity == Activity::Position);
    let start = spans.iter().map(|span| span.start).min()?;
    let ns = |at: blkmq_core::Instant| (at - start).0 as f64;
    let end = spans.iter().map(|span| ns(span.end)).fold(0.0, f64::max);
    let most = spans.iter().map(|span| span.place).max()?;
    let across = Linear::ending(end, LEFT, RIGHT);
    let up = Linear::covering(f64::from(most), BOTTOM, TOP);
    let says =
        if heads { "Cylinder of the heads over time" } else { "What each part did over time" };
    let around = Frame {
        says,
        across: "time since the first request",
        columns: across.ticks().map(|v| (across.at(v), nanos(v))).collect(),
        rows: up.ticks().map(|v| (up.at(v), tick(v))).collect(),
    };
    let place = |span: &Span| up.at(f64::from(span.place));
    frame(m, &around, |m| {
        if heads {
            let mut points = vec![(LEFT, place(&spans[0]))];
            for span in spans {
                let before = points[points.len() - 1].1;
                points.push((across.at(ns(span.start)), before));
                points.push((across.at(ns(span.end)), place(span)));
            }
            let name = scheduler(run);
            curves(
                m,
                &[Curve { class: "c0".into(), name, points, shape: Shape::Circle, values: vec![] }],
            );
            return;
        }
        for span in spans {
            let (from, to) = (across.at(ns(span.start)), across.at(ns(span.end)));
            let (_, name, colour) = activity(span.activity);
            let says =
                format!("{name} at {}: {}", span.place, nanos((span.end - span.start).0 as f64));
            let class = format!("busy {colour}");
            titled(
                m,
                "line",
                &[
                    ("class", &class),
                    ("x1", &Px(from)),
                    ("y1", &Px(place(span))),
                    ("x2", &Px(to.max(from + 0.5))),
                    ("y2", &Px(place(span))),
                ],
                &says,
            );
        }
    });
    let of = courses.spans.len() as u64 + courses.spans_missed;
    Some(Drawn { spans: spans.len(), of, heads })
}

fn activity(activity: Activity) -> (Activity, &'static str, &'static str) {
    let found = ACTIVITIES.into_iter().find(|(known, ..)| *known == activity);
    found.expect("every activity has a name")
}
