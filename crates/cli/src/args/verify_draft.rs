//! The options of a job's verification, with notes on those without effect.

use blkmq_lab::workload::{
    Rw, Verify,
    verify::{Method, Pattern},
};

/// `verify` and its companions; `None` for an option that was not given.
#[derive(Clone, Debug, Default)]
pub struct VerifyDraft {
    /// `verify`; 0 disables it.
    pub method: Option<Method>,
    /// `verify_pattern`.
    pub pattern: Option<Pattern>,
    /// `verify_interval`.
    pub interval: Option<u32>,
    /// `do_verify`.
    pub do_verify: Option<bool>,
    /// `verify_fatal`.
    pub fatal: Option<bool>,
    /// `verify_backlog`.
    pub backlog: Option<u32>,
    /// `verify_only`.
    pub only: Option<bool>,
    /// `verify_state_save`.
    pub state_save: Option<bool>,
    /// `verify_state_load`.
    pub state_load: Option<bool>,
}

impl VerifyDraft {
    /// The verification of the job `name` with direction `rw`. Appends options without effect to `notes`.
    pub fn finish(self, name: &str, rw: Rw, notes: &mut Vec<String>) -> Option<Verify> {
        let mut idle = |options: &[&str], why: &str| {
            if !options.is_empty() {
                let options = options.join(", ");
                notes.push(format!("job '{name}': {options}: no effect {why}"));
            }
        };
        let given = [
            ("verify_pattern", self.pattern.is_some()),
            ("verify_interval", self.interval.is_some()),
            ("do_verify", self.do_verify.is_some()),
            ("verify_fatal", self.fatal.is_some()),
            ("verify_backlog", self.backlog.is_some()),
            ("verify_only", self.only.is_some()),
            ("verify_state_save", self.state_save.is_some()),
            ("verify_state_load", self.state_load.is_some()),
        ];
        let among = |names: &[&str]| {
            let both = given.iter().filter(|(name, given)| *given && names.contains(name));
            Vec::from_iter(both.map(|(name, _)| *name))
        };
        let Some(method) = self.method else {
            idle(&among(&given.map(|(name, _)| name)), "without verify");
            return None;
        };
        let do_verify = self.do_verify.unwrap_or(true);
        let mut backlog = self.backlog.unwrap_or(0);
        let reads = matches!(rw, Rw::Read | Rw::RandRead);
        if reads {
            let why = "on a job that only reads: it checks all that it reads";
            idle(&among(&["do_verify", "verify_backlog", "verify_state_save"]), why);
        } else if self.only == Some(true) {
            idle(&among(&["verify_backlog"]), "with verify_only: nothing is written");
            backlog = 0;
        } else if !do_verify {
            idle(&among(&["verify_backlog"]), "with do_verify=0: nothing is read back");
        }
        if method == Method::Null {
            let why = "with verify=null: contents are not looked at";
            idle(&among(&["verify_pattern", "verify_fatal"]), why);
        }
        Some(Verify {
            method,
            pattern: self.pattern,
            interval: self.interval,
            do_verify,
            fatal: self.fatal.unwrap_or(false),
            backlog,
            only: self.only.unwrap_or(false),
            state_save: self.state_save.unwrap_or(false) && !reads,
            state_load: self.state_load.unwrap_or(false),
        })
    }
}
