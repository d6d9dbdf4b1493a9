//! Chains, credits, and lost tokens.

use super::*;

/// A payload with its own number.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Of<T>(T);

impl<T: Send + 'static> Payload for Of<T> {}

fn table(submitters: u16, depth: u32) -> (BioTable<Of<&'static str>>, Vec<Credit>) {
    BioTable::new(submitters, depth)
}

fn plain() -> Claim {
    Claim { sector: 0, sectors: 8, owner: Owner(0), cookie: 7 }
}

fn claim(table: &BioTable<Of<&'static str>>, credit: &mut Credit, name: &'static str) -> Bio {
    table.claim(credit, plain(), Of(name)).expect("there is credit")
}

#[test]
fn a_chain_keeps_its_order_and_comes_apart_again() {
    let (table, mut credits) = table(2, 2);
    let [one, two] = &mut credits[..] else { panic!("two submitters") };
    let mut a = claim(&table, one, "a");
    let mut b = claim(&table, one, "b");
    table.append(&mut b, claim(&table, two, "c"));
    table.append(&mut a, b);
    table.append(&mut a, claim(&table, two, "d"));
    let names: Vec<_> = table.iter(&a).map(|bio| bio.payload.0).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);

    let rings: Vec<_> = [&*one, &*two].map(|credit| table.finish_ring(credit)).into();
    let mut finish = table.finish_batch();
    let mut rest = Some(a);
    while let Some(head) = rest {
        let (bio, tail) = table.split_first(head);
        let to = usize::from(table.submitter(&bio).0);
        finish.push(bio, if to == 0 { Ok(()) } else { Err(IoError::IO) });
        assert!(!finish.send(&rings[to].0), "nobody is parked");
        rest = tail;
    }
    let mut receivers = rings.into_iter().map(|(_, receiver)| receiver);
    for (credit, expected) in [(one, ["a", "b"]), (two, ["c", "d"])] {
        let mut receiver = receivers.next().expect("two rings");
        assert_eq!(credit.left(), 0);
        let got: Vec<_> = receiver.finished(&table, credit).collect();
        assert_eq!(got.iter().map(|bio| bio.payload.0).collect::<Vec<_>>(), expected);
        assert_eq!(credit.left(), 2);
        let failed = expected[0] == "c";
        assert!(got.iter().all(|bio| bio.cookie == 7 && bio.result.is_err() == failed));
        assert!(got.iter().all(|bio| !bio.part));
    }
}

#[test]
fn a_part_is_known_by_its_place_and_the_next_bio_of_the_cell_is_none() {
    let (table, mut credits) = table(2, 4);
    let credit = &mut credits[1];
    let (sender, mut receiver) = table.finish_ring(credit);
    let mut finish = table.finish_batch();
    let whole = claim(&table, credit, "whole");
    let mut part = claim(&table, credit, "part");
    assert_eq!(table.mark_part(&mut part), 1, "the second cell of its submitter");
    finish.push(part, Ok(()));
    assert!(!finish.send(&sender));
    assert_eq!(receiver.peek_part(&table), Some(1));
    let popped = receiver.finished(&table, credit).next().expect("it is finished");
    assert_eq!((popped.payload, popped.part), (Of("part"), true));
    assert_eq!(table.place(popped.cell), 1);
    let again = claim(&table, credit, "again");
    for bio in [again, whole] {
        assert_eq!(receiver.peek_part(&table), None);
        finish.push(bio, Ok(()));
        assert!(!finish.send(&sender));
        assert_eq!(receiver.peek_part(&table), None);
        assert!(!receiver.finished(&table, credit).next().expect("it is finished").part);
    }
}

#[test]
fn without_credit_the_payload_comes_back() {
    let (table, mut credits) = table(1, 1);
    let _bio = claim(&table, &mut credits[0], "a");
    let refused = table.claim(&mut credits[0], plain(), Of("b"));
    assert_eq!(refused.expect_err("one is out"), Of("b"));
}

#[test]
#[should_panic(expected = "a bio token of another queue")]
fn a_token_opens_no_cell_of_another_table() {
    let (one, mut credits) = table(1, 1);
    let (other, _) = table(1, 1);
    let bio = claim(&one, &mut credits[0], "x");
    let _ = other.iter(&bio).count();
}

#[test]
fn without_a_payload_two_cells_share_a_line() {
    assert_eq!(size_of::<UnsafeCell<Cell<()>>>(), 32);
}

#[test]
fn a_token_that_is_given_up_is_an_orphan_of_its_table_with_its_chain() {
    let (table, mut credits) = table(1, 4);
    let mut head = claim(&table, &mut credits[0], "a");
    table.append(&mut head, claim(&table, &mut credits[0], "b"));
    head.orphan();
    let orphans = table.take_orphans();
    let names: Vec<_> =
        orphans.iter().flat_map(|head| table.iter(head).map(|bio| bio.payload.0)).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(table.take_orphans().is_empty(), "each is taken up once");
}

#[test]
fn payloads_of_tokens_that_are_unaccounted_for_are_leaked_and_no_others() {
    use std::sync::{Arc, OnceLock};
    static LEAKED: OnceLock<Arc<u32>> = OnceLock::new();
    let [ringed, given_up, forgotten] = [1, 2, 3].map(Arc::new);
    let (mut table, mut credits) = BioTable::new(1, 4);
    let (sender, receiver) = table.finish_ring(&credits[0]);
    let mut claim = |payload: &Arc<u32>| {
        let bio = table.claim(&mut credits[0], plain(), Of(Arc::clone(payload)));
        bio.expect("there is credit")
    };
    let (one, two, three) = (claim(&ringed), claim(&given_up), claim(&forgotten));
    assert!(!sender.send_one(one, Ok(())));
    two.orphan();
    let _ = three;
    assert_eq!(table.settle([receiver].into_iter()), 1);
    drop(table);
    assert_eq!([&ringed, &given_up, &forgotten].map(Arc::strong_count), [1, 1, 2]);
    // Leaked on purpose. The static keeps it reachable, so that a leak detector reports only other leaks.
    LEAKED.get_or_init(|| forgotten);
}

#[test]
fn a_run_ends_where_the_owner_changes() {
    let (table, mut credits) = table(1, 8);
    let owned = |credit: &mut Credit, owner| {
        let claim = Claim { owner: Owner(owner), ..plain() };
        table.claim(credit, claim, Of("x")).expect("there is credit")
    };
    let mut head = owned(&mut credits[0], 1);
    for owner in [1, 2, 1] {
        let behind = owned(&mut credits[0], owner);
        table.append(&mut head, behind);
    }
    assert_eq!(table.first_run(&head), Run { bios: 2, sectors: 16 });
    let (front, rest) = table.split_at(head, 2);
    let rest = rest.expect("two are left");
    assert_eq!((table.iter(&front).count(), table.iter(&rest).count()), (2, 2));
    assert_eq!(table.first_run(&rest).bios, 1);
    let (last, none) = table.split_at(rest, 2);
    assert!(none.is_none() && table.iter(&last).count() == 2);
}
