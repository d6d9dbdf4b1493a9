//! [`open`]: opens any device by its description, the text that the command line takes after `--device`, or says why it
//! was not opened.
//!
//! Each kind of device has an [`Opener`], in the module of the feature that adds it (`open/kinds.rs`); fault layers
//! wrap any of them. This module chooses between them and knows no parameter of any device.

mod kinds;
#[cfg(test)]
mod tests;

#[cfg(feature = "uring")]
pub use kinds::file::FileDevice;

use crate::layers::Wrapped;
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_core::{DeviceError, Extent, Finding, MachineShape, Payload, SECTOR_SIZE};
#[cfg(feature = "uring")]
use blkmq_engine::Join;
use blkmq_engine::{AUTO, BlockDevice, DeviceQueues, DeviceShape, WriteCache};
use blkmq_runtime::{Service, ServiceError, available_cpus, numa_nodes};
#[cfg(all(not(target_os = "linux"), feature = "uring"))]
use blkmq_threads::OpenError as FileError;
#[cfg(all(target_os = "linux", feature = "uring"))]
use blkmq_uring::OpenError as FileError;
use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Range;

/// A device opened by [`open`]. Its payloads are buffers that the kernel can access ([`IoBuf`]), such as
/// [`AlignedBuf`](blkmq_buf::AlignedBuf).
///
/// A `Device` is a description: each queue built for it gets its own hardware queues.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// A device that exists only in this program.
    #[cfg(feature = "models")]
    Virtual(blkmq_device::Device),
    /// A file or block device.
    #[cfg(feature = "uring")]
    File(FileDevice),
    /// An export of an NBD server.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    Nbd(crate::Layers<blkmq_remote::NbdDevice>),
    /// An image of a Ceph cluster.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(crate::Layers<blkmq_rbd::RbdDevice>),
    /// A device made of others.
    #[cfg(feature = "layers")]
    Stack(crate::Layers<blkmq_layer::Stack<Self>>),
}

/// Evaluates an expression on the device in a [`Device`], whatever its type.
macro_rules! of {
    ($device:expr, $inside:ident => $value:expr) => {
        match $device {
            #[cfg(feature = "models")]
            Self::Virtual($inside) => $value,
            #[cfg(feature = "uring")]
            Self::File($inside) => $value,
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd($inside) => $value,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd($inside) => $value,
            #[cfg(feature = "layers")]
            Self::Stack($inside) => $value,
            // A build without any of these features opens no device.
            #[allow(unreachable_patterns)]
            _ => unreachable!("no feature adds a device"),
        }
    };
}

/// The kinds of devices that a feature adds.
struct Opener {
    /// The names with which descriptions begin.
    names: fn() -> Vec<&'static str>,
    /// Opens the device, or returns `None` if a description is not of one of these kinds. The description is also
    /// passed without its fault layers.
    open: fn(&str, &Wrapped<'_>, &MachineShape) -> Result<Option<Device>, OpenError>,
}

/// The openers of this build, in the order in which devices are listed.
const OPENERS: &[Opener] = &[
    #[cfg(feature = "models")]
    kinds::virtual_device::OPENER,
    #[cfg(feature = "uring")]
    kinds::file::OPENER,
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    kinds::nbd::OPENER,
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    kinds::rbd::OPENER,
    #[cfg(feature = "layers")]
    kinds::stack::OPENER,
];

/// A feature, whether this build has it, and the names and schemes with which its descriptions begin.
type Feature = (&'static str, bool, &'static [&'static str]);

const FEATURES: [Feature; 5] = [
    ("models", cfg!(feature = "models"), &["null", "memory", "disk", "flash", "cloud", "faults"]),
    ("uring", cfg!(feature = "uring"), &["uring", "threads"]),
    ("nbd", cfg!(feature = "nbd"), &["nbd", "nbd+unix", "nbds", "nbds+unix"]),
    ("rbd", cfg!(feature = "rbd"), &["rbd"]),
    ("layers", cfg!(feature = "layers"), &["stripe", "concat", "crypt", "checksum", "mirror"]),
];

/// Opens the device that `text` describes: `NAME[,KEY=VALUE]...`, as the command line takes it after `--device`.
///
/// | | |
/// |---|---|
/// | `"uring:/dev/nvme0n1"`, `"uring:disk.img,size=64"` | a block device; a file, made 64 MiB long if it is shorter |
/// | `"threads:disk.img"` | the same without io_uring, which `uring` falls back to where that is forbidden; a note says so |
/// | `"memory,size=1024"` | memory, 1 GiB |
/// | `"nbd://host/export"`, `"nbd+unix:///export?socket=/run/nbd.sock"` | an export of an NBD server |
/// | `"rbd:pool/image"` | an image of a Ceph cluster, if this machine has librbd |
/// | `"null"` | a counterpart of null_blk |
/// | `"disk"`, `"flash"`, `"cloud"` | models of a rotating disk, an SSD and a network disk |
/// | `"stripe,chunk=128k:[uring:a.img][uring:b.img]"`, `"concat:[..][..]"` | one device of others: chunks in turn, or one behind the other |
/// | `"crypt,key=disk.key:[uring:disk.img]"`, `"checksum:[..]"` | a device encrypted (AES-XTS), or with checksums, on another one |
/// | `"mirror:[uring:a.img][uring:b.img]"` | the same on both, of which one may fail; made with `create=1` |
/// | `"faults,error=0.01:uring:disk.img"` | any of these, with one request in a hundred failing |
///
/// Features add devices: `uring`, a default, adds files; `nbd` and `rbd` add the devices of their names; `models` adds
/// the devices without storage and `faults`; `layers` adds the devices made of others. The error for a device that is
/// left out names its feature. `blkmq doc` lists every device and its parameters. The default number of hardware queues
/// depends on the machine.
///
/// # Errors
/// If there is no such device, the device does not have a given parameter, or the file, export or image cannot be
/// opened.
pub fn open(text: &str) -> Result<Device, OpenError> {
    open_on(text, &MachineShape { cpus: available_cpus(), nodes: numa_nodes() })
}

/// Opens a device as [`open`] does, with the defaults for `machine` instead of this machine.
///
/// # Errors
/// As for [`open`].
pub fn open_on(text: &str, machine: &MachineShape) -> Result<Device, OpenError> {
    let wrapped = Wrapped::parse(text)?;
    for opener in OPENERS {
        if let Some(device) = (opener.open)(text, &wrapped, machine)? {
            return Ok(device);
        }
    }
    let name = wrapped.inside.split([',', ':']).next().unwrap_or_default().trim();
    let adds = |(_, is_there, names): &&Feature| !is_there && names.contains(&name);
    Err(OpenError::Description(match FEATURES.iter().find(adds) {
        Some((feature, ..)) => DeviceError::LeftOut { name: name.into(), feature },
        None => DeviceError::Unknown { name: name.into(), accepted: accepted_devices(text) },
    }))
}

/// Returns the names with which a description may begin.
pub fn device_names() -> impl Iterator<Item = &'static str> {
    OPENERS.iter().flat_map(|opener| (opener.names)())
}

/// Returns alternatives to `text`, a description that does not begin with the name of a device: first the description
/// of a file, if `text` begins with a path, and then the names.
#[must_use]
pub fn accepted_devices(text: &str) -> String {
    let names = Vec::from_iter(device_names()).join(", ");
    let path = text.split(',').next().unwrap_or_default().trim();
    if !cfg!(target_os = "linux") || path.is_empty() || !std::path::Path::new(path).exists() {
        return names;
    }
    format!("uring:{text} for the file, or a device: {names}")
}

impl Device {
    fn opened(&self) -> &dyn Opened {
        of!(self, inside => inside)
    }

    fn opened_mut(&mut self) -> &mut dyn Opened {
        of!(self, inside => inside)
    }

    /// Returns the facts of the device that the engine must know: its queues, limits and cache.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        of!(self, inside => &inside.shape)
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shape().limits.capacity.saturating_mul(SECTOR_SIZE.into())
    }

    /// Returns the current state of the device, as far as it is known: other programs may resize or remove a file, and
    /// other clients may change an image of a cluster. A queue keeps its size until its plan has another capacity.
    /// Takes a few system calls, and waits for the cluster if the image has been changed since the last call.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        self.opened().state(DeviceState {
            bytes: self.bytes(),
            is_read_only: false,
            is_removed: false,
            has_volatile_cache: self.shape().cache != WriteCache::Through,
        })
    }

    /// Returns how the device writes zeroes, if its [`Limits`](blkmq_core::Limits) say that it does.
    #[must_use]
    pub fn zeroing(&self) -> Zeroing {
        self.opened().zeroing()
    }

    /// Returns the allocated and unallocated stretches of `range`, which is in bytes and lies within the device: at
    /// least one, at most `most`, so they may not cover all of it. A device that does not know reports all of it as
    /// allocated.
    ///
    /// # Errors
    /// If the query of a file fails.
    pub fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        self.opened().extents(range, most)
    }

    /// Returns whether [`extents`](Self::extents) asks a server and waits for its answer. If false, `extents` takes
    /// microseconds.
    #[must_use]
    pub fn asks_for_extents(&self) -> bool {
        self.opened().asks_for_extents()
    }

    /// Returns whether the device moves the bytes of I/Os. The models of drives do not: a read from them leaves the
    /// buffer as it was.
    #[must_use]
    pub fn moves_data(&self) -> bool {
        self.opened().moves_data()
    }

    /// Returns where the device deviates from its description: one sentence for each point, for the user.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        of!(self, inside => &inside.notes)
    }

    /// Takes the findings of layers since the last call: faults in the contents, and the progress of copies.
    /// O(legs and findings).
    #[must_use]
    pub fn take_findings(&self) -> Vec<Finding> {
        self.opened().take_findings()
    }

    /// Returns the name of the scheduler that Linux gives such a device; see [`BlockDevice::default_scheduler`].
    #[must_use]
    pub fn default_scheduler(&self) -> &'static str {
        of!(self, inside => BlockDevice::<blkmq_buf::AlignedBuf>::default_scheduler(inside))
    }

    /// Makes queues that are built from now on register the memory of `pool` with the kernel, if the device supports
    /// it; see `UringDevice::register`. Buffers outside the pool remain usable.
    pub fn register(&mut self, pool: &BufferPool) {
        self.opened_mut().register(pool);
    }

    /// Starts a service for the device with the scheduler called `scheduler`, every other setting at its default, and
    /// at most [`DEFAULT_SUBMITTERS`](blkmq_engine::DEFAULT_SUBMITTERS) clients and reactors: the short form of
    /// [`config`](BlockDevice::config) and [`Service::start`]. With `auto` ([`AUTO`]), the device's default scheduler
    /// runs until groups of the service compete, and mclock from then on; see [`Plan::auto`](blkmq_engine::Plan::auto).
    ///
    /// # Errors
    /// If there is no such scheduler, or the system refuses rings, memory or threads.
    pub fn start<P: IoBuf>(&self, scheduler: &str) -> Result<Service<P>, StartError> {
        let factory = (scheduler != AUTO).then(|| crate::scheduler(scheduler)).transpose()?;
        let config = self.config().map_err(StartError::Queues)?;
        let config = match factory {
            Some(factory) => config.scheduler(factory),
            None => config.auto(),
        };
        Service::start(config).map_err(StartError::Service)
    }
}

impl<P: IoBuf + Payload> BlockDevice<P> for Device {
    fn shape(&self) -> DeviceShape {
        *self.shape()
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        of!(self, inside => BlockDevice::queues(inside))
    }

    #[cfg(feature = "uring")]
    fn join(all: &[(&Self, u64)], by: Join) -> Option<Box<dyn BlockDevice<P>>> {
        let files = all.iter().map(|(device, sectors)| match device {
            Self::File(file) => Some((file, *sectors)),
            // Other features add further variants.
            #[allow(unreachable_patterns)]
            _ => None,
        });
        <FileDevice as BlockDevice<P>>::join(&files.collect::<Option<Vec<_>>>()?, by)
    }

    fn notes(&self) -> &[String] {
        self.notes()
    }

    fn default_scheduler(&self) -> &'static str {
        self.default_scheduler()
    }
}

/// The current state of a device; see [`Device::state`](crate::Device::state).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// The size in bytes.
    pub bytes: u64,
    /// The device is read-only, because of a parameter, the block device, the server or the cluster.
    pub is_read_only: bool,
    /// The device is a file that was removed or replaced: its data is lost when the last program closes it.
    pub is_removed: bool,
    /// Writes wait in a volatile cache until a flush.
    pub has_volatile_cache: bool,
}

/// How a device writes zeroes; see [`Device::zeroing`](crate::Device::zeroing).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// Zeroing takes less time than writing as many bytes.
    pub is_fast: bool,
    /// The device can zero without leaving a hole ([`IoFlags::NOUNMAP`](blkmq_core::IoFlags::NOUNMAP)). If the file
    /// system cannot, the I/O ends with EOPNOTSUPP.
    pub keeps_room: bool,
}

/// The methods are documented at the methods of [`Device`](crate::Device) with the same names. The defaults here are
/// for a device that nothing else changes.
trait Opened {
    fn state(&self, as_opened: DeviceState) -> DeviceState {
        as_opened
    }

    fn zeroing(&self) -> Zeroing {
        Zeroing { is_fast: true, keeps_room: false }
    }

    fn extents(&self, range: Range<u64>, _most: usize) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent { end: range.end, is_hole: false }])
    }

    fn asks_for_extents(&self) -> bool {
        false
    }

    fn moves_data(&self) -> bool {
        true
    }

    fn take_findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn register(&mut self, _pool: &BufferPool) {}
}

/// Why a device could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The description names an unknown device, one that this build is without, or a parameter that the device does not
    /// have; the text lists the accepted names.
    Description(DeviceError),
    /// The file or block device cannot be opened.
    #[cfg(feature = "uring")]
    File(FileError),
    /// The export of an NBD server cannot be opened.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    Nbd(blkmq_remote::OpenError),
    /// The image of a Ceph cluster cannot be opened.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(blkmq_rbd::OpenError),
    /// The description of a layer is wrong.
    #[cfg(feature = "layers")]
    Layer(blkmq_layer::KindError),
    /// The layer does not accept these devices.
    #[cfg(feature = "layers")]
    Stack(blkmq_layer::StackError),
}

/// The error of a kind of device.
trait Cause: Error {
    fn is_unavailable(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        false
    }
}

impl Cause for DeviceError {}

impl OpenError {
    fn cause(&self) -> &(dyn Cause + 'static) {
        match self {
            Self::Description(e) => e,
            #[cfg(feature = "uring")]
            Self::File(e) => e,
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(e) => e,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(e) => e,
            #[cfg(feature = "layers")]
            Self::Layer(e) => e,
            #[cfg(feature = "layers")]
            Self::Stack(e) => e,
        }
    }

    /// Returns true if this machine or container offers no io_uring, or none that is recent enough.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.cause().is_unavailable()
    }

    /// Returns true if the file or block device is in use elsewhere, so that it may open later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.cause().is_busy()
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.cause(), f)
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.cause())
    }
}

impl From<DeviceError> for OpenError {
    fn from(e: DeviceError) -> Self {
        Self::Description(e)
    }
}

/// Why [`Device::start`](crate::Device::start) did not start a service, or [`scheduler`](crate::scheduler()) found none.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no scheduler of this name, or this build is without it; the text names the feature that adds it.
    Scheduler(String),
    /// The hardware queues of the device cannot be created.
    Queues(io::Error),
    /// The service cannot start.
    Service(ServiceError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(name) => f.write_str(&blkmq_sched::registry::refusal(name, &[AUTO])),
            Self::Queues(e) => e.fmt(f),
            Self::Service(e) => e.fmt(f),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Scheduler(_) => None,
            Self::Queues(e) => Some(e),
            Self::Service(e) => Some(e),
        }
    }
}
