//! The priority of an I/O, as a class of service and a weight.

use super::wf2q::Class;
use blkmq_core::{self as core_types, IoPrio};

/// A class and a level in it, 0 being the highest of 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priority {
    /// The class of service.
    pub class: Class,
    /// 0 to 7.
    pub level: u8,
}

impl Priority {
    /// For I/O without a priority.
    pub const DEFAULT: Self = Self { class: Class::BestEffort, level: 4 };

    /// The priority of an I/O. Without a class it is best-effort, of the middle level.
    #[must_use]
    pub fn of(ioprio: IoPrio) -> Self {
        let level = ioprio.level() as u8;
        match ioprio.class() {
            core_types::Class::None => Self::DEFAULT,
            core_types::Class::Realtime => Self { class: Class::Realtime, level },
            core_types::Class::BestEffort => Self { class: Class::BestEffort, level },
            core_types::Class::Idle => Self { class: Class::Idle, level: 7 },
        }
    }

    /// 10 for the lowest level, 80 for the highest.
    #[must_use]
    pub fn weight(self) -> u32 {
        (8 - u32::from(self.level)) * 10
    }

    /// A number for each priority, by which async queues are distinguished.
    #[must_use]
    pub fn number(self) -> u8 {
        self.class as u8 * 8 + self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_weights_and_no_class_is_the_middle() {
        let of = |class, level| Priority::of(IoPrio::new(class, level).expect("a level"));
        assert_eq!(of(core_types::Class::BestEffort, 0).weight(), 80);
        assert_eq!(of(core_types::Class::Realtime, 7).weight(), 10);
        assert_eq!(of(core_types::Class::None, 0), Priority::DEFAULT);
        assert_eq!(Priority::DEFAULT.weight(), 40);
        assert_eq!(
            of(core_types::Class::Idle, 3),
            of(core_types::Class::Idle, 0),
            "one idle queue"
        );
    }

    #[test]
    fn priorities_have_numbers_of_their_own() {
        let numbers: alloc::collections::BTreeSet<u8> = Class::ALL
            .into_iter()
            .flat_map(|class| (0..8).map(move |level| Priority { class, level }.number()))
            .collect();
        assert_eq!(numbers.len(), 24);
    }
}
