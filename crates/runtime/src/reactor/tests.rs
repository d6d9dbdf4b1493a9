//! A reactor that never spins: it parks whenever it has no work, so each wake-up has to arrive.

use super::*;
use blkmq_core::Op;
use blkmq_device::{MachineShape, registry};
use blkmq_engine::{Io, PumpMode, Queue};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn parking_reactor(device: &str, pump: PumpMode, depth: u32) -> Reactor<u64> {
    let machine = MachineShape { cpus: 2, nodes: 1 };
    let mut config = registry::parse(device, &machine).unwrap().config();
    (config.pump, config.depth) = (pump, depth);
    let threads = Threads::new(&config).unwrap();
    let clock = Clock::start();
    config.host = Box::new(crate::host::ThreadHost { threads: Arc::clone(&threads), clock });
    let queue = Queue::new(config).unwrap();
    let start =
        || PumpThreads::start(&queue, 1, clock, &threads, crate::Placement::Anywhere).unwrap();
    let pumps = (pump == PumpMode::Thread).then(start).map(Arc::new);
    let waiting = Waiting { spins: 0, rounds: 0, yields: 0 };
    let mut submitter = queue.submitter().unwrap();
    threads.prepare(&mut submitter, None).unwrap();
    let stalls = Stalls::new(crate::stall::Settings::default(), queue.clone());
    Reactor::start(Launch { submitter, clock, waiting, threads, pumps, stalls }).unwrap()
}

#[test]
fn no_wake_up_is_lost_by_a_reactor_that_parks_every_time() {
    // The second device completes later than a thread would spin for, so that the reactor also parks with I/Os in
    // flight.
    for device in ["null,irqmode=0", "null,irqmode=2,completion_nsec=100000"] {
        for pump in [PumpMode::Inline, PumpMode::Thread] {
            for depth in [1, 4] {
                let reactor = parking_reactor(device, pump, depth);
                thread::scope(|scope| {
                    for nth in 0..3 {
                        let handle = reactor.handle();
                        scope.spawn(move || {
                            for n in 0..200 {
                                let io = Io::new(Op::Read, n * 64, 8, nth, n);
                                assert_eq!(block_on(handle.submit(io)).unwrap().payload, n);
                            }
                        });
                    }
                });
            }
        }
    }
}
