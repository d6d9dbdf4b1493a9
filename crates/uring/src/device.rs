//! [`UringDevice`]: an open file, described, from which hardware queues are made.

use crate::queue::UringQueue;
use crate::ring::Ring;
use crate::target::Target;
use crate::{OpenError, Options};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_engine::{BlockDevice, DEFAULT_TIMEOUT, DeviceQueues, DeviceShape};
use std::io;
use std::path::Path;

/// A file or block device, open.
///
/// # How to use it
///
/// [`open`](Self::open) it, give it the pools whose buffers the kernel should have mapped in advance
/// ([`register`](Self::register)), then build queues around its [`queues`](Self::queues) and
/// [`shape`](Self::shape), one after another or at once.
#[derive(Clone, Debug)]
pub struct UringDevice {
    /// What the engine must know.
    pub shape: DeviceShape,
    /// What is done otherwise than was asked: one sentence each, for the user.
    pub notes: Vec<String>,
    target: Target,
    options: Options,
    pools: Vec<BufferPool>,
}

impl UringDevice {
    /// Opens a file or block device, which is created or extended first if `options.size` says so.
    ///
    /// A block device that is to be written to is claimed: that fails while it is mounted or another program has
    /// claimed it, and it cannot be mounted meanwhile. A regular file is locked as QEMU locks images, unless
    /// `options.locking` is off: one writer at a time.
    ///
    /// # Errors
    /// If there is no such file, it is neither file nor block device, is empty, is in use ([`OpenError::InUse`]),
    /// cannot be opened or extended,
    /// or io_uring is not available or too old ([`OpenError::is_unavailable`]).
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        // First, and once more for each hardware queue: whether there is io_uring decides about everything.
        Ring::new(1)?;
        let target = Target::open(path.as_ref(), options)?;
        let shape = DeviceShape {
            hw_queues: options.hw_queues,
            hw_queue_depth: options.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: target.limits,
            cache: target.cache,
            timeout: DEFAULT_TIMEOUT,
        };
        let notes = target.notes.clone();
        let (options, pools) = (options.clone(), Vec::new());
        Ok(Self { shape, notes, target, options, pools })
    }

    /// Opens what `text` describes, `PATH[,KEY=VALUE]...`; the parameters are those of [`FACTORY`].
    ///
    /// # Errors
    /// If `text` is not understood, then as [`open`](Self::open).
    ///
    /// [`FACTORY`]: crate::FACTORY
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (path, options) = Options::parse(text)?;
        Self::open(path, &options)
    }

    /// As it was opened.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Does it go past the page cache?
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.target.is_direct
    }

    /// What buffers must be aligned to in memory, in bytes; 1 if it does not matter.
    #[must_use]
    pub fn memory_alignment(&self) -> u32 {
        self.target.alignment.memory
    }

    /// Has queues that are made from now on register the memory of `pool` with the kernel. It is then mapped as
    /// long as they exist, which counts towards `RLIMIT_MEMLOCK`; buffers of other memory can be used as well.
    /// Without effect with [`fixed`](Options::fixed) off.
    pub fn register(&mut self, pool: &BufferPool) {
        if !self.pools.iter().any(|known| known.is_same(pool)) {
            self.pools.push(pool.clone());
        }
    }

    /// Hardware queues, `shape.hw_queues` of them, each with a ring of its own.
    ///
    /// # Errors
    /// If there is no memory for the rings, or more may not be locked for them and the registered buffers.
    pub fn queues<P: IoBuf>(&self) -> Result<DeviceQueues<P>, OpenError> {
        let queue = |_| UringQueue::new(&self.target, &self.options, &self.pools);
        (0..self.options.hw_queues).map(|n| Ok(Box::new(queue(n)?) as _)).collect()
    }
}

impl<P: IoBuf> BlockDevice<P> for UringDevice {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        Ok(self.queues()?)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
