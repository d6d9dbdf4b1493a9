//! The columns of the table that shows behind which groups a group waited, formatted once for the terminal and the
//! page.

use super::group::{Groups, Waited};
use super::number::{nanos, percent};
use super::ratio::ratio;
use blkmq_terminal::text_table::Align;
use std::cmp::Reverse;

/// The maximum number of groups with a column.
const MOST: usize = 8;

/// A row for each group that waited.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// A name, its meaning, and whether the column contains words or figures.
    pub columns: Vec<(String, &'static str, Align)>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The group behind which time passed; `None` while the device was idle.
type Behind = Option<usize>;

/// The table, if times were counted, at least two groups did I/O, and one of them waited.
#[must_use]
pub fn table(groups: &Groups) -> Option<Table> {
    let waiting = || groups.all.iter().filter(|group| !group.waited.is_empty());
    if groups.all.iter().filter(|group| group.ios > 0).count() < 2 || waiting().next().is_none() {
        return None;
    }
    let behind = most_waited_for(groups);
    let mut columns = vec![
        ("group".to_owned(), "that waited, without those below it", Align::Left),
        ("waited".to_owned(), "time in which at least one I/O of it waited", Align::Right),
    ];
    for group in &behind[..behind.len().min(MOST)] {
        let name = group.map_or("(nothing)", |at| &groups.all[at].name);
        columns.push((name.to_owned(), "part of that time behind its requests", Align::Right));
    }
    if behind.len() > MOST {
        columns.push(("(others)".to_owned(), "part of that time behind theirs", Align::Right));
    }
    let rows = waiting().map(|group| {
        let all: u64 = group.waited.iter().map(|waited| waited.ns).sum();
        let part = |of: &[Behind]| {
            let some = group.waited.iter().filter(|waited| of.contains(&waited.behind));
            percent(ratio(some.map(|waited| waited.ns).sum::<u64>() as f64, all as f64))
        };
        let (shown, others) = behind.split_at(behind.len().min(MOST));
        let mut cells = vec![group.name.clone(), nanos(all as f64)];
        cells.extend(shown.iter().map(|one| part(&[*one])));
        cells.extend((!others.is_empty()).then(|| part(others)));
        cells
    });
    let rows = rows.collect();
    Some(Table { columns, rows })
}

/// The groups behind which any group waited, longest times first.
fn most_waited_for(groups: &Groups) -> Vec<Behind> {
    let mut times = vec![0; groups.all.len() + 1];
    let place = |behind: Behind| behind.map_or(groups.all.len(), |at| at);
    for Waited { behind, ns } in groups.all.iter().flat_map(|group| &group.waited) {
        times[place(*behind)] += ns;
    }
    let all = (0..groups.all.len()).map(Some).chain([None]);
    let mut behind: Vec<Behind> = all.filter(|group| times[place(*group)] > 0).collect();
    behind.sort_by_key(|group| Reverse(times[place(*group)]));
    behind
}

#[cfg(test)]
mod tests {
    use super::super::group::GroupResult;
    use super::super::sample;
    use super::*;

    fn cells(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn parts_are_of_the_time_of_the_group_that_waited() {
        let table = table(&sample::groups()).expect("groups waited");
        let names: Vec<_> = table.columns.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["group", "waited", "shop", "(nothing)", "backup"]);
        let expected = cells(&[
            &["shop", "8.00 s", "75.0 %", "25.0 %", "0.0 %"],
            &["backup", "5.00 s", "80.0 %", "0.0 %", "20.0 %"],
        ]);
        assert_eq!(table.rows, expected);
    }

    #[test]
    fn many_groups_share_a_column() {
        let mut groups = Groups::default();
        let group = |at: u64| GroupResult {
            name: format!("g{at}"),
            ios: 1,
            waited: vec![Waited { behind: Some(0), ns: 10 }],
            ..GroupResult::default()
        };
        groups.all = (0..20).map(group).collect();
        groups.all[0].waited = (0..20).map(|at| Waited { behind: Some(at), ns: 10 }).collect();
        let table = table(&groups).expect("groups waited");
        assert_eq!(table.columns.len(), 2 + MOST + 1);
        assert_eq!((table.rows[0][2].as_str(), table.rows[0][10].as_str()), ("5.0 %", "60.0 %"));
        assert_eq!((table.rows[1][2].as_str(), table.rows[1][10].as_str()), ("100.0 %", "0.0 %"));
    }

    #[test]
    fn a_group_alone_has_no_table() {
        let mut groups = sample::groups();
        groups.all.iter_mut().skip(1).for_each(|group| group.ios = 0);
        assert_eq!(table(&groups), None);
        let mut groups = sample::groups();
        groups.all.iter_mut().for_each(|group| group.waited.clear());
        assert_eq!(table(&groups), None);
    }
}
