//! Cuts the power of a modelled device with a volatile cache: data that the protocol calls durable must survive.

use crate::rig::{Rig, serve_on};
use blkmq::Device;
use blkmq_nbd::{Command, CommandFlags};
use blkmq_server::{Bounds, Cache, Export};

const NONE: CommandFlags = CommandFlags::NONE;
/// Blocks of 4 KiB that each connection writes.
const BLOCKS: u64 = 64;
/// The number of power cuts, each with different blocks written back by chance.
const SEEDS: u64 = 8;

fn block(at: u64) -> Vec<u8> {
    (at + 1).to_le_bytes().repeat(512)
}

/// Serves a memory device with a cache for everything that a test writes.
fn cached(cache: Cache) -> Rig {
    let export = Export { cache, ..Export::new("disk", 0) };
    serve_on("memory,size=16,cache_size=16", &[export], Bounds::default())
}

/// Cuts the power. Returns the blocks of `wanted` whose contents are lost.
fn lost(rig: &Rig, seed: u64, wanted: impl Iterator<Item = u64>) -> Vec<u64> {
    let Device::Virtual(device) = rig.server.disks()[0].device() else {
        unreachable!("memory is a virtual device")
    };
    device.memory().expect("it stores").crash(seed);
    let mut client = rig.client("disk");
    wanted.filter(|at| client.read(at * 4096, 4096) != Ok(block(*at))).collect()
}

#[test]
fn a_flush_covers_the_writes_that_other_connections_were_answered() {
    for seed in 0..SEEDS {
        let rig = cached(Cache::Writeback);
        let (mut one, mut other) = (rig.client("disk"), rig.client("disk"));
        for at in 0..BLOCKS {
            assert_eq!(one.write(at * 4096, &block(at)), Ok(Vec::new()));
        }
        assert_eq!(other.call(Command::Flush, NONE, 0, 0, &[]), Ok(Vec::new()));
        assert_eq!(lost(&rig, seed, 0..BLOCKS), Vec::<u64>::new(), "seed {seed}");
    }
}

#[test]
fn a_write_with_fua_is_durable_without_a_flush() {
    let mut all = 0;
    for seed in 0..SEEDS {
        let rig = cached(Cache::Writeback);
        let mut client = rig.client("disk");
        for (range, flags) in [(0..BLOCKS, CommandFlags::FUA), (BLOCKS..2 * BLOCKS, NONE)] {
            for at in range {
                let answer = client.call(Command::Write, flags, at * 4096, 4096, &block(at));
                assert_eq!(answer, Ok(Vec::new()));
            }
        }
        let lost = lost(&rig, seed, 0..2 * BLOCKS);
        assert!(lost.iter().all(|at| *at >= BLOCKS), "seed {seed}: {lost:?}");
        all += lost.len();
    }
    assert!(all > 0, "the device has no cache that could lose anything");
}

/// Regression test: a TRIM with FUA was answered like one without FUA.
#[test]
fn a_trim_with_fua_is_durable_without_a_flush() {
    for seed in 0..SEEDS {
        let export = Export::new("disk", 0);
        let device = "memory,size=16,cache_size=16,discard=1";
        let rig = serve_on(device, &[export], Bounds::default());
        let mut client = rig.client("disk");
        for at in 0..BLOCKS {
            let answer =
                client.call(Command::Write, CommandFlags::FUA, at * 4096, 4096, &block(at));
            assert_eq!(answer, Ok(Vec::new()));
        }
        let all = (0, BLOCKS * 4096);
        assert_eq!(client.call(Command::Trim, CommandFlags::FUA, all.0, all.1, &[]), Ok(vec![]));
        let left = BLOCKS as usize - lost(&rig, seed, 0..BLOCKS).len();
        assert_eq!(left, 0, "seed {seed}: blocks are back that were trimmed");
    }
}

#[test]
fn a_write_through_the_cache_is_durable_without_a_word_about_it() {
    for seed in 0..SEEDS {
        let rig = cached(Cache::Writethrough);
        let mut client = rig.client("disk");
        for at in 0..BLOCKS {
            assert_eq!(client.write(at * 4096, &block(at)), Ok(Vec::new()));
        }
        let zeroed = client.call(Command::WriteZeroes, NONE, 0, 4096, &[]);
        assert_eq!(zeroed, Ok(Vec::new()));
        assert_eq!(lost(&rig, seed, 1..BLOCKS), Vec::<u64>::new(), "seed {seed}");
        assert_eq!(rig.client("disk").read(0, 4096), Ok(vec![0; 4096]), "seed {seed}");
    }
}
