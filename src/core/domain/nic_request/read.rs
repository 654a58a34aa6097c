//! The settings of a NIC that a domain has, and their text form.

use super::{NicModel, NicSettings};
use crate::domain::Element;
use crate::domain::rate::Rate;

impl NicSettings {
    /// Reads the settings of an interface.
    pub fn of(nic: Element<'_>) -> NicSettings {
        let number = |element: Option<Element<'_>>, name: &str| {
            element.and_then(|element| element.attr(name)).and_then(|text| text.parse().ok())
        };
        let model = nic.child("model").and_then(|model| model.attr("type"));
        let model = model.and_then(|word| NicModel::ALL.into_iter().find(|m| m.word() == word));
        let rate = |name: &str| {
            let rate = nic.child("bandwidth")?.child(name)?;
            let of = |name: &str| rate.attr(name).and_then(|text| text.parse().ok());
            let peak_kb_s = of("peak");
            // The text form has no burst without a peak.
            let burst_kib = of("burst").filter(|_| peak_kb_s.is_some());
            Some(Rate { average_kb_s: of("average")?, peak_kb_s, burst_kib })
        };
        let mac = nic.child("mac").and_then(|mac| mac.attr("address"));
        let vlan = nic.child("vlan").and_then(|vlan| vlan.child("tag"));
        NicSettings {
            mac: mac.map(|mac| mac.to_ascii_lowercase()),
            model,
            queues: number(nic.child("driver"), "queues"),
            mtu: number(nic.child("mtu"), "size"),
            inbound: rate("inbound"),
            outbound: rate("outbound"),
            vlan: number(vlan, "id").and_then(|id| u16::try_from(id).ok()),
        }
    }

    /// Returns the settings as the option `network` takes them behind the network's name.
    pub fn keys(&self) -> String {
        let mut text = String::new();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!(",{key}={value}");
            }
        };
        add("mac", self.mac.clone());
        add("model", self.model.map(|model| model.word().to_owned()));
        add("queues", self.queues.map(|queues| queues.to_string()));
        add("mtu", self.mtu.map(|mtu| mtu.to_string()));
        add("inbound", self.inbound.map(|rate| rate.typed()));
        add("outbound", self.outbound.map(|rate| rate.typed()));
        add("vlan", self.vlan.map(|vlan| vlan.to_string()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::NicWish;
    use super::*;
    use crate::domain::DomainXml;

    #[test]
    fn read_values_survive_writing_and_reading() {
        let xml = "<domain><devices><interface type='network'><mac address='52:54:00:AA:00:01'/>\
                   <source network='lan'/><model type='virtio'/><driver queues='4'/>\
                   <mtu size='9000'/><vlan><tag id='7'/></vlan><bandwidth>\
                   <inbound average='125000' peak='200125' burst='4096'/><outbound average='1'/>\
                   </bandwidth></interface></devices></domain>";
        let xml = DomainXml::parse(xml).unwrap();
        let nic = xml.root().find("devices/interface").unwrap();
        let settings = NicSettings::of(nic);
        let text = format!("lan{}", settings.keys());
        assert_eq!(
            text,
            "lan,mac=52:54:00:aa:00:01,model=virtio,queues=4,mtu=9000,\
             inbound=1Gbit/s:1601Mbit/s:4096K,outbound=1kB/s,vlan=7"
        );
        assert_eq!(text.parse(), Ok(NicWish { network: "lan".into(), settings }));
        let bare = DomainXml::parse("<domain><interface/></domain>").unwrap();
        let bare = NicSettings::of(bare.root().child("interface").unwrap());
        assert!(bare.is_plain() && bare.keys().is_empty());
    }
}
