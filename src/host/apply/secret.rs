//! Bytes that no log, journal or list of steps shows.

use gpuvm_core::seed::{Seed, SeedError, VOLUME_BYTES, volume};
use std::fmt;

/// The bytes of a guest's seed, which are never printed, and made only to be written.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Box<Seed>);

impl Secret {
    /// The bytes of this seed.
    pub fn of(seed: Seed) -> Secret {
        Secret(Box::new(seed))
    }

    /// Makes the bytes.
    pub fn bytes(&self) -> Result<Vec<u8>, SeedError> {
        volume(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VOLUME_BYTES} bytes")
    }
}
