//! The ways to share an elevator that are compared: an access and its modes.

use blkmq_engine::{Access, DispatchMode, InsertMode, KickMode, MergeMode, Modes};
use blkmq_terminal::UsageError;
use blkmq_terminal::spec::{self, Spec};

/// A way to share an elevator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessChoice {
    /// How threads share it.
    pub access: Access,
    /// The explicit modes; the others follow from the access.
    pub modes: Modes,
    /// The text as `--access` accepts it.
    pub text: String,
}

/// The modes that a choice may set in addition to its access.
pub const MODES: [&str; 4] = ["dispatch", "insert", "merge", "kick"];

impl AccessChoice {
    /// `access` with its default modes.
    pub fn plain(access: Access) -> Self {
        Self { access, modes: Modes::default(), text: access.name().into() }
    }

    /// Reads `--access`: a list in the grammar of [`spec`].
    ///
    /// # Errors
    /// If an access or a mode does not exist, or they are incompatible.
    pub fn parse(text: &str) -> Result<Vec<Self>, UsageError> {
        spec::parse(text)?.iter().map(Self::of).collect()
    }

    fn of(spec: &Spec) -> Result<Self, UsageError> {
        let access = Access::from_name(&spec.name).ok_or_else(|| {
            let names = Access::ALL.map(|(name, _)| name).join(", ");
            UsageError::new(format!("no access '{}'; accepted: {names}", spec.name))
        })?;
        let mut modes = Modes::default();
        for (key, value) in &spec.params {
            set(&mut modes, key, value).map_err(|e| e.at(&spec.name))?;
        }
        let mut choice = Self::plain(access);
        choice.fill(modes)?;
        Ok(choice)
    }

    /// Adopts the modes that are set in `modes` but not here.
    ///
    /// # Errors
    /// If a mode is incompatible with the access.
    pub fn fill(&mut self, modes: Modes) -> Result<(), UsageError> {
        let before = self.modes;
        self.modes = Modes {
            dispatch: before.dispatch.or(modes.dispatch),
            insert: before.insert.or(modes.insert),
            merge: before.merge.or(modes.merge),
            kick: before.kick.or(modes.kick),
        };
        self.modes.settle(self.access).map_err(|e| UsageError::new(e.to_string()))?;
        for (key, (old, new)) in MODES.iter().zip(names(&before).iter().zip(names(&self.modes))) {
            if let (None, Some(name)) = (old, new) {
                let separator = if self.text.contains(':') { ',' } else { ':' };
                self.text.push_str(&format!("{separator}{key}={name}"));
            }
        }
        Ok(())
    }
}

/// The words of the modes, in the order of [`MODES`].
fn names(modes: &Modes) -> [Option<&'static str>; 4] {
    [
        modes.dispatch.map(DispatchMode::name),
        modes.insert.map(InsertMode::name),
        modes.merge.map(MergeMode::name),
        modes.kick.map(KickMode::name),
    ]
}

/// Sets the mode called `key` to `value`.
///
/// # Errors
/// If there is no such mode or value.
pub fn set(modes: &mut Modes, key: &str, value: &str) -> Result<(), UsageError> {
    match key {
        "dispatch" => modes.dispatch = Some(choice(value, &DispatchMode::ALL)?),
        "insert" => modes.insert = Some(choice(value, &InsertMode::ALL)?),
        "merge" => modes.merge = Some(choice(value, &MergeMode::ALL)?),
        "kick" => modes.kick = Some(choice(value, &KickMode::ALL)?),
        _ => {
            let text = format!("no option '{key}'; accepted: {}", MODES.join(", "));
            return Err(UsageError::new(text));
        }
    }
    Ok(())
}

fn choice<M: Copy>(word: &str, all: &[(&'static str, M)]) -> Result<M, UsageError> {
    let found = all.iter().find(|(name, _)| *name == word).map(|(_, mode)| *mode);
    found.ok_or_else(|| {
        let names = Vec::from_iter(all.iter().map(|(name, _)| *name)).join(", ");
        UsageError::new(format!("'{word}' is none of the choices; accepted: {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let choices = AccessChoice::parse(text).expect(text);
        choices.into_iter().map(|choice| choice.text).collect()
    }

    fn refused(text: &str) -> String {
        AccessChoice::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn a_word_with_equals_belongs_to_the_access_before_it() {
        assert_eq!(texts("spin,mutex"), ["spin", "mutex"]);
        assert_eq!(
            texts("spin:merge=skip-when-contended,dispatch=batch,combining,kick=flag"),
            ["spin:dispatch=batch,merge=skip-when-contended", "combining:kick=flag"]
        );
    }

    #[test]
    fn what_does_not_exist_or_go_together_is_told_with_what_does() {
        assert_eq!(refused("rcu"), "no access 'rcu'; accepted: combining, spin, mutex, serialised");
        assert_eq!(
            refused("spin:order=total"),
            "spin: no option 'order'; accepted: dispatch, insert, merge, kick"
        );
        assert_eq!(
            refused("spin:kick=never"),
            "spin: 'never' is none of the choices; accepted: always, flag, coalesced"
        );
        assert_eq!(
            refused("combining:dispatch=one"),
            "this dispatch does not go with access=combining; accepted: total-order"
        );
    }

    #[test]
    fn what_is_asked_of_all_does_not_overrule_what_is_asked_of_one() {
        let mut choices = AccessChoice::parse("spin:dispatch=batch,mutex").expect("accepted");
        let all = Modes { dispatch: Some(DispatchMode::One), ..Modes::default() };
        choices.iter_mut().for_each(|choice| choice.fill(all).expect("it goes with locks"));
        let texts = Vec::from_iter(choices.iter().map(|choice| choice.text.as_str()));
        assert_eq!(texts, ["spin:dispatch=batch", "mutex:dispatch=one"]);
    }
}
