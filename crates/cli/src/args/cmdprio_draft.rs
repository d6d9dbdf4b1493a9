//! The options of a job that give a part of its I/Os another priority: `cmdprio_percentage` and its companions.

use super::places::{block_size, to_sectors};
use super::value::Value;
use blkmq_core::{Class, IoPrio};
use blkmq_lab::workload::{CmdPrio, Direction, PerDirection};
use blkmq_terminal::UsageError;
use blkmq_terminal::units;

/// One entry of `cmdprio_bssplit`: a length, a percentage, and its own priority, if it has one.
type Entry = (u32, u8, Option<IoPrio>);

/// The options as given, by direction.
#[derive(Clone, Debug, Default)]
pub struct CmdPrioDraft {
    /// `cmdprio_percentage`.
    pub percentage: PerDirection<Option<u8>>,
    /// `cmdprio_class`.
    pub class: PerDirection<Option<u8>>,
    /// `cmdprio`.
    pub level: PerDirection<Option<u16>>,
    /// `cmdprio_bssplit`.
    pub split: PerDirection<Option<Vec<Entry>>>,
}

/// One direction of `cmdprio_bssplit`: `4k/30:64k/20`, or with a class and a level, `4k/30/1/0:64k/20/2/3`.
pub fn split(value: Value<'_>) -> Result<Vec<Entry>, UsageError> {
    const ACCEPTED: &str =
        "accepted: SIZE/PERCENT or SIZE/PERCENT/CLASS/LEVEL[/HINT], with : between them";
    let entry = |part: &str| {
        let fields = Vec::from_iter(part.split('/'));
        let (size, share, prio) = match fields[..] {
            [size, share] => (size, share, None),
            // No device here supports hints.
            [size, share, class, level] | [size, share, class, level, _] => {
                if let Some(hint) = fields.get(4) {
                    units::count(hint, 0..=1023u16, value.base)?;
                }
                let class = units::count(class, 1..=3u8, value.base)?;
                let level = units::count(level, 0..=7u16, value.base)?;
                (size, share, Some(prio(class, level)))
            }
            _ => return Err(UsageError::new(ACCEPTED)),
        };
        Ok((to_sectors(block_size(Value { text: size, ..value })?), units::percent(share)?, prio))
    };
    value.text.split(':').map(entry).collect()
}

fn prio(class: u8, level: u16) -> IoPrio {
    let class = match class {
        1 => Class::Realtime,
        2 => Class::BestEffort,
        _ => Class::Idle,
    };
    IoPrio::new(class, level).expect("the option's range is that of levels")
}

impl CmdPrioDraft {
    /// The priorities of the job `name`. As in fio, the default is the highest priority, and trims have none. Appends
    /// options without effect to `notes`.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn finish(
        self,
        name: &str,
        notes: &mut Vec<String>,
    ) -> Result<PerDirection<CmdPrio>, UsageError> {
        let given = |direction| {
            let (share, split) = (&self.percentage[direction], &self.split[direction]);
            (share.is_some_and(|share| share > 0), split.is_some())
        };
        let any = Direction::ALL.map(given);
        if any.iter().any(|(share, _)| *share) && any.iter().any(|(_, split)| *split) {
            let text = "cmdprio_percentage and cmdprio_bssplit; accepted: one of the two";
            return Err(UsageError::new(text).at(format!("job '{name}'")));
        }
        let own = Direction::ALL.iter();
        let own = own.filter(|d| self.class[**d].is_some() || self.level[**d].is_some()).count();
        if own > 0 && any.iter().all(|(share, split)| !share && !split) {
            notes.push(format!(
                "job '{name}': cmdprio_class, cmdprio: no effect without cmdprio_percentage or cmdprio_bssplit"
            ));
        }
        let mut all = PerDirection::default();
        for direction in [Direction::Read, Direction::Write] {
            let class = self.class[direction].unwrap_or(1);
            let usual = prio(class, self.level[direction].unwrap_or(0));
            all[direction] = match (self.percentage[direction], &self.split[direction]) {
                (_, Some(entries)) => {
                    let entry = |(len, share, prio): &Entry| (*len, *share, prio.unwrap_or(usual));
                    CmdPrio::Split(entries.iter().map(entry).collect())
                }
                (Some(share), None) if share > 0 => CmdPrio::Percentage(share, usual),
                _ => CmdPrio::None,
            };
        }
        Ok(all)
    }
}
