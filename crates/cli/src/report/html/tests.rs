//! The page is well-formed, self-contained and legible. The colours of its style sheet are checked as seen with two kinds
//! of colour blindness: both themes, all pairs.

use super::super::queue::GroupResult;
use super::super::sample;
use super::*;

/// A minimal markup parser, sufficient for this page: checks nesting and quoting, and returns the tags in order. Panics
/// if the text is not well-formed.
pub fn tags(page: &str) -> Vec<String> {
    let (mut open, mut seen): (Vec<String>, Vec<String>) = (vec![], vec![]);
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a page says that it is HTML");
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "a stray '>' in {:?}", &rest[..start]);
        let end = start + tag_end(&rest[start..]);
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_matches('/').split(' ').next().unwrap_or_default().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "</{name}> closes another element");
            continue;
        }
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        if !tag.ends_with('/') {
            open.push(name.clone());
        }
        if name == "style" {
            rest = &rest[rest.find("</style>").expect("the style sheet ends")..];
        }
        seen.push(name);
    }
    assert!(open.is_empty(), "left open: {open:?}");
    seen
}

/// The end of the tag at the beginning of `text`, respecting quotes.
fn tag_end(text: &str) -> usize {
    let mut is_quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => is_quoted = !is_quoted,
            '<' if at > 0 => panic!("a stray '<' in {:?}", &text[..at.min(80)]),
            '>' if !is_quoted => return at,
            _ => {}
        }
    }
    panic!("a tag without an end: {text:?}");
}

/// The number of elements called `name`.
pub fn count(tags: &[String], name: &str) -> usize {
    tags.iter().filter(|tag| *tag == name).count()
}

#[test]
fn the_page_is_well_formed_and_has_its_parts() {
    let page = render(&sample::comparison());
    let tags = tags(&page);
    assert_eq!(count(&tags, "h1"), 1);
    assert_eq!(count(&tags, "table"), 2);
    // A heading and nine runs in each table.
    assert_eq!(count(&tags, "tr"), 20);
    // Four plots; one legend of two schedulers and two ways to share, and two kinds of merge.
    assert_eq!(count(&tags, "svg"), 4 + 2 + 2 + 2);
    // Of the first scheduler: three points of a curve, three dots for each of three latencies, seven markers and the
    // remaining points on each of three distributions, and the legend.
    assert!(count(&tags, "circle") > 3 + 9 + 3 * 7);
    for text in ["blkmq bench --rw=randread", "Some CPU @ 2.0GHz", "15.5M", "No run was"] {
        assert_eq!(page.contains(text), text != "No run was", "{text}");
    }
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    for report in [sample::comparison(), sample::hostile()] {
        let page = render(&report);
        let found = tags(&page);
        for tag in ["script", "link", "img", "iframe", "object", "base", "a"] {
            assert_eq!(count(&found, tag), 0, "<{tag}>");
        }
        for text in ["http:", "https:", "url(", "@import", " src=", " onload="] {
            assert!(!page.contains(text), "{text}");
        }
    }
}

#[test]
fn text_is_escaped_wherever_it_stands() {
    let mut single = sample::hostile();
    single.runs.truncate(2);
    for report in [sample::hostile(), single] {
        let page = render(&report);
        tags(&page);
        assert!(
            page.contains(
                "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;quoted&quot;"
            )
        );
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    }
}

#[test]
fn few_thread_counts_are_bars_and_no_merges_are_said() {
    let page = render(&sample::single());
    let tags = tags(&page);
    // Three plots, and the legend of one scheduler.
    assert_eq!(count(&tags, "svg"), 3 + 1);
    assert!(page.contains("No I/O was merged with another."));
    let empty = render(&Report::default());
    assert!(empty.contains("No run was made.") && !empty.contains("<svg"));
}

#[test]
fn no_coordinate_is_a_nan() {
    let mut report = sample::comparison();
    for run in &mut report.runs {
        run.jobs.clear();
        run.repetitions.clear();
    }
    let page = render(&report);
    tags(&page);
    assert!(!page.contains("NaN") && !page.contains("inf\""));
}

#[test]
fn groups_are_drawn_against_their_weights_and_listed() {
    let mut report = sample::shared();
    report.runs[1].shared = sample::governed();
    let page = render(&report);
    let found = tags(&page);
    // Tables of the runs, their jobs, their queues, their groups, in one of them their waits, and the state shared by
    // the instances of a scheduler.
    assert_eq!(count(&found, "table"), 7);
    for text in [
        "Shares of groups",
        "bfq: shop: 60.0 % / 50.0 %",
        "Groups with none",
        "read_target=2000000",
        "    shop</td>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let bars = page.split("Share of bytes of each group").nth(1).expect("a plot");
    let bars = &bars[..bars.find("</svg>").expect("it ends")];
    assert_eq!(bars.matches("<rect").count(), 10);
    // One group of each run did no I/O.
    assert_eq!(bars.matches("class=\"error\"").count(), 8);

    let many = sample::groups().all.into_iter().cycle().take(100);
    report.runs[0].groups.all = many.map(|group| GroupResult { parent: None, ..group }).collect();
    assert!(render(&report).contains("The first 60 of 104 groups."));
    let plain = render(&sample::comparison());
    assert!(!plain.contains("groups") && !plain.contains("tokens"));
}

#[test]
fn what_happened_over_time_is_drawn_and_no_more_than_can_be_told_apart() {
    let report = sample::drawn();
    let page = render(&report);
    let tags = tags(&page);
    // A distribution and four courses with a curve for each of 24 runs, and the path of the heads.
    assert_eq!(count(&tags, "polyline"), 5 * 24 + 1);
    for heading in [
        "Latency distribution",
        "Latency over time",
        "Requests at the device over time",
        "Position of the heads",
    ] {
        assert!(page.contains(heading), "{heading}");
    }
    assert!(page.contains("The first 24 of 30 runs."));
    assert!(page.contains("the first 2000 of 3010 movements"));
    assert!(page.contains("virtual time, seed 7") && page.contains("<dt>seed</dt>"));
    assert!(page.contains("a-scheduler-with-a-very-long-name-12"));
    let plain = render(&sample::comparison());
    assert!(!plain.contains("over time") && !plain.contains("heads"), "nothing was noted");
}

/// The parts of the page that begin with `start`, each to its end.
fn parts<'a>(page: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    let found = page.match_indices(start).map(|(at, _)| &page[at..]);
    found.map(|rest| &rest[..rest.find(end).expect("it ends")]).collect()
}

#[test]
fn every_device_has_a_scale_of_its_own_and_every_scheduler_one_look() {
    let mut report = sample::comparison();
    // A device that is a thousand times slower.
    let slow =
        ["none", "mq-deadline"].map(|name| sample::run(name, "combining", 1, 900, 1_000_000));
    for mut run in slow {
        run.device.text = "disk".into();
        report.runs.push(run);
    }
    let page = render(&report);
    tags(&page);
    let plots = parts(&page, "aria-label=\"I/Os per second", "</svg>");
    assert_eq!(plots.len(), 2, "one for each device");
    assert!(plots[1].contains(">1k<") && !plots[1].contains('M'), "{}", plots[1]);
    assert_eq!(page.matches("<h3>disk</h3>").count(), 3);
    assert_eq!(
        parts(&page, "class=\"legend", "</ul>").len(),
        2,
        "one, and that of the kinds of merge"
    );
    // Full circles belong to the first scheduler, full squares to the second.
    let classes = |tag: &str| parts(&page, &format!("<{tag} class=\"fill "), ">");
    assert!(classes("circle").iter().all(|it| it.contains("fill c0")));
    assert!(classes("polygon").iter().all(|it| it.contains("fill c1")));
    assert!(classes("circle").len() > 9 && classes("polygon").len() > 9);
}

#[test]
fn no_two_labels_of_an_axis_are_alike() {
    let mut report = sample::comparison();
    for run in &mut report.runs {
        run.counters.merges = Merges { back: run.counters.submitted / 60_000, ..Merges::default() };
    }
    for page in [render(&report), render(&sample::drawn()), render(&sample::shared())] {
        for plot in parts(&page, "<svg viewBox=", "</svg>") {
            // The labels along one edge share a coordinate.
            let labels = parts(plot, "<text class=\"tick\"", "</text>");
            for (at, label) in labels.iter().enumerate() {
                assert!(!labels[..at].contains(label), "{label}");
                let (place, text) = label.split_once('>').expect("a tag ends");
                let twin = |other: &&&str| {
                    let (there, same) = other.split_once('>').expect("a tag ends");
                    same == text && edge(there) == edge(place)
                };
                assert!(labels[..at].iter().find(twin).is_none(), "{label}");
            }
        }
    }
}

/// The edge of the plot at which a label is placed.
fn edge(place: &str) -> String {
    let of =
        |name: &str| place.split(name).nth(1).and_then(|it| it.split('"').next()).map(String::from);
    let along = if place.contains("anchor=\"end\"") { " x=\"" } else { " y=\"" };
    format!("{along}{:?}", of(along))
}

/// A plot as wide as the screen would have text of 5 px on a telephone.
#[test]
fn text_can_be_read_on_a_narrow_screen() {
    let sheet = include_str!("../html.css");
    let number = |before: &str| -> f64 {
        let (_, rest) = sheet.split_once(before).expect(before);
        let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        digits.parse().expect("a number")
    };
    let (font, least) = (number("height: auto; font-size: "), number(".plot svg { min-width: "));
    let page = render(&sample::drawn());
    for plot in parts(&page, "<svg viewBox=\"0 0 860", ">") {
        assert!(plot.contains("role=\"img\""), "{plot}");
    }
    assert!(font * least / 860.0 >= 9.0, "{font} px of 860 on {least}");
    let wrapped = page.matches("<div class=\"plot\"><svg viewBox=\"0 0 860").count();
    assert_eq!(wrapped, page.matches("viewBox=\"0 0 860").count(), "every plot can be scrolled");
    let tables = page.matches("<div class=\"scroll\" tabindex=\"0\"><table").count();
    assert_eq!(tables, page.matches("<table").count(), "and every table");
    assert!(sheet.contains(".scroll, .plot { overflow-x: auto; max-width: 100%; }"));
}

/// Regression test: reads of a disk together with writes to its cache had a median between the two, which no I/O took.
#[test]
fn kinds_of_io_have_plots_of_their_own() {
    let mut report = sample::comparison();
    let one = render(&report);
    assert!(one.contains("<h2>Completion latency</h2>") && !one.contains("of reads</h2>"));
    let reads = report.runs[0].jobs[0].read.clone();
    report.runs[0].jobs[0].write = reads;
    let two = render(&report);
    for heading in ["Completion latency of reads", "Latency distribution of writes"] {
        assert!(two.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    assert!(!two.contains("<h2>Completion latency</h2>"));
}

/// The least distance of two colours of a theme (CIE76). About 2.3 can just be noticed side by side.
const LEAST: f64 = 20.0;

/// The least distance of the first four, which the built-in schedulers have.
const LEAST_OF_FOUR: f64 = 30.0;

/// The least contrast of a colour to the page, as for large text and graphics.
const CONTRAST: f64 = 3.0;

/// The minimum distance of two greys of the kinds of merge, which are adjacent in one bar.
const LEAST_OF_GREYS: f64 = 10.0;

type Matrix = [[f64; 3]; 3];

/// Linear sRGB as seen with all cones, without long-wave cones (protanopia), and without middle-wave cones
/// (deuteranopia): the matrices of Machado, Oliveira and Fernandes (2009), severity 1.
const SIGHTS: [(&str, Matrix); 3] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
];

/// From linear sRGB to CIE XYZ.
const XYZ: Matrix = [
    [0.412_456_4, 0.357_576_1, 0.180_437_5],
    [0.212_672_9, 0.715_152_2, 0.072_175_0],
    [0.019_333_9, 0.119_192_0, 0.950_304_1],
];

fn times(matrix: &Matrix, v: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|row| (0..3).map(|at| matrix[row][at] * v[at]).sum())
}

fn linear(hex: &str) -> [f64; 3] {
    std::array::from_fn(|at| {
        let part = &hex[1 + 2 * at..][..2];
        let value = f64::from(u8::from_str_radix(part, 16).expect("two digits")) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

fn lab(rgb: [f64; 3]) -> [f64; 3] {
    let white = [0.950_47, 1.0, 1.088_83];
    let xyz = times(&XYZ, rgb.map(|value| value.clamp(0.0, 1.0)));
    let f =
        |t: f64| if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 };
    let [x, y, z] = std::array::from_fn(|at| f(xyz[at] / white[at]));
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn luminance(hex: &str) -> f64 {
    times(&XYZ, linear(hex))[1]
}

/// A colour of a theme.
fn colour(sheet: &str, name: &str) -> String {
    let (_, rest) = sheet.split_once(&format!("--{name}: ")).expect(name);
    rest[..7].to_owned()
}

/// The colours of a theme, and its page.
fn theme(sheet: &str) -> (Vec<String>, String) {
    let colour = |name: &str| colour(sheet, name);
    let colours = (0..svg::COLOURS).map(|at| colour(&format!("c{at}"))).collect();
    (colours, colour("page"))
}

#[test]
fn every_reader_can_tell_the_colours_apart() {
    check(include_str!("../html.css"));
}

/// The live page of a server uses the same colours, so the same checks apply.
#[test]
fn every_reader_of_the_live_page_can_tell_the_colours_apart() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/src/http/page/style.css");
    let sheet = std::fs::read_to_string(page).expect("the repository has it");
    check(&sheet);
    let (light, dark) = sheet.split_once("prefers-color-scheme: dark").expect("two themes");
    let own = include_str!("../html.css").split_once("prefers-color-scheme: dark");
    let own = own.expect("two themes");
    assert_eq!((theme(light), theme(dark)), (theme(own.0), theme(own.1)));
}

fn check(sheet: &str) {
    let (light, dark) =
        sheet.split_once("prefers-color-scheme: dark").expect("there are two themes");
    for (name, sheet) in [("light", light), ("dark", dark)] {
        let (colours, page) = theme(sheet);
        for colour in &colours {
            let (a, b) = (luminance(colour), luminance(&page));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= CONTRAST, "{name}: {colour} on {page}: {contrast:.2}");
        }
        for (sight, matrix) in &SIGHTS {
            let seen: Vec<_> = colours.iter().map(|it| lab(times(matrix, linear(it)))).collect();
            for (a, b) in (0..seen.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
                let least = if b < 4 { LEAST_OF_FOUR } else { LEAST };
                let apart = distance(seen[a], seen[b]);
                let (one, other) = (&colours[a], &colours[b]);
                assert!(apart >= least, "{name}, {sight}: {one} and {other}: {apart:.1}");
            }
        }
    }
}

#[test]
fn kinds_of_merge_have_greys_that_differ() {
    let sheet = include_str!("../html.css");
    let (light, dark) =
        sheet.split_once("prefers-color-scheme: dark").expect("there are two themes");
    for sheet in [light, dark] {
        let greys = svg::KINDS.map(|name| lab(linear(&colour(sheet, name))));
        for (a, b) in (0..greys.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
            assert!(greys[a][1].abs() + greys[a][2].abs() < 1.0, "no colour");
            assert!(distance(greys[a], greys[b]) >= LEAST_OF_GREYS, "{a} and {b}");
        }
    }
}
