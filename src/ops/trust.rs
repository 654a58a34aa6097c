//! `host trust`: what the admin says of the guests of this machine.

use crate::apply::Step;
use crate::apply::boot;
use crate::discover::trust::{FILE, to_json, trust};
use crate::error::{Result, coded};
use crate::fsroot::FsRoot;
use gpuvm_core::topology::Trust;

/// The steps that say it, or take back what was said. A file that is not believed is not ours: it is neither overwritten nor,
/// by undoing that, made root's.
pub fn say(said: Option<Trust>) -> Result<Vec<Step>> {
    trust(&FsRoot::live()?).map_err(|error| {
        let hint = format!("`mv /{FILE} /{FILE}.old` puts it away");
        coded((&error).into(), error.to_string(), hint)
    })?;
    Ok(boot::steps([(FILE, said.map(to_json))])?)
}
