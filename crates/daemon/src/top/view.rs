//! Formats rows as lines of text: chooses the columns that fit, and the order of rows. Draws nothing.

use super::columns::{COLUMNS, Column};
use super::rates::{Kind, Row};

/// The width of the column of names, and the longest name shown in full.
const NAME: usize = 16;

/// The user's choices for the table.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The column by which exports are sorted, largest first; `None` for the order of the server.
    pub sorted: Option<usize>,
    /// Whether to sort smallest first.
    pub reversed: bool,
    /// The first column shown; `None` for the most important columns.
    pub first: Option<usize>,
}

/// Indexes of columns.
type Places = Vec<usize>;

impl View {
    /// The index of the column `name`.
    pub fn column(name: &str) -> Option<usize> {
        COLUMNS.iter().position(|column| column.name == name)
    }

    /// Sorts by the next visible column, to the right or left.
    pub fn sort(&mut self, width: usize, to_the_right: bool) {
        let shown = self.columns(width);
        let at = self.sorted.and_then(|sorted| shown.iter().position(|it| *it == sorted));
        self.sorted = match (at, to_the_right) {
            (None, true) => shown.first().copied(),
            (None, false) => shown.last().copied(),
            (Some(at), true) => shown.get(at + 1).copied(),
            (Some(at), false) => at.checked_sub(1).map(|at| shown[at]),
        };
    }

    /// Scrolls the columns. To the left of the first column is the choice of the most important columns.
    pub fn scroll(&mut self, to_the_right: bool) {
        self.first = match (self.first, to_the_right) {
            (None, true) => Some(0),
            (Some(first), true) => Some((first + 1).min(COLUMNS.len() - 1)),
            (None | Some(0), false) => None,
            (Some(first), false) => Some(first - 1),
        };
    }

    /// The columns that fit in `width` characters.
    fn columns(&self, width: usize) -> Places {
        let mut room = width.saturating_sub(NAME);
        let mut fits = |at: &usize| {
            let needed = COLUMNS[*at].width();
            let fits = needed <= room;
            if fits {
                room -= needed;
            }
            fits
        };
        if let Some(first) = self.first {
            return (first..COLUMNS.len()).take_while(&mut fits).collect();
        }
        let mut by_rank: Places = (0..COLUMNS.len()).collect();
        by_rank.sort_unstable_by_key(|at| COLUMNS[*at].rank());
        let mut chosen: Places = by_rank.into_iter().filter(&mut fits).collect();
        chosen.sort_unstable();
        chosen
    }

    /// The heading and the rows, at most `width` wide; `None` shows all columns.
    pub fn table(&self, rows: &[Row], width: Option<usize>) -> (String, Vec<String>) {
        let columns = width.map_or_else(|| (0..COLUMNS.len()).collect(), |it| self.columns(it));
        let columns: Vec<&Column> = columns.iter().map(|at| &COLUMNS[*at]).collect();
        let mut head = format!("{:NAME$}", "Device");
        for column in &columns {
            head.push_str(&format!("{:>width$}", column.name, width = column.width()));
        }
        let line = |row: &&Row| {
            let mut line = name(row);
            for column in &columns {
                let text = column.value(row).text();
                line.push_str(&format!("{text:>width$}", width = column.width()));
            }
            line
        };
        (head, self.ordered(rows).iter().map(line).collect())
    }

    /// Sorts the exports of each device by the chosen column.
    fn ordered<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let mut all: Vec<&Row> = rows.iter().collect();
        let Some(column) = self.sorted.map(|at| &COLUMNS[at]) else { return all };
        let exports = |row: &&Row| row.kind == Kind::Export;
        for group in all.chunk_by_mut(|_, next| exports(next)) {
            let skip = usize::from(group.first().is_some_and(|row| !exports(row)));
            group[skip..].sort_by(|a, b| {
                let (a, b) = (column.value(a).weight(), column.value(b).weight());
                if self.reversed { a.total_cmp(&b) } else { b.total_cmp(&a) }
            });
        }
        all
    }
}

/// The name, shortened if necessary; exports are indented below their device.
fn name(row: &Row) -> String {
    let indent = if row.kind == Kind::Export { "  " } else { "" };
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let name: String = indent.chars().chain(row.name.chars().map(plain)).collect();
    let name = if name.trim().is_empty() { "  (unnamed)".to_owned() } else { name };
    let mut shown = String::new();
    for c in name.chars() {
        let taken = unicode_width::UnicodeWidthStr::width(shown.as_str());
        if taken + unicode_width::UnicodeWidthChar::width(c).unwrap_or(0) > NAME - 1 {
            shown.pop();
            shown.push('~');
            break;
        }
        shown.push(c);
    }
    let taken = unicode_width::UnicodeWidthStr::width(shown.as_str());
    shown.push_str(&" ".repeat(NAME - taken.min(NAME)));
    shown
}

#[cfg(test)]
mod tests {
    use super::super::rates::between;
    use super::super::rates::tests::two;
    use super::*;

    fn rows() -> Vec<Row> {
        let [before, now] = two();
        between(&before, &now)
    }

    #[test]
    fn every_width_shows_what_matters_most_and_no_more_than_fits() {
        for width in 60..=200 {
            let (head, lines) = View::default().table(&rows(), Some(width));
            assert!(head.len() <= width && lines.iter().all(|line| line.len() <= width), "{width}");
            for column in ["r/s", "w/s", "rkB/s", "wkB/s", "q_p99"] {
                assert!(head.split_whitespace().any(|it| it == column), "{width}: {head}");
            }
        }
        let (all, _) = View::default().table(&rows(), None);
        assert_eq!(all.split_whitespace().count(), COLUMNS.len() + 1);
    }

    #[test]
    fn columns_come_in_their_order_and_scroll() {
        let mut view = View::default();
        let (wide, _) = view.table(&rows(), Some(200));
        let places: Vec<usize> = wide.split_whitespace().skip(1).filter_map(View::column).collect();
        assert!(places.is_sorted() && places.len() > 15, "{wide}");
        view.scroll(true);
        let (first, _) = view.table(&rows(), Some(60));
        assert!(first.contains("r/s") && first.contains("rrqm/s"), "{first}");
        for _ in 0..100 {
            view.scroll(true);
        }
        assert!(view.table(&rows(), Some(60)).0.ends_with("scheduler"));
        for _ in 0..100 {
            view.scroll(false);
        }
        assert_eq!(view.first, None);
    }

    #[test]
    fn exports_are_sorted_below_their_device() {
        let names = |view: &View| {
            let (_, lines) = view.table(&rows(), Some(80));
            lines
                .iter()
                .map(|it| it.split_whitespace().next().unwrap_or("").to_owned())
                .collect::<Vec<_>>()
        };
        let mut view = View { sorted: View::column("r/s"), ..View::default() };
        assert_eq!(names(&view), ["disk", "gold", "rest"]);
        view.reversed = true;
        assert_eq!(names(&view), ["disk", "rest", "gold"]);
        view.sorted = None;
        view.sort(80, true);
        assert_eq!(view.sorted, View::column("r/s"));
        view.sort(80, false);
        assert_eq!(view.sorted, None);
    }

    #[test]
    fn long_and_strange_names_keep_the_table_straight() {
        let mut rows = rows();
        rows[0].name = "a name that is far too long".to_owned();
        rows[1].name = "\u{1b}[31m\u{4f60}\u{597d}\u{4f60}\u{597d}\u{4f60}\u{597d}".to_owned();
        rows[2].name = String::new();
        let (_, lines) = View::default().table(&rows, Some(60));
        assert!(lines[0].starts_with("a name that is~ "), "{}", lines[0]);
        assert!(!lines[1].contains('\u{1b}') && lines[2].starts_with("  (unnamed)"));
        let width = |line: &String| unicode_width::UnicodeWidthStr::width(line.as_str());
        assert!(lines.iter().all(|line| width(line) == width(&lines[0])), "{lines:#?}");
    }
}
