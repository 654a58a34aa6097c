//! How a disk is taken away from a guest that runs: it is asked to, and does it when it likes.

use super::domain::row;
use super::{Observer, StepError};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;
use std::time::{Duration, Instant};

/// Time after which a guest is asked once more: one that still boots may not have heard it.
const AGAIN: Duration = Duration::from_secs(5);

/// Why a guest that has crashed keeps its disk: nobody is there to let go of it, and its process has it open.
fn crashed() -> HypervisorError {
    let message = "it has crashed and is kept with all it holds".to_owned();
    let doing = "take the disk away".to_owned();
    HypervisorError { kind: HypervisorErrorKind::WrongState, doing, message }
}

/// Asks a guest to let go of a disk and waits until it has. One that has no process holds none.
pub(super) fn disk(
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
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
        // What cannot be read is told by whoever has to change it.
        let device = DomainXml::parse(&xml).ok();
        let Some(device) = device.as_ref().and_then(|xml| xml.disk(path)) else { return Ok(()) };
        if !state.has_guest() {
            let (name, path, why) = (name.to_owned(), path.to_owned(), Some(Box::new(crashed())));
            return Err(StepError::HoldsDisk { name, path, wait_s: 0, why });
        }
        if let Some(signal) = observer.interrupted() {
            return Err(StepError::Signal { signal });
        }
        if Instant::now() >= until && asked.is_some() {
            let (name, path) = (name.to_owned(), path.to_owned());
            return Err(StepError::HoldsDisk { name, path, wait_s, why });
        }
        if asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
            // It refuses while an earlier asking has no answer.
            why = hypervisor.detach(name, device.xml()).err().map(Box::new);
            asked = Some(Instant::now());
            continue;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
