//! The two rings from a submitter to the runners of its elevator: staged requests, and asks to cancel.

use crate::shared::shard::Shard;
use crate::submission::plug::Plug;
use crate::submission::plugged::PluggedRequest;
use crate::sync::{Consumer, Mark, Producer};
use blkmq_core::SubmitterId;

/// "Cancel my I/O with this cookie" (`elevator/runner/cancel.rs`).
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) cookie: u64,
    /// The I/O is ahead of this place in its submitter's staging ring, or was there.
    pub(crate) before: Mark,
}

/// The runner's ends of a submitter's rings.
pub(crate) struct Staging {
    pub(crate) protos: Consumer<PluggedRequest>,
    /// I/Os that the submitter wants cancelled.
    pub(crate) asks: Consumer<Ask>,
}

/// The caller's own submission, which need not be staged when the elevator is free.
pub(crate) struct Own<'a> {
    pub(crate) id: SubmitterId,
    pub(crate) plug: &'a mut Plug,
    pub(crate) staging: &'a mut Producer<PluggedRequest>,
}

/// Stages the caller's plug: a later pass finds it, in this queue or in the queue that takes over.
#[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
pub(crate) fn stage(shard: &Shard, own: Own<'_>) {
    let mut plug = own.plug.drain();
    for proto in &mut plug {
        // Staging holds a submitter's whole credit.
        own.staging.put(proto);
    }
    plug.end();
    own.staging.publish();
    shard.pending.set(own.id.0);
}
