//! Answers as text.

use crate::promises::promised;
use blkmq_server::control::{Answer, ClientState, DeviceState, ExportState};
use blkmq_terminal::paper::{Align, TextTable};
use blkmq_terminal::paper::{Paper, push_line};
use serde::Serialize;

/// Formats an answer as one line of JSON.
pub fn json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("answers have a form in JSON") + "\n"
}

/// Formats an answer as text, with tables of at most `width` columns.
pub fn of(answer: &Answer, width: usize) -> String {
    match answer {
        Answer::List { devices, exports } => list(devices, exports, width),
        Answer::Clients(all) => clients(all, width),
        Answer::Disconnecting(numbers) if numbers.is_empty() => "no client ends\n".to_owned(),
        Answer::Disconnecting(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            format!("ending once their requests are answered: {}\n", numbers.join(", "))
        }
        Answer::Attributes(all) => match &all[..] {
            [(_, value)] => format!("{value}\n"),
            all => all.iter().map(|(path, value)| format!("{path}={value}\n")).collect(),
        },
        Answer::Done(ns) => format!("in force after {:.1} ms\n", *ns as f64 / 1e6),
        Answer::Reloaded(lines) if lines.is_empty() => "nothing has changed\n".to_owned(),
        Answer::Reloaded(lines) => lines.iter().map(|line| format!("{line}\n")).collect(),
        Answer::Differences(lines) if lines.is_empty() => "nothing differs\n".to_owned(),
        Answer::Differences(lines) => lines.iter().map(|line| format!("{line}\n")).collect(),
        Answer::Saved(saved) => saved.as_ref().map_or_else(String::new, |saved| saved.text.clone()),
        Answer::Draining => "the server ends when the requests in flight are answered\n".to_owned(),
        Answer::Refused(why) => format!("{why}\n"),
        Answer::Recording => unreachable!("recordings are asked for on connections of their own"),
        Answer::Stat(_) | Answer::Waits(_) => unreachable!("counts are shown as rates"),
    }
}

/// Lists devices, each followed by its exports.
fn list(devices: &[DeviceState], exports: &[ExportState], width: usize) -> String {
    let mut disks =
        table(&[("device", false), ("bytes", true), ("scheduler", false), ("description", false)]);
    for (number, disk) in (1..).zip(devices) {
        let cells = [format!("{number}"), disk.bytes.to_string()];
        disks.row(&[&cells[..], &[disk.scheduler.clone(), disk.name.clone()]].concat());
    }
    // The column is shown only if needed: few servers have block devices.
    let has_ublk = exports.iter().any(|export| export.ublk.is_some());
    let ublk = if has_ublk { &[("ublk", false)][..] } else { &[] };
    let columns = [
        ("export", false),
        ("device", true),
        ("offset", true),
        ("bytes", true),
        ("access", false),
        ("weight", true),
        ("class", false),
        ("cache", false),
        ("connections", true),
        ("limits", false),
        ("promise", false),
    ];
    let mut list = table(&[&columns, ublk].concat());
    for export in exports {
        let access = if export.read_only { "read-only" } else { "read-write" };
        let mut cells = vec![
            export.name.clone(),
            export.device.to_string(),
            export.offset.to_string(),
            export.bytes.to_string(),
            access.to_owned(),
            export.weight.to_string(),
            export.class.clone(),
            export.cache.clone(),
            export.connections.to_string(),
            set(&export.max),
            set(&export.promise),
        ];
        if has_ublk {
            cells.push(export.ublk.map_or_else(String::new, |ublk| format!("/dev/ublkb{ublk}")));
        }
        list.row(&cells);
    }
    let mut paper = Paper::new(width);
    for export in exports {
        let parts = promised(&export.goals, &export.floor);
        if !parts.is_empty() {
            push_line(&mut paper, 0, &format!("{}: {}", export.name, parts.join("; ")));
        }
    }
    let said = paper.finish();
    let gap = if said.is_empty() { "" } else { "\n" };
    format!("{}\n{}{gap}{said}", disks.render_within(width), list.render_within(width))
}

fn clients(all: &[ClientState], width: usize) -> String {
    let mut list = table(&[
        ("client", true),
        ("export", false),
        ("identity", false),
        ("peer", false),
        ("age s", true),
        ("in flight", true),
        ("requests", true),
        ("bytes read", true),
        ("bytes written", true),
    ]);
    for client in all {
        list.row(&[
            client.number.to_string(),
            client.export.clone(),
            client.identity.clone(),
            client.peer.clone(),
            client.seconds.to_string(),
            client.in_flight.to_string(),
            client.requests.to_string(),
            client.read_bytes.to_string(),
            client.written_bytes.to_string(),
        ]);
    }
    list.render_within(width)
}

/// Keeps only the words that set a limit or a promise, such as `reserve_iops=200` in `rbps=max reserve_iops=200`.
/// Returns a dash if there are none.
fn set(words: &str) -> String {
    let is_set =
        |word: &&str| !word.split_once('=').is_some_and(|(_, to)| matches!(to, "max" | "0"));
    let set = Vec::from_iter(words.split_whitespace().filter(is_set)).join(" ");
    if set.is_empty() { "-".to_owned() } else { set }
}

/// Creates a table; a column with `true` contains figures.
pub fn table(columns: &[(&str, bool)]) -> TextTable {
    let align = |is_figure| if is_figure { Align::Right } else { Align::Left };
    TextTable::new(columns.iter().map(|(name, is)| ((*name).to_owned(), align(*is))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_server::control::FloorStat;

    /// Unset limits take no room, so that set limits can be read in 80 columns.
    #[test]
    fn a_list_names_limits_and_promises_at_any_width() {
        let (max, promise) =
            ("rbps=10485760 wbps=max riops=500 wiops=max", "reserve_iops=100 p99_read=20ms");
        let export = |name: &str, max: &str, promise: &str| ExportState {
            name: name.into(),
            device: 1,
            offset: 1 << 40,
            bytes: 1 << 40,
            read_only: false,
            weight: 300,
            max: max.into(),
            promise: format!("{promise} reserve_bps=0 overcommit=0"),
            connections: 12,
            class: "be".into(),
            cache: "writethrough".into(),
            goals: Vec::new(),
            floor: FloorStat::default(),
            ublk: None,
        };
        let exports = vec![export("gold", max, promise), export("rest", "rbps=max", "")];
        let list = of(&Answer::List { devices: Vec::new(), exports }, 80);
        assert!(list.lines().all(|line| line.len() <= 80), "{list}");
        for whole in ["read-write", "writethrough", "rbps=10485760 riops=500", promise] {
            assert!(list.contains(whole), "{whole}:\n{list}");
        }
        assert!(!list.contains("...") && !list.contains("=max") && !list.contains("=0"), "{list}");
    }
}
