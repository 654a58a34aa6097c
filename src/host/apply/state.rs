//! Directories of persistent state, and its clock.

use gpuvm_core::image::Sha256;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Directory of a user's own state, below the home directory (XDG base directories).
pub const OWN_STATE: &str = ".local/state/gpuvm";
const SHARED: &str = "/var/lib/gpuvm";

/// Returns the directory of a kind of state: the host's if writable, otherwise the user's own.
pub fn state_directory(kind: &str) -> PathBuf {
    state_root().join(kind)
}

/// Returns the directory of all state: the host's if writable, otherwise the user's own.
pub fn state_root() -> PathBuf {
    // The user's state directory (XDG base directories).
    let own = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")));
    match own {
        Some(own) if !nix::unistd::geteuid().is_root() => own.join("gpuvm"),
        _ => PathBuf::from(SHARED),
    }
}

/// Whether the state of this run is the host's.
pub fn is_shared_state() -> bool {
    state_root() == Path::new(SHARED)
}

/// Returns the directory of root's state, where this run records nothing and reads nothing; `None`
/// if it is the one of this run, or there is none.
pub fn other_state() -> Option<PathBuf> {
    let shared = PathBuf::from(SHARED);
    (state_root() != shared && shared.exists()).then_some(shared)
}

/// Returns the directory of a kind of state: in `state` if given, otherwise [`state_directory`].
pub fn kept_in(state: Option<&Path>, kind: &str) -> PathBuf {
    state.map_or_else(|| state_directory(kind), |state| state.join(kind))
}

/// The record in a directory of state that is about the file at a path.
pub(super) fn record_of(dir: &Path, path: &Path) -> PathBuf {
    let name: String = Sha256::of_bytes(path.as_os_str().as_bytes()).into();
    dir.join(format!("{name}.json"))
}

/// The time now, in seconds since 1970, UTC.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
