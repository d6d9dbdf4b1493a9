//! The requests that have slots of an elevator, for a report.

use super::{Elevator, IoMeta, RequestId};

impl Elevator {
    /// The requests that have a slot, and whether each still waits here; the others have been issued. O(slots).
    pub(crate) fn live(&self) -> impl Iterator<Item = (RequestId, &IoMeta, bool)> {
        let one = |id: RequestId| (id, self.requests.get(id), self.chains[id.index()].is_some());
        self.requests.live().map(one)
    }
}
