//! The report as one HTML page without scripts or external resources, in light or dark as the reader prefers. It can be
//! mailed and archived, and opened in ten years.
//!
//! [`Markup`] escapes all text from the report; the layout is in `html.css`.

use super::figures;
use super::judgement::{findings, warnings};
use super::model::{Counters, Machine, Merges, Report, Run};
use super::svg::{self, Looks, Markup, Swatch};
use super::table::{limits, virtual_time};
use super::wording::{Varying, bytes, counted, date, distinct, nanos, pairs};
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
    soft(m, &format!("{when}, {cores}"));
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
        warnings(report).iter().map(|warning| format!("Warning: {}", warning.text)).collect();
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
    let names = distinct(report.runs.iter().map(|run| run.scheduler.as_str()));
    let command = if report.seed.is_some() { "blkmq sim" } else { "blkmq bench" };
    if names.is_empty() { command.into() } else { format!("{command}: {}", names.join(", ")) }
}

/// Adds a paragraph in the background.
pub fn soft(m: &mut Markup, text: &str) {
    m.leaf("p", &[("class", &"soft")], text);
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
    let devices = distinct(report.runs.iter().map(|run| run.device.text.as_str()));
    if devices.len() < 2 {
        return vec![(None, Cow::Borrowed(report))];
    }
    let part = |device: &&str| {
        let runs = report.runs.iter().filter(|run| run.device.text == *device);
        report.of_runs(runs.cloned().collect())
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
                soft(m, says);
            }
        }
        if let Some(device) = device {
            m.leaf("h3", &[], device);
        }
        m.append(&plot);
    }
}

/// The [kinds](Report::kinds) of I/O with separate latency plots, and the ends of their headings.
pub fn kinds(report: &Report) -> Vec<(Option<Direction>, String)> {
    let whose = |kind: Direction| format!(" of {}s", kind.name());
    report.kinds().into_iter().map(|kind| (kind, kind.map_or_else(String::new, whose))).collect()
}

/// Everything that is drawn of runs, with one legend.
fn drawings(m: &mut Markup, report: &Report, looks: &Looks) {
    looks_legend(m, looks);
    let parts = by_device(report);
    let repeated = report.runs.iter().map(|run| run.repetitions.len()).max().unwrap_or(0);
    let mut says = "More is better.".to_owned();
    if repeated > 1 {
        says += &format!(" Error bars: slowest and fastest of {repeated} repetitions.");
    }
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
        soft(m, &says);
        if !drawn.heads {
            let entries =
                svg::ACTIVITIES.iter().map(|(_, name, class)| (*name, (*class).to_owned()));
            legend(m, entries);
        }
        m.append(&plot);
    }
}

fn merges(m: &mut Markup, report: &Report) {
    let mut plot = Markup::default();
    m.leaf("h2", &[], "Merges");
    if !svg::merges(&mut plot, report) {
        soft(m, "No I/O was merged with another.");
        return;
    }
    soft(m, "I/Os that became part of another request and so cost the device nothing.");
    let kinds = Merges::default().each().into_iter().zip(svg::KINDS).enumerate();
    let occurs = |kind: usize| report.runs.iter().any(|run| run.counters.merges.each()[kind].1 > 0);
    let shown = kinds.filter(|(kind, _)| occurs(*kind));
    legend(m, shown.map(|(_, ((name, _), class))| (name, class.to_owned())));
    m.append(&plot);
}

/// Adds a legend of bars: names and the classes with which they are drawn.
fn legend<'a>(m: &mut Markup, entries: impl Iterator<Item = (&'a str, String)>) {
    m.element("ul", &[("class", &"legend")], |m| {
        entries.for_each(|(name, class)| entry(m, Swatch::Bar, &class, name));
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
    let all = figures::comparison(report);
    table(m, &all.columns, &all.rows);
}

/// The jobs of each run, if there are several.
fn jobs(m: &mut Markup, report: &Report) {
    let jobs = figures::jobs(report);
    if jobs.rows.is_empty() {
        return;
    }
    m.leaf("h2", &[], "Jobs");
    let left_out = figures::jobs_left_out(report).map_or_else(String::new, |it| format!(" {it}"));
    let says =
        format!("Each job in each run: a job that is starved does not show in the sums.{left_out}");
    soft(m, &says);
    table(m, &jobs.columns, &jobs.rows);
}

/// The counters of each queue, in the order of the runs.
fn queues(m: &mut Markup, report: &Report) {
    m.leaf("h2", &[], "What the queues counted");
    let says = "Over the whole life of each queue, ramp included. Submitted bios less merges are the \
                requests that the device completed.";
    soft(m, says);
    type Count = fn(&Counters) -> u64;
    let counts: [(_, _, Count); 12] = [
        ("submitted", "bios handed in", |it| it.submitted),
        ("split", SPLIT, |it| it.splits),
        ("plug", "merged in the submitter's plug", |it| it.merges.plug),
        ("back", "merged at the end of a request", |it| it.merges.back),
        ("front", "merged at the front of a request", |it| it.merges.front),
        ("request", "two requests fused", |it| it.merges.request),
        ("discard", "merged into a discard", |it| it.merges.discard),
        ("dispatched", "requests handed to the device", |it| it.dispatches),
        ("requeued", "requests that came back", |it| it.requeues),
        ("completed", "requests that the device completed", |it| it.requests_completed),
        ("kicks", "wake-ups delivered", |it| it.kicks.sent),
        ("spared", "wake-ups that were already on their way", |it| it.kicks.coalesced),
    ];
    let mut queues = of_runs(report, |_| true);
    for (name, help, count) in counts {
        queues.figures(name, help, |run| count(&run.counters).to_string());
    }
    table(m, &queues.columns, &queues.rows);
}

const SPLIT: &str = "cuts in I/Os that the device does not take whole; each makes a bio more";

/// A table of some runs, so far with their names.
fn of_runs(report: &Report, is_shown: impl Fn(&Run) -> bool) -> figures::Table<&Run> {
    let varying = Varying::of(report);
    let runs = report.runs.iter().filter(|run| is_shown(run));
    let mut table = figures::Table::of(runs.collect());
    table.words("run", "scheduler and what else differs", |run| varying.run_name(run));
    table
}

/// Adds a table: each column has a name, a meaning, and an alignment.
pub fn table<N: AsRef<str>>(m: &mut Markup, columns: &[(N, &str, Align)], rows: &[Vec<String>]) {
    let class = |align| if align == Align::Right { "right" } else { "text" };
    // Reached by the keyboard as well, since it may have to be scrolled.
    m.element("div", &[("class", &"scroll"), ("tabindex", &"0")], |m| {
        m.element("table", &[], |m| {
            m.element("thead", &[], |m| {
                m.element("tr", &[], |m| {
                    for (name, help, align) in columns {
                        m.leaf("th", &[("class", &class(*align)), ("title", help)], name.as_ref());
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
    soft(m, &says);
    m.append(&plot);
}

/// A table of the groups of each run.
fn group_tables(m: &mut Markup, report: &Report) {
    let varying = Varying::of(report);
    for run in report.runs.iter().filter(|run| !run.groups.all.is_empty()) {
        m.leaf("h2", &[], &format!("Groups with {}", varying.run_name(run)));
        let says = "A group has what those below it have. Bytes are of jobs while measuring; times are the \
                    scheduler's own, if it counted them, over the whole life of the queue.";
        soft(m, says);
        let groups = figures::groups(run);
        table(m, &groups.columns, &groups.rows);
        if let Some(waits) = figures::waits(&run.groups) {
            let says = "How long groups waited before the device, ramp included, and behind whose requests there.";
            soft(m, says);
            table(m, &waits.columns, &waits.rows);
        }
    }
}

/// Adds how many requests schedulers let to the device, and why.
fn governors(m: &mut Markup, report: &Report) {
    let mut shared = of_runs(report, |run| !run.shared.tokens.is_empty());
    if shared.rows.is_empty() {
        return;
    }
    m.leaf("h2", &[], "What the instances of a scheduler share");
    soft(m, "At the end of each run. The page of the scheduler (blkmq doc) says what it means.");
    shared.words("tokens", "of each pool: requests that may be at the device", |run| {
        Vec::from_iter(run.shared.tokens.iter().map(u32::to_string)).join(", ")
    });
    shared.words("governor", "what it shows of itself", |run| {
        pairs(run.shared.governor.iter().copied())
    });
    table(m, &shared.columns, &shared.rows);
}

#[cfg(test)]
pub mod tests {
    //! The page is well-formed, self-contained and legible. The colours of its style sheet are checked as seen with two
    //! kinds of colour blindness: both themes, all pairs.

    use super::super::model::GroupResult;
    use super::super::sample;
    use super::*;

    /// A minimal markup parser, sufficient for this page: checks nesting and quoting, and returns the tags in order.
    /// Panics if the text is not well-formed.
    pub fn tags(page: &str) -> Vec<String> {
        let (mut open, mut seen): (Vec<String>, Vec<String>) = (vec![], vec![]);
        let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a page says that it is HTML");
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "a stray '>' in {:?}", &rest[..start]);
            let end = start + tag_end(&rest[start..]);
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            let name = tag.trim_matches('/').split(' ').next().unwrap_or_default().to_owned();
            if tag.starts_with('/') {
                assert_eq!(open.pop().as_ref(), Some(&name), "</{name}> closes another element");
                continue;
            }
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            if name == "style" {
                rest = &rest[rest.find("</style>").expect("the style sheet ends")..];
            }
            seen.push(name);
        }
        assert!(open.is_empty(), "left open: {open:?}");
        seen
    }

    /// The end of the tag at the beginning of `text`, respecting quotes.
    fn tag_end(text: &str) -> usize {
        let mut is_quoted = false;
        for (at, c) in text.char_indices() {
            match c {
                '"' => is_quoted = !is_quoted,
                '<' if at > 0 => panic!("a stray '<' in {:?}", &text[..at.min(80)]),
                '>' if !is_quoted => return at,
                _ => {}
            }
        }
        panic!("a tag without an end: {text:?}");
    }

    /// The number of elements called `name`.
    pub fn count(tags: &[String], name: &str) -> usize {
        tags.iter().filter(|tag| *tag == name).count()
    }

    #[test]
    fn the_page_is_well_formed_and_has_its_parts() {
        let page = render(&sample::comparison());
        let tags = tags(&page);
        assert_eq!(count(&tags, "h1"), 1);
        assert_eq!(count(&tags, "table"), 2);
        // A heading and nine runs in each table.
        assert_eq!(count(&tags, "tr"), 20);
        // Four plots; one legend of two schedulers and two ways to share, and two kinds of merge.
        assert_eq!(count(&tags, "svg"), 4 + 2 + 2 + 2);
        // Of the first scheduler: three points of a curve, three dots for each of three latencies, seven markers and
        // the remaining points on each of three distributions, and the legend.
        assert!(count(&tags, "circle") > 3 + 9 + 3 * 7);
        for text in ["blkmq bench --rw=randread", "Some CPU @ 2.0GHz", "15.5M", "No run was"] {
            assert_eq!(page.contains(text), text != "No run was", "{text}");
        }
    }

    #[test]
    fn nothing_is_loaded_and_nothing_runs() {
        for report in [sample::comparison(), sample::hostile()] {
            let page = render(&report);
            let found = tags(&page);
            for tag in ["script", "link", "img", "iframe", "object", "base", "a"] {
                assert_eq!(count(&found, tag), 0, "<{tag}>");
            }
            for text in ["http:", "https:", "url(", "@import", " src=", " onload="] {
                assert!(!page.contains(text), "{text}");
            }
        }
    }

    #[test]
    fn text_is_escaped_wherever_it_stands() {
        let mut single = sample::hostile();
        single.runs.truncate(2);
        for report in [sample::hostile(), single] {
            let page = render(&report);
            tags(&page);
            assert!(page.contains(
                "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;quoted&quot;"
            ));
            assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }

    #[test]
    fn few_thread_counts_are_bars_and_no_merges_are_said() {
        let page = render(&sample::single());
        let tags = tags(&page);
        // Three plots, and the legend of one scheduler.
        assert_eq!(count(&tags, "svg"), 3 + 1);
        assert!(page.contains("No I/O was merged with another."));
        let empty = render(&Report::default());
        assert!(empty.contains("No run was made.") && !empty.contains("<svg"));
    }

    #[test]
    fn no_coordinate_is_a_nan() {
        let mut report = sample::comparison();
        for run in &mut report.runs {
            run.jobs.clear();
            run.repetitions.clear();
        }
        let page = render(&report);
        tags(&page);
        assert!(!page.contains("NaN") && !page.contains("inf\""));
    }

    #[test]
    fn groups_are_drawn_against_their_weights_and_listed() {
        let mut report = sample::shared();
        report.runs[1].shared = sample::governed();
        let page = render(&report);
        let found = tags(&page);
        // Tables of the runs, their jobs, their queues, their groups, in one of them their waits, and the state shared
        // by the instances of a scheduler.
        assert_eq!(count(&found, "table"), 7);
        for text in [
            "Shares of groups",
            "bfq: shop: 60.0 % / 50.0 %",
            "Groups with none",
            "read_target=2000000",
            "    shop</td>",
        ] {
            assert!(page.contains(text), "{text}");
        }
        let bars = page.split("Share of bytes of each group").nth(1).expect("a plot");
        let bars = &bars[..bars.find("</svg>").expect("it ends")];
        assert_eq!(bars.matches("<rect").count(), 10);
        // One group of each run did no I/O.
        assert_eq!(bars.matches("class=\"error\"").count(), 8);

        let many = sample::groups().all.into_iter().cycle().take(100);
        report.runs[0].groups.all =
            many.map(|group| GroupResult { parent: None, ..group }).collect();
        assert!(render(&report).contains("The first 60 of 104 groups."));
        let plain = render(&sample::comparison());
        assert!(!plain.contains("groups") && !plain.contains("tokens"));
    }

    #[test]
    fn what_happened_over_time_is_drawn_and_no_more_than_can_be_told_apart() {
        let report = sample::drawn();
        let page = render(&report);
        let tags = tags(&page);
        // A distribution and four courses with a curve for each of 24 runs, and the path of the heads.
        assert_eq!(count(&tags, "polyline"), 5 * 24 + 1);
        for heading in [
            "Latency distribution",
            "Latency over time",
            "Requests at the device over time",
            "Position of the heads",
        ] {
            assert!(page.contains(heading), "{heading}");
        }
        assert!(page.contains("The first 24 of 30 runs."));
        assert!(page.contains("the first 2000 of 3010 movements"));
        assert!(page.contains("virtual time, seed 7") && page.contains("<dt>seed</dt>"));
        assert!(page.contains("a-scheduler-with-a-very-long-name-12"));
        let plain = render(&sample::comparison());
        assert!(!plain.contains("over time") && !plain.contains("heads"), "nothing was noted");
    }

    /// The parts of the page that begin with `start`, each to its end.
    fn parts<'a>(page: &'a str, start: &str, end: &str) -> Vec<&'a str> {
        let found = page.match_indices(start).map(|(at, _)| &page[at..]);
        found.map(|rest| &rest[..rest.find(end).expect("it ends")]).collect()
    }

    #[test]
    fn every_device_has_a_scale_of_its_own_and_every_scheduler_one_look() {
        let mut report = sample::comparison();
        // A device that is a thousand times slower.
        let slow =
            ["none", "mq-deadline"].map(|name| sample::run(name, "combining", 1, 900, 1_000_000));
        for mut run in slow {
            run.device.text = "disk".into();
            report.runs.push(run);
        }
        let page = render(&report);
        tags(&page);
        let plots = parts(&page, "aria-label=\"I/Os per second", "</svg>");
        assert_eq!(plots.len(), 2, "one for each device");
        assert!(plots[1].contains(">1k<") && !plots[1].contains('M'), "{}", plots[1]);
        assert_eq!(page.matches("<h3>disk</h3>").count(), 3);
        assert_eq!(
            parts(&page, "class=\"legend", "</ul>").len(),
            2,
            "one, and that of the kinds of merge"
        );
        // Full circles belong to the first scheduler, full squares to the second.
        let classes = |tag: &str| parts(&page, &format!("<{tag} class=\"fill "), ">");
        assert!(classes("circle").iter().all(|it| it.contains("fill c0")));
        assert!(classes("polygon").iter().all(|it| it.contains("fill c1")));
        assert!(classes("circle").len() > 9 && classes("polygon").len() > 9);
    }

    #[test]
    fn no_two_labels_of_an_axis_are_alike() {
        let mut report = sample::comparison();
        for run in &mut report.runs {
            run.counters.merges =
                Merges { back: run.counters.submitted / 60_000, ..Merges::default() };
        }
        for page in [render(&report), render(&sample::drawn()), render(&sample::shared())] {
            for plot in parts(&page, "<svg viewBox=", "</svg>") {
                // The labels along one edge share a coordinate.
                let labels = parts(plot, "<text class=\"tick\"", "</text>");
                for (at, label) in labels.iter().enumerate() {
                    assert!(!labels[..at].contains(label), "{label}");
                    let (place, text) = label.split_once('>').expect("a tag ends");
                    let twin = |other: &&&str| {
                        let (there, same) = other.split_once('>').expect("a tag ends");
                        same == text && edge(there) == edge(place)
                    };
                    assert!(labels[..at].iter().find(twin).is_none(), "{label}");
                }
            }
        }
    }

    /// The edge of the plot at which a label is placed.
    fn edge(place: &str) -> String {
        let of = |name: &str| {
            place.split(name).nth(1).and_then(|it| it.split('"').next()).map(String::from)
        };
        let along = if place.contains("anchor=\"end\"") { " x=\"" } else { " y=\"" };
        format!("{along}{:?}", of(along))
    }

    /// A plot as wide as the screen would have text of 5 px on a telephone.
    #[test]
    fn text_can_be_read_on_a_narrow_screen() {
        let sheet = include_str!("html.css");
        let number = |before: &str| -> f64 {
            let (_, rest) = sheet.split_once(before).expect(before);
            let digits: String =
                rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            digits.parse().expect("a number")
        };
        let (font, least) =
            (number("height: auto; font-size: "), number(".plot svg { min-width: "));
        let page = render(&sample::drawn());
        for plot in parts(&page, "<svg viewBox=\"0 0 860", ">") {
            assert!(plot.contains("role=\"img\""), "{plot}");
        }
        assert!(font * least / 860.0 >= 9.0, "{font} px of 860 on {least}");
        let wrapped = page.matches("<div class=\"plot\"><svg viewBox=\"0 0 860").count();
        assert_eq!(
            wrapped,
            page.matches("viewBox=\"0 0 860").count(),
            "every plot can be scrolled"
        );
        let tables = page.matches("<div class=\"scroll\" tabindex=\"0\"><table").count();
        assert_eq!(tables, page.matches("<table").count(), "and every table");
        assert!(sheet.contains(".scroll, .plot { overflow-x: auto; max-width: 100%; }"));
    }

    /// Regression test: reads of a disk together with writes to its cache had a median between the two, which no I/O
    /// took.
    #[test]
    fn kinds_of_io_have_plots_of_their_own() {
        let mut report = sample::comparison();
        let one = render(&report);
        assert!(one.contains("<h2>Completion latency</h2>") && !one.contains("of reads</h2>"));
        let reads = report.runs[0].jobs[0].read.clone();
        report.runs[0].jobs[0].write = reads;
        let two = render(&report);
        for heading in ["Completion latency of reads", "Latency distribution of writes"] {
            assert!(two.contains(&format!("<h2>{heading}</h2>")), "{heading}");
        }
        assert!(!two.contains("<h2>Completion latency</h2>"));
    }

    /// The least distance of two colours of a theme (CIE76). About 2.3 can just be noticed side by side.
    const LEAST: f64 = 20.0;

    /// The least distance of the first four, which the built-in schedulers have.
    const LEAST_OF_FOUR: f64 = 30.0;

    /// The least contrast of a colour to the page, as for large text and graphics.
    const CONTRAST: f64 = 3.0;

    /// The minimum distance of two greys of the kinds of merge, which are adjacent in one bar.
    const LEAST_OF_GREYS: f64 = 10.0;

    type Matrix = [[f64; 3]; 3];

    /// Linear sRGB as seen with all cones, without long-wave cones (protanopia), and without middle-wave cones
    /// (deuteranopia): the matrices of Machado, Oliveira and Fernandes (2009), severity 1.
    const SIGHTS: [(&str, Matrix); 3] = [
        ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
        ),
    ];

    /// From linear sRGB to CIE XYZ.
    const XYZ: Matrix = [
        [0.412_456_4, 0.357_576_1, 0.180_437_5],
        [0.212_672_9, 0.715_152_2, 0.072_175_0],
        [0.019_333_9, 0.119_192_0, 0.950_304_1],
    ];

    fn times(matrix: &Matrix, v: [f64; 3]) -> [f64; 3] {
        std::array::from_fn(|row| (0..3).map(|at| matrix[row][at] * v[at]).sum())
    }

    fn linear(hex: &str) -> [f64; 3] {
        std::array::from_fn(|at| {
            let part = &hex[1 + 2 * at..][..2];
            let value = f64::from(u8::from_str_radix(part, 16).expect("two digits")) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn lab(rgb: [f64; 3]) -> [f64; 3] {
        let white = [0.950_47, 1.0, 1.088_83];
        let xyz = times(&XYZ, rgb.map(|value| value.clamp(0.0, 1.0)));
        let f = |t: f64| {
            if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 }
        };
        let [x, y, z] = std::array::from_fn(|at| f(xyz[at] / white[at]));
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }

    fn luminance(hex: &str) -> f64 {
        times(&XYZ, linear(hex))[1]
    }

    /// A colour of a theme.
    fn colour(sheet: &str, name: &str) -> String {
        let (_, rest) = sheet.split_once(&format!("--{name}: ")).expect(name);
        rest[..7].to_owned()
    }

    /// The colours of a theme, and its page.
    fn theme(sheet: &str) -> (Vec<String>, String) {
        let colour = |name: &str| colour(sheet, name);
        let colours = (0..svg::COLOURS).map(|at| colour(&format!("c{at}"))).collect();
        (colours, colour("page"))
    }

    #[test]
    fn every_reader_can_tell_the_colours_apart() {
        check(include_str!("html.css"));
    }

    /// The live page of a server uses the same colours, so the same checks apply.
    #[test]
    fn every_reader_of_the_live_page_can_tell_the_colours_apart() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/src/http/page/style.css");
        let sheet = std::fs::read_to_string(page).expect("the repository has it");
        check(&sheet);
        let (light, dark) = sheet.split_once("prefers-color-scheme: dark").expect("two themes");
        let own = include_str!("html.css").split_once("prefers-color-scheme: dark");
        let own = own.expect("two themes");
        assert_eq!((theme(light), theme(dark)), (theme(own.0), theme(own.1)));
    }

    fn check(sheet: &str) {
        let (light, dark) =
            sheet.split_once("prefers-color-scheme: dark").expect("there are two themes");
        for (name, sheet) in [("light", light), ("dark", dark)] {
            let (colours, page) = theme(sheet);
            for colour in &colours {
                let (a, b) = (luminance(colour), luminance(&page));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= CONTRAST, "{name}: {colour} on {page}: {contrast:.2}");
            }
            for (sight, matrix) in &SIGHTS {
                let seen: Vec<_> =
                    colours.iter().map(|it| lab(times(matrix, linear(it)))).collect();
                for (a, b) in (0..seen.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
                    let least = if b < 4 { LEAST_OF_FOUR } else { LEAST };
                    let apart = distance(seen[a], seen[b]);
                    let (one, other) = (&colours[a], &colours[b]);
                    assert!(apart >= least, "{name}, {sight}: {one} and {other}: {apart:.1}");
                }
            }
        }
    }

    #[test]
    fn kinds_of_merge_have_greys_that_differ() {
        let sheet = include_str!("html.css");
        let (light, dark) =
            sheet.split_once("prefers-color-scheme: dark").expect("there are two themes");
        for sheet in [light, dark] {
            let greys = svg::KINDS.map(|name| lab(linear(&colour(sheet, name))));
            for (a, b) in (0..greys.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
                assert!(greys[a][1].abs() + greys[a][2].abs() < 1.0, "no colour");
                assert!(distance(greys[a], greys[b]) >= LEAST_OF_GREYS, "{a} and {b}");
            }
        }
    }
}
