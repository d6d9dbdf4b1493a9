//! The outcome of a request at the device.

use blkmq_core::IoResult;

/// The outcome of a request at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Finished, with success or an error.
    Done(IoResult),
    /// The device wants the request back later: it loses its driver tag and goes to the head of the scheduler.
    Requeue,
    /// The device wants this very request back later, unchanged: it keeps its tag, bypasses the scheduler, and waits
    /// behind the requests that already wait in the hardware queue. It is offered again when anything else, such as a
    /// completion, makes the pump look at the device, and after 3 ms at the latest.
    RequeueTail,
}
