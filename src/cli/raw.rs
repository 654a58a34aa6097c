//! A terminal whose keys go to a guest as they are typed.

use anyhow::Context as _;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::os::fd::BorrowedFd;

/// A terminal in raw mode; restored on drop, even after a panic.
pub(super) struct Raw<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Raw<'a> {
    /// Enters raw mode: every key goes to the guest, even Ctrl-C.
    pub(super) fn new(terminal: BorrowedFd<'a>) -> anyhow::Result<Raw<'a>> {
        let before = tcgetattr(terminal).context("cannot read the terminal's mode")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(terminal, SetArg::TCSADRAIN, &raw).context("cannot set the terminal's mode")?;
        Ok(Raw { terminal, before })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let _ = tcsetattr(self.terminal, SetArg::TCSADRAIN, &self.before);
    }
}
