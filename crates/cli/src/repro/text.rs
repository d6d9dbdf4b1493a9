//! The results for the terminal: for each claim the published figures, the figures measured here, and the meaning of
//! both.

use super::findings::{findings, limits};
use super::model::{Experiment, Repro};
use super::published::{Published, Source, published};
use super::table::{self, Table};
use crate::report::machine::Machine;
use crate::report::number::{bytes, counted};
use blkmq_terminal::paper::{Paper, paragraph, push_line};
use blkmq_terminal::text_table::{Align, TextTable};

/// The results as lines of text, no line wider than `width`.
pub fn render(repro: &Repro, width: usize) -> String {
    let mut out = Paper::new(width);
    if let Some(partial) = repro.partial {
        paragraph(&mut out, "", &partial.to_string());
        out.push('\n');
    }
    if repro.experiments.is_empty() {
        out.push_str("Nothing was measured.\n");
    }
    for experiment in &repro.experiments {
        claim(&mut out, experiment, &repro.machine);
        out.push('\n');
    }
    let Machine { os, kernel, .. } = &repro.machine;
    paragraph(&mut out, "", &format!("Measured on {}; {os}, kernel {kernel}.", machine(repro)));
    out.finish()
}

/// The processor and the memory of the machine, in a few words.
pub fn machine(repro: &Repro) -> String {
    let Machine { cpu_model, cores, memory_bytes, .. } = &repro.machine;
    format!("{cpu_model}, {}, {}", counted((*cores).into(), "core"), bytes(*memory_bytes as f64))
}

fn claim(out: &mut Paper, experiment: &Experiment, machine: &Machine) {
    let Published { title, claim, tables, .. } = published(experiment.name);
    let heading = format!("{}: {title}", experiment.name.word());
    push_line(out, 0, &heading);
    push_line(out, 0, &"=".repeat(heading.len()));
    paragraph(out, "", claim);
    for source in *tables {
        out.push('\n');
        paragraph(out, "", &format!("Published by {}", cited(source)));
        push_table(out, &table::published(source));
        if !source.remark.is_empty() {
            paragraph(out, "", source.remark);
        }
    }
    out.push('\n');
    paragraph(out, "", &format!("Measured here: {}.", experiment.workload));
    push_table(out, &table::measured(experiment));
    if let Some(timelines) = table::timelines(experiment) {
        out.push('\n');
        push_table(out, &timelines);
    }
    out.push('\n');
    for sentence in findings(experiment).iter().chain(&limits(experiment, machine)) {
        paragraph(out, "- ", sentence);
    }
    for note in &experiment.notes {
        paragraph(out, "Note: ", note);
    }
}

/// The source of published figures, with its hardware and workload.
pub fn cited(source: &Source) -> String {
    format!("{}; {}; {}.", source.by, source.hardware, source.workload)
}

fn push_table(out: &mut Paper, table: &Table) {
    let columns = table.columns.iter().map(|(name, _, align)| ((*name).to_owned(), *align));
    let mut text = TextTable::new(columns.collect());
    // A setting is a number, and tells rows apart as the words around it do.
    let words = table.columns.iter().rposition(|(_, _, align)| *align == Align::Left);
    text.keys(words.map_or(1, |last| last + 1));
    table.rows.iter().for_each(|row| text.row(row));
    out.table(&text);
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn render(repro: &Repro) -> String {
        super::render(repro, 200)
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for repro in [sample::both(), sample::hostile()] {
            for width in 60..=200 {
                let text = super::render(&repro, width);
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{width}");
            }
        }
    }

    /// Rows of a second part had no names: those stood behind a number.
    #[test]
    fn each_part_of_a_table_names_its_rows() {
        let text = super::render(&sample::both(), 72);
        let lines = Vec::from_iter(text.lines());
        let heads = lines
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair[0].starts_with("scheduler ") && pair[1].starts_with("---"));
        let rows = |at: usize| lines[at + 2..].iter().take_while(|line| !line.is_empty());
        let named = Vec::from_iter(heads.map(|(at, _)| rows(at).any(|row| row.contains("ours "))));
        assert!(named.len() > 2 && named.iter().all(|named| *named), "{text}");
    }

    #[test]
    fn what_was_published_and_what_was_measured_stand_together() {
        let (text, expected) = (render(&sample::both()), include_str!("testdata/both.txt"));
        for (number, (line, wanted)) in text.lines().zip(expected.lines()).enumerate() {
            assert_eq!(line, wanted, "line {}", number + 1);
        }
        assert_eq!(text.lines().count(), expected.lines().count(), "{text}");
    }

    #[test]
    fn no_control_character_reaches_the_terminal_and_nothing_is_said_of_nothing() {
        let text = render(&sample::hostile());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(render(&Repro::default()).starts_with("Nothing was measured.\n"));
    }
}
