//! How a disk is taken away from a guest that runs: it is asked to, and does it when it likes.

use super::domain::row;
use super::{Observer, StepError};
use crate::hypervisor::{DomainState, Hypervisor, HypervisorErrorKind, XmlOf};
use gpuvm_core::domain::DomainXml;
use std::time::{Duration, Instant};

/// Time after which a guest is asked once more: one that still boots may not have heard it.
const AGAIN: Duration = Duration::from_secs(5);

/// Asks a guest to let go of a disk and waits until it has. One that does not run holds none.
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
        if !matches!(row(hypervisor, name)?, Some(DomainState::Running | DomainState::Paused)) {
            return Ok(());
        }
        let xml = match hypervisor.xml(name, XmlOf::Live) {
            // It has ended since.
            Err(error) if error.kind == HypervisorErrorKind::NoDomain => return Ok(()),
            xml => xml?,
        };
        // What cannot be read is told by whoever has to change it.
        let device = DomainXml::parse(&xml).ok();
        let Some(device) = device.as_ref().and_then(|xml| xml.disk(path)) else { return Ok(()) };
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
