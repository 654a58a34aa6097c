//! The versions that have to be the same where NVSwitches are shared: Fabric Manager's, that of the host's driver, and that
//! of the driver in each guest ("Fabric Manager User Guide"; it refuses another driver, and guests with another one get no
//! NVLink).

use serde::Serialize;

/// The versions of a host; none: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FabricVersions {
    /// Of Fabric Manager as it runs.
    pub manager: Option<String>,
    /// Of the driver that is loaded.
    pub driver: Option<String>,
}

/// What is to be said of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VersionCheck {
    /// They are the same.
    Same,
    /// They are not.
    Differ,
    /// One of them is not known.
    NotChecked,
}

impl FabricVersions {
    /// What is to be said of them.
    pub fn check(&self) -> VersionCheck {
        match (&self.manager, &self.driver) {
            (Some(manager), Some(driver)) if manager == driver => VersionCheck::Same,
            (Some(_), Some(_)) => VersionCheck::Differ,
            _ => VersionCheck::NotChecked,
        }
    }

    /// The version that a guest's driver has to have: Fabric Manager's, which does not run beside another driver.
    pub fn of_guests(&self) -> Option<&str> {
        self.manager.as_deref().or(self.driver.as_deref())
    }
}
