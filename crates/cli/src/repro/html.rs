//! The results as one HTML page, composed of the parts of an experiment's page.

use super::measure::{Measured, Repro};
use super::text::{COLUMNS, METHOD, cited, doubts, machine, published, sentences};
use crate::report::html::{list, page, table};
use crate::report::markup::Markup;
use crate::report::number::date;

/// The results as an HTML document.
pub fn render(repro: &Repro) -> String {
    let title = "blkmq repro: what was published, measured here";
    page(title, |m| {
        m.leaf("h1", &[], title);
        let when = format!("{} UTC, {}", date(repro.time_ms), machine(&repro.machine));
        m.leaf("p", &[("class", &"soft")], &when);
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
        m.leaf("p", &[("class", &"soft")], METHOD);
        let (machine, version) = (&repro.machine, env!("CARGO_PKG_VERSION"));
        let says = format!("blkmq {version}; {}, kernel {}.", machine.os, machine.kernel);
        m.leaf("p", &[("class", &"soft")], &says);
    })
}

fn section(m: &mut Markup, measured: &Measured) {
    let claim = &measured.claim;
    m.leaf("h2", &[], &format!("{}: {}", claim.name, claim.title));
    m.leaf("p", &[], &claim.claim);
    list(m, "findings", &sentences(measured));
    let notes: Vec<String> = measured.notes.iter().map(|note| format!("Note: {note}")).collect();
    list(m, "notes", &notes);
    m.leaf("p", &[("class", &"soft")], &format!("Measured here: {}.", claim.workload));
    for found in &measured.found {
        if !found.of.is_empty() {
            m.leaf("h3", &[], &found.of);
        }
        found.result().draw(m, "h3");
    }
    for source in &claim.published {
        m.leaf("p", &[("class", &"soft")], &cited(source));
        table(m, &COLUMNS, &published(source));
        if !source.remark.is_empty() {
            m.leaf("p", &[("class", &"soft")], &source.remark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::report::html::tests::{count, tags};

    #[test]
    fn each_claim_has_its_plots_and_tables() {
        let page = render(&sample::both());
        let found = tags(&page);
        assert_eq!(count(&found, "h1"), 1);
        // Answers and two sources; three answers and one source.
        assert_eq!(count(&found, "table"), (1 + 2) + (3 + 1));
        // Three figures in the single study of one claim, and in each of the three studies of the other.
        assert_eq!(count(&found, "svg"), 3 + 3 * 3);
        for text in ["ours (combining)", "desktop with a Ryzen 7950X", "further right is better"] {
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
        for found in repro.claims.iter_mut().flat_map(|measured| &mut measured.found) {
            found.rows.clear();
            found.answer().expect("no answers");
        }
        let page = render(&repro);
        assert_eq!(count(&tags(&page), "svg"), 0);
        assert!(!page.contains("NaN"));
    }
}
