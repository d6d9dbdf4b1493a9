//! The condition of exports and the state of their promises, as the lines that `list`, `stat` and `top` print below
//! their tables.

use blkmq_server::control::{
    Bounded, Condition, ExportStat, Figures, FloorStat, GoalStat, Stat, time,
};

/// A line. Bad news comes first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    pub text: String,
    /// Whether something is wrong.
    pub is_bad: bool,
}

/// The lines of the interval between two counts: first one for each device and export that is not well, then the
/// promises.
pub fn lines(before: &Stat, now: &Stat) -> Vec<Line> {
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let devices = now.devices.iter().map(|it| (&it.name, &it.condition));
    let exports = now.exports.iter().map(|it| (&it.name, &it.condition));
    let ill = devices.chain(exports).filter(|(_, condition)| !condition.state.is_well());
    let bad = |(name, Condition { state, why }): (&String, &Condition)| Line {
        text: format!("{}: {}: {why}", named(name), state.name()),
        is_bad: true,
    };
    let mut lines = Vec::from_iter(ill.map(bad));
    for one in &now.exports {
        let old = before.exports.iter().find(|old| old.name == one.name);
        let mut parts = promised(&one.goals, &one.floor);
        if let Some(old) = old.filter(|_| seconds > 0.0) {
            parts.extend(ceilings(&one.max, &grown(one, old), seconds));
        }
        if !parts.is_empty() {
            let text = format!("{}: {}", named(&one.name), parts.join("; "));
            lines.push(Line { text, is_bad: false });
        }
    }
    for device in now.devices.iter().filter(|it| !it.bounded.is_empty()) {
        let text = format!("{}: left beside goals: {}", device.name, bounded(&device.bounded));
        lines.push(Line { text, is_bad: false });
    }
    lines
}

fn named(export: &str) -> &str {
    if export.is_empty() { "(unnamed)" } else { export }
}

/// The goals and the floor of an export, and their state.
pub fn promised(goals: &[GoalStat], floor: &FloorStat) -> Vec<String> {
    let mut parts = Vec::from_iter(goals.iter().map(goal));
    if !floor.promised.is_empty() {
        let state = if floor.state.is_empty() { "idle" } else { &floor.state };
        parts.push(format!("floor {} {state}", floor.promised));
    }
    parts
}

fn goal(goal: &GoalStat) -> String {
    let GoalStat { word, target, state, p99, windows, missed } = goal;
    let mut text = format!("goal {word} {} {state}", time(*target));
    if *windows > 0 {
        text += &format!(" at {}, missed in {missed} of {windows} windows", time(*p99));
    }
    text
}

/// The growth of an export's figures.
fn grown(now: &ExportStat, before: &ExportStat) -> Figures {
    let each = |of: fn(&Figures) -> &[u64; 3]| {
        std::array::from_fn(|at| of(&now.figures)[at].saturating_sub(of(&before.figures)[at]))
    };
    Figures {
        ios: each(|it| &it.ios),
        bytes: each(|it| &it.bytes),
        merged: each(|it| &it.merged),
        ..Figures::default()
    }
}

/// The use of each ceiling that is set.
fn ceilings(max: &str, came: &Figures, seconds: f64) -> Vec<String> {
    let ios = |at: usize| came.ios[at] + came.merged[at];
    let used = |word: &str| match word {
        "rbps" => Some(came.bytes[0]),
        "wbps" => Some(came.bytes[1]),
        "riops" => Some(ios(0)),
        "wiops" => Some(ios(1) + ios(2)),
        "bps" => Some(came.bytes[0] + came.bytes[1]),
        "iops" => Some(ios(0) + ios(1) + ios(2)),
        _ => None,
    };
    let all = max.split_whitespace().filter_map(|word| word.split_once('='));
    let one = |(word, limit): (&str, &str)| {
        let (used, limit) = (used(word)? as f64 / seconds, limit.parse::<u64>().ok()? as f64);
        Some(if word.ends_with("iops") {
            format!("{word} {used:.0} of {limit:.0}")
        } else {
            format!("{word} {} of {}", bytes(used), bytes(limit))
        })
    };
    all.filter_map(one).collect()
}

fn bytes(number: f64) -> String {
    let units = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")];
    let (of, unit) = units.into_iter().find(|(of, _)| number >= *of).unwrap_or((1.0, "B/s"));
    format!("{:.1} {unit}", number / of)
}

/// Describes the bounds of exports without a goal.
fn bounded(bounds: &Bounded) -> String {
    let one = |(name, bound): (&String, &u64)| match name.as_str() {
        "length" => format!("requests of {} KiB", bound / 1024),
        "depth" => format!("{bound} requests at the device"),
        "lighter" => format!("{} for lighter exports", bytes(*bound as f64)),
        "equal" => format!("{} for exports as heavy", bytes(*bound as f64)),
        _ => format!("{} for {name} exports", bytes(*bound as f64)),
    };
    Vec::from_iter(bounds.iter().map(one)).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_server::control::{DeviceStat, State};

    #[test]
    fn bad_news_comes_first_and_promises_have_units() {
        let gold = ExportStat {
            name: "gold".into(),
            max: "rbps=20000000 wbps=max riops=500".into(),
            goals: vec![GoalStat {
                word: "p99_read".into(),
                target: 80_000_000,
                state: "met".into(),
                p99: 61_440_000,
                windows: 18,
                missed: 9,
            }],
            floor: FloorStat {
                promised: "200 IOPS".into(),
                state: "kept".into(),
                ..Default::default()
            },
            ..ExportStat::default()
        };
        let condition = Condition { state: State::Starved, why: "its requests wait".into() };
        let silver = ExportStat { name: "silver".into(), condition, ..ExportStat::default() };
        let mut device = DeviceStat { name: "disk".into(), ..DeviceStat::default() };
        device.bounded.insert("lighter".into(), 243_827);
        device.bounded.insert("depth".into(), 4);
        let before = Stat {
            at: 0,
            exports: vec![gold.clone(), silver.clone()],
            devices: vec![device.clone()],
        };
        let mut now = Stat { at: 2_000_000_000, ..before.clone() };
        now.exports[0].figures.ios[0] = 900;
        now.exports[0].figures.merged[0] = 90;
        now.exports[0].figures.bytes[0] = 3_600_000;
        let lines = lines(&before, &now);
        assert!(lines[0].is_bad && !lines[1].is_bad);
        let texts = Vec::from_iter(lines.iter().map(|line| line.text.as_str()));
        assert_eq!(
            texts,
            [
                "silver: starved: its requests wait",
                "gold: goal p99_read 80.0 ms met at 61.4 ms, missed in 9 of 18 windows; floor 200 IOPS kept; rbps 1.8 \
                 MB/s of 20.0 MB/s; riops 495 of 500",
                "disk: left beside goals: 4 requests at the device, 243.8 kB/s for lighter exports",
            ]
        );
    }
}
