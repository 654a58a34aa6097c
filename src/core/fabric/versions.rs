//! The versions that must match where NVSwitches are shared: those of Fabric Manager, the host's
//! driver and the driver in each guest ("Fabric Manager User Guide": Fabric Manager refuses another
//! driver, and guests with another one get no NVLink).

use serde::Serialize;

/// The versions of a host; none: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FabricVersions {
    /// Version of the running Fabric Manager.
    pub manager: Option<String>,
    /// Version of the loaded driver.
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
    /// Compares them.
    pub fn check(&self) -> VersionCheck {
        match (&self.manager, &self.driver) {
            (Some(manager), Some(driver)) if manager == driver => VersionCheck::Same,
            (Some(_), Some(_)) => VersionCheck::Differ,
            _ => VersionCheck::NotChecked,
        }
    }

    /// Returns the version that a guest's driver must have: Fabric Manager's, which does not run
    /// with another driver.
    pub fn of_guests(&self) -> Option<&str> {
        self.manager.as_deref().or(self.driver.as_deref())
    }
}
