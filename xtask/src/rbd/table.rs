//! The table of `rbd-tenants`: medians over rounds, and the aims.

use crate::fio::{Figures, median};

/// The targets: the least rate of the reader, relative to its rate alone; the greatest p99, relative to its p99 alone;
/// and the least rate of the flood, relative to its rate alone.
const READER: f64 = 0.5;
const P99: f64 = 3.0;
const FLOOD: f64 = 0.8;

/// The figures of the reader and of the flood in a run.
pub(crate) type Pair = [Figures; 2];

/// A row of the table, and its figures in each round.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) pairs: Vec<Pair>,
}

/// The table. The first row has the figures of each load alone, with which the others are compared, round by round.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| | reader: IOPS, of alone | p50, p99 (ms) | p99 to alone | flood: IOPS, of alone | p50, p99 (ms) | aim |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let Some(alone) = rows.first() else { return text };
    for row in rows {
        let of = |value: &dyn Fn(&Pair, &Pair) -> f64| {
            let rounds = row.pairs.iter().zip(&alone.pairs);
            median(rounds.map(|(pair, alone)| value(pair, alone)).collect()).unwrap_or(0.0)
        };
        let part = |side: usize| of(&|pair, alone| pair[side].iops / alone[side].iops);
        let ms = |ns: u64| ns as f64 / 1e6;
        let late = of(&|pair, alone| ms(pair[0].p99) / ms(alone[0].p99.max(1)));
        let (reader, flood) = (part(0), part(1));
        let holds = reader >= READER && late <= P99 && flood >= FLOOD;
        text.push_str(&format!(
            "| {} | {:.0}, {:.0} % | {:.2}, {:.1} | {late:.1} | {:.0}, {:.0} % | {:.1}, {:.1} | {} |\n",
            row.name,
            of(&|pair, _| pair[0].iops),
            reader * 100.0,
            of(&|pair, _| ms(pair[0].p50)),
            of(&|pair, _| ms(pair[0].p99)),
            of(&|pair, _| pair[1].iops),
            flood * 100.0,
            of(&|pair, _| ms(pair[1].p50)),
            of(&|pair, _| ms(pair[1].p99)),
            if holds { "holds" } else { "missed" },
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_compared_with_alone_in_its_round() {
        let figures =
            |iops: f64, p99: u64| Figures { iops, p50: p99 / 2, p99, ..Figures::default() };
        let row = |name: &str, pairs: [(f64, f64, u64); 3]| Row {
            name: name.to_owned(),
            pairs: pairs
                .map(|(reader, flood, p99)| [figures(reader, p99), figures(flood, p99)])
                .into(),
        };
        let rows = [
            row(
                "alone",
                [(100.0, 1000.0, 2_000_000), (200.0, 500.0, 4_000_000), (100.0, 1000.0, 2_000_000)],
            ),
            row(
                "a",
                [(60.0, 900.0, 5_000_000), (110.0, 450.0, 11_000_000), (55.0, 850.0, 5_000_000)],
            ),
            row(
                "b",
                [(60.0, 700.0, 5_000_000), (110.0, 450.0, 11_000_000), (55.0, 700.0, 5_000_000)],
            ),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(lines[0], "| a | 60, 55 % | 2.50, 5.0 | 2.5 | 850, 90 % | 2.5, 5.0 | holds |");
        assert_eq!(lines[1], "| b | 60, 55 % | 2.50, 5.0 | 2.5 | 700, 70 % | 2.5, 5.0 | missed |");
    }
}
