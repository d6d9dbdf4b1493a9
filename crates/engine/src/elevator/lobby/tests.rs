//! The lobby alone: which group is next, compared with a search through all groups, and how lines change.

use super::tree::{Slots, Tree};
use super::{Lobby, Turn};
use crate::BioTable;
use crate::groups::MAX_GROUPS;
use crate::shared::inflight::PluggedRequest;
use crate::shared::slots::{Claim, Credit};
use blkmq_core::{GroupIndex, Instant, IoMeta, Op, Owner, RequestId, Rng, SubmitterId};
use blkmq_sched::GroupChange;
use std::collections::BTreeMap;

fn added(group: u16, parent: u16, weight: u32) -> GroupChange {
    GroupChange::Added { group: GroupIndex(group), parent: GroupIndex(parent), weight }
}

fn tree(changes: &[GroupChange]) -> Tree {
    let mut tree = Tree::new();
    changes.iter().for_each(|change| tree.regroup(*change, MAX_GROUPS));
    tree
}

/// Gives out `slots` slots and holds none of them. Returns how many each group was given.
fn give_out(tree: &mut Tree, slots: u32) -> BTreeMap<u16, u32> {
    let mut given = BTreeMap::new();
    for _ in 0..slots {
        let node = tree.next().expect("somebody waits");
        tree.charge(node);
        *given.entry(node).or_default() += 1;
    }
    given
}

#[test]
fn slots_go_by_weight_among_those_who_wait() {
    let mut tree = tree(&[added(1, 0, 300), added(2, 0, 100), added(3, 0, 1000)]);
    let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
    tree.wait(one);
    tree.wait(two);
    let given = give_out(&mut tree, 400);
    assert_eq!((given[&one], given[&two]), (300, 100));
    tree.leave(one);
    assert_eq!(give_out(&mut tree, 10)[&two], 10);
    // The group did not wait for a while, and is owed no slots for that time.
    tree.wait(one);
    let given = give_out(&mut tree, 400);
    assert!((299..=301).contains(&given[&one]), "{given:?}");
}

/// Sets a floor of `slots` slots a second for a group. The tests give out a thousand slots a second.
fn floor_of(tree: &mut Tree, node: u16, slots: u64) {
    tree.set_gap(node, 1_000_000_000 / slots);
}

/// Gives out a slot each millisecond from `from` to `to`.
fn give_out_by_time(tree: &mut Tree, (from, to): (u64, u64)) -> BTreeMap<u16, u32> {
    let mut given = BTreeMap::new();
    for ms in from..to {
        tree.advance(Instant::from_nanos(ms * 1_000_000));
        given = give_out(tree, 1).into_iter().fold(given, |mut given, (node, slots)| {
            *given.entry(node).or_default() += slots;
            given
        });
    }
    given
}

#[test]
fn a_floor_that_is_due_has_the_next_slot_whatever_the_weights() {
    let mut tree = tree(&[added(1, 0, 1), added(2, 0, 1000), added(3, 0, 1000)]);
    let [one, two, three] = [1, 2, 3].map(|group| tree.node(GroupIndex(group)));
    floor_of(&mut tree, one, 400);
    floor_of(&mut tree, two, 100);
    [one, two, three].into_iter().for_each(|node| tree.wait(node));
    let given = give_out_by_time(&mut tree, (0, 5_000));
    assert!(given[&one].abs_diff(2_000) <= 2, "{given:?}");
    assert!(given[&two].abs_diff(given[&three]) <= 4, "turns count for a floor: {given:?}");
    // The group did not wait for a second, and is owed nothing for that time.
    tree.leave(one);
    assert!(!give_out_by_time(&mut tree, (5_000, 6_000)).contains_key(&one));
    tree.wait(one);
    let given = give_out_by_time(&mut tree, (6_000, 6_100));
    assert!(given[&one].abs_diff(40) <= 1, "{given:?}");
    // The group is set aside for a while, as in a round without a slot for it, and is owed that time.
    tree.leave(one);
    give_out_by_time(&mut tree, (6_100, 6_200));
    tree.resume(one);
    let given = give_out_by_time(&mut tree, (6_200, 6_300));
    assert!((70..=82).contains(&given[&one]), "{given:?}");
    floor_of(&mut tree, one, 1);
    tree.set_gap(one, 0);
    let given = give_out_by_time(&mut tree, (7_000, 9_000));
    assert!(given.get(&one).is_none_or(|slots| *slots <= 4), "without a floor: {given:?}");
}

#[test]
fn slots_beyond_the_share_by_weight_are_not_paid_for_later() {
    let mut tree = tree(&[added(1, 0, 100), added(2, 0, 100)]);
    let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
    floor_of(&mut tree, one, 900);
    [one, two].into_iter().for_each(|node| tree.wait(node));
    let given = give_out_by_time(&mut tree, (0, 2_000));
    assert!(given[&one].abs_diff(1_800) <= 2, "{given:?}");
    tree.set_gap(one, 0);
    let given = give_out_by_time(&mut tree, (2_000, 2_100));
    assert!(given[&one].abs_diff(50) <= 3, "{given:?}");
}

#[test]
fn a_floor_is_for_the_groups_below_by_weight() {
    let mut tree = tree(&[added(1, 0, 1), added(2, 0, 1000), added(3, 1, 300), added(4, 1, 100)]);
    let [one, two, three, four] = [1, 2, 3, 4].map(|group| tree.node(GroupIndex(group)));
    floor_of(&mut tree, one, 400);
    [two, three, four].into_iter().for_each(|node| tree.wait(node));
    let given = give_out_by_time(&mut tree, (0, 2_000));
    assert!((given[&three] + given[&four]).abs_diff(800) <= 2, "{given:?}");
    assert!(given[&three].abs_diff(600) <= 4, "{given:?}");
}

#[test]
fn a_group_that_was_set_aside_keeps_what_it_has_in_hand() {
    let mut tree = tree(&[added(1, 0, 300), added(2, 0, 100)]);
    let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
    tree.wait(one);
    tree.wait(two);
    // The heavier group is set aside in every other round.
    let mut given = BTreeMap::from([(one, 0), (two, 0)]);
    for round in 0..400 {
        if round % 2 == 0 {
            tree.leave(one);
        }
        let node = tree.next().expect("somebody waits");
        tree.charge(node);
        *given.entry(node).or_default() += 1;
        tree.resume(one);
    }
    assert_eq!((given[&one], given[&two]), (200, 200), "every other round is all that it can have");
    // The group is owed three quarters of those slots, and gets them.
    assert_eq!(give_out(&mut tree, 400)[&one], 400);
}

#[test]
fn groups_below_a_group_divide_its_part_with_its_own_io() {
    let mut tree = tree(&[added(1, 0, 100), added(2, 0, 100), added(3, 1, 300), added(4, 1, 100)]);
    let [one, two, three, four] = [1, 2, 3, 4].map(|group| tree.node(GroupIndex(group)));
    [one, two, three].into_iter().for_each(|node| tree.wait(node));
    let given = give_out(&mut tree, 800);
    assert_eq!((given[&two], given[&three], given[&one]), (400, 300, 100));
    assert!(!given.contains_key(&four), "nothing of it waits");
}

#[test]
fn what_a_group_may_have_is_its_part_or_enough() {
    let mut tree = tree(&[added(1, 0, 300), added(2, 0, 100)]);
    let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
    tree.wait(one);
    (0..5).for_each(|_| tree.hold(one));
    let has = |tree: &Tree, all, enough| tree.has_its_part(one, Slots { all, enough });
    assert!(!has(&tree, 8, 4), "it is alone");
    tree.hold(two);
    assert!(has(&tree, 8, 4));
    assert!(!has(&tree, 8, 6), "five are not enough");
    tree.release(two);
    assert!(!has(&tree, 8, 4), "it is alone again");
}

#[test]
fn a_group_that_is_gone_keeps_its_place_until_nothing_is_left_of_it() {
    let mut tree = tree(&[added(1, 0, 100), added(2, 1, 100)]);
    let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
    tree.wait(two);
    tree.hold(two);
    tree.regroup(GroupChange::Removed { group: GroupIndex(2) }, MAX_GROUPS);
    assert_eq!(tree.node(GroupIndex(2)), one, "new I/O is its parent's");
    tree.regroup(GroupChange::Removed { group: GroupIndex(1) }, MAX_GROUPS);
    assert!(!tree.has_groups());
    assert_eq!(tree.node(GroupIndex(2)), tree.node(GroupIndex::ROOT));
    assert_eq!(tree.next(), Some(two));
    // The node of group 1 is free; that of group 2, whose I/O still waits, is not.
    tree.regroup(added(7, 0, 100), MAX_GROUPS);
    assert_eq!(tree.node(GroupIndex(7)), one);
    tree.regroup(added(8, 0, 100), MAX_GROUPS);
    assert!(tree.node(GroupIndex(8)) != two);
    tree.leave(two);
    tree.release(two);
    tree.regroup(added(9, 0, 100), MAX_GROUPS);
    assert_eq!(tree.node(GroupIndex(9)), two);
}

/// In any history, a waiting I/O is found, and an I/O that is found was waiting.
#[test]
fn nobody_who_waits_is_forgotten() {
    for seed in 0..if cfg!(miri) { 1 } else { 50 } {
        let mut rng = Rng::new(seed);
        let mut tree = Tree::new();
        let (mut there, mut waiting): (Vec<u16>, Vec<u16>) = (vec![0], Vec::new());
        for step in 1..400 {
            let group = there[rng.below(there.len() as u64) as usize];
            let node = tree.node(GroupIndex(group));
            match rng.below(6) {
                0 => {
                    tree.regroup(added(step, group, 1 + rng.below(1000) as u32), MAX_GROUPS);
                    there.push(step);
                }
                1 if group == there[there.len() - 1] && group != 0 => {
                    // The youngest group: no group is below it.
                    tree.regroup(GroupChange::Removed { group: GroupIndex(group) }, MAX_GROUPS);
                    there.pop();
                }
                2 => {
                    let weight = 1 + rng.below(1000) as u32;
                    tree.regroup(
                        GroupChange::Weight { group: GroupIndex(group), weight },
                        MAX_GROUPS,
                    );
                }
                3 | 4 => {
                    tree.wait(node);
                    waiting.retain(|other| *other != node);
                    waiting.push(node);
                }
                _ => {
                    tree.leave(node);
                    waiting.retain(|other| *other != node);
                }
            }
            let next = tree.next();
            assert_eq!(next.is_some(), !waiting.is_empty(), "seed {seed}, step {step}");
            assert!(next.is_none_or(|next| waiting.contains(&next)), "seed {seed}, step {step}");
            if let Some(next) = next {
                tree.charge(next);
            }
        }
        // All remaining groups leave, and each is found.
        while let Some(next) = tree.next() {
            let at = waiting.iter().position(|other| *other == next).expect("it waits");
            waiting.swap_remove(at);
            tree.leave(next);
        }
        assert!(waiting.is_empty(), "seed {seed}: {waiting:?} are not found");
    }
}

/// A lobby with two groups and three submitters, and bios to put there.
struct Fixture {
    lobby: Lobby,
    table: BioTable<()>,
    credits: Vec<Credit>,
    now: u64,
}

const GOLD: GroupIndex = GroupIndex(1);
const TIN: GroupIndex = GroupIndex(2);

impl Fixture {
    fn new() -> Self {
        let (table, credits) = BioTable::new(3, 16);
        let mut lobby = Lobby::new(3);
        for change in [added(1, 0, 300), added(2, 0, 100)] {
            lobby.regroup(change, (8, std::iter::empty::<(RequestId, &IoMeta)>()), 48);
        }
        Self { lobby, table, credits, now: 0 }
    }

    fn push(&mut self, by: u16, group: GroupIndex, cookie: u64) {
        self.now += 1;
        let arrived = Instant::from_nanos(self.now);
        let meta = IoMeta { group, arrived, ..IoMeta::new(Op::Read, cookie, 1) };
        let claim = Claim { sector: cookie, sectors: 1, owner: Owner(0), cookie };
        let bio = self.table.claim(&mut self.credits[usize::from(by)], claim, ());
        let bio = bio.expect("there is credit");
        self.lobby.push(arrived, SubmitterId(by), PluggedRequest { meta, bio, bios: 1 });
    }

    /// The cookies of the I/Os that are given slots next.
    fn take(&mut self, slots: u32) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < slots as usize
            && let Some(turn) = self.lobby.next()
        {
            taken.push(self.lobby.take(turn).meta.sector);
        }
        self.lobby.end_round();
        taken
    }
}

#[test]
fn lines_keep_their_order_and_submitters_take_turns() {
    let mut it = Fixture::new();
    for cookie in 0..3 {
        it.push(0, GOLD, cookie);
    }
    it.push(1, GOLD, 10);
    it.push(2, GOLD, 20);
    assert!(it.lobby.is_fresh() && !it.lobby.is_empty());
    assert_eq!(it.take(10), [0, 10, 20, 1, 2]);
    assert!(it.lobby.is_empty() && it.lobby.next().is_none());
}

#[test]
fn a_group_with_a_floor_that_returns_is_owed_nothing_for_its_absence() {
    let mut it = Fixture::new();
    it.lobby.set_gap(TIN, 1_000_000);
    // An hour in which no slot was given out, so that the lobby received no time.
    it.now = 3_600_000_000_000;
    for cookie in 0..8 {
        it.push(0, GOLD, cookie);
        it.push(1, TIN, 100 + cookie);
    }
    let taken = it.take(8);
    let tin = taken.iter().filter(|cookie| **cookie >= 100).count();
    assert!(taken[0] == 100 && tin <= 3, "one for the floor, and a quarter: {taken:?}");
}

#[test]
fn what_is_refused_is_passed_over_until_the_next_round() {
    let mut it = Fixture::new();
    it.push(0, GOLD, 1);
    it.push(1, GOLD, 2);
    it.push(0, TIN, 3);
    let mut seen = Vec::new();
    while let Some(turn) = it.lobby.next() {
        seen.push(it.lobby.first(turn).expect("it waits").sector);
        it.lobby.pass_over(turn);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3], "each was asked once");
    it.lobby.end_round();
    let mut taken = it.take(10);
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3]);
}

#[test]
fn one_that_is_given_up_leaves_its_line_from_anywhere() {
    for (gone, rest) in [(1, [2, 3]), (2, [1, 3]), (3, [1, 2])] {
        let mut it = Fixture::new();
        for cookie in 1..=3 {
            it.push(0, GOLD, cookie);
        }
        it.push(1, GOLD, gone);
        let is = |proto: &PluggedRequest| proto.meta.sector == gone;
        let found = it.lobby.remove(SubmitterId(0), is).expect("it waits");
        assert_eq!(it.table.submitter(&found.bio), SubmitterId(0));
        assert!(it.lobby.remove(SubmitterId(0), is).is_none());
        assert!(it.lobby.remove(SubmitterId(1), is).is_some());
        // The line can still be used.
        it.push(0, GOLD, 9);
        assert_eq!(it.take(10), [rest[0], rest[1], 9]);
    }
}

#[test]
fn a_later_queue_is_given_everything_in_the_order_of_arrival() {
    let mut it = Fixture::new();
    for (by, group, cookie) in
        [(2, TIN, 1), (0, GOLD, 2), (2, TIN, 3), (1, GroupIndex::ROOT, 4), (0, TIN, 5)]
    {
        it.push(by, group, cookie);
    }
    let all = it.lobby.take_all();
    let all: Vec<_> = all.iter().map(|(by, proto)| (by.0, proto.meta.sector)).collect();
    assert_eq!(all, [(2, 1), (0, 2), (2, 3), (1, 4), (0, 5)]);
    assert!(it.lobby.is_empty() && it.lobby.next().is_none());
}

#[test]
fn requests_are_counted_from_the_first_group_on() {
    let mut lobby = Lobby::new(1);
    assert!(!lobby.counts() && !lobby.is_open());
    let held = [0, 1].map(|slot| (RequestId::new(slot, 0), IoMeta::new(Op::Read, 0, 8)));
    let held = held.iter().map(|(id, meta)| (*id, meta));
    lobby.regroup(added(1, 0, 100), (4, held), 16);
    assert!(lobby.counts() && lobby.is_open());
    // Requests held before and since, and one that is unknown.
    lobby.release(RequestId::new(0, 0));
    lobby.hold(RequestId::new(2, 0), GroupIndex(1));
    lobby.release(RequestId::new(2, 0));
    lobby.release(RequestId::new(3, 0));
    let turn = Turn { node: 0, submitter: SubmitterId(0) };
    let slots = |enough| Slots { all: 0, enough };
    assert!(lobby.has_its_part(turn, slots(1)) && !lobby.has_its_part(turn, slots(2)));
}
