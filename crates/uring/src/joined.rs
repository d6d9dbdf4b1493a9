//! [`JoinedFiles`]: several files as one device, with a ring that has all of them for each client.

use crate::device::UringDevice;
use crate::options::Options;
use crate::parts::{self, Order, Part};
use crate::queue::{Origin, UringQueue};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_engine::{BlockDevice, DeviceQueues, DeviceShape, Join, MAX_HW_QUEUE_DEPTH};
use std::io;
use std::sync::Arc;

pub(crate) struct JoinedFiles {
    shape: DeviceShape,
    origin: Arc<Origin>,
}

impl JoinedFiles {
    /// The first sectors of each of `files`, in this order. As deep as these together. `None` if one of them has no ring for
    /// each client, or is several files itself.
    pub(crate) fn new(files: &[(&UringDevice, u64)], by: Join) -> Option<Self> {
        let (first, _) = files.first()?;
        let is_alike = |file: &UringDevice| {
            let Options { threads, hw_queues, iopoll, fixed, .. } = *file.options();
            let has_rings = threads.is_none() && hw_queues.is_none() && !iopoll;
            has_rings && fixed == first.options().fixed
        };
        let (mut parts, mut pools, mut start, mut depth) = (Vec::new(), Vec::new(), 0_u64, 0_u32);
        for (file, sectors) in files {
            let target = file.target().filter(|_| is_alike(file))?.clone();
            parts.push(Part { start, sectors: *sectors, target });
            for pool in file.pools() {
                if !pools.iter().any(|known: &BufferPool| known.is_same(pool)) {
                    pools.push(pool.clone());
                }
            }
            start = start.checked_add(*sectors)?;
            depth = depth.saturating_add(file.shape.hw_queue_depth);
        }
        let mut options = first.options().clone();
        options.hw_queue_depth = depth.min(MAX_HW_QUEUE_DEPTH);
        let mut limits = parts::limits(&parts);
        let order = match by {
            Join::Concat => Order::Sequence,
            Join::Stripe { chunk } => {
                limits.chunk_sectors = chunk;
                Order::Stripe(chunk.into())
            }
        };
        let hw_queue_depth = options.hw_queue_depth;
        let cache = parts::cache(&parts);
        let shape = DeviceShape { hw_queue_depth, limits, cache, ..first.shape };
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
