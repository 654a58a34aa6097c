//! Detaches a device from a running guest: the guest is asked and may take its time.

use super::domain::row;
use super::{Observer, StepError};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;
use gpuvm_core::domain::live::Plugged;
use std::time::{Duration, Instant};

/// Time after which a guest is asked again: a booting guest may have missed the request.
const AGAIN: Duration = Duration::from_secs(5);

/// Returns why a crashed guest keeps its device: it cannot respond, and its process has it open.
fn crashed() -> HypervisorError {
    let message = "it has crashed and is kept with all it holds".to_owned();
    let doing = "remove the device".to_owned();
    HypervisorError { kind: HypervisorErrorKind::WrongState, doing, message }
}

/// The error that a guest keeps a device.
fn holds(
    name: &str,
    device: &Plugged,
    wait_s: u64,
    why: Option<Box<HypervisorError>>,
) -> StepError {
    let name = name.to_owned();
    match device.clone() {
        Plugged::Disk(path) => StepError::HoldsDisk { name, path, wait_s, why },
        device => StepError::HoldsDevice { name, device, wait_s, why },
    }
}

/// Asks a guest to release a device and waits until it has. A guest without a process holds none. A
/// signal ends the waiting, unless there is no observer: undoing continues in any case.
pub(super) fn device(
    hypervisor: &dyn Hypervisor,
    mut observer: Option<&mut dyn Observer>,
    name: &str,
    device: &Plugged,
    wait_s: u64,
) -> Result<(), StepError> {
    let until = Instant::now() + Duration::from_secs(wait_s);
    let (mut asked, mut why) = (None::<Instant>, None);
    loop {
        let Some(state) = row(hypervisor, name)?.filter(|state| state.is_active()) else {
            return Ok(());
        };
        let xml = match hypervisor.xml(name, XmlOf::Live) {
            // It has ended since.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => return Ok(()),
            xml => xml?,
        };
        // A parse error is reported by the step that changes it.
        let live = DomainXml::parse(&xml).ok();
        let Some(there) = live.as_ref().and_then(|xml| device.find(xml)) else { return Ok(()) };
        if !state.has_guest() {
            return Err(holds(name, device, 0, Some(Box::new(crashed()))));
        }
        if let Some(signal) = observer.as_mut().and_then(|observer| observer.interrupted()) {
            return Err(StepError::Signal { signal });
        }
        if Instant::now() >= until && asked.is_some() {
            return Err(holds(name, device, wait_s, why));
        }
        if asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
            // QEMU refuses while an earlier request is pending.
            why = hypervisor.detach(name, there.xml()).err().map(Box::new);
            asked = Some(Instant::now());
            continue;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
