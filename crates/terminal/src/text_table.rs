//! Columns of text, aligned with spaces: for terminals, mails and diffs. Knows nothing of benchmarks.

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
    /// The number of first columns that name the subject of a row.
    keys: usize,
}

/// Spaces between columns.
const GAP: usize = 2;
/// The fewest columns of the terminal that a cell of words is cut to.
const SHORTEST: usize = 8;

impl TextTable {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: Vec<(String, Align)>) -> Self {
        let keys = columns.iter().take_while(|(_, align)| *align == Align::Left).count();
        Self { columns, rows: Vec::new(), keys: keys.max(1) }
    }

    /// The first so many columns name the subject of a row; unless this is called, the first columns of words do.
    pub fn keys(&mut self, keys: usize) {
        self.keys = keys;
    }

    /// Adds a row, which has a cell for each column.
    pub fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// The table as lines: heading, rule, rows. No line ends in a space.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.part(&mut out, &(0..self.columns.len()).collect::<Vec<_>>(), &self.widths());
        out
    }

    /// The table in lines of up to `most` columns. A wider one is in parts, one below the other; each of them begins
    /// with the columns that tell its rows apart, of which long cells are shortened. Another cell is shortened only if it
    /// is too wide for a part of its own.
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
        // Keys leave half of a part to figures, and room for each of them alone.
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
            // As many of them as leave room for a figure.
            while total(&shown, &widths) + GAP + widths[next] > most && shown.len() > 1 {
                shown.pop();
            }
            shown.push(next);
        }
    }

    /// Makes these columns narrower, the widest of words first, until they fit or none can be shortened.
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

    /// The columns `shown` of all rows.
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
            // The formatter counts letters, of which some are two columns wide and some none.
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

/// The columns of the terminal that these columns take.
fn total(columns: &[usize], widths: &[usize]) -> usize {
    let gaps = GAP * columns.len().saturating_sub(1);
    columns.iter().map(|at| widths[*at]).sum::<usize>() + gaps
}

/// The cell, or its two ends if it is wider than `most`: the difference between cells may be at either.
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

/// Text that cannot move a terminal's cursor, change its colour or start a line: control characters become `?`.
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

    /// A path in a table may hold letters that are two columns wide, or none.
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

    /// Columns in different parts share no line, so none of them takes room from the others.
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
