//! The machine type of a guest: one with PCI Express.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A machine type of QEMU with PCI Express: `q35`, `pc-q35-10.0`, `virt`, `virt-9.2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct MachineModel(String);

/// The names without a version, each with the start of those with one.
const FAMILIES: [(&str, &str); 2] = [("q35", "pc-q35-"), ("virt", "virt-")];

impl MachineModel {
    /// Returns its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is one of x86.
    pub fn is_x86(&self) -> bool {
        self.family().0 == "q35"
    }

    /// Whether a definition's machine is this one: a name without a version is any of its versions,
    /// which libvirt writes in its place.
    pub fn is(&self, defined: &str) -> bool {
        let (short, start) = self.family();
        self.0 == defined || self.0 == short && defined.starts_with(start)
    }

    /// Returns its name without a version, and the start of those with one.
    fn family(&self) -> (&'static str, &'static str) {
        let is_of = |(short, start): &(&str, &str)| self.0 == *short || self.0.starts_with(start);
        FAMILIES.into_iter().find(is_of).expect("checked when it was made")
    }
}

impl FromStr for MachineModel {
    type Err = String;
    fn from_str(text: &str) -> Result<MachineModel, String> {
        let is_version = |rest: &str| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let is_of = |(short, start): &(&str, &str)| {
            text == *short || text.strip_prefix(start).is_some_and(is_version)
        };
        if FAMILIES.iter().any(is_of) {
            Ok(MachineModel(text.to_owned()))
        } else {
            Err("not q35, pc-q35-VERSION, virt or virt-VERSION: others have no PCI Express".into())
        }
    }
}

impl fmt::Display for MachineModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for MachineModel {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<MachineModel, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_version_is_any_of_them() {
        let of = |text: &str| text.parse::<MachineModel>().unwrap();
        assert!(of("q35").is("pc-q35-10.0") && of("q35").is("q35") && of("q35").is_x86());
        assert!(of("pc-q35-noble").is("pc-q35-noble") && !of("pc-q35-9.2").is("pc-q35-10.0"));
        assert!(of("virt").is("virt-9.2") && !of("virt-9.2").is("virt") && !of("virt").is_x86());
        for bad in ["pc", "pc-i440fx-9.2", "pc-q35-", "pc-q35-9 2", "", "Q35", "virt-9/2"] {
            assert!(bad.parse::<MachineModel>().is_err(), "{bad}");
        }
    }
}
