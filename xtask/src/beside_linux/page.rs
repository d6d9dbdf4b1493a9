//! The results as a page with plots: for each figure both sides, every run a dot and the median a line. A single file
//! that loads no other.

use super::figures::{Cell, Middle, Name};
use super::report::{Report, digits, words};
use super::side::Side;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--dim:#666;--line:#ccc;--back:#fff;--linux:#0072b2;--blkmq:#d55e00}\
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--dim:#999;--line:#444;--back:#181818;--linux:#56b4e9;--blkmq:#f0963c}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:left;border-bottom:1px solid var(--line)}\
td.n{text-align:right;font-variant-numeric:tabular-nums}p{color:var(--dim);margin:.3rem 0}\
.worse{font-weight:bold}.linux{fill:var(--linux);stroke:var(--linux)}.blkmq{fill:var(--blkmq);stroke:var(--blkmq)}\
circle{fill-opacity:.45;stroke-opacity:.8}svg text{font-size:10px;fill:var(--dim);stroke:none}.axis{stroke:var(--line)}\
.scroll{overflow-x:auto}";

/// Pixels: the plot of a figure.
const WIDTH: f64 = 300.0;
const MARGIN: f64 = 40.0;

pub(super) fn html(report: &Report<'_>) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page +=
        "<meta name=\"viewport\" content=\"width=device-width\"><title>blkmq beside Linux</title>";
    page += &format!("<style>{STYLE}</style></head>\n<body><h1>Beside Linux</h1>\n");
    for (name, value) in report.machine.rows() {
        page += &format!("<p>{name}: {}</p>", escaped(&value));
    }
    page += "<h2>How</h2>";
    for sentence in report.about() {
        page += &format!("<p>{}</p>\n", escaped(&sentence));
    }
    let mut device = "";
    for cell in &report.figures.cells {
        if cell.device != device {
            if !device.is_empty() {
                page += "</table></div>\n";
            }
            device = cell.device;
            page += &format!(
                "<h2>{device}</h2><p>{}</p><div class=\"scroll\"><table>",
                escaped(words(device))
            );
            page += "<tr><th>load</th><th>scheduler</th><th>figure</th><th>runs</th><th>Linux</th><th>blkmq</th>\
                     <th>ratio</th><th></th></tr>\n";
        }
        for name in report.figures.names(cell) {
            page += &row(report, cell, name);
        }
    }
    if !device.is_empty() {
        page += "</table></div>\n";
    }
    page + "</body></html>\n"
}

fn row(report: &Report<'_>, cell: &Cell, name: &Name) -> String {
    let median = |side| {
        let middle = Middle::of(report.figures.values(cell, name, side));
        middle.map_or_else(|| "-".into(), |middle| digits(middle.median))
    };
    let ratio = report.figures.ratio(cell, name).map_or_else(|| "-".into(), |r| format!("{r:.2}"));
    let verdict = report.verdict(cell, name);
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{ratio}</td><td class=\"{verdict}\">{verdict}</td></tr>\n",
        cell.load,
        escaped(&cell.scheduler),
        escaped(&name.text),
        plot(report, cell, name),
        median(Side::Linux),
        median(Side::Ours),
    )
}

/// Both sides over one scale from zero.
fn plot(report: &Report<'_>, cell: &Cell, name: &Name) -> String {
    let sides = Side::BOTH.map(|side| (side, report.figures.values(cell, name, side)));
    let all = sides.iter().flat_map(|(_, values)| *values);
    let most = all.copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let x = |value: f64| MARGIN + value / most * (WIDTH - MARGIN - 10.0);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"44\" role=\"img\" aria-label=\"{}\">",
        escaped(&name.text)
    );
    svg += &format!("<line class=\"axis\" x1=\"{MARGIN}\" y1=\"0\" x2=\"{MARGIN}\" y2=\"44\"/>");
    for ((side, values), y) in sides.into_iter().zip([13.0, 33.0]) {
        let class = side.name().to_lowercase();
        svg +=
            &format!("<g class=\"{class}\"><text x=\"0\" y=\"{}\">{}</text>", y + 3.0, side.name());
        for value in values {
            let title = digits(*value);
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{y}\" r=\"4\"><title>{title}</title></circle>",
                x(*value)
            );
        }
        if let Some(middle) = Middle::of(values) {
            let at = x(middle.median);
            svg += &format!(
                "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke-width=\"2\"/>\
                 <line x1=\"{:.1}\" y1=\"{y}\" x2=\"{:.1}\" y2=\"{y}\"/>",
                y - 9.0,
                y + 9.0,
                x(middle.low),
                x(middle.high)
            );
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beside_linux::report::tests::report;

    #[test]
    fn every_run_is_a_dot_and_the_page_asks_for_nothing() {
        let page = html(&report());
        assert_eq!(page.matches("<circle").count(), 10, "five runs, two figures");
        assert!(page.contains("<td class=\"worse\">worse</td>"), "{page}");
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
        for outside in ["src=", "href=", "http:", "https:", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn words_of_others_are_text() {
        assert_eq!(escaped("a<b>&\""), "a&lt;b&gt;&amp;&quot;");
    }
}
