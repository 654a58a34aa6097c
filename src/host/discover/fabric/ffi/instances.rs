//! NVML's calls about the GPU instances of MIG that back vGPU types. Each is optional: drivers
//! before 575 do not report how many vGPUs share an instance.

use crate::loaded::find;
use gpuvm_core::topology::MigInstances;
use libloading::{Library, Symbol};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// `nvmlVgpuTypeGetGpuInstanceProfileId`: type, a profile.
type ProfileOf = unsafe extern "C" fn(c_uint, *mut c_uint) -> c_int;
/// `nvmlVgpuTypeGetMaxInstancesPerGpuInstance`.
type MostEach = unsafe extern "C" fn(*mut MaxInstance) -> c_int;
/// `nvmlDeviceGetGpuInstances`: handle, profile, instances, their number.
type Instances = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void, *mut c_uint) -> c_int;

/// `nvmlVgpuTypeMaxInstance_v1_t`: 12 bytes.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(dead_code)] // laid out as NVML reads it
struct MaxInstance {
    /// Size and version, set by the caller.
    version: c_uint,
    /// The type, set by the caller.
    type_id: c_uint,
    /// vGPUs in one GPU instance.
    most: c_uint,
}

/// The structure's size with its version in the highest byte, as NVML wants it.
const VERSION: c_uint = size_of::<MaxInstance>() as c_uint | 1 << 24;
/// `INVALID_GPU_INSTANCE_PROFILE_ID`: MIG does not back the type.
const NO_PROFILE: c_uint = 0xffff_ffff;
/// Room for instances: no GPU has more than 8 slices, of which each is one at most.
const ROOM: usize = 64;

/// The calls that the library has.
pub(super) struct InstanceCalls<'l> {
    profile: Option<Symbol<'l, ProfileOf>>,
    most_each: Option<Symbol<'l, MostEach>>,
    instances: Option<Symbol<'l, Instances>>,
}

impl<'l> InstanceCalls<'l> {
    pub(super) fn find(library: &'l Library) -> InstanceCalls<'l> {
        // SAFETY: the types are those of NVML's documentation.
        unsafe {
            InstanceCalls {
                profile: find(library, "nvmlVgpuTypeGetGpuInstanceProfileId").ok(),
                most_each: find(library, "nvmlVgpuTypeGetMaxInstancesPerGpuInstance").ok(),
                instances: find(library, "nvmlDeviceGetGpuInstances").ok(),
            }
        }
    }

    /// The GPU instances behind a vGPU type of the GPU of a handle.
    pub(super) fn behind(&self, handle: *mut c_void, type_id: u32) -> MigInstances {
        let profile = self.profile(type_id);
        let count = profile.and_then(|profile| self.count(handle, profile));
        MigInstances { profile, count, vgpus_each: self.most_each(type_id) }
    }

    fn profile(&self, type_id: u32) -> Option<u32> {
        let call = self.profile.as_ref()?;
        let mut profile = NO_PROFILE;
        // SAFETY: the number is written on success only.
        let code = unsafe { call(type_id, &raw mut profile) };
        (code == 0 && profile != NO_PROFILE).then_some(profile)
    }

    fn most_each(&self, type_id: u32) -> Option<u32> {
        let call = self.most_each.as_ref()?;
        let mut of = MaxInstance { version: VERSION, type_id, most: 0 };
        // SAFETY: the structure has the size and fields of its version.
        let code = unsafe { call(&raw mut of) };
        (code == 0 && of.most > 0).then_some(of.most)
    }

    fn count(&self, handle: *mut c_void, profile: u32) -> Option<u32> {
        let call = self.instances.as_ref()?;
        let (mut all, mut count) = ([ptr::null_mut(); ROOM], ROOM as c_uint);
        // SAFETY: the handle is NVML's, which writes no more than the instances of the profile that
        // a GPU can have.
        let code = unsafe { call(handle, profile, all.as_mut_ptr(), &raw mut count) };
        (code == 0).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_size_of_nvml_h() {
        assert_eq!(VERSION, 0x0100_000c);
    }
}
