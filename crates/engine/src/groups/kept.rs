//! How floors were kept, as lines for people.

use super::promise::Promise;
use super::tree::{Group, GroupTree};
use blkmq_core::GroupId;
use blkmq_sched::{FloorReport, FloorState, Rate};

/// The whole of a floor.
const WHOLE: u64 = 1_000_000;

/// A part of a floor, in millionths, in the unit in which the floor was promised; in percent of the floor if there are
/// several.
fn amount(reserve: &Rate, part: u64) -> String {
    let of = |whole: f64| whole * part as f64 / WHOLE as f64;
    let number = |value: f64| {
        let tenths = (value * 10.0).round() / 10.0;
        let decimals = usize::from(tenths < 100.0 && tenths.fract() != 0.0);
        format!("{value:.decimals$}")
    };
    match *reserve {
        Rate { iops, bps: 0, percent: 0 } => format!("{} IOPS", number(of(iops as f64))),
        Rate { iops: 0, bps, percent: 0 } => format!("{} MB/s", number(of(bps as f64) / 1e6)),
        Rate { iops: 0, bps: 0, percent } => {
            format!("{} % of the device", number(of(f64::from(percent))))
        }
        _ => format!("{} % of it", number(of(100.0))),
    }
}

impl Promise {
    /// The floor in its own units, such as `200 IOPS`; `None` without one.
    #[must_use]
    pub fn floor(&self) -> Option<String> {
        let reserve = &self.guarantee.reserve;
        (!reserve.is_none()).then(|| amount(reserve, WHOLE))
    }
}

impl GroupTree {
    /// A line for each group whose floor was missed, with the cause of most of the missed seconds, from reports such as
    /// [`QueueTimes::floors`](crate::QueueTimes::floors).
    #[must_use]
    pub fn missed_floors(&self, reports: &[(GroupId, FloorReport)]) -> Vec<String> {
        let lines = reports.iter().filter_map(|(id, report)| {
            let group = self.get(*id)?;
            line(group, &group.promise.floor()?, report)
        });
        lines.collect()
    }
}

fn line(group: &Group, floor: &str, report: &FloorReport) -> Option<String> {
    let cause = report.cause()?;
    let FloorReport { seconds, missed, least, best, .. } = report;
    let mut line = format!(
        "{}: floor {floor} missed in {missed} of {seconds} seconds, least {}; cause: {}",
        group.name,
        amount(&group.promise.guarantee.reserve, *least),
        cause.text(),
    );
    if report.state == FloorState::Infeasible {
        line +=
            &format!("; infeasible at present: the device does {} % of the floors", best / 10_000);
    }
    Some(line)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use blkmq_sched::FloorCause;

    #[test]
    fn a_missed_floor_is_told_in_its_own_unit_with_the_cause() {
        let mut tree = GroupTree::default();
        let tell = |tree: &mut GroupTree, words: &str, counts: &dyn Fn(&mut FloorReport)| {
            let _ = tree.add("b", "/");
            let none = Promise::default();
            tree.set_promise("b", none.set(words).expect("right")).expect("there");
            let id = tree.find("b").expect("there");
            let mut report = FloorReport::new(id.index());
            (report.seconds, report.missed, report.least) = (30, 12, 6_500);
            counts(&mut report);
            tree.missed_floors(&[(id, report)])
        };
        let by = |cause: FloorCause| move |it: &mut FloorReport| it.causes[cause as usize] = 12;
        let lines = tell(&mut tree, "reserve_iops=200", &by(FloorCause::Device));
        let expected = "b: floor 200 IOPS missed in 12 of 30 seconds, least 1.3 IOPS; cause: the device holds too much";
        assert_eq!(lines, [expected]);
        let lines = tell(&mut tree, "reserve_bps=50000000", &by(FloorCause::Slots));
        assert!(lines[0].contains("floor 50 MB/s missed") && lines[0].contains("0.3 MB/s"));
        let lines = tell(&mut tree, "reserve_percent=40", &by(FloorCause::Slots));
        assert!(lines[0].contains("floor 40 % of the device"), "{lines:?}");
        let lines = tell(&mut tree, "reserve_percent=40 reserve_iops=1", &by(FloorCause::Slots));
        assert!(lines[0].contains("floor 100 % of it missed"), "{lines:?}");
        let lines = tell(&mut tree, "reserve_iops=200", &|it| {
            by(FloorCause::Infeasible)(it);
            (it.state, it.best) = (FloorState::Infeasible, 570_000);
        });
        assert!(lines[0].ends_with("the device does 57 % of the floors"), "{lines:?}");
        assert_eq!(tell(&mut tree, "reserve_iops=200", &|it| it.missed = 0), [""; 0]);
        assert_eq!(tell(&mut tree, "reserve_iops=0", &by(FloorCause::Slots)), [""; 0]);
    }
}
