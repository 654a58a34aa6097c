//! NVML's calls about the health of GPUs. Each is optional: drivers and GPUs differ in their
//! reports.

use super::instances::InstanceCalls;
use super::{MOST_LINKS, NO_SUCH_LINK, NVML, Nvml, OfLink};
use crate::discover::fabric::answer::{GpuReading, HealthAnswer};
use crate::loaded::{find, load};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::health::{HealthReading, LinkReading};
use libloading::{Library, Symbol};
use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong, c_void};

/// `nvmlDeviceGetTotalEccErrors`: handle, kind of error, kind of counter, a number.
type TotalEcc = unsafe extern "C" fn(*mut c_void, c_uint, c_uint, *mut c_ulonglong) -> c_int;
/// `nvmlDeviceGetRemappedRows`: handle, rows by corrected and by uncorrected errors, pending,
/// failed.
type RemappedRows =
    unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> c_int;
/// `nvmlDeviceGetRetiredPages`: handle, cause, count, addresses.
type RetiredPages =
    unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint, *mut c_ulonglong) -> c_int;
/// `nvmlDeviceGetRetiredPagesPendingStatus`: handle, a state.
type PagesPending = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int;
/// `nvmlDeviceGetSramEccErrorStatus`: handle, a status.
type SramStatus = unsafe extern "C" fn(*mut c_void, *mut Sram) -> c_int;
/// `nvmlDeviceGetFieldValues`: handle, count, fields.
type FieldValues = unsafe extern "C" fn(*mut c_void, c_int, *mut Field) -> c_int;
/// `nvmlDeviceGetMigMode`: handle, the mode now and after the next reset.
type MigMode = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> c_int;
/// `nvmlDeviceGetNvLinkErrorCounter`: handle, link, counter, a number.
type LinkErrors = unsafe extern "C" fn(*mut c_void, c_uint, c_uint, *mut c_ulonglong) -> c_int;

/// `nvmlEccSramErrorStatus_v1_t`: 104 bytes.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(dead_code)] // laid out as NVML writes it
struct Sram {
    /// Size and version, set by the caller.
    version: c_uint,
    counters: [c_ulonglong; 11],
    /// Whether the threshold of the field diagnostic is exceeded.
    exceeded: c_uint,
}

/// `nvmlFieldValue_t`: 40 bytes.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(dead_code)] // laid out as NVML writes it
struct Field {
    /// The field, set by the caller.
    id: c_uint,
    /// A part of the GPU; unused here.
    scope: c_uint,
    timestamp: c_longlong,
    latency_us: c_longlong,
    kind: c_uint,
    code: c_int,
    value: [u8; 8],
}

/// The structure's size with its version in the highest byte, as NVML wants it.
const SRAM_VERSION: c_uint = size_of::<Sram>() as c_uint | 1 << 24;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: c_uint = 230;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED_INT: c_uint = 1;
/// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`, `NVML_VOLATILE_ECC`.
const UNCORRECTED_NOW: (c_uint, c_uint) = (1, 0);
/// `nvmlPageRetirementCause_t`: corrected and uncorrected errors.
const CAUSES: [c_uint; 2] = [0, 1];
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const TOO_SMALL: c_int = 7;
/// `NVML_ERROR_GPU_IS_LOST` and `NVML_ERROR_RESET_REQUIRED`.
const LOST: c_int = 15;
/// See [`LOST`].
const RESET_REQUIRED: c_int = 16;
/// `NVML_NVLINK_ERROR_DL_REPLAY`, `_RECOVERY`, `_CRC_FLIT` and `_CRC_DATA`.
const LINK_COUNTERS: [c_uint; 4] = [0, 1, 2, 3];

/// The calls that the library has.
struct Calls<'l> {
    ecc: Option<Symbol<'l, TotalEcc>>,
    rows: Option<Symbol<'l, RemappedRows>>,
    pages: Option<Symbol<'l, RetiredPages>>,
    pending: Option<Symbol<'l, PagesPending>>,
    sram: Option<Symbol<'l, SramStatus>>,
    fields: Option<Symbol<'l, FieldValues>>,
    links: Option<Symbol<'l, OfLink>>,
    errors: Option<Symbol<'l, LinkErrors>>,
    mig: Option<Symbol<'l, MigMode>>,
}

impl<'l> Calls<'l> {
    fn find(library: &'l Library) -> Calls<'l> {
        // SAFETY: the types are those of NVML's documentation.
        unsafe {
            Calls {
                ecc: find(library, "nvmlDeviceGetTotalEccErrors").ok(),
                rows: find(library, "nvmlDeviceGetRemappedRows").ok(),
                pages: find(library, "nvmlDeviceGetRetiredPages").ok(),
                pending: find(library, "nvmlDeviceGetRetiredPagesPendingStatus").ok(),
                sram: find(library, "nvmlDeviceGetSramEccErrorStatus").ok(),
                fields: find(library, "nvmlDeviceGetFieldValues").ok(),
                links: find(library, "nvmlDeviceGetNvLinkState").ok(),
                errors: find(library, "nvmlDeviceGetNvLinkErrorCounter").ok(),
                mig: find(library, "nvmlDeviceGetMigMode").ok(),
            }
        }
    }
}

/// Asks NVML for the health of GPUs that are bound to its driver, and for the GPU instances behind
/// vGPU types of each; for each the reading, or why there is none.
pub fn health(gpus: &[(Bdf, Vec<u32>)]) -> Result<HealthAnswer, String> {
    let library = load(&[NVML])?;
    let nvml = Nvml::open(&library)?;
    let calls = Calls::find(&library);
    let instance_calls = InstanceCalls::find(&library);
    let of_health = |health| GpuReading { health, instances: Vec::new() };
    let reading = |gpu: Bdf, types: &[u32]| match nvml.handle(gpu) {
        Ok(handle) => {
            let health = Gpu { handle, calls: &calls, failed: None }.read();
            let has_instances = health.mig.is_some_and(|(is_on, _)| is_on);
            let types = types.iter().filter(|_| has_instances);
            let instances = types.map(|&of| (of, instance_calls.behind(handle, of))).collect();
            Ok(GpuReading { health, instances })
        }
        Err(LOST) => Ok(of_health(HealthReading { lost: true, ..HealthReading::default() })),
        Err(RESET_REQUIRED) => {
            Ok(of_health(HealthReading { reset_required: true, ..HealthReading::default() }))
        }
        Err(code) => Err(nvml.name(code)),
    };
    Ok(gpus.iter().map(|(gpu, types)| (*gpu, reading(*gpu, types))).collect())
}

struct Gpu<'c> {
    handle: *mut c_void,
    calls: &'c Calls<'c>,
    /// That it was lost, or needs a reset: the other calls would fail alike.
    failed: Option<c_int>,
}

impl Gpu<'_> {
    /// Whether a call succeeded; notes that the GPU is lost or needs a reset.
    fn is_done(&mut self, code: c_int) -> bool {
        if matches!(code, LOST | RESET_REQUIRED) {
            self.failed = self.failed.or(Some(code));
        }
        code == 0
    }

    fn read(mut self) -> HealthReading {
        let (mut remap_failed, mut remap_pending) = (None, None);
        if let Some((pending, failed)) = self.rows() {
            (remap_pending, remap_failed) = (Some(pending), Some(failed));
        }
        let mut reading = HealthReading {
            remap_failed,
            remap_pending,
            recovery: self.recovery(),
            pages_pending: self.pages_pending(),
            retired_pages: self.retired_pages(),
            uncorrected: self.uncorrected(),
            sram_exceeded: self.sram_exceeded(),
            links: self.links(),
            mig: self.mig(),
            ..HealthReading::default()
        };
        reading.lost = self.failed == Some(LOST);
        reading.reset_required = self.failed == Some(RESET_REQUIRED);
        reading
    }

    /// Whether remapping a row is pending, and whether it ever failed.
    fn rows(&mut self) -> Option<(bool, bool)> {
        let rows = self.calls.rows.as_ref()?;
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        // SAFETY: the handle is NVML's; the numbers are written on success only.
        let code = unsafe {
            rows(
                self.handle,
                &raw mut corrected,
                &raw mut uncorrected,
                &raw mut pending,
                &raw mut failed,
            )
        };
        self.is_done(code).then_some((pending != 0, failed != 0))
    }

    /// The recovery that the driver asks for.
    fn recovery(&mut self) -> Option<u32> {
        let fields = self.calls.fields.as_ref()?;
        let mut field = Field { id: RECOVERY_ACTION, code: -1, ..Field::default() };
        // SAFETY: the handle is NVML's; the structure has the size and fields that it writes.
        let code = unsafe { fields(self.handle, 1, &raw mut field) };
        let is_read = self.is_done(code) && self.is_done(field.code);
        let value = u32::from_ne_bytes(field.value[..4].try_into().expect("4 of 8 bytes"));
        (is_read && field.kind == UNSIGNED_INT).then_some(value)
    }

    /// Whether a page is retired at the next reset.
    fn pages_pending(&mut self) -> Option<bool> {
        let pending = self.calls.pending.as_ref()?;
        let mut state = 0;
        // SAFETY: the handle is NVML's; the number is written on success only.
        let code = unsafe { pending(self.handle, &raw mut state) };
        self.is_done(code).then_some(state != 0)
    }

    fn retired_pages(&mut self) -> Option<u32> {
        let pages = self.calls.pages.as_ref()?;
        let mut all = 0u32;
        for cause in CAUSES {
            let mut addresses = [0; 128];
            let mut count = addresses.len() as c_uint;
            // SAFETY: the handle is NVML's, which writes at most as many addresses as the passed
            // capacity, or the needed number.
            let code = unsafe { pages(self.handle, cause, &raw mut count, addresses.as_mut_ptr()) };
            if !(self.is_done(code) || code == TOO_SMALL) {
                return None;
            }
            all = all.saturating_add(count);
        }
        Some(all)
    }

    /// Uncorrected memory errors since the driver was loaded.
    fn uncorrected(&mut self) -> Option<u64> {
        let ecc = self.calls.ecc.as_ref()?;
        let ((kind, counter), mut errors) = (UNCORRECTED_NOW, 0);
        // SAFETY: the handle is NVML's; the number is written on success only.
        let code = unsafe { ecc(self.handle, kind, counter, &raw mut errors) };
        self.is_done(code).then_some(errors)
    }

    /// Whether errors of its SRAM are over the threshold.
    fn sram_exceeded(&mut self) -> Option<bool> {
        let sram = self.calls.sram.as_ref()?;
        let mut status = Sram { version: SRAM_VERSION, ..Sram::default() };
        // SAFETY: the handle is NVML's; the structure has the size and fields of its version.
        let code = unsafe { sram(self.handle, &raw mut status) };
        self.is_done(code).then_some(status.exceeded != 0)
    }

    /// Whether MIG is on, and whether it is after the next reset.
    fn mig(&mut self) -> Option<(bool, bool)> {
        let mode = self.calls.mig.as_ref()?;
        let (mut now, mut pending) = (0, 0);
        // SAFETY: the handle is NVML's; the numbers are written on success only.
        let code = unsafe { mode(self.handle, &raw mut now, &raw mut pending) };
        self.is_done(code).then_some((now != 0, pending != 0))
    }

    fn links(&mut self) -> Vec<LinkReading> {
        let Some(state_of) = self.calls.links.as_ref() else { return Vec::new() };
        let mut links = Vec::new();
        for link in 0..MOST_LINKS {
            let mut is_up = 0;
            // SAFETY: the handle is NVML's; the number is written on success only.
            let code = unsafe { state_of(self.handle, link, &raw mut is_up) };
            if !self.is_done(code) {
                // One that is unknown is not counted as down.
                if NO_SUCH_LINK.contains(&code) {
                    continue;
                }
                return Vec::new();
            }
            let [replays, recoveries, flits, data] = self.link_errors(link);
            let crc_errors = flits.saturating_add(data);
            links.push(LinkReading { link, up: is_up == 1, replays, recoveries, crc_errors });
        }
        links
    }

    /// Error counters of a link; zero for one that is not reported.
    fn link_errors(&mut self, link: c_uint) -> [u64; 4] {
        let Some(errors_of) = self.calls.errors.as_ref() else { return [0; 4] };
        LINK_COUNTERS.map(|counter| {
            let mut errors = 0;
            // SAFETY: the handle is NVML's; the number is written on success only.
            let code = unsafe { errors_of(self.handle, link, counter, &raw mut errors) };
            if self.is_done(code) { errors } else { 0 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_nvml_h() {
        assert_eq!(size_of::<Sram>(), 104);
        assert_eq!(size_of::<Field>(), 40);
        assert_eq!(SRAM_VERSION, 0x0100_0068);
    }
}
