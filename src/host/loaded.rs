//! Shared libraries that are loaded by name at run time, since they are not available at build
//! time.
#![allow(unsafe_code)] // loads code

use libloading::{Library, Symbol};
use std::ffi::OsStr;

/// Loads the first of the libraries that exists; the error is the loader's for the first name.
pub fn load(names: &[impl AsRef<OsStr>]) -> Result<Library, String> {
    let mut first = None;
    for name in names {
        // SAFETY: the libraries' initialisers have no preconditions.
        match unsafe { Library::new(name.as_ref()) } {
            Ok(library) => return Ok(library),
            Err(error) => first = first.or(Some(error.to_string())),
        }
    }
    Err(first.unwrap_or_default())
}

/// Finds a function.
///
/// # Safety
/// `F` must be the type of the function of that name.
pub unsafe fn find<'l, F>(library: &'l Library, name: &str) -> Result<Symbol<'l, F>, String> {
    // SAFETY: guaranteed by the caller.
    unsafe { library.get(name.as_bytes()) }.map_err(|error| error.to_string())
}
