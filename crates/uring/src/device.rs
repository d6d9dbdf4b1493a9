//! [`UringDevice`]: an open file with its limits, from which hardware queues are made.

use crate::extents;
use crate::queue::UringQueue;
use crate::ring::Ring;
use crate::target::Target;
use crate::{OpenError, Options};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_core::Extent;
use blkmq_engine::{BlockDevice, DEFAULT_TIMEOUT, DeviceQueues, DeviceShape};
use std::io;
use std::ops::Range;
use std::path::Path;

/// An open file or block device.
///
/// # How to use it
///
/// [`open`](Self::open) it, give it the pools of buffers that the kernel should map in advance
/// ([`register`](Self::register)), then build queues around its [`queues`](Self::queues) and [`shape`](Self::shape),
/// one after another or at once.
#[derive(Clone, Debug)]
pub struct UringDevice {
    /// The properties that the engine must know.
    pub shape: DeviceShape,
    /// Deviations from the options: one sentence each, for the user.
    pub notes: Vec<String>,
    target: Target,
    options: Options,
    pools: Vec<BufferPool>,
}

impl UringDevice {
    /// Opens a file or block device. If `options.size` is given, creates or extends the file first.
    ///
    /// A block device that is opened for writing is claimed: that fails while it is mounted or another program has
    /// claimed it, and it cannot be mounted meanwhile. A regular file is locked as QEMU locks images, unless
    /// `options.locking` is off: one writer at a time.
    ///
    /// # Errors
    /// If there is no such file, it is neither file nor block device, is empty, is in use ([`OpenError::InUse`]),
    /// cannot be opened or extended, or io_uring is not available or too old ([`OpenError::is_unavailable`]).
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        // This comes first, and again for each hardware queue: without io_uring nothing else matters.
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

    /// Opens the device that `text` describes, `PATH[,KEY=VALUE]...`; the parameters are those of [`FACTORY`].
    ///
    /// # Errors
    /// If `text` is not understood, then as [`open`](Self::open).
    ///
    /// [`FACTORY`]: crate::FACTORY
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (path, options) = Options::parse(text)?;
        Self::open(path, &options)
    }

    /// The options that it was opened with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Does it bypass the page cache?
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.target.is_direct
    }

    /// The alignment that buffers need in memory, in bytes; 1 if it does not matter.
    #[must_use]
    pub fn memory_alignment(&self) -> u32 {
        self.target.alignment.memory
    }

    /// Queues made from now on register the memory of `pool` with the kernel. It is then mapped as long as they
    /// exist, which counts towards `RLIMIT_MEMLOCK`; buffers of other memory can be used as well. Without effect with
    /// [`fixed`](Options::fixed) off.
    pub fn register(&mut self, pool: &BufferPool) {
        if !self.pools.iter().any(|known| known.is_same(pool)) {
            self.pools.push(pool.clone());
        }
    }

    /// The stored and unstored stretches of `range`, which is in bytes: at least one, at most `most`, and so perhaps
    /// not all of it. A file system that does not know holes, and a block device, say that all of it is stored.
    /// O(`most`) system calls.
    ///
    /// # Errors
    /// If the file cannot be asked.
    pub fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        extents::of_file(&self.target.file, range, most)
    }

    /// Makes the hardware queues, `shape.hw_queues` of them, each with a ring of its own.
    ///
    /// # Errors
    /// If there is no memory for the rings, or if the rings and the registered buffers exceed the limit of locked
    /// memory.
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
