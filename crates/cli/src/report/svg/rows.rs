//! The frame of a plot with one row for each run: the name and a figure above the marks, an axis below all rows. The
//! plot fits the screen of a phone.

use super::super::markup::Markup;
use super::{line, sized, text};

/// Width of the plot, in the units of its view box.
const WIDTH: f64 = 420.0;
/// The left end of the axis.
pub const LEFT: f64 = 28.0;
/// The right end of the axis.
pub const RIGHT: f64 = WIDTH - 24.0;
/// Height of a row, and the middle of its marks.
const ROW: f64 = 42.0;
const MIDDLE: f64 = 28.0;
const TOP: f64 = 22.0;
/// Longer names are shortened; the tooltip shows the full name.
const NAME_CHARS: usize = 36;

/// A row without its marks.
pub struct Row {
    /// The run.
    pub name: String,
    /// The figure at the end of the row.
    pub figure: String,
}

/// An axis, and the heading of the figures on the right.
pub struct Axis {
    /// Pixel and name of each tick.
    pub ticks: Vec<(f64, String)>,
    /// Heading of the figures on the right.
    pub figures: &'static str,
}

/// Draws the frame, and calls `mark` to draw the marks of each row (with the row's number and its middle).
pub fn rows(
    m: &mut Markup,
    says: &str,
    axis: &Axis,
    rows: &[Row],
    mark: impl Fn(&mut Markup, usize, f64),
) {
    let bottom = TOP + ROW * rows.len() as f64;
    sized(m, "plot rows", (WIDTH, bottom + 24.0), says, |m| {
        for (x, name) in &axis.ticks {
            line(m, "grid", (*x, TOP - 4.0), (*x, bottom + 2.0));
            text(m, "tick", "middle", (*x, bottom + 18.0), name);
        }
        text(m, "tick", "end", (WIDTH - 4.0, TOP - 8.0), axis.figures);
        for (index, row) in rows.iter().enumerate() {
            let top = TOP + ROW * index as f64;
            m.element("g", &[], |m| {
                m.leaf("title", &[], &row.name);
                text(m, "name", "start", (LEFT, top + 14.0), &shortened(&row.name));
            });
            mark(m, index, top + MIDDLE);
            text(m, "figure", "end", (WIDTH - 4.0, top + 14.0), &row.figure);
        }
    });
}

/// The name, or its beginning and end: the scheduler is at the beginning and the number of threads at the end.
fn shortened(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= NAME_CHARS {
        return name.to_owned();
    }
    let tail = NAME_CHARS / 3;
    let head: String = chars[..NAME_CHARS - tail - 3].iter().collect();
    let tail: String = chars[chars.len() - tail..].iter().collect();
    format!("{head}...{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        let name = format!("mq-deadline {}, 16 threads", "x".repeat(100));
        let short = shortened(&name);
        assert_eq!(short.chars().count(), NAME_CHARS);
        assert!(short.starts_with("mq-deadline ") && short.ends_with(", 16 threads"), "{short}");
        assert_eq!(shortened("none"), "none");
    }
}
