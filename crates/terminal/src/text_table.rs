//! Columns of text, aligned with spaces, for terminals, mails and diffs.

use std::borrow::Cow;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The edge to which the cells of a column are aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// Rows under a heading.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    /// The number of leading columns that identify a row.
    keys: usize,
}

/// The number of spaces between columns.
const GAP: usize = 2;
/// The minimum width to which a cell of words is cut.
const SHORTEST: usize = 8;

impl TextTable {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(columns: Vec<(String, Align)>) -> Self {
        let keys = columns.iter().take_while(|(_, align)| *align == Align::Left).count();
        Self { columns, rows: Vec::new(), keys: keys.max(1) }
    }

    /// Sets the number of leading columns that identify a row. By default these are the leading columns of words.
    pub fn keys(&mut self, keys: usize) {
        self.keys = keys;
    }

    /// Adds a row with a cell for each column.
    pub fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// Renders the table: heading, rule, rows. No line ends in a space.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.part(&mut out, &(0..self.columns.len()).collect::<Vec<_>>(), &self.widths());
        out
    }

    /// Renders the table in lines of at most `most` columns. A wider table is split into parts, one below the other.
    /// Each part begins with the columns that identify the rows, with long cells shortened. Any other cell is shortened
    /// only if it does not fit a part alone.
    #[must_use]
    pub fn render_within(&self, most: usize) -> String {
        let mut widths = self.widths();
        let all: Vec<usize> = (0..self.columns.len()).collect();
        if total(&all, &widths) <= most {
            return self.render();
        }
        let (keys, figures) = all.split_at(self.keys.min(all.len()));
        let least = keys.iter().map(|at| widths[*at].min(SHORTEST) + GAP).sum::<usize>();
        for at in figures {
            self.shorten(&[*at], most.saturating_sub(least), &mut widths);
        }
        let differs =
            |column: &usize| self.rows.windows(2).any(|it| it[0][*column] != it[1][*column]);
        let varying: Vec<usize> = keys.iter().copied().filter(differs).collect();
        let (mut out, mut shown) = (String::new(), keys.to_vec());
        // Key columns leave half of a part to figures, and enough room for the widest figure.
        let widest = figures.iter().map(|at| widths[*at]).max().unwrap_or(0);
        let room = most.saturating_sub(widest + GAP);
        self.shorten(keys, if figures.len() > 1 { room.min(most / 2) } else { room }, &mut widths);
        let mut left = figures.iter().copied().peekable();
        loop {
            while let Some(next) =
                left.next_if(|next| total(&shown, &widths) + GAP + widths[*next] <= most)
            {
                shown.push(next);
            }
            self.part(&mut out, &shown, &widths);
            let Some(next) = left.next() else { return out };
            out.push('\n');
            shown.clone_from(&varying);
            // As many key columns as leave room for a figure.
            while total(&shown, &widths) + GAP + widths[next] > most && shown.len() > 1 {
                shown.pop();
            }
            shown.push(next);
        }
    }

    /// Narrows these columns, the widest column of words first, until they fit or none can be shortened.
    fn shorten(&self, columns: &[usize], most: usize, widths: &mut [usize]) {
        let words = |at: &&usize| self.columns[**at].1 == Align::Left;
        while total(columns, widths) > most {
            let widest = columns.iter().filter(words).max_by_key(|at| widths[**at]);
            let Some(&widest) = widest.filter(|at| widths[**at] > SHORTEST) else { return };
            widths[widest] -= 1;
        }
    }

    fn widths(&self) -> Vec<usize> {
        let width = |c: usize| {
            let cells = self.rows.iter().map(|row| row[c].width());
            cells.chain([self.columns[c].0.width()]).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(width).collect()
    }

    /// Renders the columns `shown` of all rows.
    fn part(&self, out: &mut String, shown: &[usize], widths: &[usize]) {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        self.line(out, &heading, shown, widths);
        let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        self.line(out, &rule, shown, widths);
        for row in &self.rows {
            self.line(out, row, shown, widths);
        }
    }

    fn line(&self, out: &mut String, cells: &[String], shown: &[usize], widths: &[usize]) {
        let padded = shown.iter().map(|&at| {
            let cell = shortened(&cells[at], widths[at]);
            // The formatter counts characters, some of which are two columns wide and some zero.
            let space = " ".repeat(widths[at].saturating_sub(cell.width()));
            match self.columns[at].1 {
                Align::Left => format!("{cell}{space}"),
                Align::Right => format!("{space}{cell}"),
            }
        });
        out.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
}

/// The width of these columns on the terminal.
fn total(columns: &[usize], widths: &[usize]) -> usize {
    let gaps = GAP * columns.len().saturating_sub(1);
    columns.iter().map(|at| widths[*at]).sum::<usize>() + gaps
}

/// The cell, or its beginning and end if it is wider than `most`: cells may differ at either end.
fn shortened(cell: &str, most: usize) -> Cow<'_, str> {
    if cell.width() <= most {
        return Cow::Borrowed(cell);
    }
    let room = most.saturating_sub(3);
    let (mut head, mut tail) = (String::new(), String::new());
    let fits = |text: &str, c: char, room: usize| text.width() + c.width().unwrap_or(0) <= room;
    for c in cell.chars() {
        if !fits(&head, c, room.div_ceil(2)) {
            break;
        }
        head.push(c);
    }
    for c in cell.chars().rev() {
        if !fits(&tail, c, room / 2) {
            break;
        }
        tail.insert(0, c);
    }
    format!("{head}...{tail}").into()
}

/// Returns text that cannot move the cursor, change colours or start a line: control characters become `?`.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table =
            TextTable::new(vec![("name".into(), Align::Left), ("IOPS".into(), Align::Right)]);
        table.row(&["a".into(), "1".into()]);
        table.row(&["longer\n".into(), "12.3k".into()]);
        let expected = "name      IOPS\n-------  -----\na            1\nlonger?  12.3k\n";
        assert_eq!(table.render(), expected);
    }

    /// A path in a table may contain characters that are two columns wide, or zero.
    #[test]
    fn a_cell_is_as_wide_as_a_terminal_shows_it() {
        let mut table =
            TextTable::new(vec![("file".into(), Align::Left), ("n".into(), Align::Right)]);
        for cell in ["\u{65e5}\u{672c}", "e\u{301}t\u{e9}", "abcde"] {
            table.row(&[cell.into(), "1".into()]);
        }
        let expected = "file   n\n-----  -\n\u{65e5}\u{672c}   1\ne\u{301}t\u{e9}    1\nabcde  1\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn a_table_that_is_too_wide_is_in_parts_that_name_their_rows() {
        let names = ["name", "of all", "first", "second", "third"];
        let align = |at| if at < 2 { Align::Left } else { Align::Right };
        let columns = names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), align(at)));
        let mut table = TextTable::new(columns.collect());
        for row in [["a", "same", "1", "2", "3"], ["b", "same", "10", "20", "30"]] {
            table.row(&row.map(String::from));
        }
        let wide = "name  of all  first  second  third\n";
        assert!(table.render_within(34).starts_with(wide), "{}", table.render_within(34));
        let expected = "name  of all  first  second\n----  ------  -----  ------\n\
                        a     same        1       2\nb     same       10      20\n\n\
                        name  third\n----  -----\na         3\nb        30\n";
        assert_eq!(table.render_within(33), expected);
    }

    /// Columns in different parts share no line, so they do not compete for width.
    #[test]
    fn words_that_fit_a_part_are_whole() {
        let columns = ["name", "n", "access", "cache", "limits"];
        let align = |name| if name == "n" { Align::Right } else { Align::Left };
        let columns = columns.map(|name| (name.to_owned(), align(name)));
        let mut table = TextTable::new(columns.to_vec());
        let limits = "rbps=10485760 riops=500";
        table.row(&["gold", "1000000", "read-write", "writethrough", limits].map(String::from));
        let text = table.render_within(40);
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
        for whole in ["gold  1000000  read-write  writethrough", limits] {
            assert!(text.contains(whole), "{whole}:\n{text}");
        }
    }

    #[test]
    fn a_long_name_is_shortened_and_keeps_its_ends() {
        let mut table =
            TextTable::new(vec![("device".into(), Align::Left), ("IOPS".into(), Align::Right)]);
        table.row(&[format!("null,{},size=7", "x".repeat(90)), "12.3k".into()]);
        let text = table.render_within(60);
        assert!(text.lines().all(|line| line.len() == 60), "{text}");
        assert!(text.contains("null,x") && text.contains("...") && text.contains("x,size=7  "));
        assert_eq!(table.render().lines().next().map(str::len), Some(109));
    }

    #[test]
    fn a_long_name_leaves_room_for_several_figures() {
        let figures = (0..12).map(|n| (format!("figure{n}"), Align::Right));
        let mut table =
            TextTable::new([("device".into(), Align::Left)].into_iter().chain(figures).collect());
        for end in ["a", "b"] {
            let mut row = vec![format!("stripe:[uring:/srv/{}][uring:/srv/{end}]", "x".repeat(90))];
            row.extend((0..12).map(|n| n.to_string()));
            table.row(&row);
        }
        let text = table.render_within(80);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert_eq!(text.matches("device").count(), 3, "{text}");
    }
}
