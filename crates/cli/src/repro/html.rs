//! The results as one HTML page, made of the same parts as the reports of `blkmq bench`.

use super::findings::{findings, limits};
use super::model::{Experiment, Repro, Variant};
use super::plot;
use super::published::published;
use super::table::{self, Table};
use super::text::{cited, machine};
use crate::report::html::{legend, list, page, table as html_table};
use crate::report::markup::Markup;
use crate::report::number::date;
use crate::report::svg::Swatch;

/// The results as an HTML document.
pub fn render(repro: &Repro) -> String {
    let title = "blkmq repro: what was published, measured here";
    page(title, |m| {
        m.leaf("h1", &[], title);
        let when = format!("{} UTC, {}", date(repro.time_ms), machine(repro));
        m.leaf("p", &[("class", &"soft")], &when);
        let partial = repro.partial.map(|partial| partial.to_string());
        list(m, "warnings", partial.as_slice());
        if repro.experiments.is_empty() {
            m.leaf("p", &[], "Nothing was measured.");
        }
        for experiment in &repro.experiments {
            section(m, repro, experiment);
        }
        m.leaf("h2", &[], "How it was measured");
        m.leaf("pre", &[], &repro.command);
        let machine = &repro.machine;
        let says = format!("blkmq {}; {}, kernel {}.", repro.version, machine.os, machine.kernel);
        m.leaf("p", &[("class", &"soft")], &says);
    })
}

fn section(m: &mut Markup, repro: &Repro, experiment: &Experiment) {
    let published = published(experiment.name);
    m.leaf("h2", &[], &format!("{}: {}", experiment.name.word(), published.title));
    m.leaf("p", &[], published.claim);
    let mut sentences = findings(experiment);
    sentences.extend(limits(experiment, &repro.machine));
    list(m, "findings", &sentences);
    let notes: Vec<String> = experiment.notes.iter().map(|note| format!("Note: {note}")).collect();
    list(m, "notes", &notes);
    let mut bars = Markup::default();
    if plot::bars(&mut bars, experiment) {
        let metric = experiment.name.metric();
        let better = if metric.less_is_better() { "Less" } else { "More" };
        let says = format!("Measured here: {}. {better} is better.", experiment.workload);
        m.leaf("p", &[("class", &"soft")], &says);
        let entries = Variant::ALL.map(|variant| (variant.word(), plot::class(variant).to_owned()));
        legend(m, Swatch::Bar, entries.into_iter());
        m.append(&bars);
    }
    push_table(m, &table::measured(experiment));
    if let Some(timelines) = table::timelines(experiment) {
        push_table(m, &timelines);
    }
    for source in published.tables {
        m.leaf("p", &[("class", &"soft")], &format!("Published by {}", cited(source)));
        push_table(m, &table::published(source));
        if !source.remark.is_empty() {
            m.leaf("p", &[("class", &"soft")], source.remark);
        }
    }
}

fn push_table(m: &mut Markup, table: &Table) {
    html_table(m, &table.columns, &table.rows);
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::report::html::tests::{count, tags};

    #[test]
    fn each_claim_has_its_plot_and_tables() {
        let page = render(&sample::both());
        let found = tags(&page);
        assert_eq!(count(&found, "h1"), 1);
        // Measured, two published; and measured, timelines, one published.
        assert_eq!(count(&found, "table"), 3 + 3);
        // A plot and a legend of three for each.
        assert_eq!(count(&found, "svg"), 2 * (1 + 3));
        // A bar for each row, and the legends'.
        assert_eq!(count(&found, "rect"), 6 + 3 + 2 * 3);
        for text in [
            "as proposed, mq-deadline, 4 threads: serialised: 1.50M, 3.00x",
            "desktop with a Ryzen 7950X",
            "More is better.",
            "in 10.0 ms",
        ] {
            assert!(page.contains(text), "{text}");
        }
        let empty = render(&Repro::default());
        assert!(empty.contains("Nothing was measured.") && !empty.contains("<svg"));
    }

    #[test]
    fn text_is_escaped_and_nothing_is_loaded() {
        let page = render(&sample::hostile());
        let found = tags(&page);
        for tag in ["script", "link", "img", "a"] {
            assert_eq!(count(&found, tag), 0, "<{tag}>");
        }
        assert!(page.contains("&lt;script&gt;") && !page.contains("http:"));
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn a_claim_of_which_nothing_was_measured_has_no_plot() {
        let mut repro = sample::both();
        for experiment in &mut repro.experiments {
            experiment.points.iter_mut().for_each(|point| point.figures.clear());
        }
        let page = render(&repro);
        assert_eq!(count(&tags(&page), "svg"), 0);
        assert!(!page.contains("NaN"));
    }
}
