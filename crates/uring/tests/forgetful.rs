//! A device of safe code that forgets the ring it wraps: the kernel continues to write into payloads, so they must
//! not be freed. They were, when the queue trusted a device to give all tokens back.
//!
//! `BLKMQ_ROUNDS` is the number of rounds; sanitizers run more than an ordinary test.

use crate::common;

use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, Op};
use blkmq_engine::{BioTable, Config, DeviceQueue, Enqueued, Finished, Inflight, Io, leaked_bios};
use blkmq_runtime::Service;
use std::mem::ManuallyDrop;

const IOS: u64 = 64;
const LEN: usize = 32 << 10;
const SECTORS: u32 = LEN as u32 / 512;

struct Forgetful(ManuallyDrop<Box<dyn DeviceQueue<AlignedBuf>>>);

impl DeviceQueue<AlignedBuf> for Forgetful {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<AlignedBuf>, rq: Inflight) -> Enqueued {
        self.0.enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.0.commit(now);
    }

    fn reap(&mut self, _: Instant, _: &BioTable<AlignedBuf>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

#[test]
pub fn what_a_device_forgets_is_leaked_and_not_freed() {
    let test = "what_a_device_forgets_is_leaked_and_not_freed";
    let rounds = std::env::var("BLKMQ_ROUNDS").map_or(3, |n| n.parse().expect("a number"));
    let file = common::TempFile::new("forgetful", 16 << 20);
    for round in 0..rounds {
        let Some(device) = file.open(test, ",readonly=1,fixed=0") else { return };
        let queues = device.queues().expect("rings can be made");
        let wrap = |queue| Box::new(Forgetful(ManuallyDrop::new(queue))) as Box<_>;
        let config = Config::new(device.shape, queues.into_iter().map(wrap).collect());
        let service = Service::start(config).expect("valid");
        let mut client = service.client().expect("one place");
        let before = leaked_bios();
        for n in 0..IOS {
            let sector = (round * IOS + n) * 128 % 30_000 / 8 * 8;
            let io = Io::new(Op::Read, sector, SECTORS, n, AlignedBuf::new(LEN));
            client.push(io).expect("there is credit");
        }
        client.flush();
        drop(client);
        drop(service);
        // Memory of this test, which the kernel must not write to.
        let mine: Vec<Vec<u8>> = (0..80).map(|_| vec![0xAB; LEN]).collect();
        let leaked = leaked_bios() - before;
        assert!(leaked > 0, "the device had some");
        for _ in 0..200 {
            std::thread::yield_now();
        }
        let changed = mine.iter().filter(|bytes| bytes.iter().any(|byte| *byte != 0xAB)).count();
        assert_eq!(changed, 0, "buffers that the kernel has written to");
    }
}
