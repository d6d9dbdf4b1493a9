//! [`Image`]: a connection to a cluster with one open image.
//!
//! Each image has its own connection, so that the loss of one does not affect another. This file issues no I/O;
//! `flight.rs` does.

use super::{Api, Completion, EVENT_FD, Handle, Info, Pool, Rados};
use crate::OpenError;
use crate::options::ImageSpec;
use libc::c_int;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Completions taken from librbd at a time.
const BATCH: usize = 64;
/// Seconds for which closing an image waits for an unresponsive cluster.
pub(super) const PATIENCE: u32 = 10;

/// Librbd's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    /// The ticket that [`Flight`](super::Flight) passed with the request.
    pub(crate) ticket: usize,
    /// The number of bytes, or a negative errno.
    pub(crate) result: i64,
}

/// The properties of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    pub(crate) size: u64,
    pub(crate) object_size: u64,
    pub(crate) stripe_unit: u64,
    pub(crate) stripe_count: u64,
    /// Shorter ranges are not discarded (`rbd_discard_granularity_bytes`); in bytes.
    pub(crate) discard_granularity: u64,
}

/// A client of a cluster.
struct Cluster {
    api: &'static Api,
    rados: Rados,
}

struct OpenPool {
    cluster: Cluster,
    pool: Pool,
}

/// A connection to a cluster with one open image.
///
/// Its I/O must have ended when it is dropped, which `Flight` ensures.
pub(crate) struct Image {
    /// `None` only while the image is being closed.
    open: Option<Open>,
    handle: Handle,
    watch: Option<u64>,
}

/// The parts of an open image that live as long as librbd holds it.
struct Open {
    pool: OpenPool,
    contact: Box<Contact>,
}

/// The memory that threads of librbd access, at a stable address.
struct Contact {
    /// Set by a thread of librbd when the image has changed.
    changed: AtomicBool,
    /// Signalled for every I/O that ends.
    bell: OwnedFd,
}

// SAFETY: by the documentation, every function of librados and librbd may be called by any thread, and by several
// concurrently; `handle` and the handles in `open` change only in `drop`.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// Converts the result of a call to an error, or `None` for success.
fn failure(result: c_int) -> Option<i32> {
    (result < 0).then_some(-result)
}

fn text(what: &str) -> Result<CString, OpenError> {
    CString::new(what).map_err(|_| OpenError::Syntax(what.to_owned()))
}

impl Cluster {
    /// Creates a client that is not connected.
    fn new(api: &'static Api, id: &str) -> Result<Self, OpenError> {
        let (id, mut rados) = (text(id)?, null_mut());
        // SAFETY: both pointers are valid for the call.
        match failure(unsafe { (api.rados_create)(&mut rados, id.as_ptr()) }) {
            Some(errno) => Err(OpenError::Cluster { what: "a client is refused", errno }),
            None => Ok(Self { api, rados }),
        }
    }

    /// Reads the configuration at `path`, or with `None` the default files of librados.
    fn read_conf(&self, path: Option<&str>) -> Result<(), OpenError> {
        let given = path.map(text).transpose()?;
        let pointer = given.as_ref().map_or(null(), |path| path.as_ptr());
        // SAFETY: the handle is open; the path is valid for the call, or null, which selects the default files.
        match failure(unsafe { (self.api.rados_conf_read_file)(self.rados, pointer) }) {
            Some(errno) => Err(OpenError::Conf { path: path.map(str::to_owned), errno }),
            None => Ok(()),
        }
    }

    fn set(&self, option: &'static CStr, value: &str) -> Result<(), OpenError> {
        let value = text(value)?;
        // SAFETY: the handle is open, and both texts are valid for the call.
        let set = unsafe { (self.api.rados_conf_set)(self.rados, option.as_ptr(), value.as_ptr()) };
        match failure(set) {
            Some(errno) => {
                Err(OpenError::Cluster { what: "librados refuses a setting of the device", errno })
            }
            None => Ok(()),
        }
    }

    /// A number of the effective configuration.
    fn number(&self, option: &'static CStr) -> Option<u64> {
        let mut value: [c_char; 32] = [0; 32];
        // SAFETY: the handle is open; the buffer has the stated length and is valid for the call.
        let got = unsafe {
            (self.api.rados_conf_get)(self.rados, option.as_ptr(), value.as_mut_ptr(), value.len())
        };
        let until_end = value.iter().take_while(|byte| **byte != 0);
        let text: String = until_end.map(|byte| char::from(byte.cast_unsigned())).collect();
        text.parse().ok().filter(|_| got >= 0)
    }

    fn connect(&self) -> Result<(), OpenError> {
        // SAFETY: the handle is open, and not connected yet.
        match failure(unsafe { (self.api.rados_connect)(self.rados) }) {
            Some(errno) => Err(OpenError::Cluster { what: "the cluster cannot be reached", errno }),
            None => Ok(()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and its pools have ended: `OpenPool` ends before its cluster.
        unsafe { (self.api.rados_shutdown)(self.rados) };
    }
}

impl OpenPool {
    fn new(cluster: Cluster, spec: &ImageSpec) -> Result<Self, OpenError> {
        let (name, mut pool) = (text(&spec.pool)?, null_mut());
        // SAFETY: the cluster is connected, and the pointers are valid for the call.
        let made =
            unsafe { (cluster.api.rados_ioctx_create)(cluster.rados, name.as_ptr(), &mut pool) };
        match failure(made) {
            Some(libc::ENOENT) => return Err(OpenError::NoPool(spec.pool.clone())),
            Some(errno) => {
                return Err(OpenError::Cluster { what: "the pool cannot be opened", errno });
            }
            None => {}
        }
        let open = Self { cluster, pool };
        if let Some(namespace) = &spec.namespace {
            let namespace = text(namespace)?;
            // SAFETY: the pool is open, and the text is valid for the call.
            unsafe { (open.cluster.api.rados_ioctx_set_namespace)(open.pool, namespace.as_ptr()) };
        }
        Ok(open)
    }
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // SAFETY: the pool is open, its image is closed or was never opened; see `Image::drop`.
        unsafe { (self.cluster.api.rados_ioctx_destroy)(self.pool) };
    }
}

/// Librbd's callback for a changed image.
unsafe extern "C" fn note_change(changed: *mut c_void) {
    // SAFETY: the address of `Contact::changed`, which lives until the watch has ended.
    unsafe { &*changed.cast::<AtomicBool>() }.store(true, Ordering::Relaxed);
}

/// Librbd's callback for a closed image.
unsafe extern "C" fn ring_closed(_: Completion, bell: *mut c_void) {
    // SAFETY: the address of a descriptor that lives until it has been signalled, or for ever.
    let bell = unsafe { &*bell.cast::<OwnedFd>() };
    // The eventfd was never signalled, so it accepts a write.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

impl Image {
    /// Connects to the cluster and opens the image with these settings. Blocks.
    ///
    /// # Errors
    /// If the cluster cannot be reached, or has no such image.
    pub(crate) fn open(
        api: &'static Api,
        spec: &ImageSpec,
        (id, conf): (&str, Option<&str>),
        settings: &[(&'static CStr, String)],
        readonly: bool,
    ) -> Result<Self, OpenError> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let bell =
            bell.map_err(|e| OpenError::Cluster { what: "eventfd", errno: e.raw_os_error() })?;
        let cluster = Cluster::new(api, id)?;
        cluster.read_conf(conf)?;
        for (option, value) in settings {
            cluster.set(option, value)?;
        }
        cluster.connect()?;
        let pool = OpenPool::new(cluster, spec)?;
        let name = text(&spec.image)?;
        let snapshot = spec.snapshot.as_deref().map(text).transpose()?;
        let snapshot = snapshot.as_ref().map_or(null(), |snapshot| snapshot.as_ptr());
        let function = if readonly { api.rbd_open_read_only } else { api.rbd_open };
        let mut handle = null_mut();
        // SAFETY: the pool is open, and the pointers are valid for the call; null means no snapshot.
        let opened = unsafe { function(pool.pool, name.as_ptr(), &mut handle, snapshot) };
        match failure(opened) {
            Some(libc::ENOENT) => return Err(OpenError::NoImage(spec.to_string())),
            Some(errno) => {
                return Err(OpenError::Cluster { what: "the image cannot be opened", errno });
            }
            None => {}
        }
        let contact = Box::new(Contact { changed: AtomicBool::new(false), bell });
        let mut image = Self { open: Some(Open { pool, contact }), handle, watch: None };
        image.listen()?;
        Ok(image)
    }

    /// Has librbd signal finished I/Os and report changes.
    fn listen(&mut self) -> Result<(), OpenError> {
        let (api, contact) = (self.api(), &self.opened().contact);
        let fd = contact.bell.as_raw_fd();
        let mut watch = 0;
        let changed: *const AtomicBool = &raw const contact.changed;
        // SAFETY: the image is open; the descriptor and the flag live until it is closed, and the callback accepts the
        // argument given here.
        let listens = unsafe {
            let notified = (api.rbd_set_image_notification)(self.handle, fd, EVENT_FD);
            let argument = changed.cast_mut().cast();
            notified.min((api.rbd_update_watch)(self.handle, &mut watch, note_change, argument))
        };
        match failure(listens) {
            Some(errno) => Err(OpenError::Cluster { what: "librbd refuses an eventfd", errno }),
            None => {
                self.watch = Some(watch);
                Ok(())
            }
        }
    }

    pub(super) fn api(&self) -> &'static Api {
        self.opened().pool.cluster.api
    }

    fn opened(&self) -> &Open {
        self.open.as_ref().expect("only `drop` takes it")
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// The descriptor that librbd signals for every finished I/O.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.opened().contact.bell.as_fd()
    }

    /// Returns whether the image has changed since the last call. Relaxed: the flag publishes no data.
    pub(crate) fn take_change(&self) -> bool {
        let changed = &self.opened().contact.changed;
        changed.load(Ordering::Relaxed) && changed.swap(false, Ordering::Relaxed)
    }

    /// The present size in bytes, or `None` if librbd reports an error.
    pub(crate) fn size(&self) -> Option<u64> {
        let mut size = 0;
        // SAFETY: the image is open, and the pointer is valid for the call.
        let got = unsafe { (self.api().rbd_get_size)(self.handle, &mut size) };
        (got >= 0).then_some(size)
    }

    /// The properties of the image.
    ///
    /// # Errors
    /// If librbd reports an error.
    pub(crate) fn facts(&self) -> Result<Facts, OpenError> {
        let api = self.api();
        let (mut info, mut stripe_unit, mut stripe_count) = (Info::default(), 0, 0);
        // SAFETY: the image is open; the pointers are valid for the calls, with the length of the structure.
        let got = unsafe {
            let stat = (api.rbd_stat)(self.handle, &mut info, size_of::<Info>());
            let unit = (api.rbd_get_stripe_unit)(self.handle, &mut stripe_unit);
            stat.min(unit).min((api.rbd_get_stripe_count)(self.handle, &mut stripe_count))
        };
        if let Some(errno) = failure(got) {
            return Err(OpenError::Cluster { what: "librbd does not describe the image", errno });
        }
        let granularity = self.opened().pool.cluster.number(c"rbd_discard_granularity_bytes");
        Ok(Facts {
            size: info.size,
            object_size: info.object_size,
            stripe_unit,
            stripe_count,
            discard_granularity: granularity.unwrap_or(0),
        })
    }

    /// Passes the available replies to `take`, in batches. Returns their number.
    pub(crate) fn poll(&self, mut take: impl FnMut(Reply)) -> usize {
        let api = self.api();
        let mut ended: [Completion; BATCH] = [null_mut(); BATCH];
        // SAFETY: the image is open; the array has as many entries as requested.
        let count =
            unsafe { (api.rbd_poll_io_events)(self.handle, ended.as_mut_ptr(), BATCH as c_int) };
        let count = usize::try_from(count).unwrap_or(0);
        for completion in &ended[..count] {
            // SAFETY: librbd has released the completion, which `flight.rs` made; it is freed once, here.
            let (ticket, result) = unsafe {
                let argument = (api.rbd_aio_get_arg)(*completion);
                let result = (api.rbd_aio_get_return_value)(*completion);
                (api.rbd_aio_release)(*completion);
                (argument.addr(), result)
            };
            take(Reply { ticket, result: result as i64 });
        }
        count
    }

    /// Closes the image. Returns whether that succeeded within [`PATIENCE`]; otherwise librbd still holds the image.
    fn close(&mut self) -> bool {
        let api = self.api();
        let Ok(bell) = eventfd(0, EventfdFlags::CLOEXEC) else { return false };
        let bell = Box::new(bell);
        let address: *const OwnedFd = &*bell;
        let mut completion = null_mut();
        // SAFETY: the callback accepts the address given here, of a descriptor that is kept until it is signalled, or
        // for ever. The watch and the image are open, librbd has no I/O, and neither is used afterwards.
        let begun = unsafe {
            if let Some(watch) = self.watch.take() {
                (api.rbd_update_unwatch)(self.handle, watch);
            }
            let argument = address.cast_mut().cast();
            let made =
                (api.rbd_aio_create_completion)(argument, Some(ring_closed), &mut completion);
            if made < 0 { made } else { (api.rbd_aio_close)(self.handle, completion) }
        };
        if begun < 0 || !wait(bell.as_fd(), PATIENCE) {
            std::mem::forget(bell);
            return false;
        }
        // SAFETY: the completion has ended, and is released once.
        unsafe { (api.rbd_aio_release)(completion) };
        true
    }
}

/// Sleeps until `fd` is readable, for at most `seconds`. Returns whether it is.
pub(crate) fn wait(fd: BorrowedFd<'_>, seconds: u32) -> bool {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    // One second at a time, so that signals, which interrupt a sleep, do not make it endless.
    (0..seconds).any(|_| {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&second)).is_ok_and(|ready| ready > 0)
    })
}

impl Drop for Image {
    /// Waits for a bounded time for the cluster, which keeps locks and watchers. After that, or if librbd refuses, the
    /// image and the connection are leaked: librbd's threads may still use them.
    fn drop(&mut self) {
        if !self.close() {
            std::mem::forget(self.open.take());
        }
    }
}
