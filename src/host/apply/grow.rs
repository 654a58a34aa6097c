//! How a disk of a domain becomes larger: by its guest, by its pool, or as a file. It never becomes smaller.

use super::domain::row;
use super::step::GrowBy;
use super::{Observer, Step, StepError, disk};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind};
use crate::identity::FileId;

/// Grows a disk, unless it is as large already. `later`: planned by a run that was killed, so that the guest may be off.
pub(super) fn disk(
    step: &Step,
    later: bool,
    hypervisor: &dyn Hypervisor,
    observer: &mut dyn Observer,
) -> Result<(), StepError> {
    let Step::GrowDisk { name, target, bytes, by, .. } = step else { return Ok(()) };
    let runs = row(hypervisor, name)?.is_some_and(|state| state.is_active());
    let wrong = |message: &str| HypervisorError {
        kind: HypervisorErrorKind::WrongState,
        doing: step.to_string(),
        message: message.to_owned(),
    };
    match by {
        GrowBy::Guest if !runs && later => {
            observer.note(&format!("domain `{name}` is off by now, and disk `{target}` stays"));
            Ok(())
        }
        GrowBy::Guest if !runs => Err(wrong("it does not run any more").into()),
        GrowBy::Guest => {
            let size = hypervisor.disk_size(name, target)?;
            match size.is_some_and(|size| size.capacity_bytes >= *bytes) {
                true => Ok(()),
                false => Ok(hypervisor.grow_disk(name, target, *bytes)?),
            }
        }
        // What QEMU has open it alone makes larger.
        _ if runs && later => {
            observer.note(&format!("domain `{name}` runs by now, and disk `{target}` stays"));
            Ok(())
        }
        _ if runs => Err(wrong("it runs, so somebody has started it").into()),
        GrowBy::Volume(volume) => {
            let all = hypervisor.storage().volumes(&volume.pool)?;
            let known = all.iter().find(|known| known.name == volume.name);
            match known.is_some_and(|known| known.capacity_bytes >= *bytes) {
                true => Ok(()),
                false => {
                    Ok(hypervisor.storage().grow_volume(&volume.pool, &volume.name, *bytes)?)
                }
            }
        }
        GrowBy::File { path, file, reserve } => {
            let now = FileId::at(path).ok().flatten();
            if !now.is_some_and(|now| now.may_be(file)) {
                let what = "it is another file by now".to_owned();
                return Err(StepError::Changed { path: path.clone(), what });
            }
            Ok(disk::grow(path, *bytes, *reserve)?)
        }
    }
}
