//! The library, loaded when the first image is opened.

use super::api::Api;
use crate::OpenError;
use libloading::Library;
use std::error::Error;
use std::sync::OnceLock;

/// Where distributions put it; the number has been the same since 2010.
const LIBRBD: &str = "librbd.so.1";

impl Api {
    /// The functions of the library of this machine.
    ///
    /// # Errors
    /// If there is none, or it is older than Ceph 16.
    pub(crate) fn get() -> Result<&'static Self, OpenError> {
        static API: OnceLock<Result<Api, OpenError>> = OnceLock::new();
        API.get_or_init(|| load(LIBRBD)).as_ref().map_err(Clone::clone)
    }
}

fn load(name: &str) -> Result<Api, OpenError> {
    // SAFETY: the loader runs the initialisers of the library of this name that the machine is set up with; those of
    // librbd, and of the libraries it is linked to, need nothing but memory.
    let library = unsafe { Library::new(name) };
    let library = library.map_err(|error| {
        // The loader's own words are the source of the error.
        let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        OpenError::NoLibrary { name: name.into(), why }
    })?;
    // SAFETY: it is librbd by its name, and is never unloaded: see below.
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
