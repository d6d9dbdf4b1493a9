//! [`Job`]: a closed loop of I/Os against a device in virtual time, and what came of it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use super::common::rig;
use blkmq_core::{Instant, Op, Rng, SECTOR_SIZE};
use blkmq_device::Device;
use std::collections::BTreeMap;

/// Where I/Os go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Random,
    Sequential,
}

/// So many I/Os, so many of them in flight at any time.
#[derive(Clone, Copy)]
pub struct Job {
    pub pattern: Pattern,
    pub bytes: u32,
    /// Reads in a hundred.
    pub reads: u64,
    pub depth: u32,
    /// Of which the first quarter is not counted.
    pub ios: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub iops: u64,
    /// 10^6 bytes a second.
    pub mbps: u64,
    /// Mean latencies in ns; 0 if there were none.
    pub read_ns: u64,
    pub write_ns: u64,
}

impl Job {
    /// Random I/Os of 4 KiB.
    pub fn random(reads: u64, depth: u32, ios: u64) -> Self {
        Self { pattern: Pattern::Random, bytes: 4096, reads, depth, ios }
    }

    /// Sequential ones of 128 KiB.
    pub fn sequential(reads: u64, depth: u32, ios: u64) -> Self {
        Self { pattern: Pattern::Sequential, bytes: 128 << 10, reads, depth, ios }
    }

    pub fn run(&self, device: &Device) -> Measured {
        let mut rig = rig(device);
        // Not the order in which an earlier job wrote: overwriting in that would be as good as sequential.
        let mut rng = Rng::new(self.reads << 32 | u64::from(self.depth));
        let sectors = self.bytes / SECTOR_SIZE;
        let places = device.shape.limits.capacity / u64::from(sectors);
        // By cookie: when it was pushed, and what it is.
        let mut inside: BTreeMap<u64, (Instant, Op)> = BTreeMap::new();
        let (mut pushed, mut seen, mut from) = (0, 0, Instant::ZERO);
        let mut latency = [(0, 0); 2];
        while (seen as u64) < self.ios {
            while (inside.len() as u32) < self.depth && pushed < self.ios {
                let place = match self.pattern {
                    Pattern::Random => rng.below(places),
                    Pattern::Sequential => pushed % places,
                };
                let op = if rng.below(100) < self.reads { Op::Read } else { Op::Write };
                let cookie = rig.push(0, op, place * u64::from(sectors), sectors);
                inside.insert(cookie.expect("there is credit"), (rig.now, op));
                pushed += 1;
            }
            rig.settle();
            if rig.ended.len() == seen {
                let next = rig.next_deadline().expect("something will happen");
                rig.now = rig.now.max(next);
                rig.settle();
            }
            for ended in &rig.ended[seen..] {
                assert_eq!(ended.result, Ok(()));
                let (at, op) = inside.remove(&ended.cookie).expect("it ends once");
                seen += 1;
                if seen as u64 == self.ios / 4 {
                    (from, latency) = (ended.at, [(0, 0); 2]);
                }
                let (sum, count) = &mut latency[usize::from(op.is_write())];
                (*sum, *count) = (*sum + (ended.at - at).0, *count + 1);
            }
        }
        let ns = (rig.now - from).0.max(1);
        let counted = self.ios - self.ios / 4;
        let mean = |(sum, count): (u64, u64)| sum.checked_div(count).unwrap_or(0);
        Measured {
            iops: counted * 1_000_000_000 / ns,
            mbps: (u128::from(counted) * u128::from(self.bytes) * 1000 / u128::from(ns)) as u64,
            read_ns: mean(latency[0]),
            write_ns: mean(latency[1]),
        }
    }
}
