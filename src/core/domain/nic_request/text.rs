//! The text form of a guest's NIC: its network and settings.

use super::{MOST_QUEUES, MTUS, NicModel, NicSettings, NicWish};
use crate::domain::rate::Rate;
use crate::ethernet::{mac, vlan};
use std::str::FromStr;

/// Queues that a NIC may have.
const QUEUES: std::ops::RangeInclusive<u32> = 1..=MOST_QUEUES;

/// Reads a NIC:
/// `NETWORK[,mac=][,queues=][,mtu=][,bandwidth=][,inbound=][,outbound=][,vlan=][,model=]`.
fn nic(text: &str) -> Result<NicWish, String> {
    let mut words = text.split(',');
    let network = words.next().unwrap_or_default();
    if network.is_empty() {
        return Err("the network's name comes first".into());
    }
    if network.contains('=') {
        return Err(format!("the network's name comes first, not `{network}`"));
    }
    let mut settings = NicSettings::default();
    for word in words {
        let unknown = || {
            format!(
                "`{word}` is none of mac=, queues=, mtu=, bandwidth=, inbound=, outbound=, vlan=, \
                 model="
            )
        };
        let (name, value) = word.split_once('=').ok_or_else(unknown)?;
        let twice = match name {
            "mac" => settings.mac.replace(mac(value)?).is_some(),
            "queues" => settings.queues.replace(number(word, value, QUEUES)?).is_some(),
            "mtu" => settings.mtu.replace(number(word, value, MTUS)?).is_some(),
            "inbound" => settings.inbound.replace(rate(value)?).is_some(),
            "outbound" => settings.outbound.replace(rate(value)?).is_some(),
            "bandwidth" => {
                let rate = rate(value)?;
                let before = settings.inbound.replace(rate);
                settings.outbound.replace(rate).or(before).is_some()
            }
            "vlan" => settings.vlan.replace(vlan(value)?).is_some(),
            "model" => settings.model.replace(model(value)?).is_some(),
            _ => return Err(unknown()),
        };
        if twice {
            return Err(format!("`{word}`: that is given twice"));
        }
    }
    if let Some(model) = settings.model.filter(|model| *model != NicModel::Virtio)
        && settings.queues.is_some()
    {
        return Err(format!("queues= is for model=virtio, not for {}", model.word()));
    }
    Ok(NicWish { network: network.to_owned(), settings })
}

impl FromStr for NicWish {
    type Err = String;
    fn from_str(text: &str) -> Result<NicWish, String> {
        nic(text)
    }
}

impl std::fmt::Display for NicWish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.network, self.settings.keys())
    }
}

/// Reads a number within a range.
fn number(word: &str, text: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let wrong = || format!("`{word}` is not a number from {} to {}", range.start(), range.end());
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(wrong)
}

/// Reads a rate: average, then optionally peak and burst, separated by colons.
fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("`{text}` is not a rate such as 1Gbit/s or 100MB/s:200MB/s:4M");
    Rate::read(text, ':').ok_or_else(wrong)
}

fn model(text: &str) -> Result<NicModel, String> {
    let found = NicModel::ALL.into_iter().find(|model| model.word() == text);
    let known = || NicModel::ALL.map(NicModel::word).join(", ");
    found.ok_or_else(|| format!("`{text}` is none of the models {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_follow_the_network() {
        assert_eq!(nic("lan"), Ok(NicWish::on("lan")));
        let rate = |average_kb_s| Rate { average_kb_s, peak_kb_s: None, burst_kib: None };
        let all =
            "lan,mac=52:54:00:AA:00:01,queues=4,mtu=9000,bandwidth=1Gbit/s,vlan=7,model=virtio";
        let settings = NicSettings {
            mac: Some("52:54:00:aa:00:01".into()),
            model: Some(NicModel::Virtio),
            queues: Some(4),
            mtu: Some(9000),
            inbound: Some(rate(125_000)),
            outbound: Some(rate(125_000)),
            vlan: Some(7),
        };
        let read = nic(all).unwrap();
        assert_eq!(read, NicWish { network: "lan".into(), settings });
        assert_eq!(nic(&read.to_string()), Ok(read.clone()));
        let words = ["mac=", "model=", "queues=", "mtu=", "inbound=", "outbound=", "vlan="];
        assert_eq!(read.settings.words(), words);
        let one = nic("lan,inbound=100MB/s:200MB/s:4M").unwrap();
        assert_eq!(nic(&one.to_string()), Ok(one.clone()));
        let one = one.settings;
        let (peak_kb_s, burst_kib) = (Some(200_000), Some(4096));
        assert_eq!(one.inbound, Some(Rate { average_kb_s: 100_000, peak_kb_s, burst_kib }));
        assert_eq!(one.outbound, None);
    }

    #[test]
    fn nonsense_is_refused_with_the_word() {
        for (text, said) in [
            ("", "comes first"),
            ("mtu=9000", "not `mtu=9000`"),
            ("lan,", "`` is none of mac="),
            ("lan,speed=1", "`speed=1` is none of"),
            ("lan,mtu=67", "`mtu=67` is not a number from 68 to 65535"),
            ("lan,queues=0", "from 1 to 256"),
            ("lan,queues=257", "from 1 to 256"),
            ("lan,mac=01:00:5e:00:00:01", "is a multicast address"),
            ("lan,vlan=0", "VLAN `0`"),
            ("lan,bandwidth=100", "`100` is not a rate"),
            ("lan,inbound=1Gbit/s:2Gbit/s:4M:1", "is not a rate"),
            ("lan,bandwidth=1Gbit/s,inbound=1Gbit/s", "given twice"),
            ("lan,model=ne2k", "none of the models virtio, e1000e"),
            ("lan,model=e1000e,queues=2", "queues= is for model=virtio"),
        ] {
            let error = nic(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
