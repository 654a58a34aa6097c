//! `host trust`: what the admin says of the guests of this machine.

use crate::apply::Step;
use crate::apply::boot;
use crate::discover::trust::{FILE, to_json};
use crate::error::Result;
use gpuvm_core::topology::Trust;

/// The steps that say it, or take back what was said.
pub fn say(said: Option<Trust>) -> Result<Vec<Step>> {
    Ok(boot::steps([(FILE, said.map(to_json))])?)
}
