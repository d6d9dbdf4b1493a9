//! Wake-ups by thread parking.

use blkmq_core::{HwQueue, SubmitterId};
use blkmq_engine::Host;
use std::sync::{Arc, Mutex};
use std::thread::Thread;

/// Which thread stands behind each submitter and each pump.
pub(crate) struct Threads {
    submitters: Box<[Mutex<Option<Thread>>]>,
    pumps: Box<[Mutex<Option<Thread>>]>,
}

impl Threads {
    pub(crate) fn new(submitters: u16, hw_queues: u16) -> Arc<Self> {
        let places = |n| (0..n).map(|_| Mutex::new(None)).collect();
        Arc::new(Self { submitters: places(submitters), pumps: places(hw_queues) })
    }

    /// The calling thread waits as this submitter from now on.
    pub(crate) fn enrol_submitter(&self, id: SubmitterId) {
        enrol(&self.submitters[usize::from(id.0)]);
    }

    /// The calling thread is the pump of `hw`.
    pub(crate) fn enrol_pump(&self, hw: HwQueue) {
        enrol(&self.pumps[usize::from(hw.0)]);
    }

    /// Wakes the thread that waits as this submitter, or makes it return at once when it parks next.
    pub(crate) fn wake_submitter(&self, id: SubmitterId) {
        unpark(&self.submitters[usize::from(id.0)]);
    }

    pub(crate) fn wake_all_pumps(&self) {
        self.pumps.iter().for_each(unpark);
    }
}

fn enrol(place: &Mutex<Option<Thread>>) {
    *place.lock().expect("nobody panics while holding it") = Some(std::thread::current());
}

/// Does nothing before the thread has enrolled: it looks for work before it parks for the first time.
fn unpark(place: &Mutex<Option<Thread>>) {
    if let Some(thread) = &*place.lock().expect("nobody panics while holding it") {
        thread.unpark();
    }
}

/// The engine's view of [`Threads`].
pub(crate) struct ThreadHost(pub(crate) Arc<Threads>);

impl Host for ThreadHost {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.0.wake_submitter(submitter);
    }

    fn wake_pump(&self, hw: HwQueue) {
        unpark(&self.0.pumps[usize::from(hw.0)]);
    }
}
