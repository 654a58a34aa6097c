//! Loads libvirt when it is first needed.
//!
//! Loading `libvirt.so.0` with its 50 libraries costs about 12 ms and 16 MiB, and a program linked
//! to it does not start if it is not installed. `plan`, `export` and `host` need none of it. So the
//! functions that the binding calls are jump stubs (`build.rs` makes them from `libvirt.symbols`,
//! for x86-64 and aarch64), and [`load`] fills in where they lead. Tables of `libloading` cannot do
//! it: `virt` calls the functions by name.
#![allow(unsafe_code)] // a table of code addresses, written once before the first call; two environment variables; one
// function that not every libvirt has

use std::sync::OnceLock;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::Error;
use virt::network::Network;
use virt::sys;

/// The name of libvirt's client library on every Linux distribution.
const LIBRARY: &str = "libvirt.so.0";

/// The outcome of loading, kept for later calls.
static LOADED: OnceLock<Result<(), String>> = OnceLock::new();

/// Loads libvirt, once; the error is that of the dynamic loader. Must come before the first use of
/// `virt`.
pub fn load() -> Result<(), String> {
    LOADED.get_or_init(stubs::fill).clone()
}

/// Keeps libvirt's own log off standard error, unless the caller's environment says where it goes.
/// An embedded driver is a whole daemon in this process and would log its start there on every run.
/// To be called before the library is first used, while the process has one thread.
pub fn silence_log() {
    /// libvirt's variable for log outputs, which has the lowest priority.
    const OUTPUTS: &str = "LIBVIRT_LOG_OUTPUTS";
    if std::env::var_os(OUTPUTS).is_none() {
        // SAFETY: no other thread exists that could read the environment meanwhile.
        unsafe { std::env::set_var(OUTPUTS, "1:file:/dev/null") };
    }
}

/// Makes libvirt find `ssh`, which it runs for connections to other machines, in the system's
/// directories before the caller's, where programs run by ssh may be. To be called first of all,
/// while the process has one thread.
pub fn find_programs() {
    let callers = std::env::var_os("PATH").unwrap_or_default();
    let mut path = std::ffi::OsString::from(crate::program::PATH);
    if !callers.is_empty() {
        path.push(":");
        path.push(callers);
    }
    // SAFETY: no other thread exists that could read the environment meanwhile.
    unsafe { std::env::set_var("PATH", path) };
}

/// libvirt's `virNetworkDefineXMLFlags`, missing in libvirt before 7.8, so that it cannot be a
/// stub.
type DefineNetwork = unsafe extern "C" fn(
    sys::virConnectPtr,
    *const std::ffi::c_char,
    std::ffi::c_uint,
) -> sys::virNetworkPtr;

/// Defines a network after checking it against libvirt's schema; none if this libvirt cannot check.
pub fn define_network(connection: &Connect, xml: &str) -> Option<Result<(), Error>> {
    let document = match std::ffi::CString::new(xml) {
        Ok(document) => document,
        Err(error) => return Some(Err(error.into())),
    };
    // SAFETY: it is loaded already, as there is a connection.
    let library = unsafe { libloading::Library::new(LIBRARY) }.ok()?;
    // SAFETY: the type is that of libvirt's header.
    let define = unsafe { library.get::<DefineNetwork>(b"virNetworkDefineXMLFlags\0") }.ok()?;
    // SAFETY: the connection lives, and the text ends with NUL.
    let made =
        unsafe { define(connection.as_ptr(), document.as_ptr(), sys::VIR_NETWORK_DEFINE_VALIDATE) };
    if made.is_null() {
        return Some(Err(Error::last_error()));
    }
    // SAFETY: libvirt returns an owned network, which is freed once, on drop.
    drop(unsafe { Network::from_ptr(made) });
    Some(Ok(()))
}

/// libvirt's `virDomainManagedSaveGetXMLDesc`, which the binding lacks: domain, flags; the caller
/// frees the answer.
type SavedDefinition =
    unsafe extern "C" fn(sys::virDomainPtr, std::ffi::c_uint) -> *mut std::ffi::c_char;

unsafe extern "C" {
    /// Frees memory that the C library has allocated.
    fn free(memory: *mut std::ffi::c_void);
}

/// Returns the definition from which a domain with a saved state starts; libvirt before 3.7 does
/// not report it, and then it is that of the domain.
pub fn saved_definition(domain: &Domain) -> Result<String, Error> {
    // SAFETY: it is loaded already, as there is a domain.
    let library = unsafe { libloading::Library::new(LIBRARY) };
    let Ok(library) = library else { return domain.xml_desc(0) };
    // SAFETY: the type is that of libvirt's header.
    let ask = unsafe { library.get::<SavedDefinition>(b"virDomainManagedSaveGetXMLDesc\0") };
    let Ok(ask) = ask else { return domain.xml_desc(0) };
    // SAFETY: the domain lives until the call is over.
    let answer = unsafe { ask(domain.as_ptr(), 0) };
    if answer.is_null() {
        return Err(Error::last_error());
    }
    // SAFETY: libvirt returns a NUL-terminated string, owned by us.
    let text = unsafe { std::ffi::CStr::from_ptr(answer) }.to_string_lossy().into_owned();
    // SAFETY: it is ours, allocated by the C library, and not used afterwards.
    unsafe { free(answer.cast()) };
    Ok(text)
}

#[cfg(lazy_libvirt)]
mod stubs {
    use std::ffi::{CStr, c_void};
    use std::ptr;

    /// Functions, in the order of their slots.
    static NAMES: &[&CStr] = &include!(concat!(env!("OUT_DIR"), "/libvirt_names.rs"));
    const SLOTS: usize = NAMES.len();

    core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/libvirt_stubs.s")));

    #[unsafe(no_mangle)]
    #[allow(non_upper_case_globals)]
    static mut gpuvm_libvirt_slots: [*const c_void; SLOTS] = [ptr::null(); SLOTS];

    /// Loads the library, for good, and fills every slot.
    pub fn fill() -> Result<(), String> {
        // SAFETY: libvirt's initialisers have no preconditions.
        let library =
            unsafe { libloading::Library::new(super::LIBRARY) }.map_err(|e| e.to_string())?;
        for (slot, name) in NAMES.iter().enumerate() {
            // SAFETY: only the address is taken; its type is that of the binding's declaration.
            let symbol = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
            let address = *symbol.map_err(|e| format!("{} is too old: {e}", super::LIBRARY))?;
            // SAFETY: within the table; `OnceLock` lets one thread write, before any stub is
            // called.
            unsafe {
                (&raw mut gpuvm_libvirt_slots).cast::<*const c_void>().add(slot).write(address)
            };
        }
        std::mem::forget(library);
        Ok(())
    }
}

/// Without stubs libvirt is linked, so it is loaded.
#[cfg(not(lazy_libvirt))]
mod stubs {
    /// Nothing to do.
    pub fn fill() -> Result<(), String> {
        let _ = super::LIBRARY;
        Ok(())
    }
}
