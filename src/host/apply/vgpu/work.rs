//! Changes vGPUs through sysfs and NVIDIA's script, on a root directory that is handed in.

use super::{SRIOV_MANAGE, VgpuError, ours};
use crate::apply::bind::{BindError, Kernel};
use crate::command::output;
use crate::discover::vgpu::types;
use crate::fsroot::{Dir, FsRoot};
use gpuvm_core::bdf::Bdf;
use std::time::Duration;

/// How often the script is run where it leaves the card without a driver.
const RUNS: usize = 3;
/// How long it may take, in seconds: it makes each function of a large card.
const SCRIPT_S: u64 = 120;
/// How long a write may take, in seconds: the driver makes an instance of the GPU.
const WRITE_S: u64 = 60;
/// How often to check whether functions are ready; they are within 10 s.
const LOOKS: u32 = 50;
/// How often to check again whether a mediated device is closed.
const CLOSES: u32 = 5;

/// The means of changing vGPUs.
pub(super) struct Work<'a> {
    /// The host's files.
    pub root: &'a FsRoot,
    /// The writer to the kernel.
    pub kernel: &'a dyn Kernel,
    /// Refuses functions of guests.
    pub is_free: &'a dyn Fn(&[Bdf]) -> Result<(), BindError>,
    /// Whether a process has a group of VFIO open.
    pub is_open: &'a dyn Fn(&str) -> bool,
    /// How long to wait between two checks.
    pub pause: Duration,
    /// How long to wait before the script is run again.
    pub again: Duration,
}

fn path(bdf: Bdf) -> String {
    format!("sys/bus/pci/devices/{bdf}")
}

impl Work<'_> {
    fn card(&self, pf: Bdf) -> Result<Dir<'_>, VgpuError> {
        let dir = self.root.dir(&path(pf))?.filter(|dir| dir.exists("sriov_numvfs"));
        dir.ok_or(VgpuError::NoCard { pf })
    }

    fn enabled(&self, pf: Bdf) -> Result<u32, VgpuError> {
        self.card(pf)?.number("sriov_numvfs")?.ok_or(VgpuError::NoCard { pf })
    }

    fn functions(&self, pf: Bdf) -> Result<Vec<Bdf>, VgpuError> {
        let dir = self.card(pf)?;
        let mut functions = Vec::new();
        while let Some(name) = dir.link_name(&format!("virtfn{}", functions.len()))? {
            let Ok(bdf) = name.parse() else { break };
            functions.push(bdf);
        }
        Ok(functions)
    }

    /// Refuses a card whose functions changed since, or of which somebody has a vGPU.
    pub fn expect_functions(&self, pf: Bdf, was: bool, on: bool) -> Result<(), VgpuError> {
        let now = self.enabled(pf)?;
        if (now > 0) != was {
            return Err(VgpuError::FunctionsChanged { pf, now });
        }
        if !on && now > 0 { self.expect_idle(pf) } else { Ok(()) }
    }

    /// Refuses a card with vGPUs, which end with its functions, also where nobody is known to have
    /// them.
    fn expect_idle(&self, pf: Bdf) -> Result<(), VgpuError> {
        let functions = self.functions(pf)?;
        for vf in &functions {
            if let Some(number @ 1..) = self.type_now(*vf)? {
                return Err(VgpuError::Typed { pf, vf: *vf, number });
            }
        }
        Ok((self.is_free)(&functions)?)
    }

    /// Enables or disables the functions of a card, and waits until they offer types.
    pub fn set_functions(
        &self,
        pf: Bdf,
        on: bool,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), VgpuError> {
        if (self.enabled(pf)? > 0) == on {
            return Ok(());
        }
        if !on {
            self.expect_idle(pf)?;
        }
        let script = self.root.path().join(SRIOV_MANAGE);
        let (script, option) = (script.display().to_string(), if on { "-e" } else { "-d" });
        for run in 1..=RUNS {
            let said = output(&[&script, option, &pf.to_string()], SCRIPT_S);
            let is_bound = self.card(pf)?.link_name("driver")?.is_some();
            if !is_bound {
                self.bind(pf)?;
                note(&format!("sriov-manage left {pf} without its driver; it is bound again"));
            }
            let now = self.enabled(pf)?;
            if (now > 0) == on && self.card(pf)?.link_name("driver")?.is_some() {
                return if on { self.wait_ready(pf) } else { Ok(()) };
            }
            if is_bound {
                said?;
                return Err(VgpuError::NotMade { pf, now });
            }
            if run < RUNS {
                std::thread::sleep(self.again);
            }
        }
        Err(VgpuError::Unbound { pf, runs: RUNS })
    }

    /// Binds a card to NVIDIA's driver.
    fn bind(&self, pf: Bdf) -> Result<(), VgpuError> {
        let driver = "sys/bus/pci/drivers/nvidia/bind";
        Ok(self.kernel.write(driver, &pf.to_string(), WRITE_S)?)
    }

    /// Waits until each function of a card offers types.
    fn wait_ready(&self, pf: Bdf) -> Result<(), VgpuError> {
        let lacks = |vf: &Bdf| {
            let at = path(*vf);
            let files = ["nvidia/creatable_vgpu_types", "mdev_supported_types"];
            !files.iter().any(|file| self.root.exists(&format!("{at}/{file}")))
        };
        for _ in 0..LOOKS {
            let functions = self.functions(pf)?;
            if !functions.is_empty() && !functions.iter().any(lacks) {
                return Ok(());
            }
            std::thread::sleep(self.pause);
        }
        match self.functions(pf)?.into_iter().find(lacks) {
            Some(vf) => Err(VgpuError::NotReady { pf, vf }),
            None => Err(VgpuError::NotMade { pf, now: self.enabled(pf)? }),
        }
    }

    /// The type of a function; `None` if no type can be set for it.
    fn type_now(&self, vf: Bdf) -> Result<Option<u32>, VgpuError> {
        let dir = self.root.dir(&format!("{}/nvidia", path(vf)))?;
        Ok(dir.map(|dir| dir.number("current_vgpu_type")).transpose()?.flatten())
    }

    fn type_of(&self, vf: Bdf) -> Result<u32, VgpuError> {
        self.type_now(vf)?.ok_or(VgpuError::NoFunction { vf })
    }

    /// Refuses a function that somebody has, or that has got another type.
    pub fn expect_type(&self, vf: Bdf, was: u32) -> Result<(), VgpuError> {
        match self.type_of(vf)? {
            now if now == was => Ok((self.is_free)(&[vf])?),
            now => Err(VgpuError::TypeChanged { vf, now, was }),
        }
    }

    /// Sets the type of a function that nobody has, and reads it back.
    pub fn set_type(&self, vf: Bdf, to: u32) -> Result<(), VgpuError> {
        if self.type_of(vf)? == to {
            return Ok(());
        }
        (self.is_free)(&[vf])?;
        if to == 0 {
            ours::forget(self.root, vf);
        }
        let file = format!("{}/nvidia/creatable_vgpu_types", path(vf));
        let offered = types(&self.root.read(&file)?.unwrap_or_default());
        if to != 0 && offered.iter().all(|(number, _)| *number != to) {
            let types = offered.into_iter().map(|(number, name)| format!("{number} ({name})"));
            return Err(VgpuError::NotCreatable { vf, to, types: types.collect() });
        }
        let file = format!("{}/nvidia/current_vgpu_type", path(vf));
        self.kernel.write(&file, &to.to_string(), WRITE_S)?;
        let now = self.type_of(vf)?;
        if now != to {
            return Err(VgpuError::NotSet { vf, to, now });
        }
        if to != 0 {
            ours::remember(self.root, vf, to);
        }
        Ok(())
    }

    /// Changes the type of a function from the planned one; another type is left as it is.
    pub fn change_type(&self, vf: Bdf, was: u32, to: u32) -> Result<(), VgpuError> {
        match self.type_of(vf)? {
            now if now == was || now == to => self.set_type(vf, to),
            now => Err(VgpuError::TypeChanged { vf, now, was }),
        }
    }

    /// Sets the type of a function back, unless it has another one or a guest has it.
    pub fn revert_type(&self, vf: Bdf, to: u32, was: u32) -> Result<(), VgpuError> {
        if self.type_of(vf)? == to { self.set_type(vf, was) } else { Ok(()) }
    }

    fn has_mdev(&self, uuid: &str, parent: Bdf) -> bool {
        self.root.exists(&format!("{}/{uuid}", path(parent)))
    }

    /// Refuses a mediated device that exists, or that its parent has no room for.
    pub fn expect_instance(&self, uuid: &str, parent: Bdf, type_id: &str) -> Result<(), VgpuError> {
        if self.has_mdev(uuid, parent) || self.root.exists(&format!("sys/bus/mdev/devices/{uuid}"))
        {
            return Err(VgpuError::MdevThere { uuid: uuid.to_owned() });
        }
        let dir = self.root.dir(&format!("{}/mdev_supported_types/{type_id}", path(parent)))?;
        let left = dir.map(|dir| dir.number("available_instances")).transpose()?.flatten();
        match left {
            Some(1u32..) => Ok(()),
            _ => Err(VgpuError::NoInstance { parent, type_id: type_id.to_owned() }),
        }
    }

    /// Makes a mediated device.
    pub fn create_mdev(&self, uuid: &str, parent: Bdf, type_id: &str) -> Result<(), VgpuError> {
        if self.has_mdev(uuid, parent) {
            return Ok(());
        }
        let file = format!("{}/mdev_supported_types/{type_id}/create", path(parent));
        self.kernel.write(&file, uuid, WRITE_S)?;
        if self.has_mdev(uuid, parent) {
            return Ok(());
        }
        Err(VgpuError::MdevNotDone { uuid: uuid.to_owned(), parent, done: "made" })
    }

    /// Removes a mediated device of this type that no process has open: the kernel would wait for
    /// its guest.
    pub fn remove_mdev(&self, uuid: &str, parent: Bdf, type_id: &str) -> Result<(), VgpuError> {
        let Some(dir) = self.root.dir(&format!("{}/{uuid}", path(parent)))? else {
            return Ok(());
        };
        let uuid = uuid.to_owned();
        if dir.link_name("mdev_type")?.is_some_and(|now| now != type_id) {
            return Err(VgpuError::MdevChanged { uuid, type_id: type_id.to_owned() });
        }
        // QEMU that was ended closes it a little later.
        let group = dir.link_name("iommu_group")?;
        for look in 0.. {
            match &group {
                Some(group) if (self.is_open)(group) && look < CLOSES => {}
                Some(group) if (self.is_open)(group) => return Err(VgpuError::MdevOpen { uuid }),
                _ => break,
            }
            std::thread::sleep(self.pause);
        }
        let uuid = uuid.as_str();
        self.kernel.write(&format!("{}/{uuid}/remove", path(parent)), "1", WRITE_S)?;
        if !self.has_mdev(uuid, parent) {
            return Ok(());
        }
        Err(VgpuError::MdevNotDone { uuid: uuid.to_owned(), parent, done: "removed" })
    }
}

#[cfg(test)]
mod tests;
