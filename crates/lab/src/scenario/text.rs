//! A scenario as a line of `key=value`, and back: `seed=7 cpus=2 ios=3 device=memory,cache_size=1`.
//!
//! Values as in [`Scenario::plain`] are left out, so that a line shows only the relevant ones; a line that was
//! printed reads back as the same scenario, exactly.

use super::{FIELDS, Field, Kind, Scenario};
use crate::Stamp;
use blkmq_core::Op;
use blkmq_engine::Queue;
use std::fmt;
use std::str::FromStr;

/// Why a text is no scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScenarioError {
    /// A word that is not of the form `key=value`.
    Syntax(String),
    /// No such key.
    Unknown(String),
    /// A key that occurs more than once.
    Twice(&'static str),
    /// A value that the key does not accept.
    Value {
        /// The key.
        key: &'static str,
        /// The refused value.
        value: String,
        /// The accepted values.
        accepted: String,
    },
    /// Each value is possible, but not all of them together; with the reason.
    Impossible(String),
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(word) => write!(f, "'{word}' is not of the form key=value"),
            Self::Unknown(key) => {
                let keys = Vec::from_iter(FIELDS.iter().map(|field| field.key)).join(", ");
                write!(f, "no key '{key}'; accepted: {keys}")
            }
            Self::Twice(key) => write!(f, "{key} is given twice"),
            Self::Value { key, value, accepted } => {
                write!(f, "{key}={value} is not possible; accepted: {accepted}")
            }
            Self::Impossible(why) => write!(f, "no such run is possible: {why}"),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl Field {
    /// The value of this field in `scenario`, as it is written.
    pub(crate) fn text(&self, scenario: &Scenario) -> String {
        match self.kind {
            Kind::Number { get, .. } => get(scenario).to_string(),
            Kind::Word { get, .. } => get(scenario).to_owned(),
            Kind::List { get, .. } => get(scenario).clone(),
        }
    }

    /// The accepted values, in words.
    fn accepted(&self) -> String {
        match self.kind {
            Kind::Number { least, most, .. } => format!("a whole number from {least} to {most}"),
            Kind::Word { words, .. } => words().join(", "),
            Kind::List { .. } => "a list separated by commas, without blanks".to_owned(),
        }
    }

    /// Sets this field in `scenario` to `value`.
    ///
    /// # Errors
    /// If the field does not accept that value.
    pub(crate) fn set(&self, scenario: &mut Scenario, value: &str) -> Result<(), ScenarioError> {
        let refused = || ScenarioError::Value {
            key: self.key,
            value: value.to_owned(),
            accepted: self.accepted(),
        };
        match self.kind {
            Kind::Number { least, most, set, .. } => {
                let number = value.parse().ok();
                let number = number.filter(|number| (least..=most).contains(number));
                set(scenario, number.ok_or_else(refused)?);
            }
            Kind::Word { words, set, .. } => {
                let is_one = words().contains(&value);
                is_one.then(|| set(scenario, value)).ok_or_else(refused)?;
            }
            Kind::List { set, .. } => set(scenario, value.to_owned()),
        }
        Ok(())
    }
}

impl Scenario {
    /// Checks that the scenario can be run.
    ///
    /// # Errors
    /// If it cannot, with the reason.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let impossible = |why: &dyn fmt::Display| ScenarioError::Impossible(why.to_string());
        let device = self.device().map_err(|why| impossible(&why))?;
        self.options().map_err(|why| impossible(&why))?;
        Queue::<Stamp>::new(self.config(&device)).map_err(|why| impossible(&why))?;
        if self.load.ops.iter().all(|weight| *weight == 0) {
            return Err(impossible(&"there is nothing to submit; let there be writes"));
        }
        let limits = &device.shape.limits;
        if limits.max_sectors_of(Op::Write) == 0
            || self.load.needed(self.cpus, limits) > limits.capacity
        {
            return Err(impossible(&"the device is too small for one block of each CPU"));
        }
        if self.power.most > 0 && self.power.device_only && device.memory().is_none() {
            return Err(impossible(&"a device that does not store has no power to lose"));
        }
        Ok(())
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::plain();
        write!(f, "seed={}", self.seed)?;
        for field in FIELDS.iter().filter(|field| field.key != "seed") {
            let value = field.text(self);
            if value != field.text(&plain) {
                write!(f, " {}={value}", field.key)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario = Self::plain();
        let mut given: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let pair = word.split_once('=');
            let (key, value) = pair.ok_or_else(|| ScenarioError::Syntax(word.to_owned()))?;
            let field = FIELDS.iter().find(|field| field.key == key);
            let field = field.ok_or_else(|| ScenarioError::Unknown(key.to_owned()))?;
            if given.contains(&field.key) {
                return Err(ScenarioError::Twice(field.key));
            }
            given.push(field.key);
            field.set(&mut scenario, value)?;
        }
        scenario.check()?;
        Ok(scenario)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_scenario_is_read_back_exactly() {
        for seed in 0..3000 {
            let drawn = Scenario::draw(seed);
            let line = drawn.to_string();
            let again: Scenario = line.parse().unwrap_or_else(|why| panic!("{line}: {why}"));
            assert_eq!(format!("{drawn:?}"), format!("{again:?}"), "{line}");
            assert_eq!(line, again.to_string());
        }
    }

    /// A guard against a field that is lost, or writes to another field: each changes the scenario, and changes it
    /// back.
    #[test]
    fn every_field_is_printed_if_it_is_not_plain() {
        let plain = Scenario::plain();
        for field in FIELDS {
            let other = match field.kind {
                Kind::Number { most, get, .. } if get(&plain) != most => most.to_string(),
                Kind::Number { least, .. } => least.to_string(),
                Kind::Word { words, .. } => words().last().map(|word| (*word).to_owned()).unwrap(),
                Kind::List { .. } => "x=1".to_owned(),
            };
            let mut changed = plain.clone();
            field.set(&mut changed, &other).expect("it is accepted");
            let line = changed.to_string();
            assert!(line.contains(&format!("{}={other}", field.key)), "{line}");
            assert_ne!(format!("{changed:?}"), format!("{plain:?}"), "{}", field.key);
            field.set(&mut changed, &field.text(&plain)).expect("it was that before");
            assert_eq!(format!("{changed:?}"), format!("{plain:?}"), "{}", field.key);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| text.parse::<Scenario>().expect_err(text).to_string();
        assert!(error("seed").contains("'seed' is not of the form key=value"));
        assert!(error("sed=1").contains("no key 'sed'; accepted: seed, cpus, ios"));
        assert_eq!(error("cpus=1 cpus=1"), "cpus is given twice");
        assert!(
            error("cpus=0")
                .contains("cpus=0 is not possible; accepted: a whole number from 1 to 64")
        );
        assert!(error("ios=many").contains("accepted: a whole number"));
        assert!(error("access=lock").contains("accepted: combining, spin, mutex"));
        assert!(error("scheduler=cfq").contains("accepted: none, mq-deadline"));
        assert!(error("device=zram").contains("no device 'zram'"));
        assert!(error("options=x=1").contains("no option 'x'"));
        assert!(error("writes=0").contains("nothing to submit"));
        assert!(error("power_cuts=1 cut_device=1").contains("does not store"));
        assert!(error("max_segment_size=1").contains("max_segment_size is 1"));
        assert!("".parse::<Scenario>().is_ok());
    }
}
