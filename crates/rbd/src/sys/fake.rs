//! For tests: a librbd in memory with the C interface, which fails, stalls and resizes on command.
//!
//! A [`Store`] is a cluster with the single image `pool/image`; its name is given in place of the path of a
//! configuration. Like librbd, it reads lists of pieces and writes to payloads only when the I/O ends.

use super::{Api, Callback, Changed, Completion, Handle, Info, Pool, Rados};
use libc::{c_char, c_int, iovec, size_t, ssize_t};
use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::ptr::copy_nonoverlapping;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) static FAKE: Api = Api {
    rados_create,
    rados_conf_read_file,
    rados_conf_set,
    rados_conf_get,
    rados_connect,
    rados_shutdown,
    rados_ioctx_create,
    rados_ioctx_set_namespace,
    rados_ioctx_destroy,
    rbd_open,
    rbd_open_read_only,
    rbd_aio_close,
    rbd_stat,
    rbd_get_size,
    rbd_get_stripe_unit,
    rbd_get_stripe_count,
    rbd_update_watch,
    rbd_update_unwatch,
    rbd_set_image_notification,
    rbd_poll_io_events,
    rbd_aio_create_completion,
    rbd_aio_get_return_value,
    rbd_aio_get_arg,
    rbd_aio_release,
    rbd_aio_read,
    rbd_aio_readv,
    rbd_aio_write,
    rbd_aio_writev,
    rbd_aio_discard,
    rbd_aio_write_zeroes,
    rbd_aio_flush,
};

/// Bytes of an object.
pub(crate) const OBJECT: u64 = 1 << 20;

/// The state that a test reads and sets.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) bytes: Vec<u8>,
    /// Whether I/Os wait for [`Store::release`].
    pub(crate) is_stalled: bool,
    /// The results of the next I/Os, negative errno values that replace success.
    pub(crate) answers: VecDeque<i32>,
    /// The error with which the next I/O is refused.
    pub(crate) refuses: Option<i32>,
    /// The settings of the most recent client.
    pub(crate) settings: Vec<(String, String)>,
    /// The numbers of open clients, pools, images and completions.
    pub(crate) open: [u32; 4],
    pub(crate) flushes: u32,
    waiting: Vec<Work>,
    watchers: Vec<(Changed, Address)>,
}

pub(crate) struct Store {
    name: String,
    state: Mutex<State>,
}

static STORES: Mutex<Vec<Arc<Store>>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Address(*mut c_void);
// SAFETY: an address; its users justify each access.
unsafe impl Send for Address {}

struct Client {
    store: Option<Arc<Store>>,
}

struct OpenImage {
    store: Arc<Store>,
    ended: Mutex<VecDeque<Address>>,
    bell: Mutex<c_int>,
}

struct Io {
    argument: *mut c_void,
    callback: Option<Callback>,
    result: Mutex<ssize_t>,
    store: Mutex<Option<Arc<Store>>>,
}

enum What {
    Read(Pieces),
    Write(Pieces),
    Zero,
    Flush,
}

enum Pieces {
    One(Address, usize),
    List(*const iovec, c_int),
}

struct Work {
    what: What,
    offset: usize,
    len: usize,
    image: Address,
    completion: Address,
}
// SAFETY: librbd may do the work on any thread, which its callers must allow.
unsafe impl Send for Work {}

impl Store {
    /// Creates a cluster with an image of `bytes` bytes.
    pub(crate) fn new(name: &str, bytes: usize) -> Arc<Self> {
        let state = State { bytes: vec![0; bytes], ..State::default() };
        let store = Arc::new(Self { name: name.into(), state: Mutex::new(state) });
        STORES.lock().expect("no panic").push(Arc::clone(&store));
        store
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Ends the stalled I/Os, the last one first, and stops stalling.
    pub(crate) fn release(&self) {
        let waiting = {
            let mut state = self.state();
            state.is_stalled = false;
            std::mem::take(&mut state.waiting)
        };
        for work in waiting.into_iter().rev() {
            self.end(&work);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Resizes the image to `bytes` bytes, as another client would.
    pub(crate) fn resize(&self, bytes: usize) {
        let watchers = {
            let mut state = self.state();
            state.bytes.resize(bytes, 0);
            state.watchers.clone()
        };
        for (changed, argument) in watchers {
            // SAFETY: called like librbd does, while the watch exists.
            unsafe { changed(argument.0) };
        }
    }

    fn begin(&self, work: Work) -> c_int {
        let mut state = self.state();
        if let Some(errno) = state.refuses.take() {
            return -errno;
        }
        if state.is_stalled {
            state.waiting.push(work);
            return 0;
        }
        drop(state);
        self.end(&work);
        0
    }

    fn end(&self, work: &Work) {
        let result = self.carry_out(work);
        // SAFETY: an image with I/O is open, and the completion of an I/O is not released before it ends.
        let (image, io) =
            unsafe { (&*work.image.0.cast::<OpenImage>(), &*work.completion.0.cast::<Io>()) };
        *io.result.lock().expect("no panic") = result;
        // Held until the end of the I/O: the thread that takes the last reply may close the image.
        let bell = image.bell.lock().expect("no panic");
        image.ended.lock().expect("no panic").push_back(work.completion);
        ring(*bell);
    }

    fn carry_out(&self, work: &Work) -> ssize_t {
        let mut state = self.state();
        if let Some(errno) = state.answers.pop_front().filter(|errno| *errno != 0) {
            return -(errno as ssize_t);
        }
        let (mut at, end) = (work.offset, work.offset + work.len);
        if end > state.bytes.len() {
            return -(libc::EINVAL as ssize_t);
        }
        match &work.what {
            What::Flush => state.flushes += 1,
            What::Zero => state.bytes[at..end].fill(0),
            What::Read(pieces) | What::Write(pieces) => {
                let is_read = matches!(work.what, What::Read(_));
                pieces.each(|start, len| {
                    let ours = state.bytes[at..at + len].as_mut_ptr();
                    // SAFETY: the caller keeps its memory good until the I/O has ended.
                    unsafe {
                        if is_read {
                            copy_nonoverlapping(ours, start, len);
                        } else {
                            copy_nonoverlapping(start, ours, len);
                        }
                    }
                    at += len;
                });
                return if is_read { work.len as ssize_t } else { 0 };
            }
        }
        0
    }
}

impl Pieces {
    fn each(&self, mut piece: impl FnMut(*mut u8, usize)) {
        match *self {
            Self::One(start, len) => piece(start.0.cast(), len),
            // SAFETY: the caller keeps its list as it is until the I/O has ended.
            Self::List(list, count) => unsafe {
                for one in std::slice::from_raw_parts(list, count as usize) {
                    piece(one.iov_base.cast(), one.iov_len);
                }
            },
        }
    }

    fn len(&self) -> usize {
        let mut sum = 0;
        self.each(|_, len| sum += len);
        sum
    }
}

fn ring(fd: c_int) {
    // SAFETY: the caller that gave the number keeps it open until the image is closed.
    let bell = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::io::write(bell, &1_u64.to_ne_bytes()).expect("it counts far");
}

/// The object behind a handle.
///
/// # Safety
/// The handle was made by this file, has this type, and is open.
unsafe fn at<'a, T>(handle: *mut c_void) -> &'a T {
    // SAFETY: by the contract above.
    unsafe { &*handle.cast::<T>() }
}

/// Closes a handle.
///
/// # Safety
/// See [`at`]; also, the handle is not used again.
unsafe fn end<T>(handle: *mut c_void) -> Box<T> {
    // SAFETY: every handle came out of `Box::into_raw`.
    unsafe { Box::from_raw(handle.cast::<T>()) }
}

fn text(chars: *const c_char) -> String {
    // SAFETY: arguments of this type are texts with their end.
    unsafe { CStr::from_ptr(chars) }.to_str().expect("UTF-8").to_owned()
}

unsafe extern "C" fn rados_create(rados: *mut Rados, _: *const c_char) -> c_int {
    let client = Box::into_raw(Box::new(Client { store: None }));
    // SAFETY: the caller's.
    unsafe { *rados = client.cast() };
    0
}

unsafe extern "C" fn rados_conf_read_file(rados: Rados, path: *const c_char) -> c_int {
    if path.is_null() {
        return -libc::ENOENT;
    }
    let name = text(path);
    let found = STORES.lock().expect("no panic").iter().find(|store| store.name == name).cloned();
    let Some(store) = found else { return -libc::ENOENT };
    let mut state = store.state();
    state.settings.clear();
    state.open[0] += 1;
    drop(state);
    // SAFETY: the handle of a client that no other thread has yet.
    unsafe { (*rados.cast::<Client>()).store = Some(store) };
    0
}

/// The store of a client or pool.
unsafe fn store<'a>(rados: *mut c_void) -> &'a Arc<Store> {
    // SAFETY: the caller's.
    unsafe { at::<Client>(rados) }.store.as_ref().expect("configured")
}

unsafe extern "C" fn rados_conf_set(rados: Rados, name: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's.
    unsafe { store(rados) }.state().settings.push((text(name), text(to)));
    0
}

unsafe extern "C" fn rados_conf_get(
    _: Rados,
    _: *const c_char,
    to: *mut c_char,
    len: size_t,
) -> c_int {
    let value = c"65536".to_bytes_with_nul();
    assert!(len >= value.len());
    // SAFETY: the caller's buffer has room.
    unsafe { copy_nonoverlapping(value.as_ptr(), to.cast(), value.len()) };
    0
}

unsafe extern "C" fn rados_connect(_: Rados) -> c_int {
    0
}

unsafe extern "C" fn rados_shutdown(rados: Rados) {
    // SAFETY: the caller's last use.
    if let Some(store) = unsafe { end::<Client>(rados) }.store {
        store.state().open[0] -= 1;
    }
}

unsafe extern "C" fn rados_ioctx_create(
    rados: Rados,
    name: *const c_char,
    pool: *mut Pool,
) -> c_int {
    if text(name) != "pool" {
        return -libc::ENOENT;
    }
    // SAFETY: the caller's.
    unsafe {
        let store = Arc::clone(store(rados));
        store.state().open[1] += 1;
        *pool = Box::into_raw(Box::new(Client { store: Some(store) })).cast();
    }
    0
}

unsafe extern "C" fn rados_ioctx_set_namespace(_: Pool, _: *const c_char) {}

unsafe extern "C" fn rados_ioctx_destroy(pool: Pool) {
    // SAFETY: the caller's last use.
    unsafe { end::<Client>(pool) }.store.expect("open").state().open[1] -= 1;
}

unsafe extern "C" fn rbd_open(
    pool: Pool,
    name: *const c_char,
    image: *mut Handle,
    _: *const c_char,
) -> c_int {
    if text(name) != "image" {
        return -libc::ENOENT;
    }
    // SAFETY: the caller's.
    unsafe {
        let store = Arc::clone(store(pool));
        store.state().open[2] += 1;
        let open = OpenImage { store, ended: Mutex::default(), bell: Mutex::new(-1) };
        *image = Box::into_raw(Box::new(open)).cast();
    }
    0
}

unsafe extern "C" fn rbd_open_read_only(
    pool: Pool,
    name: *const c_char,
    image: *mut Handle,
    snapshot: *const c_char,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { rbd_open(pool, name, image, snapshot) }
}

unsafe extern "C" fn rbd_aio_close(image: Handle, completion: Completion) -> c_int {
    // SAFETY: the caller's last use of the image; the completion is called once.
    unsafe {
        let image = end::<OpenImage>(image);
        drop(image.bell.lock().expect("no panic"));
        assert!(image.ended.lock().expect("no panic").is_empty(), "every reply was taken");
        image.store.state().open[2] -= 1;
        let io = at::<Io>(completion);
        io.callback.expect("a callback")(completion, io.argument);
    }
    0
}

unsafe extern "C" fn rbd_stat(image: Handle, info: *mut Info, len: size_t) -> c_int {
    assert_eq!(len, size_of::<Info>());
    // SAFETY: the caller's.
    unsafe {
        (*info).object_size = OBJECT;
        rbd_get_size(image, &mut (*info).size)
    }
}

unsafe extern "C" fn rbd_get_size(image: Handle, size: *mut u64) -> c_int {
    // SAFETY: the caller's.
    unsafe { *size = at::<OpenImage>(image).store.state().bytes.len() as u64 };
    0
}

unsafe extern "C" fn rbd_get_stripe_unit(_: Handle, unit: *mut u64) -> c_int {
    // SAFETY: the caller's.
    unsafe { *unit = OBJECT };
    0
}

unsafe extern "C" fn rbd_get_stripe_count(_: Handle, count: *mut u64) -> c_int {
    // SAFETY: the caller's.
    unsafe { *count = 1 };
    0
}

unsafe extern "C" fn rbd_update_watch(
    image: Handle,
    _: *mut u64,
    changed: Changed,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let image = unsafe { at::<OpenImage>(image) };
    image.store.state().watchers.push((changed, Address(argument)));
    0
}

unsafe extern "C" fn rbd_update_unwatch(image: Handle, _: u64) -> c_int {
    // SAFETY: the caller's. A store has one open image at a time, so all watches are its.
    unsafe { at::<OpenImage>(image) }.store.state().watchers.clear();
    0
}

unsafe extern "C" fn rbd_set_image_notification(image: Handle, fd: c_int, kind: c_int) -> c_int {
    assert_eq!(kind, super::EVENT_FD);
    // SAFETY: the caller's.
    *unsafe { at::<OpenImage>(image) }.bell.lock().expect("no panic") = fd;
    0
}

unsafe extern "C" fn rbd_poll_io_events(
    image: Handle,
    into: *mut Completion,
    most: c_int,
) -> c_int {
    // SAFETY: the caller's.
    let mut ended = unsafe { at::<OpenImage>(image) }.ended.lock().expect("no panic");
    let count = ended.len().min(most as usize);
    for (n, completion) in ended.drain(..count).enumerate() {
        // SAFETY: the caller's array has `most` entries.
        unsafe { *into.add(n) = completion.0 };
    }
    count as c_int
}

unsafe extern "C" fn rbd_aio_create_completion(
    argument: *mut c_void,
    callback: Option<Callback>,
    completion: *mut Completion,
) -> c_int {
    let (result, store) = (Mutex::new(0), Mutex::new(None));
    let io = Box::into_raw(Box::new(Io { argument, callback, result, store }));
    // SAFETY: the caller's.
    unsafe { *completion = io.cast() };
    0
}

unsafe extern "C" fn rbd_aio_get_return_value(completion: Completion) -> ssize_t {
    // SAFETY: the caller's.
    *unsafe { at::<Io>(completion) }.result.lock().expect("no panic")
}

unsafe extern "C" fn rbd_aio_get_arg(completion: Completion) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { at::<Io>(completion) }.argument
}

unsafe extern "C" fn rbd_aio_release(completion: Completion) {
    // SAFETY: the caller's last use.
    let io = unsafe { end::<Io>(completion) };
    if let Some(store) = io.store.lock().expect("no panic").take() {
        store.state().open[3] -= 1;
    }
}

/// Begins an I/O.
unsafe fn begin(image: Handle, what: What, offset: u64, len: usize, c: Completion) -> c_int {
    // SAFETY: the caller's.
    let (open, io) = unsafe { (at::<OpenImage>(image), at::<Io>(c)) };
    *io.store.lock().expect("no panic") = Some(Arc::clone(&open.store));
    open.store.state().open[3] += 1;
    let (image, completion) = (Address(image), Address(c));
    open.store.begin(Work { what, offset: offset as usize, len, image, completion })
}

unsafe extern "C" fn rbd_aio_read(
    image: Handle,
    offset: u64,
    len: size_t,
    to: *mut c_char,
    c: Completion,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { begin(image, What::Read(Pieces::One(Address(to.cast()), len)), offset, len, c) }
}

unsafe extern "C" fn rbd_aio_readv(
    image: Handle,
    list: *const iovec,
    count: c_int,
    offset: u64,
    c: Completion,
) -> c_int {
    let pieces = Pieces::List(list, count);
    let len = pieces.len();
    // SAFETY: the caller's.
    unsafe { begin(image, What::Read(pieces), offset, len, c) }
}

unsafe extern "C" fn rbd_aio_write(
    image: Handle,
    offset: u64,
    len: size_t,
    from: *const c_char,
    c: Completion,
) -> c_int {
    let pieces = Pieces::One(Address(from.cast_mut().cast()), len);
    // SAFETY: the caller's.
    unsafe { begin(image, What::Write(pieces), offset, len, c) }
}

unsafe extern "C" fn rbd_aio_writev(
    image: Handle,
    list: *const iovec,
    count: c_int,
    offset: u64,
    c: Completion,
) -> c_int {
    let pieces = Pieces::List(list, count);
    let len = pieces.len();
    // SAFETY: the caller's.
    unsafe { begin(image, What::Write(pieces), offset, len, c) }
}

unsafe extern "C" fn rbd_aio_discard(image: Handle, offset: u64, len: u64, c: Completion) -> c_int {
    // SAFETY: the caller's.
    unsafe { begin(image, What::Zero, offset, len as usize, c) }
}

unsafe extern "C" fn rbd_aio_write_zeroes(
    image: Handle,
    offset: u64,
    len: size_t,
    c: Completion,
    _: c_int,
    _: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { begin(image, What::Zero, offset, len, c) }
}

unsafe extern "C" fn rbd_aio_flush(image: Handle, c: Completion) -> c_int {
    // SAFETY: the caller's.
    unsafe { begin(image, What::Flush, 0, 0, c) }
}
