//! The schedulers that are compared, and their options.

use super::spec::{self, Spec};
use crate::error::UsageError;
use blkmq_sched::{Factory, Options, registry};

/// A scheduler and its options.
#[derive(Clone, Debug)]
pub struct SchedulerChoice {
    /// The factory of the scheduler.
    pub factory: &'static Factory,
    /// The options, checked against the factory's attributes.
    pub options: Options,
    /// The text as `--scheduler` takes it.
    pub text: String,
    /// Notes on values that were moved into their range, as sysfs does it; a line each.
    pub clamped: Vec<String>,
}

impl SchedulerChoice {
    /// `factory` with every attribute at its default.
    pub fn plain(factory: &'static Factory) -> Self {
        let options = Options::defaults(factory.attributes);
        Self { factory, options, text: factory.name.into(), clamped: Vec::new() }
    }

    /// Every registered scheduler.
    pub fn all() -> Vec<Self> {
        registry::ALL.iter().copied().map(Self::plain).collect()
    }

    /// Reads `--scheduler`: a list in the grammar of [`spec`], or `all`.
    ///
    /// # Errors
    /// If a scheduler or option does not exist, or a value is no number.
    pub fn parse(text: &str) -> Result<Vec<Self>, UsageError> {
        if text == "all" {
            return Ok(Self::all());
        }
        spec::parse(text)?.iter().map(Self::of).collect()
    }

    fn of(spec: &Spec) -> Result<Self, UsageError> {
        let name = &spec.name;
        let factory = registry::find(name).ok_or_else(|| {
            let names = Vec::from_iter(registry::ALL.iter().map(|factory| factory.name));
            let names = names.join(", ");
            UsageError::new(format!("no scheduler '{name}'; accepted: {names}, all"))
        })?;
        let mut choice = Self::plain(factory);
        for (i, (key, value)) in spec.params.iter().enumerate() {
            let refused = |e: blkmq_sched::OptionError| UsageError::new(e.to_string()).at(name);
            choice.options.set(key, value).map_err(refused)?;
            choice.text.push_str(&format!("{}{key}={value}", if i == 0 { ":" } else { "," }));
            let used = choice.options.get(key);
            if value.parse() != Ok(used) {
                choice
                    .clamped
                    .push(format!("{name}: {key}={value} is out of range; {used} is used"));
            }
        }
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_repeats() {
        let texts = |text| {
            let choices = SchedulerChoice::parse(text).expect(text);
            Vec::from_iter(choices.into_iter().map(|choice| choice.text))
        };
        assert_eq!(texts("none,none"), ["none", "none"], "comparing with itself shows the noise");
        assert_eq!(texts("all").len(), registry::ALL.len());
    }

    #[test]
    fn unknown_schedulers_and_options_list_the_known_ones() {
        let message = |text| SchedulerChoice::parse(text).expect_err("refused").to_string();
        assert!(message("cfq").contains("accepted: none"));
        assert_eq!(message("none:depth=1"), "none: no option 'depth': this scheduler has none");
    }
}
