//! I/O priorities as Linux spells them: `class << 13 | hint << 3 | level`.

/// A priority class. An I/O without a class carries `None`; policies treat it as best-effort (`spec/mq-deadline.md`
/// section 2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Class {
    /// No class given.
    #[default]
    None = 0,
    /// Before all others.
    Realtime = 1,
    /// The ordinary class.
    BestEffort = 2,
    /// Served only when no other class wants the device.
    Idle = 3,
}

/// An I/O priority value, bit for bit that of Linux. Two requests merge only if these are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct IoPrio(u16);

impl IoPrio {
    /// Levels within a class, 0 (highest) to 7.
    pub const LEVELS: u16 = 8;

    /// Class and level; `None` if `level` is not in `0..8`.
    #[must_use]
    pub const fn new(class: Class, level: u16) -> Option<Self> {
        if level < Self::LEVELS { Some(Self((class as u16) << 13 | level)) } else { None }
    }

    /// The class. Values that Linux does not define count as [`Class::None`].
    #[must_use]
    pub const fn class(self) -> Class {
        match self.0 >> 13 {
            1 => Class::Realtime,
            2 => Class::BestEffort,
            3 => Class::Idle,
            _ => Class::None,
        }
    }

    /// The level within the class, 0 to 7, 0 being the most urgent.
    #[must_use]
    pub const fn level(self) -> u16 {
        self.0 & 7
    }

    /// The value as Linux passes it.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// A value as Linux passes it.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_linux() {
        let p = IoPrio::new(Class::Realtime, 3).expect("3 is a level");
        assert_eq!(p.to_bits(), 1 << 13 | 3);
        assert_eq!((p.class(), p.level()), (Class::Realtime, 3));
        assert_eq!(IoPrio::new(Class::Idle, 8), None);
        assert_eq!(IoPrio::from_bits(7 << 13).class(), Class::None);
    }
}
