//! Lists against a vector of the same bytes.

use super::*;
use crate::BufferPool;
use blkmq_core::Rng;

/// A list of buffers of these lengths, whose bytes count from 0.
fn list(lens: &[usize]) -> BufList {
    let mut at = 0;
    let bufs = lens.iter().map(|len| {
        let bytes = Vec::from_iter((at..at + len).map(|n| n as u8));
        at += len;
        AlignedBuf::copy_of(&bytes)
    });
    BufList::new(bufs.collect()).expect("few enough")
}

fn bytes(list: &mut BufList) -> Vec<u8> {
    list.slices_mut().flat_map(|slice| slice.to_vec()).collect()
}

#[test]
fn bytes_are_those_of_the_buffers_in_order() {
    let mut list = list(&[3, 0, 2, 4]);
    assert_eq!(bytes(&mut list), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((list.len(), list.data_len(), list.ranges().count()), (9, Some(9), 3));
    let mut some = [0; 4];
    assert_eq!((list.write_to(2, &mut some), some), (Ok(()), [2, 3, 4, 5]));
    assert_eq!(list.read_from(4, &[40, 50]), Ok(()));
    assert_eq!(bytes(&mut list), [0, 1, 2, 3, 40, 50, 6, 7, 8]);
    let bufs = list.into_bufs().expect("the only part");
    assert_eq!(Vec::from_iter(bufs.iter().map(AlignedBuf::len)), [3, 0, 2, 4]);
}

#[test]
#[should_panic(expected = "2 bytes at 4 of a list of 5")]
fn nothing_is_written_behind_the_end() {
    let _ = list(&[3, 2]).read_from(4, &[7, 8]);
}

/// A part ends within the list, and the bytes behind it belong to another part.
#[test]
#[should_panic(expected = "2 bytes at 3 of a list of 4")]
fn nothing_is_written_behind_the_end_of_a_part() {
    let mut whole = list(&[3, 3]);
    let _rest = whole.split_off(4);
    let _ = whole.read_from(3, &[7, 8]);
}

/// Divides a list at drawn places, writes and reads each part, and joins them.
#[test]
fn parts_have_the_bytes_of_their_place_wherever_the_cuts_are() {
    for seed in 0..if cfg!(miri) { 20 } else { 2_000 } {
        let mut rng = Rng::new(seed);
        let lens = Vec::from_iter((0..1 + rng.below(9)).map(|_| rng.below(6) as usize));
        let mut whole = list(&lens);
        let len = whole.len();
        let mut expected = Vec::from_iter((0..len).map(|n| n as u8));
        let mut cuts = Vec::from_iter((0..rng.below(4)).map(|_| rng.below(len as u64 + 2)));
        cuts.sort_unstable();
        let mut parts = Vec::new();
        for cut in cuts.iter().rev() {
            parts.push(whole.split_off(*cut as usize).expect("a list can be divided"));
        }
        parts.push(whole);
        let mut at = 0;
        for part in parts.iter_mut().rev() {
            let own = &mut expected[at..at + part.len()];
            assert_eq!(bytes(part), own, "seed {seed}: {lens:?} at {cuts:?}");
            let total: usize = part.ranges().map(<*mut [u8]>::len).sum();
            assert_eq!(total, own.len());
            assert!(part.ranges().all(|range| !range.is_empty()));
            if !own.is_empty() {
                let from = rng.below(own.len() as u64) as usize;
                own[from..].iter_mut().for_each(|byte| *byte ^= 0x80);
                assert_eq!(part.read_from(from, &own[from..]), Ok(()));
                let mut back = vec![0; own.len()];
                assert_eq!((part.write_to(0, &mut back), &back[..]), (Ok(()), &*own));
            }
            at += part.len();
        }
        assert_eq!(at, len, "no byte is lost");
        let mut whole = parts.pop().expect("the first part");
        while let Some(part) = parts.pop() {
            whole = whole.into_bufs().expect_err("a part is elsewhere");
            whole.join(part);
        }
        assert_eq!(bytes(&mut whole), expected, "seed {seed}");
        assert_eq!(whole.into_bufs().expect("it is whole").len(), lens.len());
    }
}

#[test]
#[should_panic(expected = "parts of one list, in order")]
fn what_does_not_belong_together_is_not_joined() {
    let mut whole = list(&[4]);
    let mut tail = whole.split_off(2).expect("it can be divided");
    let last = tail.split_off(1).expect("and again");
    whole.join(last);
}

#[test]
#[should_panic(expected = "parts of one list, in order")]
fn parts_of_two_lists_are_not_joined() {
    let mut whole = list(&[4]);
    let _tail = whole.split_off(2);
    let mut other = list(&[4]);
    whole.join(other.split_off(2).expect("it can be divided"));
}

#[test]
fn a_part_outlives_the_others_and_buffers_go_back_to_their_pool() {
    let pool = BufferPool::new(2, 4096);
    let buf = || pool.take().expect("free");
    let mut whole = BufList::new(vec![buf(), buf()]).expect("few enough");
    let mut tail = whole.split_off(4095).expect("it can be divided");
    let write = std::thread::spawn(move || {
        tail.slices_mut().for_each(|slice| slice.fill(9));
        tail
    });
    whole.slices_mut().for_each(|slice| slice.fill(1));
    let tail = write.join().expect("it only writes");
    whole.join(tail);
    let bytes = bytes(&mut whole);
    assert!(bytes[..4095].iter().all(|byte| *byte == 1));
    assert!(bytes[4095..].iter().all(|byte| *byte == 9));
    let tail = whole.split_off(4096);
    drop(whole);
    assert_eq!(pool.free(), 0, "a part has bytes of them");
    drop(tail);
    assert_eq!(pool.free(), 2);
}

/// The writes of a part on another thread come before the buffers are taken out on this one, though only the drop of the
/// part is between them. Fails without the acquire of the last `Arc` under ThreadSanitizer and Miri.
#[test]
fn taking_a_list_apart_sees_what_a_dropped_part_wrote() {
    let mut whole = list(&[8, 8]);
    let mut tail = whole.split_off(4).expect("it can be divided");
    let write = std::thread::spawn(move || tail.slices_mut().for_each(|slice| slice.fill(7)));
    let mut bufs = loop {
        match whole.into_bufs() {
            Ok(bufs) => break bufs,
            Err(list) => whole = list,
        }
        std::thread::yield_now();
    };
    assert_eq!(bufs[1].as_mut_slice(), [7; 8]);
    write.join().expect("it only writes");
}

#[test]
fn a_list_has_a_limit_and_may_be_empty() {
    let bufs = || Vec::from_iter((0..=BufList::MOST).map(|_| AlignedBuf::empty()));
    let error = BufList::new(bufs()).expect_err("one too many");
    assert_eq!(error.to_string(), "1025 buffers in a list; accepted: up to 1024");
    assert_eq!(error.into_bufs().len(), 1025, "they are given back");
    let most = BufList::new(bufs().split_off(1)).expect("as many as accepted");
    assert_eq!((most.data_len(), most.into_bufs().map(|bufs| bufs.len()).ok()), (None, Some(1024)));
    let mut none = BufList::default();
    let rest = none.split_off(4096).expect("a discard can be divided");
    none.join(rest);
    assert!(none.is_empty() && none.into_bufs().is_ok_and(|bufs| bufs.is_empty()));
    let one = BufList::from(AlignedBuf::new(512));
    assert_eq!((one.len(), one.ranges().count()), (512, 1));
}
