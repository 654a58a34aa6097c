//! Text forms of devices: the selection, and the settings of virtual functions.

use super::VfSettings;
use crate::bdf::{Bdf, BdfError};
use crate::ethernet::{mac, vlan};
use std::str::FromStr;

/// A device as the user names it: a number (an index of GPUs, a count of others), or a PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Digits only.
    Number(u32),
    /// An address.
    At(Bdf),
}

impl FromStr for Which {
    type Err = String;
    fn from_str(text: &str) -> Result<Which, String> {
        if let Ok(number) = text.parse()
            && !text.starts_with('+')
        {
            return Ok(Which::Number(number));
        }
        let bdf = text.parse().map(Which::At);
        bdf.map_err(|error: BdfError| format!("{error}, and no number"))
    }
}

/// Virtual functions as the user names them:
/// `N|BDF[,vlan=ID][,trust=on|off][,spoof=on|off][,mac=MAC]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfWish {
    /// How many, or which.
    pub which: Which,
    /// Their settings.
    pub settings: VfSettings,
}

impl FromStr for VfWish {
    type Err = String;
    fn from_str(text: &str) -> Result<VfWish, String> {
        let mut words = text.split(',');
        let which = words.next().unwrap_or_default().parse()?;
        let mut settings = VfSettings::default();
        for word in words {
            let unknown = || format!("`{word}` is none of vlan=, trust=, spoof=, mac=");
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let twice = match name {
                "vlan" => settings.vlan.replace(vlan(value)?).is_some(),
                "trust" => settings.guard.trust.replace(switch(word, value)?).is_some(),
                "spoof" => settings.guard.spoof.replace(switch(word, value)?).is_some(),
                "mac" => settings.mac.replace(mac(value)?).is_some(),
                _ => return Err(unknown()),
            };
            if twice {
                return Err(format!("{name}= is given twice"));
            }
        }
        if settings.mac.is_some() && matches!(which, Which::Number(number) if number != 1) {
            return Err("mac= is of one virtual function; give each by its address".into());
        }
        Ok(VfWish { which, settings })
    }
}

impl VfWish {
    /// Returns the settings of all of them in order; empty if none has any.
    pub fn settings(vfs: &[VfWish]) -> Vec<VfSettings> {
        let settings: Vec<VfSettings> = vfs.iter().map(|vf| vf.settings.clone()).collect();
        let plain = settings.iter().all(|one| *one == VfSettings::default());
        if plain { Vec::new() } else { settings }
    }
}

/// Reads `on` or `off`.
fn switch(word: &str, text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{word}` ends neither with on nor with off")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Guard;
    use super::*;

    #[test]
    fn a_device_is_a_number_or_an_address() {
        assert_eq!("7".parse(), Ok(Which::Number(7)));
        assert!("+7".parse::<Which>().is_err(), "it is no change by 7");
        assert_eq!("34:00.0".parse(), Ok(Which::At("0000:34:00.0".parse().unwrap())));
        for bad in ["", "-1", "34:00", "4294967296", "x"] {
            let error = bad.parse::<Which>().unwrap_err();
            assert!(error.contains("is not a PCI address"), "{bad}: {error}");
        }
    }

    #[test]
    fn settings_follow_a_number_or_an_address() {
        let plain: VfWish = "2".parse().unwrap();
        assert_eq!(plain, VfWish { which: Which::Number(2), settings: VfSettings::default() });
        assert!(VfWish::settings(std::slice::from_ref(&plain)).is_empty());
        let full: VfWish =
            "3b:00.2,vlan=5,trust=on,spoof=off,mac=52:54:00:AB:cd:ef".parse().unwrap();
        let guard = Guard { trust: Some(true), spoof: Some(false) };
        let mac = Some("52:54:00:ab:cd:ef".to_owned());
        assert_eq!(full.settings, VfSettings { mac, vlan: Some(5), guard });
        assert_eq!(VfWish::settings(&[plain, full.clone()])[1], full.settings);
    }

    #[test]
    fn nonsense_is_refused_with_the_word() {
        for (text, said) in [
            ("", "is not a PCI address"),
            ("1,", "`` is none of vlan="),
            ("1,vlan", "`vlan` is none of"),
            ("1,vlan=0", "VLAN `0` is not"),
            ("1,vlan=4095", "VLAN `4095` is not"),
            ("1,vlan=1,vlan=2", "vlan= is given twice"),
            ("1,trust=yes", "`trust=yes` ends neither"),
            ("1,rate=5", "`rate=5` is none of"),
            ("2,mac=52:54:00:00:00:01", "mac= is of one"),
            ("1,mac=01:00:5e:00:00:01", "is a multicast address"),
            ("1,mac=00:00:00:00:00:00", "cannot belong to an interface"),
            ("1,mac=52:54:00:00:00", "is not a MAC address"),
            ("1,mac=52:54:00:00:00:+1", "is not a MAC address"),
        ] {
            let error = text.parse::<VfWish>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
