//! libvirt networks that hand out virtual functions.

use super::super::network::VfPool;
use super::super::storage::xml;
use super::Libvirt;
use super::call::{Failed, is_unsupported};
use gpuvm_core::bdf::Bdf;
use serde::Deserialize;

/// Returns the networks that hand out virtual functions, also those that do not run: their
/// functions are theirs when they do.
pub(super) fn vf_pools(libvirt: &Libvirt) -> Result<Vec<VfPool>, Failed> {
    let networks = match libvirt.connection().list_all_networks(0) {
        Err(e) if is_unsupported(&e) => return Ok(Vec::new()),
        networks => networks?,
    };
    let mut pools = Vec::new();
    for network in networks {
        // A network that is gone meanwhile is skipped.
        let Ok(text) = network.xml_desc(0) else { continue };
        pools.extend(read(&text));
    }
    Ok(pools)
}

/// Reads a network; `None` if it hands out no virtual functions.
fn read(text: &str) -> Option<VfPool> {
    let Document { name, forward } = xml::read::<Document>(text).ok()?;
    let forward = forward.filter(|forward| forward.mode.as_deref() == Some("hostdev"))?;
    let functions = forward.addresses.iter().filter_map(Address::bdf).collect();
    Some(VfPool { name, functions })
}

/// A network's definition, as far as needed.
#[derive(Debug, Deserialize)]
struct Document {
    name: String,
    forward: Option<Forward>,
}

/// How a network's packets are forwarded.
#[derive(Debug, Deserialize)]
struct Forward {
    /// `nat`, `bridge`, `hostdev`.
    #[serde(rename = "@mode")]
    mode: Option<String>,
    /// Virtual functions, which libvirt lists itself while the network of a card runs.
    #[serde(default, rename = "address")]
    addresses: Vec<Address>,
}

/// The address of a function.
#[derive(Debug, Deserialize)]
struct Address {
    #[serde(rename = "@domain")]
    domain: String,
    #[serde(rename = "@bus")]
    bus: String,
    #[serde(rename = "@slot")]
    slot: String,
    #[serde(rename = "@function")]
    function: String,
}

impl Address {
    /// Converts it to an address; none if it does not have libvirt's form.
    fn bdf(&self) -> Option<Bdf> {
        let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let byte = |text: &str| u8::try_from(hex(text)?).ok();
        let (segment, bus) = (hex(&self.domain)?, byte(&self.bus)?);
        Bdf::new(segment, bus, byte(&self.slot)?, byte(&self.function)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_networks_of_functions_are_pools() {
        let pool = "<network connections='1'><name>iovnet0</name><uuid>x</uuid>
          <forward mode='hostdev' managed='yes'><pf dev='enp134s0f0'/>
          <address type='pci' domain='0x0000' bus='0x86' slot='0x10' function='0x0'/>
          <address type='pci' domain='0x0000' bus='0x86' slot='0x10' function='0x2'/>
          </forward></network>";
        let VfPool { name, functions } = read(pool).unwrap();
        let functions: Vec<String> = functions.iter().map(ToString::to_string).collect();
        assert_eq!(
            (name.as_str(), functions),
            ("iovnet0", vec!["0000:86:10.0".into(), "0000:86:10.2".into()])
        );
        for other in [
            "<network><name>a</name><forward mode='nat'><nat><port start='1' \
             end='2'/></nat></forward></network>",
            "<network><name>a</name><bridge name='virbr0'/></network>",
            "<network>",
        ] {
            assert!(read(other).is_none(), "{other}");
        }
    }
}
