//! librbd and librados, and the memory that they reach. The only `unsafe` code of the crate.
//!
//! This file has the functions in use ([`Api`]), by their C names, and the library, which is loaded when the first
//! image is opened. They are declared by hand from `rados/librados.h` and `rbd/librbd.h` of Ceph 16; later versions are
//! compatible. With a table of pointers, the program starts without librbd, and tests supply their own functions.
//!
//! | file | |
//! |---|---|
//! | `image.rs` | a connection to a cluster with one open image: its properties, and its end |
//! | `flight.rs` | the requests that librbd has, with the addresses that it was given |
//! | `fake.rs` | for tests: a librbd over memory that fails and stalls on command |
//!
//! Safety rests on two invariants:
//!
//! 1. *A handle is used only between the call that made it and the call that ends it.* Each handle has one owner, which
//!    ends it when dropped, after the handles derived from it.
//! 2. *Librbd has an address only while it is valid.* A place whose ticket librbd has keeps its request's token, and
//!    its list of pieces unchanged; the engine keeps the payloads of a token alive and does not touch them. A queue
//!    that ends waits for librbd; if librbd does not answer, place, token and image are leaked (`flight.rs`).

#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod fake;
mod flight;
mod image;

use crate::OpenError;
pub(crate) use flight::Flight;
pub(crate) use image::{Facts, Image, Reply, wait};
use libc::{c_char, c_int, iovec, size_t, ssize_t};
use libloading::Library;
use std::error::Error;
use std::ffi::c_void;
use std::sync::OnceLock;

/// `rados_t`, a client of a cluster.
pub(super) type Rados = *mut c_void;
/// `rados_ioctx_t`, a pool.
pub(super) type Pool = *mut c_void;
/// `rbd_image_t`, an open image.
pub(super) type Handle = *mut c_void;
/// `rbd_completion_t`, one I/O.
pub(super) type Completion = *mut c_void;
/// `rbd_callback_t`.
pub(super) type Callback = unsafe extern "C" fn(Completion, *mut c_void);
/// `rbd_update_callback_t`.
pub(super) type Changed = unsafe extern "C" fn(*mut c_void);

/// `EVENT_TYPE_EVENTFD`.
pub(super) const EVENT_FD: c_int = 2;

/// `rbd_image_info_t`.
#[repr(C)]
pub(super) struct Info {
    pub(super) size: u64,
    pub(super) object_size: u64,
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
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// Looks up every function, including those of librados, to which librbd is linked.
            ///
            /// # Errors
            /// The name of the first missing function.
            ///
            /// # Safety
            /// The library is librbd, and stays loaded.
            pub(super) unsafe fn find(library: &Library) -> Result<Self, &'static str> {
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
