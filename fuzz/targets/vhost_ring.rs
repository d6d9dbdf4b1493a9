//! Any memory of a guest, with a ring in it: requests are taken, read and answered, or the ring is refused.

#![no_main]

use blkmq_vhost::memory::{Memory, RegionInfo};
use blkmq_vhost::message::RingAddress;
use blkmq_vhost::request::{Status, answer, parse};
use blkmq_vhost::ring::{Chain, Ring};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

const SIZE: u64 = 1 << 16;

thread_local! {
    static MEMORY: RefCell<Option<Memory>> = const { RefCell::new(None) };
}

fn memory() -> Memory {
    let file = std::fs::OpenOptions::new();
    let file = { file }.read(true).write(true).create(true).truncate(true).open(path());
    let file = file.expect("a file in memory");
    file.set_len(SIZE).expect("it can grow");
    let mut memory = Memory::default();
    let region = RegionInfo { guest: 0, size: SIZE, user: 0, offset: 0 };
    memory.add(region, &file.into()).expect("it can be mapped");
    memory
}

fn path() -> String {
    format!("/dev/shm/blkmq-fuzz-{}", std::process::id())
}

fuzz_target!(|bytes: &[u8]| {
    MEMORY.with_borrow_mut(|kept| {
        let memory = kept.get_or_insert_with(|| {
            let memory = memory();
            // The mapping stays.
            let _ = std::fs::remove_file(path());
            memory
        });
        let Some((layout, image)) = bytes.split_first_chunk::<8>() else { return };
        let image = &image[..image.len().min(SIZE as usize)];
        assert!(memory.write(0, &[0; SIZE as usize]) && memory.write(0, image));
        let at = |n: usize| u64::from(layout[n]) << 4;
        let address = RingAddress { desc: at(0), avail: at(1), used: at(2) };
        let (size, base) = (1 << (layout[3] & 15), u16::from(layout[4]));
        let Ok(mut ring) = Ring::new(memory, address, size, base, layout[5] & 1 == 1, None) else {
            return;
        };
        let mut chain = Chain::default();
        for _ in 0..64 {
            match ring.take(memory, &mut chain) {
                Ok(true) => {
                    let Ok(asked) = parse(&chain, memory) else { return };
                    let _ = asked.request;
                    ring.give(chain.head(), answer(&chain, memory, Status::Ok, 0));
                    let _ = ring.publish();
                }
                Ok(false) | Err(_) => return,
            }
        }
    });
});
