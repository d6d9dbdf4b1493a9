//! [`JoinedFiles`]: several files as one device, with a ring that has all of them for each client.

use crate::options::Options;
use crate::parts::{self, Order, Part};
use crate::queue::{Origin, UringQueue};
use crate::target::Target;
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_engine::{BlockDevice, DEFAULT_TIMEOUT, DeviceQueues, DeviceShape, Join};
use std::io;
use std::sync::Arc;

/// Requests in flight at most, unless the first file alone may have more: each client has a ring with so many entries.
const MOST: u32 = 1024;

pub(crate) struct JoinedFiles {
    shape: DeviceShape,
    origin: Arc<Origin>,
}

/// One of the files.
pub(crate) struct Leg<'a> {
    pub(crate) target: &'a Target,
    pub(crate) options: &'a Options,
    pub(crate) pools: &'a [BufferPool],
    /// The number of its first sectors that are used.
    pub(crate) sectors: u64,
}

impl JoinedFiles {
    /// Joins files in this order, with the sum of their depths. `None` if one of them has no ring for each client.
    pub(crate) fn new(legs: &[Leg<'_>], by: Join) -> Option<Self> {
        let mut options = legs.first()?.options.clone();
        let is_alike = |leg: &Leg<'_>| {
            let Options { threads, hw_queues, iopoll, fixed, .. } = *leg.options;
            threads.is_none() && hw_queues.is_none() && !iopoll && fixed == options.fixed
        };
        if !legs.iter().all(is_alike) {
            return None;
        }
        let (mut parts, mut start, mut pools) = (Vec::new(), 0_u64, Vec::<BufferPool>::new());
        for Leg { target, sectors, pools: own, .. } in legs {
            parts.push(Part { start, sectors: *sectors, target: (*target).clone() });
            start = start.checked_add(*sectors)?;
            for pool in *own {
                if !pools.iter().any(|known| known.is_same(pool)) {
                    pools.push(pool.clone());
                }
            }
        }
        let depth: u32 = legs.iter().map(|leg| leg.options.hw_queue_depth).sum();
        options.hw_queue_depth = depth.min(MOST.max(options.hw_queue_depth));
        let mut limits = parts::limits(&parts);
        let order = match by {
            Join::Concat => Order::Sequence,
            Join::Stripe { chunk } => {
                limits.chunk_sectors = chunk;
                Order::Stripe(chunk.into())
            }
        };
        let shape = DeviceShape {
            hw_queues: 1,
            hw_queue_depth: options.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits,
            cache: parts::cache(&parts),
            timeout: DEFAULT_TIMEOUT,
        };
        Some(Self { shape, origin: Arc::new(Origin { parts, order, options, pools }) })
    }
}

impl<P: IoBuf> BlockDevice<P> for JoinedFiles {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        Ok(vec![Box::new(UringQueue::new(Arc::clone(&self.origin))?)])
    }
}
