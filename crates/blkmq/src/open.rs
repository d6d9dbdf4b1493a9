//! [`open`]: opens any device by its description, the text that the command line takes after `--device`.
//!
//! `blkmq-device` parses the descriptions of virtual devices, `blkmq-uring` those of files and block devices, and
//! `blkmq-remote` those of exports of NBD servers, and `blkmq-rbd` those of images of Ceph; fault layers wrap any of
//! them. This module chooses between them and knows no parameter of any device.

use crate::layers::{Layers, Wrapped};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_core::{Extent, Payload, SECTOR_SIZE};
use blkmq_device::{DeviceError, MachineShape, registry};
use blkmq_engine::{AUTO, BlockDevice, DeviceQueues, DeviceShape, WriteCache};
use blkmq_layer::{Kind, KindError, Stack, StackError};
#[cfg(all(target_os = "linux", feature = "rbd"))]
use blkmq_rbd::RbdDevice;
#[cfg(all(target_os = "linux", feature = "nbd"))]
use blkmq_remote::NbdDevice;
use blkmq_runtime::{Service, ServiceError, available_cpus, numa_nodes};
#[cfg(target_os = "linux")]
use blkmq_uring::UringDevice;
use std::ops::Range;
use std::{fmt, io};

/// A device opened by [`open`]. Its payloads are buffers that the kernel can access ([`IoBuf`]), such as
/// [`AlignedBuf`](blkmq_buf::AlignedBuf).
///
/// It is a description: each queue built for it gets hardware queues of its own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// A device that exists only in this program.
    Virtual(blkmq_device::Device),
    /// A file or block device.
    #[cfg(target_os = "linux")]
    File(FileDevice),
    /// An export of an NBD server.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    Nbd(Layers<NbdDevice>),
    /// An image of a Ceph cluster.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(Layers<RbdDevice>),
    /// A device made of others.
    Stack(Layers<Stack<Device>>),
}

/// A file or block device, and the fault layers around it.
#[cfg(target_os = "linux")]
pub type FileDevice = Layers<UringDevice>;

/// Why a device could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The description names an unknown device, or a parameter that the device does not have; the text lists the
    /// accepted names.
    Description(DeviceError),
    /// The file or block device cannot be opened.
    #[cfg(target_os = "linux")]
    File(blkmq_uring::OpenError),
    /// The export of an NBD server cannot be opened.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    Nbd(blkmq_remote::OpenError),
    /// The image of a Ceph cluster cannot be opened.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(blkmq_rbd::OpenError),
    /// The description of a layer is wrong.
    Layer(KindError),
    /// The devices of a layer do not suit it.
    Stack(StackError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Description(e) => e.fmt(f),
            #[cfg(target_os = "linux")]
            Self::File(e) => e.fmt(f),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(e) => e.fmt(f),
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(e) => e.fmt(f),
            Self::Layer(e) => e.fmt(f),
            Self::Stack(e) => e.fmt(f),
        }
    }
}

impl OpenError {
    /// Returns true if this machine or container offers no io_uring, or none that is recent enough.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Description(_) | Self::Layer(_) | Self::Stack(_) => false,
            #[cfg(target_os = "linux")]
            Self::File(e) => e.is_unavailable(),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(_) => false,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(_) => false,
        }
    }

    /// Returns true if the file or block device is in use elsewhere, so that it may open later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Description(_) | Self::Layer(_) | Self::Stack(_) => false,
            #[cfg(target_os = "linux")]
            Self::File(e) => e.is_busy(),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(_) => false,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(_) => false,
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Description(e) => Some(e),
            #[cfg(target_os = "linux")]
            Self::File(e) => Some(e),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(e) => Some(e),
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(e) => Some(e),
            Self::Layer(e) => Some(e),
            Self::Stack(e) => Some(e),
        }
    }
}

/// Opens the device that `text` describes: `NAME[,KEY=VALUE]...`, as the command line takes it after `--device`.
///
/// | | |
/// |---|---|
/// | `"uring:/dev/nvme0n1"`, `"uring:disk.img,size=64"` | a block device; a file, made 64 MiB long if it is shorter |
/// | `"threads:disk.img"` | the same without io_uring, which `uring` falls back to where that is forbidden; a note says so |
/// | `"memory,size=1024"` | memory, 1 GiB |
/// | `"nbd://host/export"`, `"nbd+unix:///export?socket=/run/nbd.sock"` | an export of an NBD server |
/// | `"rbd:pool/image"` | an image of a Ceph cluster, if this machine has librbd |
/// | `"null"`, `"disk"`, `"flash"`, `"cloud"` | a counterpart of null_blk; models of a rotating disk, an SSD and a network disk |
/// | `"stripe,chunk=128k:[uring:a.img][uring:b.img]"`, `"concat:[..][..]"` | one device of others: chunks in turn, or one behind the other |
/// | `"crypt,key=disk.key:[uring:disk.img]"`, `"checksum:[..]"` | a device encrypted (AES-XTS), or with checksums, on another one |
/// | `"faults,error=0.01:uring:disk.img"` | any of these, with one request in a hundred failing |
///
/// `blkmq doc` lists every device and its parameters. The default number of hardware queues depends on the machine.
///
/// # Errors
/// If there is no such device, the device does not have a given parameter, or the file, export or image cannot be opened.
pub fn open(text: &str) -> Result<Device, OpenError> {
    open_on(text, &MachineShape { cpus: available_cpus(), nodes: numa_nodes() })
}

/// Opens a device as [`open`] does, with the defaults for `machine` instead of this machine.
///
/// # Errors
/// As for [`open`].
pub fn open_on(text: &str, machine: &MachineShape) -> Result<Device, OpenError> {
    let wrapped = Wrapped::parse(text).map_err(OpenError::Description)?;
    if let Some(described) = Kind::parse(wrapped.inside) {
        let (kind, legs) = described.map_err(OpenError::Layer)?;
        let legs = legs.into_iter().map(|leg| open_on(leg, machine)).collect::<Result<_, _>>()?;
        let stack = Stack::new(kind, legs).map_err(OpenError::Stack)?;
        return Ok(Device::Stack(wrapped.around(stack)));
    }
    #[cfg(target_os = "linux")]
    if let Some(device) = open_real(wrapped)? {
        return Ok(device);
    }
    registry::parse(text, machine).map(Device::Virtual).map_err(|e| {
        OpenError::Description(match e {
            DeviceError::Unknown { name, .. } => {
                DeviceError::Unknown { name, accepted: accepted_devices(text) }
            }
            e => e,
        })
    })
}

/// Returns the names with which a description may begin.
pub fn device_names() -> impl Iterator<Item = &'static str> {
    let names = registry::ALL.iter().map(|factory| factory.name);
    #[cfg(target_os = "linux")]
    let names = names.chain([blkmq_uring::URING.name, blkmq_uring::THREADS.name]);
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    let names = names.chain([blkmq_remote::NBD.name]);
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    let names = names.chain([blkmq_rbd::RBD.name]);
    names.chain(Kind::ALL.iter().map(|layer| layer.name))
}

/// Returns the alternatives to `text`, a description that begins with no name of a device: the names, and before them
/// the description of a file, if `text` begins with its path.
#[must_use]
pub fn accepted_devices(text: &str) -> String {
    let names = Vec::from_iter(device_names()).join(", ");
    let path = text.split(',').next().unwrap_or_default().trim();
    if !cfg!(target_os = "linux") || path.is_empty() || !std::path::Path::new(path).exists() {
        return names;
    }
    format!("uring:{text} for the file, or a device: {names}")
}

/// Opens the device that a description means, if it is one outside of this program.
#[cfg(target_os = "linux")]
fn open_real(wrapped: Wrapped<'_>) -> Result<Option<Device>, OpenError> {
    let inside = wrapped.inside;
    if let Some(file) = UringDevice::described(inside) {
        return Ok(Some(Device::File(wrapped.around(file.map_err(OpenError::File)?))));
    }
    #[cfg(feature = "nbd")]
    if let Some(export) = blkmq_remote::description(inside) {
        let export = NbdDevice::parse(export).map_err(OpenError::Nbd)?;
        return Ok(Some(Device::Nbd(wrapped.around(export))));
    }
    #[cfg(feature = "rbd")]
    if let Some(image) = blkmq_rbd::RBD.description(inside) {
        let image = RbdDevice::parse(image).map_err(OpenError::Rbd)?;
        return Ok(Some(Device::Rbd(wrapped.around(image))));
    }
    Ok(None)
}

/// A device as it is by now; see [`Device::state`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// Its size.
    pub bytes: u64,
    /// Nothing can be changed, whatever the reason: a parameter, the block device, the server or the cluster.
    pub is_read_only: bool,
    /// It is a file that was removed or replaced: data written to it is lost with the last program that has it open.
    pub is_removed: bool,
    /// Writes wait in a volatile cache until a flush.
    pub has_volatile_cache: bool,
}

/// How a device writes zeroes; see [`Device::zeroing`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// It takes less time than to write as many bytes.
    pub is_fast: bool,
    /// It can be asked to leave no hole ([`IoFlags::NOUNMAP`](blkmq_core::IoFlags::NOUNMAP)). Where the file system cannot,
    /// the answer is EOPNOTSUPP.
    pub keeps_room: bool,
}

impl Device {
    /// Returns the facts of the device that the engine must know: its queues, limits and cache.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        match self {
            Self::Virtual(device) => &device.shape,
            #[cfg(target_os = "linux")]
            Self::File(file) => &file.shape,
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => &export.shape,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(image) => &image.shape,
            Self::Stack(stack) => &stack.shape,
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shape().limits.capacity.saturating_mul(SECTOR_SIZE.into())
    }

    /// Returns the device as it is by now, as far as that is known: other programs may resize or remove a file, and other
    /// clients an image of a cluster. A queue keeps its size until its plan has another capacity. Takes a few system calls,
    /// and waits for the cluster if the image has been changed since the last call.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        let as_opened = DeviceState {
            bytes: self.bytes(),
            is_read_only: false,
            is_removed: false,
            has_volatile_cache: self.shape().cache != WriteCache::Through,
        };
        match self {
            Self::Virtual(_) => as_opened,
            #[cfg(target_os = "linux")]
            Self::File(file) => {
                let now = file.device.state();
                DeviceState {
                    bytes: now.bytes,
                    is_read_only: now.is_read_only,
                    is_removed: now.is_removed,
                    has_volatile_cache: now.has_volatile_cache,
                }
            }
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => {
                DeviceState { is_read_only: export.device.is_read_only(), ..as_opened }
            }
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(image) => DeviceState {
                bytes: image.device.state().size,
                is_read_only: image.device.is_read_only(),
                ..as_opened
            },
            Self::Stack(stack) => {
                let legs = stack.device.legs();
                let any = |one: fn(&DeviceState) -> bool| legs.iter().any(|leg| one(&leg.state()));
                DeviceState {
                    bytes: stack.device.bytes_left(|leg| leg.state().bytes),
                    is_read_only: any(|leg| leg.is_read_only),
                    is_removed: any(|leg| leg.is_removed),
                    ..as_opened
                }
            }
        }
    }

    /// Returns how the device writes zeroes, if its [`Limits`](blkmq_core::Limits) say that it does.
    #[must_use]
    pub fn zeroing(&self) -> Zeroing {
        match self {
            #[cfg(target_os = "linux")]
            Self::File(file) => {
                Zeroing { is_fast: file.device.has_fast_zeroes(), keeps_room: true }
            }
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => {
                Zeroing { is_fast: export.device.has_fast_zeroes(), keeps_room: false }
            }
            Self::Stack(stack) => {
                let all = |one: fn(&Zeroing) -> bool| {
                    stack.device.legs().iter().all(|leg| one(&leg.zeroing()))
                };
                Zeroing { is_fast: all(|leg| leg.is_fast), keeps_room: all(|leg| leg.keeps_room) }
            }
            _ => Zeroing { is_fast: true, keeps_room: false },
        }
    }

    /// Returns the connections to the server that were lost and made anew so far, if the device is an export of one.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    #[must_use]
    pub fn outages(&self) -> Option<blkmq_remote::Outages> {
        match self {
            Self::Nbd(export) => Some(export.device.outages()),
            _ => None,
        }
    }

    /// Returns the stored and unstored stretches of `range`, which is in bytes and in the device: at least one, at
    /// most `most`, and so perhaps not all of it. A device that cannot tell says that all of it is stored.
    ///
    /// # Errors
    /// If a file cannot be asked.
    pub fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        match self {
            Self::Virtual(device) => Ok(match device.memory() {
                Some(store) => store.extents(range, most),
                None => vec![Extent { end: range.end, is_hole: false }],
            }),
            #[cfg(target_os = "linux")]
            Self::File(file) => file.device.extents(range, most),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => Ok(export.device.extents(range, most)),
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(_) => Ok(vec![Extent { end: range.end, is_hole: false }]),
            Self::Stack(_) => Ok(vec![Extent { end: range.end, is_hole: false }]),
        }
    }

    /// Returns whether [`extents`](Self::extents) asks a server and waits for its answer. If false, `extents` takes
    /// microseconds.
    #[must_use]
    pub fn asks_for_extents(&self) -> bool {
        #[cfg(all(target_os = "linux", feature = "nbd"))]
        return matches!(self, Self::Nbd(_));
        #[cfg(not(all(target_os = "linux", feature = "nbd")))]
        false
    }

    /// Returns whether the device moves the bytes of I/Os. The models of drives do not: a read from them leaves the
    /// buffer as it was.
    #[must_use]
    pub fn moves_data(&self) -> bool {
        match self {
            Self::Virtual(device) => device.memory().is_some(),
            #[cfg(target_os = "linux")]
            Self::File(_) => true,
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(_) => true,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(_) => true,
            Self::Stack(stack) => stack.device.legs().iter().all(Self::moves_data),
        }
    }

    /// Returns where the device deviates from its description: one sentence for each point, for the user.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match self {
            Self::Virtual(device) => &device.notes,
            #[cfg(target_os = "linux")]
            Self::File(file) => &file.notes,
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => &export.notes,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(image) => &image.notes,
            Self::Stack(stack) => &stack.notes,
        }
    }

    /// Takes the faults that layers have found in the contents since the last call, one sentence each; see
    /// [`Stack::take_findings`]. O(legs and findings).
    #[must_use]
    pub fn take_findings(&self) -> Vec<String> {
        let Self::Stack(stack) = self else { return Vec::new() };
        let mut found = stack.device.take_findings();
        for (number, leg) in stack.device.legs().iter().enumerate() {
            found
                .extend(leg.take_findings().into_iter().map(|it| format!("device {number}: {it}")));
        }
        found
    }

    /// Returns the name of the scheduler that Linux gives such a device; see [`BlockDevice::default_scheduler`].
    #[must_use]
    pub fn default_scheduler(&self) -> &'static str {
        match self {
            Self::Virtual(device) => device.default_scheduler(),
            #[cfg(target_os = "linux")]
            Self::File(file) => file.shape.default_scheduler(),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => export.shape.default_scheduler(),
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(image) => image.shape.default_scheduler(),
            Self::Stack(stack) => stack.shape.default_scheduler(),
        }
    }

    /// Makes queues that are built from now on register the memory of `pool` with the kernel, if the device supports
    /// it; see `UringDevice::register`. Buffers outside the pool remain usable.
    pub fn register(&mut self, pool: &BufferPool) {
        match self {
            Self::Virtual(_) => {}
            #[cfg(target_os = "linux")]
            Self::File(file) => file.device.register(pool),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(_) => {}
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(_) => {}
            Self::Stack(stack) => {
                stack.device.legs_mut().iter_mut().for_each(|leg| leg.register(pool));
            }
        }
    }

    /// Starts a service for the device with the scheduler called `scheduler` and every other setting at its default, with at
    /// most [`DEFAULT_SUBMITTERS`](blkmq_engine::DEFAULT_SUBMITTERS) clients and reactors:
    /// the short form of [`config`](BlockDevice::config) and [`Service::start`]. Under `auto` ([`AUTO`]), it is the
    /// device's default until groups of the service compete, and mclock from then on; see [`Plan::auto`](blkmq_engine::Plan::auto).
    ///
    /// # Errors
    /// If there is no such scheduler, or the system refuses rings, memory or threads.
    pub fn start<P: IoBuf>(&self, scheduler: &str) -> Result<Service<P>, StartError> {
        let factory = blkmq_sched::registry::find(scheduler);
        if factory.is_none() && scheduler != AUTO {
            return Err(StartError::Scheduler(scheduler.to_owned()));
        }
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
        match self {
            Self::Virtual(device) => Ok(device.queues()),
            #[cfg(target_os = "linux")]
            Self::File(file) => file.queues(),
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(export) => export.queues(),
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(image) => image.queues(),
            Self::Stack(stack) => stack.queues(),
        }
    }

    fn notes(&self) -> &[String] {
        self.notes()
    }

    fn default_scheduler(&self) -> &'static str {
        self.default_scheduler()
    }
}

/// Why [`Device::start`] did not start a service.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no scheduler of this name.
    Scheduler(String),
    /// The hardware queues of the device cannot be created.
    Queues(io::Error),
    /// The service cannot start.
    Service(ServiceError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(name) => {
                let names = blkmq_sched::registry::ALL.iter().map(|factory| factory.name);
                let accepted = Vec::from_iter(names).join(", ");
                write!(f, "no scheduler '{name}'; accepted: {accepted}, {AUTO}")
            }
            Self::Queues(e) => e.fmt(f),
            Self::Service(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Scheduler(_) => None,
            Self::Queues(e) => Some(e),
            Self::Service(e) => Some(e),
        }
    }
}

#[cfg(test)]
mod tests;
