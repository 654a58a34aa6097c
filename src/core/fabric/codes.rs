//! Return codes of Fabric Manager's library, and what each means for the call that returned it
//! (gpuvm-hardware(7), FABRIC MANAGER). Releases differ: older ones answer IN_USE and UNINITIALIZED
//! where newer ones name the partition.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The version word of a value is not known.
pub const VERSION_MISMATCH: i32 = -6;
/// The library was initialised before.
pub const IN_USE: i32 = -7;

/// Names of the codes from -1 downwards, without the prefix `FM_ST_`, with advice for each; empty:
/// none known.
const CODES: [(&str, &str); 29] = [
    ("BADPARAM", "the address in fabricmanager.cfg may be wrong"),
    ("GENERIC_ERROR", "its log has the reason: `journalctl -u nvidia-fabricmanager`"),
    (
        "NOT_SUPPORTED",
        "it runs in another mode than shared NVSwitch, or waits after a restart for the list of \
                       active partitions: see FABRIC_MODE in fabricmanager.cfg",
    ),
    ("UNINITIALIZED", "library and service may be of different versions"),
    ("TIMEOUT", "it does not answer: `systemctl status nvidia-fabricmanager`"),
    ("VERSION_MISMATCH", "install libnvfm and Fabric Manager of the same version"),
    ("IN_USE", "another program holds it; run the command again"),
    ("NOT_CONFIGURED", "it is still starting; run the command again in a minute"),
    (
        "CONNECTION_NOT_VALID",
        "it does not run, or listens elsewhere: `systemctl status nvidia-fabricmanager`",
    ),
    ("NVLINK_ERROR", "NVLinks could not be trained: `journalctl -u nvidia-fabricmanager`"),
    ("RESOURCE_BAD", ""),
    ("RESOURCE_IN_USE", ""),
    ("RESOURCE_NOT_IN_USE", ""),
    ("RESOURCE_EXHAUSTED", ""),
    ("RESOURCE_NOT_READY", "it is still starting; run the command again in a minute"),
    ("PARTITION_EXISTS", ""),
    ("PARTITION_ID_IN_USE", ""),
    ("PARTITION_ID_NOT_IN_USE", ""),
    ("PARTITION_NAME_IN_USE", ""),
    ("PARTITION_NAME_NOT_IN_USE", ""),
    ("PARTITION_ID_NAME_MISMATCH", ""),
    ("NOT_READY", "it is still starting; run the command again in a minute"),
    ("RESOURCE_USED_IN_THIS_PARTITION", ""),
    ("RESOURCE_USED_IN_ANOTHER_PARTITION", ""),
    ("PARTITION_MISWIRED_TRUNKS", "check the cables between the boards"),
    ("PARTITION_INSUFFICIENT_TRUNKS", "check the cables between the boards"),
    (
        "PARTITION_MISSING_SWITCHES",
        "an NVSwitch does not answer: `journalctl -u nvidia-fabricmanager`",
    ),
    ("PARTITION_NETWORK_CONFIG_ERROR", "`journalctl -u nvidia-fabricmanager`"),
    ("PARTITION_ROUTE_PROGRAMMING_ERROR", "`journalctl -u nvidia-fabricmanager`"),
];

/// A return code that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub i32);

/// A call to Fabric Manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Lists partitions, or any other call that changes nothing.
    List,
    /// Activates a partition, with or without virtual functions.
    Activate,
    /// Deactivates a partition.
    Deactivate,
    /// Sets the partitions that were active before a restart.
    SetActivated,
}

/// The meaning of a code for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meaning {
    /// Success.
    Done,
    /// Fabric Manager is still starting: retry.
    Starting,
    /// The partition is active, or GPUs of it are in another one: its list shows which.
    AlreadyActive,
    /// The partition is not active: the list shows whether that is true.
    AlreadyInactive,
    /// No service answers at the address.
    Unreachable,
    /// NVLinks could not be trained.
    LinksFailed,
    /// Wrong mode: NVSwitches are not shared, or Fabric Manager waits for the list of active
    /// partitions; for `SetActivated`: it does not wait for it.
    WrongMode,
    /// There is no such partition.
    NoPartition,
    /// Any other failure; only the list shows whether the change was made.
    Failed,
}

impl Code {
    /// Returns its entry in the table; none for an unpublished code.
    fn entry(self) -> Option<(&'static str, &'static str)> {
        let place = usize::try_from(self.0.checked_neg()?).ok()?.checked_sub(1)?;
        CODES.get(place).copied()
    }

    /// Returns the remedy if a call returned it; `None` if none is known.
    pub fn advice(self, call: Call) -> Option<&'static str> {
        match self.meaning(call) {
            Meaning::NoPartition => return Some("`gpuvm fabric show` lists the partitions"),
            Meaning::AlreadyActive | Meaning::AlreadyInactive => {
                return Some("`gpuvm fabric show` tells which partitions are active");
            }
            _ => {}
        }
        self.entry().map(|(_, advice)| advice).filter(|advice| !advice.is_empty())
    }

    /// Returns its meaning if this call returned it.
    pub fn meaning(self, call: Call) -> Meaning {
        match (self.0, call) {
            (0, _) => Meaning::Done,
            (-1, Call::Activate | Call::Deactivate | Call::SetActivated) => Meaning::NoPartition,
            (-3, _) => Meaning::WrongMode,
            (-4 | -18, Call::Deactivate) => Meaning::AlreadyInactive,
            (-7 | -17, Call::Activate) => Meaning::AlreadyActive,
            (-8 | -15 | -22, _) => Meaning::Starting,
            (-9, _) => Meaning::Unreachable,
            (-10, _) => Meaning::LinksFailed,
            _ => Meaning::Failed,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((name, _)) => write!(f, "{name} ({})", self.0),
            None => write!(f, "unknown code {}", self.0),
        }
    }
}
