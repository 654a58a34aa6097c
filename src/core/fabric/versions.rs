//! The versions that must match where NVSwitches are shared: those of Fabric Manager, its client
//! library, the host's driver and the driver in each guest ("Fabric Manager User Guide": Fabric
//! Manager refuses another driver, and guests with another one get no NVLink).

use serde::Serialize;

/// The versions of a host; none if not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FabricVersions {
    /// Version of the running Fabric Manager.
    pub manager: Option<String>,
    /// Version of the loaded driver.
    pub driver: Option<String>,
    /// Version of the client library.
    pub library: Option<String>,
}

/// The result of comparing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VersionCheck {
    /// They are the same, including that of the client library if known.
    Same,
    /// They are not.
    Differ,
    /// The version of Fabric Manager or of the driver is unknown.
    NotChecked,
}

/// Two versions that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionsApart {
    /// Fabric Manager's and the driver's.
    Driver {
        /// Fabric Manager's.
        manager: String,
        /// The driver's.
        driver: String,
    },
    /// Fabric Manager's and its client library's.
    Library {
        /// Fabric Manager's.
        manager: String,
        /// The library's.
        library: String,
    },
}

impl FabricVersions {
    /// Compares them.
    pub fn check(&self) -> VersionCheck {
        match (self.apart(), &self.manager, &self.driver) {
            (Some(_), ..) => VersionCheck::Differ,
            (None, Some(_), Some(_)) => VersionCheck::Same,
            _ => VersionCheck::NotChecked,
        }
    }

    /// Returns the first two that differ; unknown versions are not compared.
    pub fn apart(&self) -> Option<VersionsApart> {
        let manager = self.manager.clone()?;
        let other = |version: &Option<String>| version.clone().filter(|one| *one != manager);
        match (other(&self.driver), other(&self.library)) {
            (Some(driver), _) => Some(VersionsApart::Driver { manager, driver }),
            (None, Some(library)) => Some(VersionsApart::Library { manager, library }),
            (None, None) => None,
        }
    }

    /// Returns the version that a guest's driver must have: Fabric Manager's, which does not run
    /// with another driver.
    pub fn of_guests(&self) -> Option<&str> {
        self.manager.as_deref().or(self.driver.as_deref())
    }
}
