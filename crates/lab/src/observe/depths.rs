//! The number of requests in the elevators and at the device, over time.

use super::device::{DeviceWatch, Fate, Seen};
use super::policy::PolicyWatch;
use crate::workload::{Course, Series};
use blkmq_core::{HwQueue, Instant, RequestId};
use blkmq_sched::{At, Cx, Pick};
use std::sync::{Arc, Mutex, PoisonError};

/// Both depths of one queue; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    elevator: Shared,
    device: Shared,
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Course>>);

impl Shared {
    fn change(&self, at: Instant, by: i64) {
        let mut course = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let level = course.level().saturating_add_signed(by);
        course.change(at, level);
    }

    fn until(&self, until: Instant) -> Series {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().into_series(until)
    }
}

impl Depths {
    /// Requests held by policies, up to `until`.
    #[must_use]
    pub fn elevator(&self, until: Instant) -> Series {
        self.elevator.until(until)
    }

    /// Requests at the device, up to `until`.
    #[must_use]
    pub fn device(&self, until: Instant) -> Series {
        self.device.until(until)
    }
}

impl PolicyWatch for Depths {
    fn inserted(&mut self, cx: &Cx<'_>, _: RequestId, _: At) {
        self.elevator.change(cx.now, 1);
    }

    fn asked(&mut self, cx: &Cx<'_>, _: HwQueue, answer: Pick) {
        if matches!(answer, Pick::Issue(_)) {
            self.elevator.change(cx.now, -1);
        }
    }

    fn withdrawn(&mut self, cx: &Cx<'_>, _: RequestId) {
        self.elevator.change(cx.now, -1);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _: RequestId, _: RequestId) {
        self.elevator.change(cx.now, -1);
    }
}

impl DeviceWatch for Depths {
    fn issued(&mut self, now: Instant, _: &Seen) {
        self.device.change(now, 1);
    }

    fn returned(&mut self, now: Instant, _: &Seen, _: Fate) {
        self.device.change(now, -1);
    }
}
