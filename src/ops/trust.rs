//! `host trust`: whether the admin trusts the guests of this machine.

use crate::apply::Step;
use crate::apply::boot;
use crate::discover::trust::{FILE, to_json, trust};
use crate::error::{Result, coded};
use crate::fsroot::FsRoot;
use gpuvm_core::topology::Trust;

/// The steps that record the statement, or remove it. A file that is not valid is not gpuvm's: it
/// is neither overwritten nor, by an undo of that, made root's.
pub fn say(said: Option<Trust>) -> Result<Vec<Step>> {
    trust(&FsRoot::live()?).map_err(|error| {
        let hint = format!("`mv /{FILE} /{FILE}.old` puts it away");
        coded((&error).into(), error.to_string(), hint)
    })?;
    Ok(boot::steps([(FILE, said.map(to_json))])?)
}
