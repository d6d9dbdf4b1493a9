//! The published figures of each claim, as their authors gave them, with their hardware. None of them is ours.
//!
//! One file for each claim. Ratios are computed from the figures, even where their source prints different ratios.

mod batch;
mod contention;
mod depth;
mod kick;
mod merge;
mod order;
mod stats;

use super::metric::Metric;
use super::name::Name;

/// The publications about a claim.
#[derive(Debug)]
pub struct Published {
    /// The claim as a heading.
    pub title: &'static str,
    /// The claim in a few sentences, in our own words.
    pub claim: &'static str,
    /// The figures, a table for each source.
    pub tables: &'static [Source],
}

/// Figures from one source.
#[derive(Debug)]
pub struct Source {
    /// The authors, the place and the date.
    pub by: &'static str,
    /// The hardware of the measurement.
    pub hardware: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// The figures.
    pub rows: &'static [Row],
    /// A remark about the figures, or nothing.
    pub remark: &'static str,
}

/// A quantity before the change and with it.
#[derive(Debug)]
pub struct Row {
    /// The configuration that the row is about.
    pub what: &'static str,
    /// The measured quantity.
    pub metric: Metric,
    /// The value before the change.
    pub before: f64,
    /// The value with the proposed change.
    pub proposed: f64,
}

impl Row {
    /// The second value relative to the first; `None` if the first is 0.
    pub fn ratio(&self) -> Option<f64> {
        (self.before > 0.0).then(|| self.proposed / self.before)
    }
}

const fn row(what: &'static str, metric: Metric, before: f64, proposed: f64) -> Row {
    Row { what, metric, before, proposed }
}

/// A row of I/Os per second.
const fn iops(what: &'static str, before: f64, proposed: f64) -> Row {
    row(what, Metric::Iops, before, proposed)
}

/// The publications about `name`.
pub fn published(name: Name) -> &'static Published {
    match name {
        Name::Contention => &contention::PUBLISHED,
        Name::Batch => &batch::PUBLISHED,
        Name::Order => &order::PUBLISHED,
        Name::Merge => &merge::PUBLISHED,
        Name::Kick => &kick::PUBLISHED,
        Name::Depth => &depth::PUBLISHED,
        Name::Stats => &stats::PUBLISHED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_has_words_and_says_where_its_figures_are_from() {
        for (word, name) in Name::ALL.map(|name| (name.word(), name)) {
            let Published { title, claim, tables } = published(name);
            assert!(!title.ends_with('.') && claim.ends_with('.'), "{word}");
            assert!(!tables.is_empty(), "{word}");
            for source in *tables {
                let year = source.by.split(|c: char| !c.is_ascii_digit()).any(|it| it.len() == 4);
                assert!(year, "{word}: {}", source.by);
                assert!(!source.hardware.is_empty() && !source.workload.is_empty(), "{word}");
                let text = format!("{claim}{}{}{}", source.by, source.hardware, source.remark);
                assert!(text.is_ascii() && !text.contains("http") && !text.contains("www"));
            }
        }
    }

    #[test]
    fn ratios_are_those_of_the_figures() {
        let ratios = |name| -> Vec<String> {
            let rows = published(name).tables.iter().flat_map(|source| source.rows);
            let rows = rows.filter(|row| row.metric == name.metric());
            rows.map(|row| row.ratio().map_or_else(String::new, |r| format!("{r:.2}"))).collect()
        };
        assert_eq!(ratios(Name::Contention), ["2.63", "2.90", "3.26", "3.51"]);
        assert_eq!(ratios(Name::Batch), ["1.81", "2.35", "2.32", "1.85", "2.20", "1.51"]);
        assert_eq!(ratios(Name::Kick), ["1.00", "1.02", "1.42", "1.60"]);
        assert_eq!(ratios(Name::Merge), ["1.00"]);
        assert_eq!(ratios(Name::Stats), ["1.24", "1.29", "1.25", "1.43"]);
        assert!(row("", Metric::Iops, 0.0, 1.0).ratio().is_none());
    }
}
