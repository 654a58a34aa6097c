//! A guest as a node of an IMEX domain, which shares GPU memory between the trays of a rack: the
//! service nvidia-imex runs in the system that has the GPUs (gpuvm-hardware(7), GRACE).

use super::file;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The addresses of all nodes, one a line. Their order must be the same on each.
const NODES: &str = "/etc/nvidia-imex/nodes_config.cfg";
/// Options of the driver, which makes the channel by which programs share memory.
const OPTIONS: &str = "options nvidia NVreg_CreateImexChannel0=1\n";
/// Makes the channel where the driver was loaded before its option was written, and starts the
/// service where the image has it.
const START: &str = r#"channels=/dev/nvidia-caps-imex-channels
major=$(awk '$2 == "nvidia-caps-imex-channels" { print $1 }' /proc/devices)
if [ -n "$major" ] && [ ! -e "$channels/channel0" ]; then
  mkdir -p "$channels" && mknod -m 666 "$channels/channel0" c "$major" 0
fi
systemctl cat nvidia-imex.service >/dev/null 2>&1 || exit 0
systemctl enable nvidia-imex.service
systemctl restart --no-block nvidia-imex.service
"#;

/// Adds the files of such a node, and the command that starts it.
pub(super) fn add(nodes: &[IpAddr], files: &mut Vec<Value>, commands: &mut Vec<Value>) {
    if nodes.is_empty() {
        return;
    }
    let sorted: BTreeSet<&IpAddr> = nodes.iter().collect();
    let lines: String = sorted.iter().map(|address| format!("{address}\n")).collect();
    files.push(file(NODES, &lines, "0644"));
    files.push(file("/etc/modprobe.d/gpuvm-imex.conf", OPTIONS, "0644"));
    commands.push(json!(["sh", "-c", START]));
}
