//! The schedulers that are compared, and their options; and the grammar of `--scheduler`, which is names with options,
//! several in one list.
//!
//! ```text
//! list  = word { "," word }
//! word  = name [ ":" pair ] | pair
//! pair  = key "=" value
//! ```
//!
//! A word that contains `=` before any `:` sets an option of the preceding name; any other word is a name. So
//! `mq-deadline:fifo_batch=8,read_expire=100,none` and `bfq,slice_idle=0` need no quoting: names do not contain `=`,
//! and every option has one.

use crate::UsageError;
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

    /// Reads `--scheduler`: a list in the grammar of [`specs`], or `all`.
    ///
    /// # Errors
    /// If a scheduler or option does not exist, or a value is not a number.
    pub fn parse(text: &str) -> Result<Vec<Self>, UsageError> {
        if text == "all" {
            return Ok(Self::all());
        }
        specs(text)?.iter().map(Self::of).collect()
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

/// A name and its options, as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// The name of the scheduler or access.
    pub name: String,
    /// Options in the order given.
    pub params: Vec<(String, String)>,
}

/// Reads a list of names with options.
///
/// # Errors
/// If a word is empty, or an option comes before any name or lacks its key.
pub fn specs(text: &str) -> Result<Vec<Spec>, UsageError> {
    const ACCEPTED: &str = "NAME[:KEY=VALUE[,KEY=VALUE]...][,NAME...]";
    let refuse = |what: &str| UsageError::new(format!("{what}; accepted: {ACCEPTED}"));
    let mut specs: Vec<Spec> = Vec::new();
    for word in text.split(',').map(str::trim) {
        let pair = match (word.find(':'), word.find('=')) {
            (Some(colon), equals) if equals.is_none_or(|equals| colon < equals) => {
                specs.push(Spec { name: word[..colon].trim().into(), params: Vec::new() });
                word[colon + 1..].trim()
            }
            (_, Some(_)) => word,
            (_, None) => {
                specs.push(Spec { name: word.into(), params: Vec::new() });
                ""
            }
        };
        let last = specs.last_mut().ok_or_else(|| refuse(&format!("'{pair}' before any name")))?;
        if last.name.is_empty() {
            return Err(refuse("a name is missing"));
        }
        if let Some((key, value)) = pair.split_once('=') {
            if key.trim().is_empty() {
                return Err(refuse(&format!("'{pair}' has no key")));
            }
            last.params.push((key.trim().into(), value.trim().into()));
        } else if !pair.is_empty() {
            return Err(refuse(&format!("'{pair}' is no option")));
        }
    }
    Ok(specs)
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

    fn printed(text: &str) -> String {
        let specs = specs(text).expect(text);
        let one = |spec: &Spec| {
            let params = spec.params.iter().map(|(key, value)| format!("{key}={value}"));
            format!("{}({})", spec.name, Vec::from_iter(params).join(" "))
        };
        Vec::from_iter(specs.iter().map(one)).join(" ")
    }

    #[test]
    fn a_word_without_equals_begins_the_next_name() {
        assert_eq!(printed("none"), "none()");
        assert_eq!(printed("none,mq-deadline"), "none() mq-deadline()");
        assert_eq!(
            printed("bfq:slice_idle=0,low_latency=0,none"),
            "bfq(slice_idle=0 low_latency=0) none()"
        );
        assert_eq!(printed("bfq,slice_idle=4,low_latency=64"), "bfq(slice_idle=4 low_latency=64)");
        assert_eq!(printed("a:b=1:2,none"), "a(b=1:2) none()");
        assert_eq!(printed(" none : a=1 , b=2 "), "none(a=1 b=2)");
    }

    #[test]
    fn what_does_not_fit_the_grammar_shows_it() {
        for text in ["", ",none", "none,", "a=1", "none:=1", "none:word", ":a=1", "none,,none"] {
            let message = specs(text).expect_err(text).to_string();
            assert!(message.contains("accepted: NAME["), "{message}");
        }
    }
}
