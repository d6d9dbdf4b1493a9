use super::super::group::GroupResult;
use super::super::sample;
use super::*;

/// A minimal markup parser, as simple as the markup here: checks nesting and quoting, and returns the tags in order.
/// Panics where the text is not well-formed.
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

/// The end of the tag that `text` begins with, quotes considered.
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
    // Four plots; three series, nine runs and two kinds of merge in legends.
    assert_eq!(count(&tags, "svg"), 4 + 3 + 9 + 2);
    // The nine points of the curves, three dots for each latency, and the legends' three and nine.
    assert_eq!(count(&tags, "circle"), 9 + 27 + 3 + 9);
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
    // Two plots, and a distribution with its legend.
    assert_eq!(count(&tags, "svg"), 2 + 2);
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
    // The tables of the runs, of their queues, of their groups, and of the state that the instances of one of them
    // share.
    assert_eq!(count(&found, "table"), 5);
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
    // One group of each run did nothing.
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
