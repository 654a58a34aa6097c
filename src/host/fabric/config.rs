//! Reads mode and address from Fabric Manager's configuration file (gpuvm-hardware(7), FABRIC
//! MANAGER). Read-only: the file belongs to Fabric Manager, which validates it.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::topology::{FABRIC_CONFIG, FabricModel};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The file's path in NVIDIA's packages.
pub const PATH: &str = FABRIC_CONFIG;

/// Fabric Manager's own port, omitted in addresses.
const PORT: &str = "6666";

/// How NVSwitches are used, `FABRIC_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// 0: bare metal and full passthrough.
    Passthrough,
    /// 1: shared NVSwitch.
    Shared,
    /// 2: shared NVSwitch for vGPU.
    Vgpu,
}

/// The address that Fabric Manager listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Address {
    /// IP address, with `:port` if it is not the default.
    Inet(String),
    /// Path of a Unix socket.
    Unix(String),
}

/// The settings in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The mode; none if the file or the key is missing.
    pub mode: Option<Mode>,
    /// The address that Fabric Manager listens on.
    pub address: Address,
    /// Notes on values that were not understood.
    pub notes: Vec<String>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(text) | Address::Unix(text) => f.write_str(text),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config { mode: None, address: Address::Inet("127.0.0.1".into()), notes: Vec::new() }
    }
}

impl Mode {
    /// Returns the model for placing guests.
    pub fn model(self) -> FabricModel {
        match self {
            Mode::Passthrough => FabricModel::FullPassthrough,
            Mode::Shared | Mode::Vgpu => FabricModel::SharedNvswitch,
        }
    }
}

impl Config {
    /// Whether it is set to a mode in which no guest gets a virtual function.
    pub fn is_of_whole_gpus(&self) -> bool {
        matches!(self.mode, Some(Mode::Passthrough | Mode::Shared))
    }

    /// Whether guests get virtual functions, with which partitions are activated.
    pub fn is_of_vgpu(&self) -> bool {
        self.mode == Some(Mode::Vgpu)
    }

    /// Reads a host's file.
    pub fn read(root: &FsRoot) -> Result<Config, FsError> {
        Ok(root.read(PATH)?.map(|text| Config::parse(&text)).unwrap_or_default())
    }

    /// Reads the file's text: lines `KEY=VALUE`, the last of a key counts, `#` starts a comment.
    fn parse(text: &str) -> Config {
        let mut config = Config::default();
        let (mut ip, mut port, mut socket) = ("127.0.0.1", PORT, "");
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default();
            let Some((key, value)) = text.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match key.trim() {
                "FABRIC_MODE" => match value {
                    "0" => config.mode = Some(Mode::Passthrough),
                    "1" => config.mode = Some(Mode::Shared),
                    "2" => config.mode = Some(Mode::Vgpu),
                    _ => {
                        let reason = crate::fsroot::not(value, "a mode: 0, 1 or 2");
                        config.notes.push(format!("{PATH} line {line}: FABRIC_MODE {reason}"));
                    }
                },
                "FM_CMD_BIND_INTERFACE" if !value.is_empty() => ip = value,
                "FM_CMD_PORT_NUMBER" if !value.is_empty() => port = value,
                "FM_CMD_UNIX_SOCKET_PATH" => socket = value,
                _ => {}
            }
        }
        // A server that listens on all addresses is reached on this one.
        let ip = if ip == "0.0.0.0" { "127.0.0.1" } else { ip };
        config.address = match (socket, port) {
            ("", PORT) => Address::Inet(ip.into()),
            ("", port) => Address::Inet(format!("{ip}:{port}")),
            (path, _) => Address::Unix(path.into()),
        };
        config
    }
}

/// Returns the file's text with another path for Fabric Manager's state, and the changed lines as a
/// diff; none unless the state is below /tmp, its default (`STATE_FILE_NAME`).
pub fn with_state_file(text: &str, state: &str) -> Option<(String, Vec<String>)> {
    let line_of = |line: &&str| {
        let said = line.split('#').next().unwrap_or_default();
        said.split_once('=').is_some_and(|(key, _)| key.trim() == "STATE_FILE_NAME")
    };
    let new = format!("STATE_FILE_NAME={state}");
    // The last occurrence of a key counts.
    let Some(old) = text.lines().rfind(line_of) else {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        return Some((format!("{text}{end}{new}\n"), vec![format!("+{new}")]));
    };
    let value = old.split_once('=').map(|(_, value)| value.trim().trim_matches('"'));
    let is_cleaned = value.is_some_and(|value| value.is_empty() || value.starts_with("/tmp/"));
    if !is_cleaned {
        return None;
    }
    let at = text.rfind(old)?;
    let after = format!("{}{new}{}", &text[..at], &text[at + old.len()..]);
    Some((after, vec![format!("-{old}"), format!("+{new}")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_leaves_tmp_and_no_other_place() {
        let with = |text| with_state_file(text, "/var/lib/x");
        let lines = |all: &[&str]| all.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        let replaced = with("A=1\nSTATE_FILE_NAME=/tmp/fabricmanager.state\nB=2").unwrap();
        let changed =
            lines(&["-STATE_FILE_NAME=/tmp/fabricmanager.state", "+STATE_FILE_NAME=/var/lib/x"]);
        assert_eq!(replaced, ("A=1\nSTATE_FILE_NAME=/var/lib/x\nB=2".into(), changed));
        let added = with("A=1\n#STATE_FILE_NAME=/tmp/y").unwrap();
        let text = "A=1\n#STATE_FILE_NAME=/tmp/y\nSTATE_FILE_NAME=/var/lib/x\n";
        assert_eq!(added, (text.into(), lines(&["+STATE_FILE_NAME=/var/lib/x"])));
        assert_eq!(with("STATE_FILE_NAME=/var/own"), None);
    }

    #[test]
    fn keys_are_read_and_bad_ones_named() {
        let inet = |text: &str| Address::Inet(text.into());
        for (text, mode, address, notes) in [
            ("", None, inet("127.0.0.1"), 0),
            ("FABRIC_MODE=0\n", Some(Mode::Passthrough), inet("127.0.0.1"), 0),
            (
                " FABRIC_MODE = 1 # shared\nFM_CMD_PORT_NUMBER=6666\n",
                Some(Mode::Shared),
                inet("127.0.0.1"),
                0,
            ),
            ("FABRIC_MODE=0\nFABRIC_MODE=2", Some(Mode::Vgpu), inet("127.0.0.1"), 0),
            ("#FABRIC_MODE=1\nFABRIC_MODE_RESTART=1", None, inet("127.0.0.1"), 0),
            ("FABRIC_MODE=shared", None, inet("127.0.0.1"), 1),
            ("FABRIC_MODE=", None, inet("127.0.0.1"), 1),
            (
                "FM_CMD_BIND_INTERFACE=10.0.0.5\nFM_CMD_PORT_NUMBER=7000",
                None,
                inet("10.0.0.5:7000"),
                0,
            ),
            ("FM_CMD_BIND_INTERFACE=0.0.0.0", None, inet("127.0.0.1"), 0),
            (
                "FM_CMD_UNIX_SOCKET_PATH=/run/fm.sock\nFM_CMD_PORT_NUMBER=1",
                None,
                Address::Unix("/run/fm.sock".into()),
                0,
            ),
            ("FM_CMD_UNIX_SOCKET_PATH=\"\"\n=\nnoise", None, inet("127.0.0.1"), 0),
        ] {
            let config = Config::parse(text);
            assert_eq!((config.mode, &config.address), (mode, &address), "{text}");
            assert_eq!(config.notes.len(), notes, "{text}: {:?}", config.notes);
        }
        let note = &Config::parse("\n\nFABRIC_MODE=9").notes[0];
        assert_eq!(note, &format!("{PATH} line 3: FABRIC_MODE `9` is not a mode: 0, 1 or 2"));
    }
}
