//! What tells one thing from every other of its name: whatever is undone, ended or taken away is proven to be the very one
//! that was made.

use std::io;

/// Where the kernel makes random UUIDs.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// A random UUID, with dashes, in lower case.
pub fn random_uuid() -> io::Result<String> {
    Ok(std::fs::read_to_string(RANDOM)?.trim().to_owned())
}
