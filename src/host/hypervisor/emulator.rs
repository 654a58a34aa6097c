//! Device properties of a QEMU program, from its help text: no machine is created, nothing is
//! opened.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Time limit of the help text; it takes a tenth of a second.
const DEADLINE: Duration = Duration::from_secs(5);
/// The most bytes read of a help text; a root port's has 3 KiB.
const MOST_BYTES: u64 = 64 << 10;

/// Returns the fastest link configurable for a root port of this QEMU, in units of 0.1 GT/s; `None`
/// if not configurable, or the program does not answer.
pub fn port_speed_dgts(program: &Path) -> Option<u32> {
    fastest(&help(program, "pcie-root-port")?)
}

/// Whether the speed of switch downstream ports is configurable in this QEMU; `None` if the program
/// does not answer. Otherwise they are links of 2.5 GT/s with one lane, over which NVIDIA's driver
/// refuses peer-to-peer transfers.
pub fn switch_has_speed(program: &Path) -> Option<bool> {
    Some(fastest(&help(program, "xio3130-downstream")?).is_some())
}

/// Returns QEMU's help text on a device.
fn help(program: &Path, device: &str) -> Option<String> {
    let mut command = crate::program::command(program);
    command.args(["-device", &format!("{device},help")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let running = crate::trace::Running::begins(&command);
    let mut child = command.spawn().ok()?;
    let mut pipe = child.stdout.take()?;
    // Shorter than a pipe's buffer, so QEMU ends even without a reader.
    let ended = ends(&mut child);
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    // It has ended.
    if let Ok(status) = child.wait() {
        running.ended(status);
    }
    let mut text = String::new();
    pipe.by_ref().take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Whether a program ends successfully in time.
fn ends(child: &mut Child) -> bool {
    let until = Instant::now() + DEADLINE;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return false,
        }
    }
    false
}

/// The fastest speed of the line `x-speed=<PCIELinkSpeed> - 2_5/5/8/16 (default: 16)`.
fn fastest(help: &str) -> Option<u32> {
    let line = help.lines().find(|line| line.trim_start().starts_with("x-speed="))?;
    let words = line.split_once(" - ")?.1.split_whitespace().next()?;
    let dgts = |word: &str| match word.split_once('_') {
        Some((whole, tenth)) => Some(whole.parse::<u32>().ok()? * 10 + tenth.parse::<u32>().ok()?),
        None => word.parse::<u32>().ok()?.checked_mul(10),
    };
    words.split('/').filter_map(dgts).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_speeds_that_qemu_offers() {
        let help = "pcie-root-port options:\n  x-pcie-lnksta-dllla=<bool> - on/off (default: on)\n  \
                    x-speed=<PCIELinkSpeed> - 2_5/5/8/16/32/64 (default: 16)\n  \
                    x-width=<PCIELinkWidth> - 1/2/4/8/12/16/32 (default: 32)\n";
        assert_eq!(fastest(help), Some(640));
        assert_eq!(fastest("  x-speed=<PCIELinkSpeed> - 2_5\n"), Some(25));
        for bad in ["", "x-speed", "x-speed=<str>", "x-speed=<str> - ", "x-speed=<str> - a/b"] {
            assert_eq!(fastest(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_invalid_or_silent_emulator_reports_nothing() {
        assert_eq!(port_speed_dgts(Path::new("/nonexistent")), None);
        assert_eq!(port_speed_dgts(Path::new("/bin/false")), None);
        assert_eq!(port_speed_dgts(Path::new("/bin/true")), None);
    }
}
