//! Commands to a guest's agent. They are in a second libvirt library, which the binding links or
//! omits at build time; here it is loaded for the first command.
#![allow(unsafe_code)] // one function of a library that is loaded at run time

use super::Libvirt;
use super::call::Failed;
use crate::hypervisor::HypervisorErrorKind;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::time::Duration;
use virt::error::Error;
use virt::sys::virDomainPtr;

/// The library, which every distribution installs together with `libvirt.so.0`.
const LIBRARY: &str = "libvirt-qemu.so.0";

/// `virDomainQemuAgentCommand` of libvirt/libvirt-qemu.h: domain, command, timeout in seconds,
/// flags; the caller frees the answer.
type AgentCommand = unsafe extern "C" fn(virDomainPtr, *const c_char, c_int, c_uint) -> *mut c_char;

unsafe extern "C" {
    /// Frees memory that the C library has allocated.
    fn free(memory: *mut c_void);
}

impl Libvirt {
    /// Gives a command to a guest's agent and returns its answer, both JSON.
    pub(super) fn command_agent(
        &self,
        name: &str,
        command: &str,
        wait: Duration,
    ) -> Result<String, Failed> {
        let domain = self.find_to_change(name)?;
        let missing =
            |e: libloading::Error| Failed::Own(HypervisorErrorKind::NoLibrary, e.to_string());
        let command =
            CString::new(command).map_err(|_| Failed::other("the command holds a NUL"))?;
        let seconds = c_int::try_from(wait.as_secs()).unwrap_or(c_int::MAX);
        // SAFETY: libvirt's initialisers have no preconditions.
        let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(missing)?;
        // SAFETY: the type is that of the header.
        let ask = unsafe { library.get::<AgentCommand>(b"virDomainQemuAgentCommand\0") };
        let ask = ask.map_err(missing)?;
        // SAFETY: the domain and the command live until the call is over.
        let answer = unsafe { ask(domain.as_ptr(), command.as_ptr(), seconds, 0) };
        if answer.is_null() {
            return Err(Error::last_error().into());
        }
        // SAFETY: libvirt returns a NUL-terminated string, owned by us.
        let text = unsafe { CStr::from_ptr(answer) }.to_string_lossy().into_owned();
        // SAFETY: it is ours, allocated by the C library, and not used afterwards.
        unsafe { free(answer.cast()) };
        Ok(text)
    }
}
