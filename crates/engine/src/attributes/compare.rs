//! The attributes of the comparison modes.

use crate::attributes::table::words;
use crate::attributes::value::{Row, Shown, Words};
use crate::plan::Plan;
use crate::shared::modes::accepted;
use crate::{Access, DispatchMode, InsertMode, KickMode, MergeMode, Modes};

pub(super) const MODES: &[Row] = &[
    words(
        "blkmq/access",
        "blkmq's own: how threads share an elevator: 'combining', 'spin', 'mutex' or 'serialised'; another one begins \
         with its own modes",
        ACCESS,
    ),
    words(
        "blkmq/dispatch",
        "blkmq's own: how requests leave an elevator: 'one' or a 'batch' per hold of a lock, or in 'total-order'",
        DISPATCH,
    ),
    words(
        "blkmq/insert",
        "blkmq's own: how a plug gets in: 'direct' under a lock, by 'percpu-lists' if that is taken, or 'staged'",
        INSERT,
    ),
    words(
        "blkmq/merge",
        "blkmq's own: when a bio is offered to merging: 'always', 'skip-when-contended' or 'at-drain'",
        MERGE,
    ),
    words(
        "blkmq/kick",
        "blkmq's own: what becomes of kicks: 'always' sent, dropped by a 'flag', or 'coalesced'",
        KICK,
    ),
];

const ACCESS: Words = Words {
    get: |plan| plan.access.name(),
    accepted: |_| Access::ALL.map(|(name, _)| name).to_vec(),
    shown: Shown::Alone,
    set: |plan, name| plan.access(Access::from_name(name).expect("only names are accepted")),
};

const DISPATCH: Words = Words {
    get: |plan| plan.modes.dispatch.unwrap_or(plan.access.dispatch()[0]).name(),
    accepted: |plan| accepted(plan.access, "dispatch"),
    shown: Shown::Alone,
    set: |plan, name| choose(plan, |modes| modes.dispatch = DispatchMode::from_name(name)),
};

const INSERT: Words = Words {
    get: |plan| plan.modes.insert.unwrap_or(plan.access.insert()[0]).name(),
    accepted: |plan| accepted(plan.access, "insert"),
    shown: Shown::Alone,
    set: |plan, name| choose(plan, |modes| modes.insert = InsertMode::from_name(name)),
};

const MERGE: Words = Words {
    get: |plan| plan.modes.merge.unwrap_or(plan.access.merge()[0]).name(),
    accepted: |plan| accepted(plan.access, "merge"),
    shown: Shown::Alone,
    set: |plan, name| choose(plan, |modes| modes.merge = MergeMode::from_name(name)),
};

const KICK: Words = Words {
    get: |plan| plan.modes.kick.unwrap_or(KickMode::Coalesced).name(),
    accepted: |plan| accepted(plan.access, "kick"),
    shown: Shown::Alone,
    set: |plan, name| choose(plan, |modes| modes.kick = KickMode::from_name(name)),
};

fn choose(mut plan: Plan, choose: impl FnOnce(&mut Modes)) -> Plan {
    choose(&mut plan.modes);
    plan
}
