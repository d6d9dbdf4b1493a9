//! I/Os that are split by the limits of the device: a client waits for I/Os, not for parts.

use blkmq::core::Buffer;
use blkmq::engine::{PumpMode, Refusal};
use blkmq::prelude::*;

/// Starts a service for a device that takes at most 8 sectors in a request.
fn service(pump: PumpMode, depth: u32) -> Service<Buffer> {
    let device = blkmq::device("null,max_sectors=8,irqmode=1").expect("a null device");
    let config = Config { pump, depth, ..device.config() };
    Service::start(config).expect("it starts")
}

fn io(sectors: u32, cookie: u64) -> Io<Buffer> {
    Io::new(Op::Write, cookie * 64, sectors, cookie, Buffer::new(vec![1; sectors as usize * 512]))
}

#[test]
fn a_client_waits_for_ios_and_for_no_more_than_there_are() {
    for pump in [PumpMode::Inline, PumpMode::Thread] {
        let service = service(pump, 64);
        let mut client = service.client().expect("one is free");
        for round in 0..200 {
            let now = client.clock().now();
            client.push_at(now, io(40, 0)).expect("there is credit");
            client.push_at(now, io(8, 1)).expect("there is credit");
            client.push_at(now, io(24, 2)).expect("there is credit");
            assert_eq!((client.in_flight(), client.outstanding()), (9, 3));
            let mut done = Vec::new();
            // Wait for two, then for more than remain.
            let mut take = |c: Completion<Buffer>| {
                assert_eq!(c.result, Ok(()));
                done.push((c.cookie, c.payload.into_inner().len()));
            };
            assert_eq!(client.wait(2, 2, &mut take), 2, "round {round}");
            assert_eq!(client.outstanding(), 1);
            assert_eq!(client.wait(5, 10, &mut take), 1, "round {round}");
            done.sort_unstable();
            assert_eq!(done, [(0, 40 * 512), (1, 8 * 512), (2, 24 * 512)]);
            assert_eq!((client.in_flight(), client.outstanding()), (0, 0));
        }
        let stats = service.stats();
        assert_eq!((stats.submitted, stats.completed, stats.splits), (1800, 1800, 1200));
    }
}

#[test]
fn a_blocking_call_returns_when_the_last_part_is_done() {
    for pump in [PumpMode::Inline, PumpMode::Thread] {
        let service = service(pump, 4);
        let mut blocking = service.blocking().expect("one is free");
        for _ in 0..200 {
            let (result, payload) = blocking.call(io(32, 3)).expect("as many parts as credit");
            assert_eq!((result, payload.into_inner().len()), (Ok(()), 32 * 512));
        }
        let refused = blocking.call(io(33, 3)).expect_err("one part more");
        let refused = refused.into_refused().expect("it is not lost");
        assert_eq!(refused.why, Refusal::TooLong { most: 32 });
        assert_eq!(service.stats().splits, 600);
    }
}
