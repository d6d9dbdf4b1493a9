//! The report as one HTML page without scripts or external resources, in light or dark as the reader prefers. It can be
//! mailed and archived, and opened in ten years.
//!
//! [`Markup`] escapes all text from the report; the layout is in `html.css`.

use super::figures::{self, columns, group_columns, group_rows};
use super::findings::findings;
use super::label::Varying;
use super::markup::Markup;
use super::model::{Machine, Report, Run};
use super::number::{bytes, counted, date, nanos};
use super::queue::Merges;
use super::svg::{self, Looks, Swatch};
use super::table::{limits, virtual_time};
use super::warnings::warnings;
use blkmq_lab::workload::Direction;
use blkmq_terminal::paper::Align;
use std::borrow::Cow;

/// Nothing may be loaded; styles are inline.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The report as an HTML document.
#[must_use]
pub fn render(report: &Report) -> String {
    page(&title(report), |m| body(m, report))
}

/// A document of that title with the content that `content` adds.
pub fn page(title: &str, content: impl FnOnce(&mut Markup)) -> String {
    let mut m = Markup::html();
    m.element("html", &[("lang", &"en")], |m| {
        m.element("head", &[], |m| {
            m.empty("meta", &[("charset", &"utf-8")]);
            m.empty("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &POLICY)]);
            let content = "width=device-width, initial-scale=1";
            m.empty("meta", &[("name", &"viewport"), ("content", &content)]);
            m.leaf("title", &[], title);
            m.style(include_str!("html.css"));
        });
        m.element("body", &[], content);
    });
    m.finish()
}

fn body(m: &mut Markup, report: &Report) {
    m.leaf("h1", &[], &title(report));
    let Machine { cpu_model, cores, .. } = &report.machine;
    let cores = counted((*cores).into(), "core");
    let when = match report.seed {
        None => format!("{} UTC, {cpu_model}", date(report.time_ms)),
        Some(seed) => format!("virtual time, seed {seed}, {cpu_model}"),
    };
    m.leaf("p", &[("class", &"soft")], &format!("{when}, {cores}"));
    let partial = report.partial.map(|partial| partial.to_string());
    list(m, "warnings", partial.as_slice());
    if report.runs.is_empty() {
        m.leaf("p", &[], "No run was made.");
    }
    let mut sentences = findings(report);
    sentences.extend(limits(report).into_iter().map(String::from));
    sentences.extend(report.seed.map(virtual_time));
    list(m, "findings", &sentences);
    let warnings: Vec<String> =
        warnings(report).iter().map(|warning| format!("Warning: {warning}")).collect();
    list(m, "warnings", &warnings);
    let notes: Vec<String> = report.notes.iter().map(|note| format!("Note: {note}")).collect();
    list(m, "notes", &notes);
    if !report.runs.is_empty() {
        let looks = Looks::of(report);
        drawings(m, report, &looks);
        occupancies(m, report);
        merges(m, report);
        group_shares(m, report, &looks);
        figures(m, report);
        jobs(m, report);
        queues(m, report);
        group_tables(m, report);
        governors(m, report);
    }
    method(m, report);
}

/// The schedulers that were compared.
fn title(report: &Report) -> String {
    let mut names: Vec<&str> = report.runs.iter().map(|run| run.scheduler.as_str()).collect();
    let mut seen = Vec::new();
    names.retain(|name| {
        let is_new = !seen.contains(name);
        seen.push(*name);
        is_new
    });
    let command = if report.seed.is_some() { "blkmq sim" } else { "blkmq bench" };
    if names.is_empty() { command.into() } else { format!("{command}: {}", names.join(", ")) }
}

/// Adds a list of that class, unless it is empty.
pub fn list(m: &mut Markup, class: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    m.element("ul", &[("class", &class)], |m| {
        for line in lines {
            m.leaf("li", &[], line);
        }
    });
}

/// The one legend of all plots of runs.
pub fn looks_legend(m: &mut Markup, looks: &Looks) {
    m.element("ul", &[("class", &"legend looks")], |m| {
        for (name, class, shape) in looks.schedulers() {
            entry(m, Swatch::Curve(shape), &class, name);
        }
        for (name, pattern) in looks.ways() {
            entry(m, Swatch::Line, &format!("plain{pattern}"), name);
        }
    });
}

/// The runs on each device, for plots with a scale for each; with its name if there are several.
fn by_device(report: &Report) -> Vec<(Option<&str>, Cow<'_, Report>)> {
    let mut devices: Vec<&str> = Vec::new();
    for run in &report.runs {
        if !devices.contains(&run.device.text.as_str()) {
            devices.push(&run.device.text);
        }
    }
    if devices.len() < 2 {
        return vec![(None, Cow::Borrowed(report))];
    }
    let part = |device: &&str| {
        let runs = report.runs.iter().filter(|run| run.device.text == *device).cloned();
        Report {
            runs: runs.collect(),
            machine: report.machine.clone(),
            seed: report.seed,
            ..Report::default()
        }
    };
    devices.iter().map(|device| (Some(*device), Cow::Owned(part(device)))).collect()
}

/// Adds the plots of `draw` for each device, after a heading and `says`; nothing if there are no plots.
fn plots(
    m: &mut Markup,
    parts: &[(Option<&str>, Cow<'_, Report>)],
    (heading, says): (&str, &str),
    draw: impl Fn(&mut Markup, &Report) -> bool,
) {
    let mut is_first = true;
    for (device, part) in parts {
        let mut plot = Markup::default();
        if !draw(&mut plot, part) {
            continue;
        }
        if std::mem::take(&mut is_first) {
            m.leaf("h2", &[], heading);
            if !says.is_empty() {
                m.leaf("p", &[("class", &"soft")], says);
            }
        }
        if let Some(device) = device {
            m.leaf("h3", &[], device);
        }
        m.append(&plot);
    }
}

/// The kinds of I/O with separate latency plots, and the ends of their headings: times of reads and writes differ by
/// orders of magnitude, and a combined distribution describes neither.
pub fn kinds(report: &Report) -> Vec<(Option<Direction>, &'static str)> {
    let each = [
        (Direction::Read, " of reads"),
        (Direction::Write, " of writes"),
        (Direction::Trim, " of trims"),
    ];
    let used = each.into_iter().filter(|(kind, _)| report.runs.iter().any(|run| run.does(*kind)));
    let used: Vec<_> = used.map(|(kind, whose)| (Some(kind), whose)).collect();
    if used.len() < 2 { vec![(None, "")] } else { used }
}

/// Everything that is drawn of runs, with one legend.
fn drawings(m: &mut Markup, report: &Report, looks: &Looks) {
    looks_legend(m, looks);
    let parts = by_device(report);
    let repeated = report.runs.iter().map(|run| run.repetitions.len()).max().unwrap_or(0);
    let error_bars = if repeated > 1 {
        format!(" Error bars: slowest and fastest of {repeated} repetitions.")
    } else {
        String::new()
    };
    let says = format!("More is better.{error_bars}");
    plots(m, &parts, ("I/Os per second", &says), |m, part| {
        svg::rates(m, part, looks);
        true
    });
    let says = "Less is better; each gridline is ten times the one before. From left to right: full marker \
                half of the I/Os (p50), large hollow one 99 % (p99), small one 99.9 %, upright stroke the \
                slowest.";
    for (kind, whose) in kinds(report) {
        let heading = format!("Completion latency{whose}");
        plots(m, &parts, (&heading, says), |m, part| svg::latencies(m, part, looks, kind));
    }
    let says = |text: &str| {
        let most = parts.iter().map(|(_, part)| (svg::drawn(part).count(), part.runs.len()));
        let cut = most.filter(|(drawn, all)| drawn < all).max();
        let first = cut
            .map_or_else(String::new, |(drawn, all)| format!("The first {drawn} of {all} runs. "));
        format!("{first}{text}").trim_end().to_owned()
    };
    let share = says("Which share of the I/Os took no longer; further left is better.");
    for (kind, whose) in kinds(report) {
        let heading = format!("Latency distribution{whose}");
        plots(m, &parts, (&heading, &share), |m, part| svg::distributions(m, part, looks, kind));
    }
    let over_time = says("");
    for quantity in svg::Quantity::ALL {
        plots(m, &parts, (quantity.heading(), &over_time), |m, part| {
            svg::courses(m, part, looks, quantity)
        });
    }
}

/// The most plots of busy devices on one page; they are large.
const MOST_OCCUPANCIES: usize = 6;

/// The activities of the parts of modelled devices, run by run.
fn occupancies(m: &mut Markup, report: &Report) {
    let varying = Varying::of(report);
    let mut left = MOST_OCCUPANCIES;
    for run in &report.runs {
        let mut plot = Markup::default();
        let Some(drawn) = svg::occupancy(&mut plot, run).filter(|_| left > 0) else { continue };
        left -= 1;
        let what =
            if drawn.heads { "Position of the heads" } else { "What each part was busy with" };
        m.leaf("h2", &[], &format!("{what}: {}", varying.run_name(run)));
        let place = if drawn.heads { "cylinders" } else { "parts of the device, such as dies" };
        let says = format!(
            "Upwards: {place}. Drawn: the first {} of {} movements.",
            drawn.spans, drawn.of
        );
        m.leaf("p", &[("class", &"soft")], &says);
        if !drawn.heads {
            let entries =
                svg::ACTIVITIES.iter().map(|(_, name, class)| (*name, (*class).to_owned()));
            legend(m, Swatch::Bar, entries);
        }
        m.append(&plot);
    }
}

fn merges(m: &mut Markup, report: &Report) {
    let mut plot = Markup::default();
    m.leaf("h2", &[], "Merges");
    if !svg::merges(&mut plot, report) {
        m.leaf("p", &[("class", &"soft")], "No I/O was merged with another.");
        return;
    }
    let says = "I/Os that became part of another request and so cost the device nothing.";
    m.leaf("p", &[("class", &"soft")], says);
    let kinds = Merges::default().each().into_iter().zip(svg::KINDS).enumerate();
    let occurs = |kind: usize| report.runs.iter().any(|run| run.counters.merges.each()[kind].1 > 0);
    let shown = kinds.filter(|(kind, _)| occurs(*kind));
    legend(m, Swatch::Bar, shown.map(|(_, ((name, _), class))| (name, class.to_owned())));
    m.append(&plot);
}

/// Adds a legend: names and the classes with which they are drawn.
fn legend<'a>(m: &mut Markup, kind: Swatch, entries: impl Iterator<Item = (&'a str, String)>) {
    m.element("ul", &[("class", &"legend")], |m| {
        entries.for_each(|(name, class)| entry(m, kind, &class, name));
    });
}

fn entry(m: &mut Markup, kind: Swatch, class: &str, name: &str) {
    m.element("li", &[], |m| {
        svg::swatch(m, kind, class);
        m.text(name);
    });
}

fn figures(m: &mut Markup, report: &Report) {
    m.leaf("h2", &[], "All figures");
    let columns = columns(report);
    let heading: Vec<(&str, &str, Align)> =
        columns.iter().map(|c| (c.name, c.help, c.align)).collect();
    let rows = report
        .runs
        .iter()
        .map(|run| columns.iter().map(|c| c.cell(run, &report.runs[0])).collect());
    table(m, &heading, &rows.collect::<Vec<_>>());
}

/// The jobs of each run, if there are several.
fn jobs(m: &mut Markup, report: &Report) {
    let rows = figures::job_rows(report);
    if rows.is_empty() {
        return;
    }
    m.leaf("h2", &[], "Jobs");
    let left_out = figures::jobs_left_out(report).map_or_else(String::new, |it| format!(" {it}"));
    let says =
        format!("Each job in each run: a job that is starved does not show in the sums.{left_out}");
    m.leaf("p", &[("class", &"soft")], &says);
    table(m, &figures::JOB_COLUMNS, &rows);
}

/// The counters of each queue, in the order of the runs.
fn queues(m: &mut Markup, report: &Report) {
    m.leaf("h2", &[], "What the queues counted");
    let says = "Over the whole life of each queue, ramp included. Submitted bios less merges are the \
                requests that the device completed.";
    m.leaf("p", &[("class", &"soft")], says);
    let mut heading = vec![("run", "scheduler and what else differs", Align::Left)];
    let names = [
        ("submitted", "bios handed in"),
        ("split", "cuts in I/Os that the device does not take whole; each makes a bio more"),
        ("plug", "merged in the submitter's plug"),
        ("back", "merged at the end of a request"),
        ("front", "merged at the front of a request"),
        ("request", "two requests fused"),
        ("discard", "merged into a discard"),
        ("dispatched", "requests handed to the device"),
        ("requeued", "requests that came back"),
        ("completed", "requests that the device completed"),
        ("kicks", "wake-ups delivered"),
        ("spared", "wake-ups that were already on their way"),
    ];
    heading.extend(names.map(|(name, help)| (name, help, Align::Right)));
    let varying = Varying::of(report);
    let rows = report.runs.iter().map(|run| {
        let c = &run.counters;
        let merges = c.merges.each().map(|(_, n)| n);
        let after =
            [c.dispatches, c.requeues, c.requests_completed, c.kicks.sent, c.kicks.coalesced];
        let counts = [c.submitted, c.splits].into_iter().chain(merges).chain(after);
        [varying.run_name(run)].into_iter().chain(counts.map(|n| n.to_string())).collect()
    });
    table(m, &heading, &rows.collect::<Vec<_>>());
}

/// Adds a table: each column has a name, a meaning, and an alignment.
pub fn table(m: &mut Markup, columns: &[(&str, &str, Align)], rows: &[Vec<String>]) {
    let class = |align| if align == Align::Right { "right" } else { "text" };
    // Reached by the keyboard as well, since it may have to be scrolled.
    m.element("div", &[("class", &"scroll"), ("tabindex", &"0")], |m| {
        m.element("table", &[], |m| {
            m.element("thead", &[], |m| {
                m.element("tr", &[], |m| {
                    for (name, help, align) in columns {
                        m.leaf("th", &[("class", &class(*align)), ("title", help)], name);
                    }
                });
            });
            m.element("tbody", &[], |m| {
                for row in rows {
                    m.element("tr", &[], |m| {
                        for (cell, (_, _, align)) in row.iter().zip(columns) {
                            m.leaf("td", &[("class", &class(*align))], cell);
                        }
                    });
                }
            });
        });
    });
}

/// The information that repeating the measurement needs.
fn method(m: &mut Markup, report: &Report) {
    m.leaf("h2", &[], "How it was measured");
    m.leaf("pre", &[], &report.command);
    let Machine { cpu_model, cores, memory_bytes, os, kernel, .. } = &report.machine;
    let machine = &report.machine;
    let mut facts = vec![
        ("blkmq", report.version.clone()),
        ("processor", format!("{cpu_model}, {}", counted((*cores).into(), "core"))),
    ];
    match report.seed {
        Some(seed) => facts.push(("seed", seed.to_string())),
        None => facts.extend([
            ("memory", bytes(*memory_bytes as f64)),
            ("system", format!("{os}, kernel {kernel}")),
        ]),
    }
    facts.extend(machine.hypervisor.iter().map(|host| ("virtual machine", host.clone())));
    facts.extend(machine.governor.iter().map(|governor| ("frequency governor", governor.clone())));
    facts.extend(machine.load_average.map(|load| ("load before", format!("{load:.2}"))));
    if let Some(run) = report.runs.first() {
        let (measured, ramp) = (nanos(run.elapsed_ns as f64), nanos(run.ramp_ns as f64));
        facts.push(("first run", format!("{measured} measured after {ramp} of ramp")));
        facts.push(("device", run.device.text.clone()));
    }
    for (key, value) in &report.global_options {
        facts.push(("option", format!("{key}={value}")));
    }
    m.element("dl", &[], |m| {
        for (name, value) in &facts {
            m.leaf("dt", &[], name);
            m.leaf("dd", &[], value);
        }
    });
}

/// Adds the shares that groups had, beside the shares due to their weights.
fn group_shares(m: &mut Markup, report: &Report, looks: &Looks) {
    let mut plot = Markup::default();
    let Some((drawn, of)) = svg::shares(&mut plot, report, looks) else { return };
    m.leaf("h2", &[], "Shares of groups");
    let left_out =
        if drawn < of { format!("The first {drawn} of {of} groups. ") } else { String::new() };
    let says = format!(
        "{left_out}Bar: share of all bytes moved while measuring, with those of groups below. Stroke: what is due by \
         weight, if every group that did anything was busy all the time."
    );
    m.leaf("p", &[("class", &"soft")], &says);
    m.append(&plot);
}

/// A table of the groups of each run.
fn group_tables(m: &mut Markup, report: &Report) {
    let varying = Varying::of(report);
    for run in report.runs.iter().filter(|run| !run.groups.all.is_empty()) {
        m.leaf("h2", &[], &format!("Groups with {}", varying.run_name(run)));
        let says = "A group has what those below it have. Bytes are of jobs while measuring; times are the \
                    scheduler's own, if it counted them, over the whole life of the queue.";
        m.leaf("p", &[("class", &"soft")], says);
        table(m, &group_columns(&run.groups), &group_rows(run));
        if let Some(figures::Waits { columns, rows }) = figures::waits(&run.groups) {
            let says = "How long groups waited before the device, ramp included, and behind whose requests there.";
            m.leaf("p", &[("class", &"soft")], says);
            let columns: Vec<_> =
                columns.iter().map(|(name, says, align)| (name.as_str(), *says, *align)).collect();
            table(m, &columns, &rows);
        }
    }
}

/// Adds how many requests schedulers let to the device, and why.
fn governors(m: &mut Markup, report: &Report) {
    let varying = Varying::of(report);
    let governed: Vec<&Run> =
        report.runs.iter().filter(|run| !run.shared.tokens.is_empty()).collect();
    if governed.is_empty() {
        return;
    }
    m.leaf("h2", &[], "What the instances of a scheduler share");
    let says = "At the end of each run. The page of the scheduler (blkmq doc) says what it means.";
    m.leaf("p", &[("class", &"soft")], says);
    let heading = [
        ("run", "scheduler and what else differs", Align::Left),
        ("tokens", "of each pool: requests that may be at the device", Align::Left),
        ("governor", "what it shows of itself", Align::Left),
    ];
    let row = |run: &&Run| {
        let tokens = run.shared.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let values = run.shared.governor.iter().map(|(name, value)| format!("{name}={value}"));
        vec![varying.run_name(run), tokens, values.collect::<Vec<_>>().join(", ")]
    };
    table(m, &heading, &governed.iter().map(row).collect::<Vec<_>>());
}

#[cfg(test)]
pub mod tests;
