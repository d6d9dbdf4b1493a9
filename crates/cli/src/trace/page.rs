//! The facts about a trace as a page with plots.

use super::info::{cautions, facts, tenants};
use crate::report::html::{list, page, table};
use crate::report::markup::Markup;
use crate::report::number::{bytes, count, nanos};
use crate::report::svg::bar;
use crate::report::svg::rows::{Axis, LEFT, RIGHT, Row, rows};
use crate::report::svg::scale::Linear;
use blkmq_core::Histogram;
use blkmq_recording::{Reader, Summary};
use blkmq_terminal::text_table::Align;

const BARS: usize = 24;

/// The page.
pub fn render(name: &str, summary: &Summary, reader: &Reader) -> String {
    let title = format!("blkmq trace: {name}");
    page(&title, |m| {
        m.leaf("h1", &[], &title);
        m.leaf("p", &[("class", &"soft")], reader.format().name());
        list(m, "warnings", &cautions(reader));
        course(m, summary);
        sizes(m, "Sizes", &summary.sizes, bytes);
        sizes(m, "Latencies", &summary.latencies, nanos);
        m.leaf("h2", &[], "All figures");
        let cells: Vec<Vec<String>> =
            facts(summary).into_iter().map(|fact| fact.to_vec()).collect();
        table(m, &[("figure", "", Align::Left), ("value", "", Align::Right)], &cells);
        if summary.tenants.len() > 1 {
            let (cells, more) = tenants(summary, reader);
            m.leaf("h2", &[], "Tenants");
            if more > 0 {
                m.leaf(
                    "p",
                    &[("class", &"soft")],
                    &format!("The largest; {more} more have fewer I/Os."),
                );
            }
            let columns = [
                ("tenant", Align::Left),
                ("I/Os", Align::Right),
                ("reads", Align::Right),
                ("bytes", Align::Right),
            ];
            table(m, &columns.map(|(name, align)| (name, "", align)), &cells);
        }
    })
}

/// Adds a bar for each part, with its name and figure.
fn bars(m: &mut Markup, title: &str, says: &str, parts: &[(String, f64)]) {
    m.leaf("h2", &[], title);
    m.leaf("p", &[("class", &"soft")], says);
    let most = parts.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let scale = Linear::covering(most, LEFT, RIGHT);
    let axis =
        Axis { ticks: scale.ticks().map(|v| (scale.at(v), count(v))).collect(), figures: "I/Os" };
    let named: Vec<Row> = parts
        .iter()
        .map(|(name, value)| Row { name: name.clone(), figure: count(*value) })
        .collect();
    rows(m, title, &axis, &named, |m, index, y| {
        let (name, value) = &parts[index];
        let size = (scale.at(*value) - LEFT, 16.0);
        bar(m, "fill c0", (LEFT, y - 8.0), size, &format!("{name}: {}", count(*value)));
    });
}

fn course(m: &mut Markup, summary: &Summary) {
    let (course, width) = summary.course();
    let merged = course.len().div_ceil(BARS).max(1);
    let parts = course.chunks(merged).enumerate().map(|(at, part)| {
        let start = (at * merged) as f64 * width as f64;
        let seconds = (part.len() as u64 * width) as f64 / 1e9;
        (format!("from {}", nanos(start)), part.iter().sum::<u64>() as f64 / seconds)
    });
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        bars(m, "I/Os per second over time", "The mean of each part of the time.", &parts);
    }
}

fn sizes(m: &mut Markup, title: &str, histogram: &Histogram, show: fn(f64) -> String) {
    if histogram.count() == 0 {
        return;
    }
    let mut powers: Vec<(u32, u64)> = Vec::new();
    for (value, ios) in histogram.buckets() {
        let power = value.max(1).ilog2();
        match powers.last_mut().filter(|(last, _)| *last == power) {
            Some((_, sum)) => *sum += ios,
            None => powers.push((power, ios)),
        }
    }
    let name = |power: u32| format!("from {}", show((1u64 << power) as f64));
    let parts: Vec<_> = powers.iter().map(|(power, ios)| (name(*power), *ios as f64)).collect();
    bars(m, title, "I/Os from each power of two to the next.", &parts);
}
