//! NVML, loaded by name at run time and called in a child process. The declarations are our own,
//! from NVML's public documentation.
#![allow(unsafe_code)] // calls into a C library

mod health;
mod instances;

pub use health::health;

use super::answer::{GpuLinks, NvmlAnswer};
use crate::loaded::{find, load};
use gpuvm_core::bdf::Bdf;
use libloading::{Library, Symbol};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

const NVML: &str = "libnvidia-ml.so.1";

const PACKAGES: &str = "the packages of NVIDIA's driver have it (libnvidia-ml1 of Debian, \
                        libnvidia-compute of Ubuntu)";

/// `nvmlInitWithFlags`.
type InitWithFlags = unsafe extern "C" fn(c_uint) -> c_int;
/// `nvmlDeviceGetHandleByPciBusId_v2`.
type GetHandle = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
/// `nvmlDeviceGetModuleId`.
type GetModuleId = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int;
/// `nvmlDeviceGetNvLinkState` and `nvmlDeviceGetNvLinkRemoteDeviceType`: handle, link, a number.
type OfLink = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint) -> c_int;
/// `nvmlDeviceGetNvLinkRemotePciInfo_v2`: handle, link, an `nvmlPciInfo_t`.
type RemoteOfLink = unsafe extern "C" fn(*mut c_void, c_uint, *mut PciInfo) -> c_int;
/// `nvmlErrorString`.
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// NVML's `nvmlPciInfo_t` in its second and third version (public `nvml.h`): 68 bytes.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(dead_code)] // laid out as NVML writes it
struct PciInfo {
    /// The address with a segment of 16 bits.
    legacy: [u8; 16],
    segment: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: c_uint,
    subsystem: c_uint,
    /// The address with a segment of 32 bits.
    address: [u8; 32],
}

/// The most links of a GPU: `NVML_NVLINK_MAX_LINKS` of the public `nvml.h`.
const MOST_LINKS: c_uint = 18;
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH` and `_IBMNPU`, a POWER processor; 0 is a GPU.
const SWITCH: c_uint = 2;
/// See [`SWITCH`].
const PROCESSOR: c_uint = 1;
/// NVML's "invalid argument" and "not supported": this GPU has no such link.
const NO_SUCH_LINK: [c_int; 2] = [2, 3];

struct Nvml<'l> {
    /// Handles by address.
    handle_of: Symbol<'l, GetHandle>,
    words: Symbol<'l, ErrorString>,
}

impl<'l> Nvml<'l> {
    fn open(library: &'l Library) -> Result<Nvml<'l>, String> {
        /// No GPU needs to exist, and none is attached before it is queried.
        const LAZY: c_uint = 1 | 2;
        // SAFETY: the types are those of NVML's documentation.
        let (init, handle_of, words) = unsafe {
            (
                find::<InitWithFlags>(library, "nvmlInitWithFlags")?,
                find::<GetHandle>(library, "nvmlDeviceGetHandleByPciBusId_v2")?,
                find::<ErrorString>(library, "nvmlErrorString")?,
            )
        };
        let nvml = Nvml { handle_of, words };
        // SAFETY: takes a number.
        match unsafe { init(LAZY) } {
            0 => Ok(nvml),
            code => Err(format!("nvmlInitWithFlags: {}", nvml.name(code))),
        }
    }

    /// Returns the text of a code.
    fn name(&self, code: c_int) -> String {
        // SAFETY: gives a text for every number, which lasts as long as the library is loaded.
        let text = unsafe { (self.words)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, and ended by a zero.
        let text = unsafe { CStr::from_ptr(text) };
        format!("{} ({code})", text.to_string_lossy())
    }

    fn handle(&self, gpu: Bdf) -> Result<*mut c_void, c_int> {
        let address = CString::new(gpu.to_string()).expect("an address has no zero byte");
        let mut handle = ptr::null_mut();
        // SAFETY: the address ends with a zero; the handle is written on success only.
        match unsafe { (self.handle_of)(address.as_ptr(), &raw mut handle) } {
            0 => Ok(handle),
            code => Err(code),
        }
    }
}

/// Asks NVML for module ids, and for NVLinks, of GPUs that are bound to its driver.
pub fn gpus(modules: &[Bdf], links: &[Bdf]) -> Result<NvmlAnswer, String> {
    let library = load(&[NVML]).map_err(|why| format!("{why}; {PACKAGES}"))?;
    let nvml = Nvml::open(&library)?;
    let mut answer = NvmlAnswer::default();
    if !modules.is_empty() {
        module_ids(&library, &nvml, modules, &mut answer)?;
    }
    if !links.is_empty() {
        nvlinks(&library, &nvml, links, &mut answer)?;
    }
    // The process ends now; NVML's own shutdown would only take time.
    Ok(answer)
}

fn module_ids(
    library: &Library,
    nvml: &Nvml<'_>,
    gpus: &[Bdf],
    answer: &mut NvmlAnswer,
) -> Result<(), String> {
    // SAFETY: the type is that of NVML's documentation.
    let module_of = unsafe { find::<GetModuleId>(library, "nvmlDeviceGetModuleId")? };
    for &gpu in gpus {
        let module = nvml.handle(gpu).and_then(|handle| {
            let mut module = 0;
            // SAFETY: the handle is NVML's; the number is written on success only.
            match unsafe { module_of(handle, &raw mut module) } {
                0 => Ok(module),
                code => Err(code),
            }
        });
        match module {
            Ok(0) => answer.silent.push((gpu, "it is on no baseboard (module id 0)".into())),
            Ok(module) => answer.ids.push((gpu, module)),
            Err(code) => answer.silent.push((gpu, nvml.name(code))),
        }
    }
    Ok(())
}

/// Asks for the links that are up, and their remote ends.
fn nvlinks(
    library: &Library,
    nvml: &Nvml<'_>,
    gpus: &[Bdf],
    answer: &mut NvmlAnswer,
) -> Result<(), String> {
    // SAFETY: the types are those of NVML's documentation. Drivers before 470 do not report the
    // type of the remote end.
    let (state_of, remote_of, type_of) = unsafe {
        (
            find::<OfLink>(library, "nvmlDeviceGetNvLinkState")?,
            find::<RemoteOfLink>(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2")?,
            find::<OfLink>(library, "nvmlDeviceGetNvLinkRemoteDeviceType").ok(),
        )
    };
    'gpus: for &gpu in gpus {
        let Ok(handle) = nvml.handle(gpu) else { continue };
        let (mut direct, mut switched) = (BTreeMap::<Bdf, u32>::new(), 0);
        for link in 0..MOST_LINKS {
            let (mut is_up, mut kind) = (0, None);
            // SAFETY: the handle is NVML's; the number is written on success only.
            match unsafe { state_of(handle, link, &raw mut is_up) } {
                0 if is_up == 1 => {}
                0 => continue,
                code if NO_SUCH_LINK.contains(&code) => continue,
                // If one link is unknown, the GPU is left out.
                _ => continue 'gpus,
            }
            if let Some(type_of) = &type_of {
                let mut found = 0;
                // SAFETY: as above.
                let code = unsafe { type_of(handle, link, &raw mut found) };
                kind = (code == 0).then_some(found);
            }
            let mut info = PciInfo::default();
            // SAFETY: as above; the structure has the size and fields that the library writes.
            let code = unsafe { remote_of(handle, link, &raw mut info) };
            let peer = (code == 0).then(|| info.address()).flatten();
            match (kind, peer) {
                (Some(PROCESSOR), _) => {}
                (Some(SWITCH), _) | (_, None) => switched += 1,
                (_, Some(peer)) => *direct.entry(peer).or_default() += 1,
            }
        }
        answer.links.push(GpuLinks { bdf: gpu, direct: direct.into_iter().collect(), switched });
    }
    Ok(())
}

impl PciInfo {
    /// The function that it names; none if it names none, as in guests without the switches.
    fn address(&self) -> Option<Bdf> {
        let (bus, device) = (u8::try_from(self.bus).ok()?, u8::try_from(self.device).ok()?);
        Bdf::new(self.segment, bus, device, 0).ok()
    }
}
