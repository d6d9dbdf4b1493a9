//! librbd and librados, and the memory that they reach. The only `unsafe` code of the crate.
//!
//! [`Api`] has the functions in use, by their C names, and the library, which is loaded when the first image is opened.
//! They are declared by hand from `rados/librados.h` and `rbd/librbd.h` of Ceph 16; later versions are compatible. With
//! a table of pointers, the program starts without librbd, and tests supply their own functions.
//!
//! [`Image`] is a connection to a cluster with one open image: its properties, and its end. Each image has its own
//! connection, so that the loss of one does not affect another. [`Flight`] has the requests that librbd holds, in
//! places, with the addresses that it was given. The ticket of a place travels through librbd. It includes an offset
//! that identifies the hardware queue. `fake.rs` is a librbd for tests, over memory, that fails and stalls on command.
//!
//! Safety rests on two invariants:
//!
//! 1. *A handle is used only between the call that made it and the call that ends it.* Each handle has one owner, which
//!    ends it when dropped, after the handles derived from it.
//! 2. *Librbd has an address only while it is valid.* A place whose ticket librbd has is not free, and keeps its
//!    request's token, and its list of pieces unchanged. Threads of librbd read the list, and read and write payloads;
//!    the engine keeps the payloads of a token alive and does not touch them. A queue that ends waits for librbd; if
//!    librbd does not answer, place, token and image are leaked ([`Flight`]).

#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod fake;

use crate::OpenError;
use crate::options::ImageSpec;
use blkmq_buf::IoBuf;
use blkmq_core::{IoError, IoResult, Op, SECTOR_SIZE, Tag};
use blkmq_engine::{BioTable, Finished, Inflight, Verdict};
use libc::{c_char, c_int, iovec, size_t, ssize_t};
use libloading::Library;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::error::Error;
use std::ffi::{CStr, CString, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// `rados_t`, a client of a cluster.
type Rados = *mut c_void;
/// `rados_ioctx_t`, a pool.
type Pool = *mut c_void;
/// `rbd_image_t`, an open image.
type Handle = *mut c_void;
/// `rbd_completion_t`, one I/O.
type Completion = *mut c_void;
/// `rbd_callback_t`.
type Callback = unsafe extern "C" fn(Completion, *mut c_void);
/// `rbd_update_callback_t`.
type Changed = unsafe extern "C" fn(*mut c_void);

/// `EVENT_TYPE_EVENTFD`.
const EVENT_FD: c_int = 2;

/// `rbd_image_info_t`.
#[repr(C)]
struct Info {
    size: u64,
    object_size: u64,
    objects: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

impl Default for Info {
    fn default() -> Self {
        Self {
            size: 0,
            object_size: 0,
            objects: 0,
            order: 0,
            block_name_prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        }
    }
}

/// Declares the table and the code that fills it from the library.
macro_rules! table {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions in use.
        #[derive(Clone, Copy)]
        pub(crate) struct Api {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// Looks up every function, including those of librados, to which librbd is linked.
            ///
            /// # Errors
            /// The name of the first missing function.
            ///
            /// # Safety
            /// The library is librbd, and stays loaded.
            unsafe fn find(library: &Library) -> Result<Self, &'static str> {
                $(
                    // SAFETY: by the contract above the symbol is the function that the header declares, with
                    // this type, and its library stays loaded.
                    let $name = unsafe { library.get(stringify!($name)) };
                )*
                Ok(Self { $($name: *$name.map_err(|_| stringify!($name))?,)* })
            }
        }
    };
}

table! {
    rados_create(*mut Rados, *const c_char) -> c_int;
    rados_conf_read_file(Rados, *const c_char) -> c_int;
    rados_conf_set(Rados, *const c_char, *const c_char) -> c_int;
    rados_conf_get(Rados, *const c_char, *mut c_char, size_t) -> c_int;
    rados_connect(Rados) -> c_int;
    rados_shutdown(Rados);
    rados_ioctx_create(Rados, *const c_char, *mut Pool) -> c_int;
    rados_ioctx_set_namespace(Pool, *const c_char);
    rados_ioctx_destroy(Pool);
    rbd_open(Pool, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only(Pool, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_aio_close(Handle, Completion) -> c_int;
    rbd_stat(Handle, *mut Info, size_t) -> c_int;
    rbd_get_size(Handle, *mut u64) -> c_int;
    rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
    rbd_get_stripe_count(Handle, *mut u64) -> c_int;
    rbd_update_watch(Handle, *mut u64, Changed, *mut c_void) -> c_int;
    rbd_update_unwatch(Handle, u64) -> c_int;
    rbd_set_image_notification(Handle, c_int, c_int) -> c_int;
    rbd_poll_io_events(Handle, *mut Completion, c_int) -> c_int;
    rbd_aio_create_completion(*mut c_void, Option<Callback>, *mut Completion) -> c_int;
    rbd_aio_get_return_value(Completion) -> ssize_t;
    rbd_aio_get_arg(Completion) -> *mut c_void;
    rbd_aio_release(Completion);
    rbd_aio_read(Handle, u64, size_t, *mut c_char, Completion) -> c_int;
    rbd_aio_readv(Handle, *const iovec, c_int, u64, Completion) -> c_int;
    rbd_aio_write(Handle, u64, size_t, *const c_char, Completion) -> c_int;
    rbd_aio_writev(Handle, *const iovec, c_int, u64, Completion) -> c_int;
    rbd_aio_discard(Handle, u64, u64, Completion) -> c_int;
    rbd_aio_write_zeroes(Handle, u64, size_t, Completion, c_int, c_int) -> c_int;
    rbd_aio_flush(Handle, Completion) -> c_int;
}

/// The name under which distributions install it; the version has been the same since 2010.
const LIBRBD: &str = "librbd.so.1";

impl Api {
    /// The functions of the installed library.
    ///
    /// # Errors
    /// If no library is installed, or it is older than Ceph 16.
    pub(crate) fn get() -> Result<&'static Self, OpenError> {
        static API: OnceLock<Result<Api, OpenError>> = OnceLock::new();
        API.get_or_init(|| load(LIBRBD)).as_ref().map_err(Clone::clone)
    }
}

fn load(name: &str) -> Result<Api, OpenError> {
    // SAFETY: the loader runs the initialisers of the installed library; those of librbd and its dependencies need
    // nothing but memory.
    let library = unsafe { Library::new(name) };
    let library = library.map_err(|error| {
        // The loader's message is the source of the error.
        let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        OpenError::NoLibrary { name: name.into(), why }
    })?;
    // SAFETY: by its name the library is librbd, and it is never unloaded (see below).
    let api = unsafe { Api::find(&library) };
    // Its threads, and the functions in the table, outlive every image.
    std::mem::forget(library);
    api.map_err(OpenError::OldLibrary)
}

/// Completions taken from librbd at a time.
const BATCH: usize = 64;
/// Seconds for which closing an image waits for an unresponsive cluster.
const PATIENCE: u32 = 10;

/// Librbd's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    /// The ticket that [`Flight`] passed with the request.
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

    fn api(&self) -> &'static Api {
        self.opened().pool.cluster.api
    }

    fn opened(&self) -> &Open {
        self.open.as_ref().expect("only `drop` takes it")
    }

    fn handle(&self) -> Handle {
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

/// A place for one request.
#[derive(Default)]
struct Place {
    rq: Option<Inflight>,
    /// The memory of a read or write. Keeps its capacity, so that a steady load allocates nothing here.
    pieces: Vec<iovec>,
    /// The bytes that a read must return: a shorter read would leave old bytes in the payload.
    expected: i64,
}

/// The requests of one hardware queue that librbd holds.
pub(crate) struct Flight {
    image: Arc<Image>,
    /// The places. Librbd has the addresses of the lists' entries, which do not move with the places.
    places: Vec<Place>,
    free: Vec<u32>,
    depth: u32,
    /// The ticket of the first place.
    first: usize,
}

// SAFETY: the pointers lead to payloads of the I/Os that the tokens stand for, which are `Send`. They are passed to
// librbd and never dereferenced here.
unsafe impl Send for Flight {}

/// Converts an error of librbd, a negative errno.
fn error(answer: i64) -> IoError {
    // Errnos of Linux fit; any other number is a malfunction of librbd.
    u16::try_from(-answer).map_or(IoError::IO, IoError)
}

impl Place {
    /// Collects the payloads of a read or write.
    ///
    /// # Errors
    /// If the length of a payload differs from that of its I/O.
    fn gather<P: IoBuf>(&mut self, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        self.pieces.clear();
        for bio in rq.bios(bios) {
            let mut bytes = 0;
            for range in bio.payload.ranges().filter(|range| !range.is_empty()) {
                bytes += range.len() as u64;
                self.pieces.push(iovec { iov_base: range.cast(), iov_len: range.len() });
            }
            if bytes != u64::from(bio.sectors) * u64::from(SECTOR_SIZE) {
                return Err(IoError::INVALID);
            }
        }
        Ok(())
    }

    /// Passes the operation to librbd.
    ///
    /// # Safety
    /// The image is open, and the completion is not used elsewhere. The place keeps the invariant until the reply.
    unsafe fn issue(&self, api: &Api, handle: Handle, rq: &Inflight, c: Completion) -> c_int {
        let bytes = |sectors: u64| sectors * u64::from(SECTOR_SIZE);
        let (offset, len) = (bytes(rq.sector()), bytes(rq.sectors().into()));
        let (list, count) = (self.pieces.as_ptr(), self.pieces.len() as c_int);
        // SAFETY: by the contract above. The pieces are those of the request and have their stated lengths.
        unsafe {
            match (rq.op(), &self.pieces[..]) {
                (Op::Read, [one]) => {
                    (api.rbd_aio_read)(handle, offset, one.iov_len, one.iov_base.cast(), c)
                }
                (Op::Read, _) => (api.rbd_aio_readv)(handle, list, count, offset, c),
                (Op::Write, [one]) => {
                    (api.rbd_aio_write)(handle, offset, one.iov_len, one.iov_base.cast(), c)
                }
                (Op::Write, _) => (api.rbd_aio_writev)(handle, list, count, offset, c),
                (Op::Flush, _) => (api.rbd_aio_flush)(handle, c),
                (Op::Discard, _) => (api.rbd_aio_discard)(handle, offset, len, c),
                (Op::WriteZeroes, _) => {
                    (api.rbd_aio_write_zeroes)(handle, offset, len as usize, c, 0, 0)
                }
            }
        }
    }
}

impl Flight {
    /// Creates a flight without places: up to `depth` places are made on demand. Their tickets begin at `first`.
    pub(crate) fn new(image: Arc<Image>, depth: u32, first: usize) -> Self {
        Self { image, places: Vec::new(), free: Vec::new(), depth, first }
    }

    /// Returns whether there is a free place, making one if that is allowed.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.free.is_empty() && self.places.len() < self.depth as usize {
            self.free.push(self.places.len() as u32);
            self.places.push(Place::default());
            // Reserved so that freeing a place does not allocate.
            self.free.reserve(self.places.len());
        }
        !self.free.is_empty()
    }

    /// Passes a request to librbd.
    ///
    /// # Errors
    /// Returns the request if the length of a payload differs from that of its I/O, or librbd refuses.
    ///
    /// # Panics
    /// If there is [no room](Self::has_room).
    pub(crate) fn issue<P: IoBuf>(
        &mut self,
        bios: &BioTable<P>,
        rq: Inflight,
    ) -> Result<(), (Inflight, IoError)> {
        let at = *self.free.last().expect("there is room");
        let place = &mut self.places[at as usize];
        place.pieces.clear();
        place.expected = 0;
        if matches!(rq.op(), Op::Read | Op::Write)
            && let Err(error) = place.gather(bios, &rq)
        {
            return Err((rq, error));
        }
        if rq.op() == Op::Read {
            place.expected = i64::from(rq.sectors()) * i64::from(SECTOR_SIZE);
        }
        let ticket = self.first + at as usize;
        let (api, handle, mut completion) = (self.image.api(), self.image.handle(), null_mut());
        // SAFETY: a ticket is a number that librbd returns, and not an address.
        let made = unsafe {
            (api.rbd_aio_create_completion)(without_provenance_mut(ticket), None, &mut completion)
        };
        if made < 0 {
            return Err((rq, error(made.into())));
        }
        // SAFETY: the image is shared, so it is open. The place is filled below, before this call of the engine ends,
        // and keeps the invariant until the reply, or for ever: only `answer` frees it, and `drop` leaks all. If librbd
        // answers immediately, a later call takes the reply.
        let issued = unsafe { place.issue(api, handle, &rq, completion) };
        if issued < 0 {
            // SAFETY: librbd has not taken the completion, and it is released once.
            unsafe { (api.rbd_aio_release)(completion) };
            return Err((rq, error(issued.into())));
        }
        place.rq = Some(rq);
        self.free.pop();
        Ok(())
    }

    /// Takes back the request of a reply.
    pub(crate) fn answer(&mut self, reply: Reply) -> Finished {
        let at = reply.ticket - self.first;
        let place = &mut self.places[at];
        let rq = place.rq.take().expect("a place whose number librbd had has a request");
        self.free.push(at as u32);
        let result = match reply.result {
            answer if answer < 0 => Err(error(answer)),
            // A short read would leave old contents in the payload.
            bytes if bytes < place.expected => Err(IoError::IO),
            _ => Ok(()),
        };
        Finished { rq, verdict: Verdict::Done(result) }
    }

    /// The number of requests that librbd holds.
    pub(crate) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether librbd holds a request with this tag.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.places.iter().any(|place| place.rq.as_ref().is_some_and(|rq| rq.tag() == tag))
    }
}

impl Drop for Flight {
    /// Librbd may still write to the payloads of unanswered requests, and read their lists. These and the image are
    /// leaked then.
    fn drop(&mut self) {
        if self.count() > 0 {
            std::mem::forget(std::mem::take(&mut self.places));
            std::mem::forget(Arc::clone(&self.image));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri loads no library")]
    fn a_machine_without_librbd_is_told_the_package() {
        let Err(error) = load("librbd-absent.so.1") else { panic!("loaded") };
        let text = error.to_string();
        assert!(text.contains("package librbd1") && text.contains("No such file"), "{text}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri loads no library")]
    fn a_library_without_the_functions_is_too_old() {
        let Err(error) = load("libc.so.6") else { panic!("loaded") };
        assert!(error.to_string().contains("no rados_create"), "{error}");
    }
}
