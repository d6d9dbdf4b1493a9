//! The results for the terminal, as one HTML page and as JSON: for each claim the published figures, the answers
//! measured here, and their interpretation.
//!
//! JSON has `claims`, each with its `published` figures, its `studies`, and the sentences `findings`. A study has a row
//! for each run, in the order of `blkmq experiment` and with its `command`, and the `answers`: for each figure the
//! median of each alternative, and its difference from the first, with an interval. Times are in nanoseconds. `partial`
//! gives the numbers of finished `runs` and of those `planned`, if a `signal` ended the measurement.

use super::{Claim, Found, Measured, Published, Repro, Source};
use crate::experiment::answer::percent;
use crate::experiment::rows::show;
use crate::report::figures::text_table;
use crate::report::html::{list, page, soft, table};
use crate::report::judgement::warnings;
use crate::report::model::{Machine, Report};
use crate::report::svg::Markup;
use crate::report::wording::{bytes, counted, date};
use blkmq_terminal::paper::{Align, Paper, paragraph, push_line};
use serde_json::{Value, json};

/// The columns of published figures, each with its meaning.
const COLUMNS: [(&str, &str, Align); 5] = [
    ("measured with", "as published", Align::Left),
    ("figure", "the measured quantity", Align::Left),
    ("before", "as the kernel was", Align::Right),
    ("as proposed", "with the proposed change", Align::Right),
    ("difference", "the second relative to the first", Align::Right),
];

/// How the answers are computed.
const METHOD: &str = "Measured differences are those from the first row of their kind, over pairs of runs that follow \
                          one another, and stand beside their 95 % intervals; below 1 % there is none.";

/// Formats the results as lines of at most `width` columns.
pub fn render_text(repro: &Repro, width: usize) -> String {
    let mut out = Paper::new(width);
    if let Some(partial) = repro.partial {
        paragraph(&mut out, "", &partial.to_string());
        out.push('\n');
    }
    if repro.claims.is_empty() {
        out.push_str("Nothing was measured.\n");
    }
    for measured in &repro.claims {
        claim(&mut out, measured);
        out.push('\n');
    }
    paragraph(&mut out, "", METHOD);
    let Machine { os, kernel, .. } = &repro.machine;
    let machine = machine(&repro.machine);
    paragraph(&mut out, "", &format!("Measured on {machine}; {os}, kernel {kernel}."));
    for warning in doubts(repro) {
        paragraph(&mut out, "Warning: ", &warning);
    }
    out.finish()
}

/// Describes the processor and the memory of the machine.
fn machine(machine: &Machine) -> String {
    let Machine { cpu_model, cores, memory_bytes, .. } = machine;
    format!("{cpu_model}, {}, {}", counted((*cores).into(), "core"), bytes(*memory_bytes as f64))
}

/// Reasons for doubt about every figure of this machine.
fn doubts(repro: &Repro) -> Vec<String> {
    let of_machine = Report { machine: repro.machine.clone(), ..Report::default() };
    warnings(&of_machine).into_iter().map(|warning| warning.text).collect()
}

/// The source of published figures, with its hardware and workload.
fn cited(source: &Source) -> String {
    format!("Published by {}; {}; {}.", source.by, source.hardware, source.workload)
}

/// The rows of published figures.
fn published(source: &Source) -> Vec<Vec<String>> {
    let row = |row: &Published| {
        let [before, proposed] = [row.before, row.proposed].map(|value| show(&row.metric, value));
        vec![
            row.what.clone(),
            row.metric.clone(),
            before,
            proposed,
            percent(row.proposed / row.before - 1.0),
        ]
    };
    source.figures.iter().map(row).collect()
}

/// Returns sentences about the figure of the claim, the outcome of kicks, and the limits of this machine.
fn sentences(measured: &Measured) -> Vec<String> {
    let mut all = Vec::new();
    for found in &measured.found {
        let first = found.points.study.compare.metrics.first();
        let answers = found.result().sentences(|metric| Some(&metric.to_string()) == first);
        let of = if found.of.is_empty() { String::new() } else { format!("{}, ", found.of) };
        all.extend(answers.iter().map(|answer| format!("{of}{answer}.")));
    }
    all.extend(measured.calls.clone());
    all.extend(measured.claim.limits.iter().cloned());
    all
}

fn claim(out: &mut Paper, measured: &Measured) {
    let Claim { name, title, claim, workload, published: sources, .. } = &measured.claim;
    let heading = format!("{name}: {title}");
    push_line(out, 0, &heading);
    push_line(out, 0, &"=".repeat(heading.len()));
    paragraph(out, "", claim);
    for source in sources {
        out.push('\n');
        paragraph(out, "", &cited(source));
        out.table(&text_table(&COLUMNS, &published(source)));
        if !source.remark.is_empty() {
            paragraph(out, "", &source.remark);
        }
    }
    out.push('\n');
    paragraph(out, "", &format!("Measured here: {workload}."));
    for found in &measured.found {
        if !found.of.is_empty() {
            out.push('\n');
            push_line(out, 0, &format!("{}:", found.of));
        }
        found.result().table(out);
    }
    out.push('\n');
    for sentence in sentences(measured) {
        paragraph(out, "- ", &sentence);
    }
    for note in &measured.notes {
        paragraph(out, "Note: ", note);
    }
}

/// The results as an HTML document.
pub fn render_html(repro: &Repro) -> String {
    let title = "blkmq repro: what was published, measured here";
    page(title, |m| {
        m.leaf("h1", &[], title);
        let when = format!("{} UTC, {}", date(repro.time_ms), machine(&repro.machine));
        soft(m, &when);
        let partial = repro.partial.map(|partial| partial.to_string());
        list(m, "warnings", partial.as_slice());
        list(m, "warnings", &doubts(repro));
        if repro.claims.is_empty() {
            m.leaf("p", &[], "Nothing was measured.");
        }
        for measured in &repro.claims {
            section(m, measured);
        }
        m.leaf("h2", &[], "How it was measured");
        m.leaf("pre", &[], &repro.command);
        soft(m, METHOD);
        let (machine, version) = (&repro.machine, env!("CARGO_PKG_VERSION"));
        let says = format!("blkmq {version}; {}, kernel {}.", machine.os, machine.kernel);
        soft(m, &says);
    })
}

fn section(m: &mut Markup, measured: &Measured) {
    let claim = &measured.claim;
    m.leaf("h2", &[], &format!("{}: {}", claim.name, claim.title));
    m.leaf("p", &[], &claim.claim);
    list(m, "findings", &sentences(measured));
    let notes: Vec<String> = measured.notes.iter().map(|note| format!("Note: {note}")).collect();
    list(m, "notes", &notes);
    soft(m, &format!("Measured here: {}.", claim.workload));
    for found in &measured.found {
        if !found.of.is_empty() {
            m.leaf("h3", &[], &found.of);
        }
        found.result().draw(m, "h3");
    }
    for source in &claim.published {
        soft(m, &cited(source));
        table(m, &COLUMNS, &published(source));
        if !source.remark.is_empty() {
            soft(m, &source.remark);
        }
    }
}

/// The results as a JSON text that ends in a newline.
pub fn render_json(repro: &Repro) -> String {
    let mut document = json!({
        "blkmq": env!("CARGO_PKG_VERSION"),
        "command": repro.command,
        "timestamp_ms": repro.time_ms,
        "time": date(repro.time_ms),
        "machine": repro.machine,
        "warnings": doubts(repro),
        "claims": Vec::from_iter(repro.claims.iter().map(claim_json)),
    });
    if let Some(partial) = repro.partial {
        document["partial"] = json!(partial);
    }
    format!("{document:#}\n")
}

fn claim_json(measured: &Measured) -> Value {
    let mut value = json!(measured.claim);
    value["studies"] = measured.found.iter().map(study_json).collect();
    value["findings"] = json!(sentences(measured));
    value["notes"] = json!(measured.notes);
    value
}

fn study_json(found: &Found) -> Value {
    let rows = found.rows.iter().enumerate().map(|(index, row)| {
        let mut value = json!(row);
        value["command"] = json!(found.points.command(index));
        value
    });
    json!({
        "of": found.of,
        "compare": found.points.study.compare,
        "rows": Vec::from_iter(rows),
        "answers": found.questions,
    })
}

#[cfg(test)]
pub mod tests {
    use super::super::Claim;
    use super::*;
    use crate::experiment::Row;
    use crate::experiment::rows::{JobRow, KindRow, OF_RUN};
    use crate::experiment::study::Study;
    use crate::report::html::tests::{count, tags};
    use crate::report::model::Machine;
    use blkmq_core::Nanos;
    use std::collections::BTreeMap;

    /// The claim `name` with a row for each point, in which the rate of its job is `iops` of the words of the point,
    /// and every other figure is constant.
    fn measured(name: &str, iops: fn(&str) -> f64) -> Measured {
        let claim = Claim::all().into_iter().find(|claim| claim.name == name);
        let mut claim = claim.expect("a claim");
        claim.prepare(Nanos::from_secs(2), &[2], (2, ""));
        let mut measured = Measured::of(claim).expect("points");
        measured.notes.push("a note".into());
        for found in &mut measured.found {
            let points = &found.points;
            let figures = OF_RUN.iter().map(|figure| (figure.name.to_owned(), 0.5));
            let percentiles_ns = BTreeMap::from([("99".into(), 1_000)]);
            let (mean_ns, max_ns) = (Some(500.0), Some(1_000));
            let kind =
                KindRow { ios: 8, bytes: 8 * 4096, iops: 8.0, mean_ns, max_ns, percentiles_ns };
            let names = points.study.compare.metrics.iter().filter_map(|it| it.split_once('.'));
            let name = names.map(|(job, _)| job).next().expect("the rate of a job");
            let row = |index| Row {
                id: points.id(index),
                values: Study::point(&points.axes, index),
                run: figures.clone().collect(),
                jobs: vec![JobRow {
                    name: name.into(),
                    runtime_ns: 1,
                    iops: iops(&points.label(index)),
                    bytes_per_s: 0.0,
                    kinds: BTreeMap::from([("write".into(), kind.clone())]),
                }],
                groups: Vec::new(),
                notes: Vec::new(),
            };
            found.rows = (0..points.len()).map(row).collect();
            found.answer().expect("every figure is there");
        }
        measured
    }

    /// Two claims on a small machine, of which one has a study and one has three.
    pub(in crate::repro) fn both() -> Repro {
        let contention = measured("contention", |words| match words {
            _ if words.contains("spin") => 1e6,
            _ if words.contains("mutex") => 1.5e6,
            _ if words.contains("serialised") => 2e6,
            _ => 4e6,
        });
        Repro {
            partial: None,
            command: "blkmq repro contention depth".into(),
            time_ms: 1_795_259_797_343,
            machine: Machine {
                cpu_model: "Some CPU @ 2.0GHz".into(),
                cores: 2,
                memory_bytes: 8 << 30,
                os: "Some OS 12".into(),
                kernel: "6.1.0".into(),
                ..Machine::default()
            },
            claims: vec![contention, measured("depth", |_| 100e3)],
        }
    }

    /// Returns [`both`] with text that would break a writer that does not escape, in every field of text.
    pub(in crate::repro) fn hostile() -> Repro {
        let evil = "<script>alert('x')</script> & \"quoted\", \u{1b}[31mred\u{7}\nnext";
        let mut repro = both();
        repro.command = evil.into();
        repro.machine.cpu_model = evil.into();
        repro.machine.hypervisor = Some(evil.into());
        repro.claims.iter_mut().for_each(|measured| measured.notes = vec![evil.into()]);
        repro
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for repro in [both(), hostile()] {
            for width in 60..=200 {
                let text = render_text(&repro, width);
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{width}");
            }
        }
    }

    #[test]
    fn published_and_measured_figures_stand_together() {
        let (text, expected) = (render_text(&both(), 200), include_str!("testdata/both.txt"));
        for (number, (line, wanted)) in text.lines().zip(expected.lines()).enumerate() {
            assert_eq!(line, wanted, "line {}", number + 1);
        }
        assert_eq!(text.lines().count(), expected.lines().count(), "{text}");
    }

    #[test]
    fn no_control_character_reaches_the_terminal_and_nothing_is_said_of_nothing() {
        let text = render_text(&hostile(), 200);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(render_text(&Repro::default(), 200).starts_with("Nothing was measured.\n"));
    }

    #[test]
    fn a_guest_is_doubted() {
        let mut repro = both();
        assert!(!render_text(&repro, 200).contains("Warning"));
        repro.machine.hypervisor = Some("KVM".into());
        assert!(
            render_text(&repro, 200).contains("\nWarning: This is a virtual machine (vendor: KVM)")
        );
    }

    #[test]
    fn each_claim_has_its_plots_and_tables() {
        let page = render_html(&both());
        let found = tags(&page);
        assert_eq!(count(&found, "h1"), 1);
        // Answers and two sources; three answers and one source.
        assert_eq!(count(&found, "table"), (1 + 2) + (3 + 1));
        // Three figures in the single study of one claim, and in each of the three studies of the other.
        assert_eq!(count(&found, "svg"), 3 + 3 * 3);
        for text in ["ours (combining)", "desktop with a Ryzen 7950X", "further right is better"] {
            assert!(page.contains(text), "{text}");
        }
        let empty = render_html(&Repro::default());
        assert!(empty.contains("Nothing was measured.") && !empty.contains("<svg"));
    }

    #[test]
    fn text_is_escaped_and_nothing_is_loaded() {
        let page = render_html(&hostile());
        let found = tags(&page);
        for tag in ["script", "link", "img", "a"] {
            assert_eq!(count(&found, tag), 0, "<{tag}>");
        }
        assert!(page.contains("&lt;script&gt;") && !page.contains("http:"));
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn a_claim_of_which_nothing_was_measured_has_no_plot() {
        let mut repro = both();
        for found in repro.claims.iter_mut().flat_map(|measured| &mut measured.found) {
            found.rows.clear();
            found.answer().expect("no answers");
        }
        let page = render_html(&repro);
        assert_eq!(count(&tags(&page), "svg"), 0);
        assert!(!page.contains("NaN"));
    }

    fn parsed(repro: &Repro) -> Value {
        serde_json::from_str(&render_json(repro)).expect("JSON")
    }

    #[test]
    fn everything_is_in_it() {
        let json = parsed(&both());
        let contention = &json["claims"][0];
        assert_eq!(
            (&contention["name"], &contention["title"]),
            (&json!("contention"), &json!("One lock around a scheduler does not scale"))
        );
        let study = &contention["studies"][0];
        let row = &study["rows"][3];
        let command = row["command"].as_str().expect("a command");
        assert!(command.starts_with("blkmq bench --device=null,"), "{command}");
        assert!(command.contains("--access=combining --numjobs=2 --randseed=1"), "{command}");
        assert_eq!(
            (&row["values"]["access"], &row["jobs"][0]["iops"]),
            (&json!("combining"), &json!(4e6))
        );
        let answer = &study["answers"][0]["answers"][3];
        assert_eq!((&answer["value"], &answer["median"]), (&json!("combining"), &json!(4e6)));
        assert_eq!(answer["difference"]["verdict"], "higher");
        assert_eq!(study["compare"]["names"]["combining"], "ours");
        let published = &contention["published"][0]["figures"][0];
        assert_eq!((&published["before"], &published["proposed"]), (&json!(879e3), &json!(2311e3)));
        assert!(contention["limits"][0].as_str().expect("text").contains("cores here: 2."));
        assert_eq!(json["claims"][1]["studies"][2]["of"], "device of depth 128");
        assert_eq!(
            (&json["time"], &json["machine"]["cores"]),
            (&json!("Sat Nov 21 11:16:37 2026"), &json!(2))
        );
    }

    #[test]
    fn any_text_survives() {
        let repro = hostile();
        let json = parsed(&repro);
        assert_eq!(json["command"], repro.command.as_str());
        assert_eq!(json["claims"][0]["notes"][0], repro.claims[0].notes[0].as_str());
        assert_eq!(parsed(&Repro::default())["claims"], json!([]));
    }
}
