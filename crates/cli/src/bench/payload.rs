//! The payload that a worker submits with each I/O: nothing, or a buffer from a pool.
//!
//! The worker fills and checks the buffers.

use blkmq::{BlockDevice, Device};
#[cfg(target_os = "linux")]
use blkmq_buf::{AlignedBuf, BufferPool};
use blkmq_core::{Buffer, Payload};
use blkmq_engine::Config;
use blkmq_lab::workload::{Buffers, Filler, Job, longest};
use blkmq_terminal::UsageError;

/// The bytes that a worker's I/Os carry.
///
/// A worker creates as many payloads as it has I/Os in flight, each large enough for its longest I/O, and reuses them:
/// [`set_len`](Self::set_len), the I/O, [`bytes`](Self::bytes).
pub trait BenchPayload: Payload {
    /// Whether this type carries any bytes. If false, no other method needs to do anything.
    const CARRIES: bool = true;

    /// The source of the payloads, shared by all workers.
    type Source: Clone + Send + Sync;

    /// Creates a source of `count` payloads for I/Os of up to `most` bytes. May register their memory with `device` to
    /// speed up I/Os.
    fn source(device: &mut Device, count: u32, most: usize) -> Self::Source;

    /// A payload for I/Os of up to `most` bytes, with unspecified contents.
    fn with_capacity(source: &Self::Source, most: usize) -> Self;

    /// Sets the length of the payload to `len` bytes, at most the length for which it was created; 0 for an I/O without
    /// data. The contents are unspecified. Does not allocate.
    fn set_len(&mut self, len: usize);

    /// The bytes of the payload.
    fn bytes(&mut self) -> &mut [u8];

    /// The configuration of a queue on `device`, with all other settings at their defaults.
    ///
    /// # Errors
    /// If the device cannot create its queues.
    fn config(device: &Device) -> Result<Config<Self>, UsageError>;
}

/// A configuration for payloads accepted by virtual devices.
fn virtual_config<P: Payload>(device: &Device) -> Result<Config<P>, UsageError> {
    match device {
        Device::Virtual(device) => Ok(device.config()),
        _ => unreachable!("others are given buffers that the kernel can use"),
    }
}

impl BenchPayload for () {
    const CARRIES: bool = false;

    type Source = ();

    fn source(_: &mut Device, _: u32, _: usize) {}

    fn with_capacity((): &(), _: usize) -> Self {}

    fn set_len(&mut self, _: usize) {}

    fn bytes(&mut self) -> &mut [u8] {
        &mut []
    }

    fn config(device: &Device) -> Result<Config<Self>, UsageError> {
        virtual_config(device)
    }
}

impl BenchPayload for Buffer {
    type Source = ();

    fn source(_: &mut Device, _: u32, _: usize) {}

    fn with_capacity((): &(), most: usize) -> Self {
        // Zeroed once, so that written data never contains the leftovers of another program.
        Self::new(vec![0; most])
    }

    fn set_len(&mut self, len: usize) {
        self.get_mut().resize(len, 0);
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.get_mut()
    }

    fn config(device: &Device) -> Result<Config<Self>, UsageError> {
        virtual_config(device)
    }
}

/// For files: direct I/O needs aligned memory.
#[cfg(target_os = "linux")]
impl BenchPayload for AlignedBuf {
    /// A pool registered with the kernel; `None` for I/Os without bytes.
    type Source = Option<BufferPool>;

    fn source(device: &mut Device, count: u32, most: usize) -> Self::Source {
        let pool = (count > 0 && most > 0).then(|| BufferPool::new(count, most))?;
        device.register(&pool);
        Some(pool)
    }

    fn with_capacity(source: &Self::Source, most: usize) -> Self {
        source.as_ref().and_then(BufferPool::take).unwrap_or_else(|| Self::new(most))
    }

    fn set_len(&mut self, len: usize) {
        Self::set_len(self, len);
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn config(device: &Device) -> Result<Config<Self>, UsageError> {
        BlockDevice::config(device).map_err(|e| UsageError::new(e.to_string()))
    }
}

/// The payloads of one worker that are not in flight.
pub struct Pool<P: BenchPayload> {
    free: Vec<P>,
    source: P::Source,
    most: usize,
    filler: Filler,
}

impl<P: BenchPayload> Pool<P> {
    /// Creates a pool for the I/Os of a thread on a device of `device_bytes`. Payloads are created on first use, so
    /// that a deep queue that is never filled costs nothing.
    pub fn new(job: &Job, thread: u32, device_bytes: u64, source: P::Source) -> Self {
        let depth = if P::CARRIES { job.depth.iodepth as usize } else { 0 };
        let filler = Filler::new(job, thread, device_bytes);
        Self { free: Vec::with_capacity(depth), source, most: longest(job), filler }
    }

    fn made(&mut self) -> P {
        let mut payload = P::with_capacity(&self.source, self.most);
        payload.set_len(self.most);
        self.filler.begin(payload.bytes());
        payload
    }
}

impl<P: BenchPayload> Buffers<P> for Pool<P> {
    const CARRIES: bool = P::CARRIES;

    #[inline]
    fn take(&mut self, len: usize) -> P {
        if !P::CARRIES {
            return P::with_capacity(&self.source, 0);
        }
        let mut payload = self.free.pop().unwrap_or_else(|| self.made());
        payload.set_len(len);
        payload
    }

    #[inline]
    fn prepare(&mut self, payload: &mut P) {
        if P::CARRIES {
            self.filler.next(payload.bytes());
        }
    }

    #[inline]
    fn give(&mut self, payload: P) {
        if P::CARRIES {
            self.free.push(payload);
        }
    }

    #[inline]
    fn bytes(payload: &mut P) -> &mut [u8] {
        payload.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_lab::workload::{BlockSize, PerDirection};

    fn job() -> Job {
        Job { bs: PerDirection::all(BlockSize::Fixed(8192)), ..Job::default() }
    }

    /// The address and the length of the bytes of a payload of `len` bytes.
    fn used<P: BenchPayload>(pool: &mut Pool<P>, len: usize) -> (*const u8, Option<usize>) {
        let mut payload = pool.take(len);
        let place = (payload.bytes().as_ptr(), payload.data_len());
        assert_eq!(payload.bytes().len(), place.1.unwrap_or(0));
        pool.give(payload);
        place
    }

    #[test]
    fn buffers_are_used_again_and_never_grow() {
        let mut pool: Pool<Buffer> = Pool::new(&job(), 0, 1 << 30, ());
        let (first, _) = used(&mut pool, 8192);
        for len in [512, 8192, 0, 4096] {
            assert_eq!(used(&mut pool, len), (first, Some(len)), "one buffer, never moved");
        }
        assert_eq!(pool.free.len(), 1);
    }

    #[test]
    fn nothing_is_carried_by_nothing() {
        let mut pool: Pool<()> = Pool::new(&job(), 0, 1 << 30, ());
        assert_eq!(used(&mut pool, 4096).1, None);
        assert!(pool.free.is_empty());
    }
}
