//! The settings of a network card's virtual function on its card, for the guest that gets it.

use super::{DeviceWish, Extras};
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The permissions of a virtual function on its NIC; none if unchanged, or unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Guard {
    /// Whether it may change its MAC address, be promiscuous and join any multicast group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Whether frames from another MAC address than its own are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoof: Option<bool>,
}

impl Guard {
    /// Whether nothing is to be set.
    pub fn is_empty(self) -> bool {
        self == Guard::default()
    }

    /// Returns the settings that differ from the current ones.
    pub fn beyond(self, now: Guard) -> Guard {
        let differs = |wanted: Option<bool>, now: Option<bool>| wanted.filter(|_| wanted != now);
        Guard { trust: differs(self.trust, now.trust), spoof: differs(self.spoof, now.spoof) }
    }

    /// Returns the known values of the settings that `wish` sets.
    pub fn within(self, wish: Guard) -> Guard {
        Guard { trust: wish.trust.and(self.trust), spoof: wish.spoof.and(self.spoof) }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |name: &str, value: Option<bool>| {
            value.map(|on| format!("{name} {}", if on { "on" } else { "off" }))
        };
        let words = [word("trust", self.trust), word("spoof check", self.spoof)];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.write_str(if words.is_empty() { "nothing".into() } else { words.join(", ") }.as_str())
    }
}

/// How a virtual function is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VfSettings {
    /// Its MAC address, lower case; `None` if one that is made from the guest's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// VLAN of its frames, 1 to 4094; `None` without VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Its permissions.
    #[serde(flatten)]
    pub guard: Guard,
}

impl VfSettings {
    /// Returns them with the settings of `said` in place of its own.
    pub fn over(&self, said: &VfSettings) -> VfSettings {
        let Guard { trust, spoof } = said.guard;
        VfSettings {
            mac: said.mac.clone().or_else(|| self.mac.clone()),
            vlan: said.vlan.or(self.vlan),
            guard: Guard { trust: trust.or(self.guard.trust), spoof: spoof.or(self.guard.spoof) },
        }
    }
}

impl fmt::Display for VfSettings {
    /// Writes them as they follow a virtual function on the command line: `,vlan=5,trust=on`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on: bool| if on { "on" } else { "off" }.to_owned();
        let all = [
            ("vlan", self.vlan.map(|vlan| vlan.to_string())),
            ("trust", self.guard.trust.map(word)),
            ("spoof", self.guard.spoof.map(word)),
            ("mac", self.mac.clone()),
        ];
        for (name, value) in all {
            if let Some(value) = value {
                write!(f, ",{name}={value}")?;
            }
        }
        Ok(())
    }
}

impl Extras {
    /// Returns the settings of one of the guest's virtual functions.
    pub fn settings_of(&self, bdf: Bdf) -> VfSettings {
        let at = match &self.vfs {
            DeviceWish::Count(_) => Some(0),
            DeviceWish::Exact(bdfs) => bdfs.iter().position(|asked| *asked == bdf),
        };
        at.and_then(|at| self.vf_settings.get(at)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_what_differs_and_its_undoing_what_was_known() {
        let wish = Guard { trust: Some(true), spoof: Some(false) };
        let now = Guard { trust: Some(false), spoof: Some(false) };
        assert_eq!(wish.beyond(now), Guard { trust: Some(true), spoof: None });
        assert_eq!(now.within(wish.beyond(now)), Guard { trust: Some(false), spoof: None });
        assert_eq!(wish.to_string(), "trust on, spoof check off");
        assert!(wish.beyond(wish).is_empty());
    }

    #[test]
    fn settings_are_written_as_they_are_read() {
        let text = "3b:00.2,vlan=5,trust=on,spoof=off,mac=52:54:00:ab:cd:ef";
        let settings = text.parse::<super::super::VfWish>().unwrap().settings;
        assert_eq!(format!("3b:00.2{settings}"), text);
        let none = VfSettings::default();
        assert_eq!((none.to_string(), none.over(&settings)), (String::new(), settings.clone()));
        let other = VfSettings { vlan: Some(6), ..none };
        assert_eq!(settings.over(&other), VfSettings { vlan: Some(6), ..settings });
    }

    #[test]
    fn settings_are_of_all_counted_ones_or_of_each_named_one() {
        let bdf = |function: u8| Bdf::new(0, 0x3b, 0, function).unwrap();
        let vlan = |vlan| VfSettings { vlan: Some(vlan), ..VfSettings::default() };
        let vf_settings = vec![vlan(5), vlan(6)];
        let vfs = DeviceWish::Exact(vec![bdf(3), bdf(2)]);
        let named = Extras { vfs, vf_settings: vf_settings.clone(), ..Extras::default() };
        assert_eq!(named.settings_of(bdf(2)), vlan(6));
        assert_eq!(named.settings_of(bdf(4)), VfSettings::default());
        let counted = Extras { vfs: DeviceWish::Count(2), vf_settings, ..Extras::default() };
        assert_eq!(counted.settings_of(bdf(4)), vlan(5));
        let text = serde_json::to_string(&named).unwrap();
        assert_eq!(serde_json::from_str::<Extras>(&text).unwrap(), named);
    }
}
