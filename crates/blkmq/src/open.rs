//! [`open`]: opens any device by its description, the text that the command line takes after `--device`, or says why it
//! was not opened.
//!
//! Each kind of device has an [`Opener`], in the module of the feature that adds it (`open/kinds.rs`); fault layers
//! wrap any of them. This module chooses between them and knows no parameter of any device.

mod kinds;

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
pub use kinds::Layers;
use kinds::Wrapped;
#[cfg(feature = "uring")]
pub use kinds::file::FileDevice;
use std::error::Error;
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
    Nbd(Layers<blkmq_remote::NbdDevice>),
    /// An image of a Ceph cluster.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(Layers<blkmq_rbd::RbdDevice>),
    /// A device made of others.
    #[cfg(feature = "layers")]
    Stack(Layers<blkmq_layer::Stack<Self>>),
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
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub enum OpenError {
    /// The description names an unknown device, one that this build is without, or a parameter that the device does not
    /// have; the text lists the accepted names.
    Description(#[from] DeviceError),
    /// The file or block device cannot be opened.
    #[cfg(feature = "uring")]
    File(#[source] FileError),
    /// The export of an NBD server cannot be opened.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    Nbd(#[source] blkmq_remote::OpenError),
    /// The image of a Ceph cluster cannot be opened.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(#[source] blkmq_rbd::OpenError),
    /// The description of a layer is wrong.
    #[cfg(feature = "layers")]
    Layer(#[source] blkmq_layer::KindError),
    /// The layer does not accept these devices.
    #[cfg(feature = "layers")]
    Stack(#[source] blkmq_layer::StackError),
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

/// Why [`Device::start`](crate::Device::start) did not start a service, or [`scheduler`](crate::scheduler()) found
/// none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no scheduler of this name, or this build is without it; the text names the feature that adds it.
    #[error("{}", blkmq_sched::registry::refusal(.0, &[AUTO]))]
    Scheduler(String),
    /// The hardware queues of the device cannot be created.
    #[error("{0}")]
    Queues(#[source] io::Error),
    /// The service cannot start.
    #[error("{0}")]
    Service(#[source] ServiceError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_buf::AlignedBuf;
    use blkmq_core::Sectors;
    use blkmq_device::registry::{self, Argument};

    fn refusal(text: &str) -> String {
        open(text).expect_err(text).to_string()
    }

    #[test]
    fn every_device_is_a_name_away() {
        let innermost = registry::ALL.iter().filter(|it| it.argument == Argument::None);
        for name in innermost.map(|it| it.name) {
            let device = open(name).expect(name);
            let config = BlockDevice::<AlignedBuf>::config(&device).expect(name);
            assert_eq!(config.queues.len(), usize::from(device.shape().hw_queues));
        }
        assert_eq!(open("memory,size=2").expect("memory").bytes(), 2 << 20);
        let names = Vec::from_iter(registry::ALL.iter().map(|it| it.name));
        assert!(refusal("zram").contains(&format!("accepted: {}", names.join(", "))));
        let models = FEATURES.iter().find(|it| it.0 == "models").expect("it is in the list");
        assert_eq!(models.2, names, "FEATURES names the devices of the registry");
        assert!(refusal("null,fast=1").contains("no parameter 'fast'"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn faults_stand_around_files_as_around_others() {
        assert!(refusal("nbd").contains("accepted: nbd://HOST[:PORT]/EXPORT"));
        assert!(refusal("faults,late=0.1:nbd+unix:///?socket=/no").contains("cannot be reached"));
        assert!(refusal("nbd:nbd://a,color=1").contains("no parameter 'color'"));
        for (text, part) in [
            ("rbd", "accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP]"),
            ("rbd:image", "'image' names no image; accepted: POOL/"),
            ("faults,late=0.1:rbd:p/i,cache=fast", "accepted: none, writethrough"),
            ("rbd:p/i,color=1", "no parameter 'color'; accepted: image, conf, id"),
        ] {
            assert!(refusal(text).contains(part), "{}", refusal(text));
        }
        let missing = refusal("faults,late=0.1:faults,error=0.5:uring:/nowhere/at/all");
        assert!(missing.contains("/nowhere/at/all"), "{missing}");
        assert!(refusal("faults,error=2:uring:/x").contains("error=2 is not possible"));
        assert!(refusal("faults:uring").contains("no path"), "{}", refusal("faults:uring"));
    }

    /// The tests have every feature, so the table lists exactly the devices that features add.
    #[cfg(target_os = "linux")]
    #[test]
    fn every_device_has_its_feature() {
        let names = FEATURES.iter().flat_map(|(.., names)| *names).copied();
        let names = Vec::from_iter(names.filter(|name| !name.contains("nbd") || *name == "nbd"));
        assert_eq!(names, Vec::from_iter(device_names()));
    }

    #[test]
    fn a_scheduler_that_is_not_there_is_named_with_those_that_are() {
        let error = open("null").expect("null").start::<AlignedBuf>("cfq").expect_err("gone");
        let text = error.to_string();
        assert!(text.starts_with("no scheduler 'cfq'; accepted: none, mq-deadline"), "{text}");
        assert!(text.ends_with(", auto"), "{text}");
    }

    #[test]
    fn groups_that_compete_have_the_scheduler_that_keeps_their_shares() {
        let device = open("memory,size=1").expect("memory");
        let service = device.start::<AlignedBuf>(AUTO).expect("it starts");
        let said = || service.attribute("blkmq/auto").expect("an attribute");
        let alone = format!(
            "{}, since no groups compete and it is Linux's choice for such a device",
            device.default_scheduler()
        );
        assert_eq!(said(), alone);
        let options = blkmq_runtime::GroupOptions::default();
        let first = service.add_group("a", &options).expect("a new name");
        assert_eq!(said(), alone);
        let second = service.add_group("b", &options).expect("a new name");
        assert_eq!(said(), "mclock, since 2 groups compete");
        drop((first, second));
        assert_eq!(
            said(),
            "mclock, since groups competed or had floors; queue/scheduler=auto chooses again"
        );
        service.set_attribute("queue/scheduler", AUTO).expect("a word");
        assert_eq!(said(), alone);
        service.set_attribute("queue/scheduler", "kyber").expect("a word");
        let named = [("a", "kyber"), ("b", "kyber")].map(|(name, scheduler)| {
            let group = service.add_group(name, &options).expect("a new name");
            assert_eq!(service.queue().plan().scheduler.name, scheduler);
            group
        });
        assert_eq!((said(), named.len()), ("off".into(), 2));
    }

    #[test]
    fn layers_stand_on_devices_of_any_kind() {
        let device =
            open("stripe,chunk=128k:[memory,size=4][concat:[memory,size=1][memory,size=2]]");
        let device = device.expect("devices that suit");
        assert_eq!((device.bytes(), device.shape().hw_queues), (6 << 20, 1));
        assert!(device.moves_data() && !device.state().is_read_only);
        assert!(
            device.notes().iter().any(|note| note.ends_with("sectors of device 0 are left alone"))
        );
        assert!(
            !open("stripe:[memory,size=1][null,size=1]").expect("devices that suit").moves_data()
        );
        let faulty =
            open("faults,error=1:stripe:[memory,size=1][memory,size=1]").expect("that, too");
        let service = faulty.start::<AlignedBuf>("none").expect("it starts");
        let mut disk = service.blocking().expect("a client");
        let (result, _) = disk.read(Sectors(0), AlignedBuf::new(4096)).expect("it is taken");
        assert_eq!(result, Err(blkmq_core::IoError::IO));
        for (text, part) in [
            ("stripe:[null]", "1 devices in brackets; accepted: from 2 to 64"),
            ("stripe:null", "accepted: stripe[,KEY=VALUE]...:[DEVICE][DEVICE]..."),
            ("stripe,chunk=1k:[null][null,blocksize=4096]", "not in whole blocks of 4096"),
            ("concat:[null][zram]", "no device 'zram'; accepted: null"),
            ("concat:[null][concat:[null][null,fast=1]]", "no parameter 'fast'"),
            ("stripe,chunk=1g:[null,size=1][null,size=1]", "less than 1073741824 bytes"),
        ] {
            assert!(refusal(text).contains(part), "{}", refusal(text));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn files_under_layers_are_read_and_written_and_wake_their_clients() {
        let folder = tempfile::tempdir().expect("a folder for files");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let legs = format!(
            "[uring:{},size=2][threads:{},size=2][memory,size=2,irqmode=2]",
            path("a"),
            path("b")
        );
        let mut device = open(&format!("stripe,chunk=4k:{legs}")).expect("files that suit");
        let pool = BufferPool::new(4, 64 << 10);
        device.register(&pool);
        {
            let service = device.start::<AlignedBuf>("mq-deadline").expect("it starts");
            let mut disk = service.blocking().expect("a client");
            for at in (0..6 << 11).step_by(128) {
                let mut buf = pool.take().expect("all are free");
                buf.as_mut_slice().fill((at / 128) as u8);
                let (result, mut buf) = disk.write(Sectors(at), buf).expect("it is taken");
                assert_eq!(result, Ok(()));
                buf.as_mut_slice().fill(0);
                let (result, mut buf) = disk.read(Sectors(at), buf).expect("it is taken");
                assert_eq!(result, Ok(()));
                assert!(buf.as_mut_slice().iter().all(|byte| *byte == (at / 128) as u8));
            }
            disk.flush().expect("it is taken");
        }
        let bytes = std::fs::read(path("b")).expect("the second file");
        // The first chunk on this file is the second 4 KiB of the first 64, and the last chunk is from the last 64.
        assert_eq!((bytes[0], bytes[bytes.len() - 1]), (0, 95));
        let file = std::fs::OpenOptions::new().write(true).open(path("a")).expect("the first file");
        file.set_len(1 << 20).expect("it is cut short");
        assert_eq!(device.state().bytes, 3 << 20, "as far as no chunk is lost");
    }

    /// Regression test: clients of a stripe shared a queue, so that a completion woke all of them, and an I/O took two
    /// system calls.
    #[cfg(target_os = "linux")]
    #[test]
    fn clients_of_striped_files_have_a_ring_each_for_all_of_them() {
        if blkmq_uring::UringDevice::check().is_err() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder for files");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let legs = ["a", "b"].map(|name| format!("[uring:{},size=2]", path(name))).concat();
        let device = open(&format!("stripe,chunk=4k:{legs}")).expect("files that suit");
        {
            let service = device.start::<AlignedBuf>("mq-deadline").expect("it starts");
            assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("owner"));
            let mut disks = [(); 3].map(|()| service.blocking().expect("a client"));
            for at in 0..64_usize {
                let mut buf = AlignedBuf::new(64 << 10);
                buf.as_mut_slice().fill(at as u8);
                let (result, _) =
                    disks[at % 3].write(Sectors(at as u64 * 128), buf).expect("taken");
                assert_eq!(result, Ok(()));
            }
            assert!(disks.iter_mut().all(|disk| disk.flush().is_ok()));
            for at in 0..64_usize {
                let read =
                    disks[(at + 1) % 3].read(Sectors(at as u64 * 128), AlignedBuf::new(64 << 10));
                let (result, mut buf) = read.expect("taken");
                assert_eq!(result, Ok(()));
                assert!(buf.as_mut_slice().iter().all(|byte| *byte == at as u8), "{at}");
            }
        }
        for name in ["a", "b"] {
            // The file has half of each write, in order.
            let bytes = std::fs::read(path(name)).expect("a file");
            assert!(
                bytes.chunks(32 << 10).zip(0..).all(|(half, at)| half.iter().all(|it| *it == at))
            );
        }
        drop(device);
        // Files with different numbers of queues, or with a fault around one, are not joined.
        for leg in [format!("[uring:{},hw_queues=1]", path("b")), "[faults,late=0.1:memory]".into()]
        {
            let device =
                open(&format!("concat:[uring:{}]{leg}", path("a"))).expect("devices that suit");
            let service = device.start::<AlignedBuf>("none").expect("it starts");
            assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("inline"));
            let mut disk = service.blocking().expect("a client");
            let (result, _) = disk.read(Sectors(4096), AlignedBuf::new(4096)).expect("taken");
            assert_eq!(result, Ok(()));
        }
        let one = open(&format!("checksum:[uring:{}]", path("a"))).expect("a file that suits");
        let service = one.start::<AlignedBuf>("none").expect("it starts");
        assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("owner"));
    }
}
