//! The results for the terminal: for each claim the published figures, the answers measured here, and their
//! interpretation.

use super::claim::{Claim, Published, Source};
use super::measure::{Measured, Repro};
use crate::experiment::answer::percent;
use crate::experiment::figure::show;
use crate::report::machine::Machine;
use crate::report::model::Report;
use crate::report::number::{bytes, counted};
use crate::report::warnings::warnings;
use blkmq_terminal::paper::{Paper, paragraph, push_line};
use blkmq_terminal::text_table::{Align, TextTable};

/// The columns of published figures, each with its meaning.
pub const COLUMNS: [(&str, &str, Align); 5] = [
    ("measured with", "as published", Align::Left),
    ("figure", "the measured quantity", Align::Left),
    ("before", "as the kernel was", Align::Right),
    ("as proposed", "with the proposed change", Align::Right),
    ("difference", "the second relative to the first", Align::Right),
];

/// How the answers are computed.
pub const METHOD: &str = "Measured differences are those from the first row of their kind, over pairs of runs that follow \
                          one another, and stand beside their 95 % intervals; below 1 % there is none.";

/// Formats the results as lines of at most `width` columns.
pub fn render(repro: &Repro, width: usize) -> String {
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
pub fn machine(machine: &Machine) -> String {
    let Machine { cpu_model, cores, memory_bytes, .. } = machine;
    format!("{cpu_model}, {}, {}", counted((*cores).into(), "core"), bytes(*memory_bytes as f64))
}

/// Reasons for doubt about every figure of this machine.
pub fn doubts(repro: &Repro) -> Vec<String> {
    let of_machine = Report { machine: repro.machine.clone(), ..Report::default() };
    warnings(&of_machine).iter().map(ToString::to_string).collect()
}

/// The source of published figures, with its hardware and workload.
pub fn cited(source: &Source) -> String {
    format!("Published by {}; {}; {}.", source.by, source.hardware, source.workload)
}

/// The rows of published figures.
pub fn published(source: &Source) -> Vec<Vec<String>> {
    let row = |row: &Published| {
        let [before, proposed] = [row.before, row.proposed].map(|value| show(&row.metric, value));
        vec![row.what.clone(), row.metric.clone(), before, proposed, percent(row.relative())]
    };
    source.figures.iter().map(row).collect()
}

/// Returns sentences about the figure of the claim, the outcome of kicks, and the limits of this machine.
pub fn sentences(measured: &Measured) -> Vec<String> {
    let mut all = Vec::new();
    for found in &measured.found {
        let first = found.points.study().compare.metrics.first();
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
        let columns = COLUMNS.map(|(name, _, align)| (name.to_owned(), align));
        let mut table = TextTable::new(columns.into());
        published(source).iter().for_each(|row| table.row(row));
        out.table(&table);
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

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for repro in [sample::both(), sample::hostile()] {
            for width in 60..=200 {
                let text = render(&repro, width);
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{width}");
            }
        }
    }

    #[test]
    fn published_and_measured_figures_stand_together() {
        let (text, expected) = (render(&sample::both(), 200), include_str!("testdata/both.txt"));
        for (number, (line, wanted)) in text.lines().zip(expected.lines()).enumerate() {
            assert_eq!(line, wanted, "line {}", number + 1);
        }
        assert_eq!(text.lines().count(), expected.lines().count(), "{text}");
    }

    #[test]
    fn no_control_character_reaches_the_terminal_and_nothing_is_said_of_nothing() {
        let text = render(&sample::hostile(), 200);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(render(&Repro::default(), 200).starts_with("Nothing was measured.\n"));
    }

    #[test]
    fn a_guest_is_doubted() {
        let mut repro = sample::both();
        assert!(!render(&repro, 200).contains("Warning"));
        repro.machine.hypervisor = Some("KVM".into());
        assert!(render(&repro, 200).contains("\nWarning: This is a virtual machine (vendor: KVM)"));
    }
}
