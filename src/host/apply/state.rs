//! Where what is kept beyond a run stands, and by which clock.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Directory of what is kept on a host.
const SHARED: &str = "/var/lib/gpuvm";

/// The directory of what this program keeps of a kind: the host's where it can be written, else the user's own.
pub fn state_directory(kind: &str) -> PathBuf {
    // Another user's own directory, where a user keeps what programs remember (XDG base directories).
    let own = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")));
    match own {
        Some(own) if !nix::unistd::geteuid().is_root() => own.join("gpuvm").join(kind),
        _ => Path::new(SHARED).join(kind),
    }
}

/// The directory of what this program keeps of a kind: in `state`, a caller's own, or where [`state_directory`] says.
pub fn kept_in(state: Option<&Path>, kind: &str) -> PathBuf {
    state.map_or_else(|| state_directory(kind), |state| state.join(kind))
}

/// The time now, in seconds since 1970, UTC.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
