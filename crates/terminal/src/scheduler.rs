//! The schedulers that are compared, and their options.

use crate::error::UsageError;
use crate::spec::{self, Spec};
use blkmq_engine::{AUTO, AutoChoice, GroupTree, PolicyChoice};
use blkmq_sched::{Factory, Options, mclock, registry};

/// A scheduler and its options.
#[derive(Clone, Debug)]
pub struct SchedulerChoice {
    /// The factory of the scheduler. For `auto` it is mclock's until [`on`](Self::on) has chosen.
    pub factory: &'static Factory,
    /// Whether the scheduler was named or left to `auto`.
    pub choice: PolicyChoice,
    /// The options, checked against the factory's attributes.
    pub options: Options,
    /// The text as `--scheduler` accepts it.
    pub text: String,
    /// One line for each value that was clamped to its range, as sysfs does.
    pub clamped: Vec<String>,
}

impl SchedulerChoice {
    /// Returns `factory` with every attribute at its default.
    pub fn plain(factory: &'static Factory) -> Self {
        let options = Options::defaults(factory.attributes);
        let (choice, text) = (PolicyChoice::Named, factory.name.into());
        Self { factory, choice, options, text, clamped: Vec::new() }
    }

    /// The choice `auto`: the scheduler depends on the groups of the queue.
    pub fn auto() -> Self {
        let choice = PolicyChoice::Auto;
        Self { choice, text: AUTO.into(), ..Self::plain(&mclock::FACTORY) }
    }

    /// Returns the scheduler of a queue with these groups, on a device whose default is the registered scheduler
    /// `default`. The text is kept, also for `auto`.
    #[must_use]
    pub fn on(&self, default: &str, groups: &GroupTree) -> Self {
        match self.choice {
            PolicyChoice::Named => self.clone(),
            PolicyChoice::Auto => {
                let default = registry::find(default);
                let default = default.expect("the default of a device is registered");
                let chosen = AutoChoice::of(groups, default).scheduler;
                Self {
                    factory: chosen,
                    options: Options::defaults(chosen.attributes),
                    ..self.clone()
                }
            }
        }
    }

    /// The word by which an attribute selects the scheduler.
    pub fn word(&self) -> &'static str {
        match self.choice {
            PolicyChoice::Named => self.factory.name,
            PolicyChoice::Auto => AUTO,
        }
    }

    /// The scheduler with its options if it was named, or `None` for `auto`.
    pub fn configured(&self) -> Option<(&'static Factory, Options)> {
        (self.choice == PolicyChoice::Named).then(|| (self.factory, self.options.clone()))
    }

    /// Every registered scheduler.
    pub fn all() -> Vec<Self> {
        registry::ALL.iter().copied().map(Self::plain).collect()
    }

    /// Reads `--scheduler`: a list in the grammar of [`spec`], or `all`.
    ///
    /// # Errors
    /// If a scheduler or option does not exist, or a value is not a number.
    pub fn parse(text: &str) -> Result<Vec<Self>, UsageError> {
        if text == "all" {
            return Ok(Self::all());
        }
        spec::parse(text)?.iter().map(Self::of).collect()
    }

    fn of(spec: &Spec) -> Result<Self, UsageError> {
        let name = &spec.name;
        if name == AUTO {
            return match spec.params.first() {
                None => Ok(Self::auto()),
                Some((key, value)) => Err(UsageError::new(format!(
                    "{AUTO}:{key}={value}: which scheduler has the option is not known before the groups are; accepted: \
                     {AUTO} alone, or a scheduler by its name, as mclock:{key}={value}"
                ))),
            };
        }
        let refused = || UsageError::new(registry::refusal(name, &[AUTO, "all"]));
        let factory = registry::find(name).ok_or_else(refused)?;
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
    fn auto_goes_with_the_device_and_the_groups() {
        let [auto] = &SchedulerChoice::parse("auto").expect("a word")[..] else { panic!("one") };
        let on = |default: &str, groups: &[&str]| {
            let mut tree = GroupTree::default();
            for name in groups {
                tree.add(name, "/").expect("a new name");
            }
            let chosen = auto.on(default, &tree);
            (chosen.factory.name, chosen.text)
        };
        let text = || String::from("auto");
        assert_eq!(on("mq-deadline", &[]), ("mq-deadline", text()));
        assert_eq!(on("none", &["a"]), ("none", text()));
        assert_eq!(on("none", &["a", "b"]), ("mclock", text()));
    }

    #[test]
    fn unknown_schedulers_and_options_list_the_known_ones() {
        let message = |text| SchedulerChoice::parse(text).expect_err("refused").to_string();
        assert!(message("cfq").contains("accepted: none"));
        assert!(message("cfq").contains(", auto, all"), "{}", message("cfq"));
        let text = message("auto:learn=0");
        assert!(
            text.contains("accepted: auto alone, or a scheduler by its name, as mclock:learn=0")
        );
        assert_eq!(message("none:depth=1"), "none: no option 'depth': this scheduler has none");
    }
}
