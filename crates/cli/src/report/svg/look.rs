//! The style of runs, the same in every plot: each scheduler has its own colour and marker, and a line pattern
//! distinguishes everything else.

use super::super::label::{Varying, scheduler};
use super::super::markup::{Attributes, Markup, Px};
use super::super::model::{Report, Run};
use super::super::number::counted;
use super::titled;

/// Colours in the style sheet.
pub const COLOURS: usize = 8;
/// Line patterns in the style sheet.
const PATTERNS: [&str; 3] = ["", " dashed", " dotted"];

/// A marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A square on its corner.
    Diamond,
    /// A triangle that points upwards.
    Up,
    /// A triangle that points downwards.
    Down,
    /// An upright cross.
    Cross,
    /// A narrow upright bar.
    Bar,
    /// A flat bar.
    Dash,
}

impl Shape {
    /// One for each colour.
    const ALL: [Self; COLOURS] = [
        Self::Circle,
        Self::Square,
        Self::Diamond,
        Self::Up,
        Self::Down,
        Self::Cross,
        Self::Bar,
        Self::Dash,
    ];

    /// The corners, for a radius of 1; none for a circle.
    fn corners(self) -> &'static [(f64, f64)] {
        match self {
            Self::Circle => &[],
            Self::Square => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            Self::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
            Self::Up => &[(0.0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
            Self::Down => &[(0.0, 1.3), (1.2, -0.9), (-1.2, -0.9)],
            Self::Cross => &[
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
            Self::Bar => &[(-0.5, -1.4), (0.5, -1.4), (0.5, 1.4), (-0.5, 1.4)],
            Self::Dash => &[(-1.4, -0.5), (1.4, -0.5), (1.4, 0.5), (-1.4, 0.5)],
        }
    }
}

/// Draws a marker with the tooltip `title`.
pub fn mark(
    m: &mut Markup,
    shape: Shape,
    class: &str,
    (x, y): (f64, f64),
    radius: f64,
    title: &str,
) {
    let corners = shape.corners();
    if corners.is_empty() {
        let place: Attributes =
            &[("class", &class), ("cx", &Px(x)), ("cy", &Px(y)), ("r", &Px(radius))];
        return titled(m, "circle", place, title);
    }
    let point = |(dx, dy): &(f64, f64)| format!("{},{}", Px(x + dx * radius), Px(y + dy * radius));
    let points = corners.iter().map(point).collect::<Vec<_>>().join(" ");
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
        for run in &report.runs {
            let way = looks.way(run);
            for (name, known) in [(scheduler(run), &mut looks.schedulers), (way, &mut looks.ways)] {
                if !known.contains(&name) {
                    known.push(name);
                }
            }
        }
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
    pub fn colour(&self, run: &Run) -> String {
        format!("c{}", self.place(run) % COLOURS)
    }

    /// The marker of a run's scheduler.
    pub fn shape(&self, run: &Run) -> Shape {
        Shape::ALL[self.place(run) % COLOURS]
    }

    /// The classes of the curve of a run.
    pub fn curve(&self, run: &Run) -> String {
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
        named.map(|(at, name)| {
            (name.as_str(), format!("c{}", at % COLOURS), Shape::ALL[at % COLOURS])
        })
    }

    /// The names of these differences, and their line patterns; none if there is only one.
    pub fn ways(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let several = self.ways.len() > 1;
        let named = self.ways.iter().enumerate().filter(move |_| several);
        named.map(|(at, name)| (name.as_str(), PATTERNS[at % PATTERNS.len()]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::sample;
    use super::*;

    #[test]
    fn a_scheduler_looks_the_same_wherever_it_is() {
        let report = sample::comparison();
        let looks = Looks::of(&report);
        for run in &report.runs {
            let expected =
                if run.scheduler == "none" { ("c0", Shape::Circle) } else { ("c1", Shape::Square) };
            assert_eq!((looks.colour(run).as_str(), looks.shape(run)), expected);
        }
        assert_eq!(looks.curve(&report.runs[4]), "c1");
        assert_eq!(looks.curve(&report.runs[7]), "c1 dashed");
        let ways: Vec<_> = looks.ways().collect();
        assert_eq!(ways, [("combining", ""), ("spin", " dashed")]);
    }

    #[test]
    fn every_colour_has_a_marker_of_its_own() {
        for (at, shape) in Shape::ALL.iter().enumerate() {
            assert!(!Shape::ALL[..at].contains(shape), "{shape:?}");
            assert_eq!(shape.corners().is_empty(), *shape == Shape::Circle);
        }
    }
}
