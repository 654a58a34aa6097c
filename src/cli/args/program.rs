//! The name that the program is called by.

use std::path::Path;

/// Whether the program runs under the name of `nvidia-vm`.
pub fn called_as_vendor() -> bool {
    let program = std::env::args_os().next();
    program.is_some_and(|path| Path::new(&path).file_name().is_some_and(|n| n == "nvidia-vm"))
}
