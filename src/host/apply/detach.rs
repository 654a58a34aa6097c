//! Detaches a disk from a running guest: the guest is asked and may take its time.

use super::domain::row;
use super::{Observer, StepError};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;
use std::time::{Duration, Instant};

/// Time after which a guest is asked once more: a booting guest may have missed the request.
const AGAIN: Duration = Duration::from_secs(5);

/// Returns why a crashed guest keeps its disk: it cannot respond, and its process has the disk
/// open.
fn crashed() -> HypervisorError {
    let message = "it has crashed and is kept with all it holds".to_owned();
    let doing = "take the disk away".to_owned();
    HypervisorError { kind: HypervisorErrorKind::WrongState, doing, message }
}

/// Asks a guest to release a disk and waits until it has. A guest without a process holds none.
/// A signal ends the waiting, unless there is no observer: an undoing goes on whatever comes.
pub(super) fn disk(
    hypervisor: &dyn Hypervisor,
    mut observer: Option<&mut dyn Observer>,
    name: &str,
    path: &str,
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
        let device = DomainXml::parse(&xml).ok();
        let Some(device) = device.as_ref().and_then(|xml| xml.disk(path)) else { return Ok(()) };
        if !state.has_guest() {
            let (name, path, why) = (name.to_owned(), path.to_owned(), Some(Box::new(crashed())));
            return Err(StepError::HoldsDisk { name, path, wait_s: 0, why });
        }
        if let Some(signal) = observer.as_mut().and_then(|observer| observer.interrupted()) {
            return Err(StepError::Signal { signal });
        }
        if Instant::now() >= until && asked.is_some() {
            let (name, path) = (name.to_owned(), path.to_owned());
            return Err(StepError::HoldsDisk { name, path, wait_s, why });
        }
        if asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
            // QEMU refuses while an earlier request is pending.
            why = hypervisor.detach(name, device.xml()).err().map(Box::new);
            asked = Some(Instant::now());
            continue;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
