//! The facts about a trace: as text, as JSON, and as a page with plots.

use crate::report::html::{list, page, table};
use crate::report::markup::Markup;
use crate::report::number::{bytes, count, nanos, percent};
use crate::report::svg::rows::{Axis, LEFT, RIGHT, Row, rows};
use crate::report::svg::{Linear, bar};
use blkmq_core::Histogram;
use blkmq_recording::{Format, MOST_NAMES, Reader, Summary};
use blkmq_terminal::paper::{Align, Paper, TextTable, push_line};

/// The maximum number of tenants shown.
const TENANTS: usize = 20;

const TENANT_COLUMNS: [(&str, Align); 4] = [
    ("tenant", Align::Left),
    ("I/Os", Align::Right),
    ("reads", Align::Right),
    ("bytes", Align::Right),
];
const OPS: [&str; 5] = ["reads", "writes", "flushes", "discards", "writes of zeroes"];

/// Formats the facts as text of at most `width` columns.
pub fn render_text(name: &str, summary: &Summary, reader: &Reader, width: usize) -> String {
    let mut out = Paper::new(width);
    push_line(&mut out, 0, &format!("{name}: {}", reader.format().name()));
    cautions(reader).iter().for_each(|line| push_line(&mut out, 0, line));
    out.push('\n');
    let mut table =
        TextTable::new(vec![(String::new(), Align::Left), (String::new(), Align::Right)]);
    for [what, figure] in facts(summary) {
        table.row(&[what, figure]);
    }
    out.table(&table);
    if summary.tenants.len() > 1 {
        out.push('\n');
        let mut table =
            TextTable::new(TENANT_COLUMNS.map(|(name, align)| (name.to_owned(), align)).to_vec());
        let (rows, more) = tenants(summary, reader);
        rows.iter().for_each(|row| table.row(row));
        out.table(&table);
        if more > 0 {
            push_line(&mut out, 0, &format!("and {more} more tenants"));
        }
    }
    out.finish()
}

/// The facts as a line of JSON: counts, bytes and nanoseconds, and all tenants, those with the most I/Os first.
pub fn json(summary: &Summary, reader: &Reader) -> String {
    const NAMES: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];
    let by_kind = |of: &[u64; 5]| -> serde_json::Map<String, serde_json::Value> {
        NAMES.iter().zip(of).map(|(name, count)| ((*name).to_owned(), (*count).into())).collect()
    };
    let percentiles = |histogram: &Histogram| -> serde_json::Map<String, serde_json::Value> {
        let used = [1u64, 5, 25, 50, 75, 95, 99, 100];
        let used = used.into_iter().filter(|_| histogram.count() > 0);
        used.map(|p| (p.to_string(), histogram.quantile(p, 100).into())).collect()
    };
    let mut order: Vec<usize> = (0..summary.tenants.len()).collect();
    order.sort_by_key(|tenant| std::cmp::Reverse(summary.tenants[*tenant].ios));
    let tenant = |tenant: &usize| {
        let counts = summary.tenants[*tenant];
        let name = reader.tenants().name(*tenant as u32);
        serde_json::json!({ "name": name, "ios": counts.ios, "reads": counts.reads, "bytes": counts.bytes })
    };
    let (course, bin_ns) = summary.course();
    let facts = serde_json::json!({
        "format": reader.format().name(),
        "ios": by_kind(&summary.ios),
        "bytes": by_kind(&summary.bytes),
        "span_ns": summary.span(),
        "peak_ios_per_s": summary.peak,
        "sequential": summary.sequential,
        "working_set_bytes": summary.working_set() * 4096,
        "burstiness": summary.burstiness(),
        "size_bytes": percentiles(&summary.sizes),
        "latency_ns": percentiles(&summary.latencies),
        "volume_bytes": summary.ends,
        "tenants": order.iter().map(tenant).collect::<Vec<_>>(),
        "course": { "bin_ns": bin_ns, "ios": course },
        "skipped": reader.skipped().bad,
        "cautions": cautions(reader),
    });
    format!("{facts}\n")
}

/// The facts, each with its name.
fn facts(summary: &Summary) -> Vec<[String; 2]> {
    let total = summary.total();
    let seconds = summary.span() as f64 / 1e9;
    let moved: u64 = summary.bytes[..2].iter().sum();
    let mut facts =
        vec![["I/Os".to_owned(), total.to_string()], ["time".into(), nanos(summary.span() as f64)]];
    for (kind, name) in OPS.iter().enumerate().filter(|(kind, _)| summary.ios[*kind] > 0) {
        let share = percent(summary.ios[kind] as f64 / total.max(1) as f64);
        facts.push([format!("  {name}"), format!("{} ({share})", summary.ios[kind])]);
    }
    if seconds > 0.0 {
        facts.push(["I/Os per second".into(), count(total as f64 / seconds)]);
        facts.push(["  in the busiest second".into(), count(summary.peak as f64)]);
        facts.push(["bytes per second".into(), bytes(moved as f64 / seconds)]);
    }
    if let Some(burstiness) = summary.burstiness() {
        facts.push(["deviation of gaps over their mean".into(), format!("{burstiness:.2}")]);
    }
    let mut times = |name: &str, histogram: &Histogram, show: fn(f64) -> String| {
        if histogram.count() > 0 {
            for (what, percent) in [("median", 50), ("99 %", 99)] {
                facts.push([
                    format!("{name}, {what}"),
                    show(histogram.quantile(percent, 100) as f64),
                ]);
            }
            facts.push([format!("{name}, largest"), show(histogram.max() as f64)]);
        }
    };
    times("size", &summary.sizes, bytes);
    times("latency", &summary.latencies, nanos);
    let placed = total - summary.ios[2];
    facts.push(["sequential".into(), percent(summary.sequential as f64 / placed.max(1) as f64)]);
    facts.push([
        "working set, in blocks of 4 KiB".into(),
        bytes((summary.working_set() * 4096) as f64),
    ]);
    let reach: u64 = summary.ends.iter().fold(0, |sum, end| sum.saturating_add(*end));
    facts.push(["volumes".into(), summary.ends.len().to_string()]);
    facts.push(["  up to their last I/Os".into(), bytes(reach as f64)]);
    facts
}

/// The largest tenants as rows, and the number of the others.
fn tenants(summary: &Summary, reader: &Reader) -> (Vec<Vec<String>>, usize) {
    let mut order: Vec<usize> = (0..summary.tenants.len()).collect();
    order.sort_by_key(|tenant| std::cmp::Reverse(summary.tenants[*tenant].ios));
    let row = |tenant: &usize| {
        let counts = summary.tenants[*tenant];
        let name = reader.tenants().name(*tenant as u32);
        let reads = percent(counts.reads as f64 / counts.ios.max(1) as f64);
        vec![name.to_owned(), counts.ios.to_string(), reads, bytes(counts.bytes as f64)]
    };
    let rows = order.iter().take(TENANTS).map(row).collect();
    (rows, order.len().saturating_sub(TENANTS))
}

/// Sentences about misleading properties of the recording.
pub fn cautions(reader: &Reader) -> Vec<String> {
    let mut lines = skipped(reader);
    let stamps = reader.stamps();
    if stamps.is_coarse(reader.records()) {
        let unit = nanos(stamps.unit as f64);
        lines.push(format!(
            "Stamps are whole multiples of {unit}, and {} I/Os have that of the one before: the order and the gaps within \
             one are not in the trace.",
            stamps.same
        ));
    }
    if stamps.unordered > 0 {
        let back = nanos(stamps.most_back as f64);
        lines.push(format!(
            "{} I/Os are not in the order of their times, by up to {back}.",
            stamps.unordered
        ));
    }
    if reader.lacks_event() {
        lines.push(
            "No I/O was queued (Q) or issued (D), whichever counts; --issued counts requests as they were issued."
                .into(),
        );
    }
    let shared = reader.volumes().shared();
    if shared > 0 {
        lines.push(format!(
            "{shared} I/Os are of volumes beyond the first {MOST_NAMES}, and have the places of those."
        ));
    }
    if let Format::Preset(preset) = reader.format() {
        lines.extend(preset.caution.map(|caution| format!("Caution: {caution}.")));
    }
    lines
}

/// Sentences about rows that were skipped.
pub fn skipped(reader: &Reader) -> Vec<String> {
    let skipped = reader.skipped();
    if skipped.bad == 0 {
        return Vec::new();
    }
    let rows = match skipped.bad {
        1 => "1 row is no I/O and was skipped".to_owned(),
        rows => format!("{rows} rows are no I/Os and were skipped"),
    };
    let first =
        skipped.first.first().map(|(place, fault)| format!("; the first, at {place}: {fault}"));
    vec![format!("{rows}{}.", first.unwrap_or_default())]
}

const BARS: usize = 24;

/// The page.
pub fn render_page(name: &str, summary: &Summary, reader: &Reader) -> String {
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
            table(m, &TENANT_COLUMNS.map(|(name, align)| (name, "", align)), &cells);
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
