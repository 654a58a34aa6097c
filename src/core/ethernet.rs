//! MAC addresses and VLAN IDs as typed by the user.

/// Reads a VLAN ID.
pub fn vlan(text: &str) -> Result<u16, String> {
    let vlan = text.parse().ok().filter(|vlan| (1..=4094).contains(vlan));
    vlan.ok_or_else(|| format!("VLAN `{text}` is not a number from 1 to 4094"))
}

/// Reads a unicast MAC address; returns it in lower case.
pub fn mac(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let byte = |part: &&str| {
        let digits = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        if digits { u8::from_str_radix(part, 16).ok() } else { None }
    };
    let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
    match bytes.as_deref() {
        Some([0, 0, 0, 0, 0, 0]) => {
            Err(format!("MAC address {text} cannot belong to an interface"))
        }
        Some([first, _, _, _, _, _]) if first & 1 == 0 => Ok(text.to_ascii_lowercase()),
        Some([_, _, _, _, _, _]) => Err(format!("MAC address {text} is a multicast address")),
        _ => Err(format!("`{text}` is not a MAC address such as 52:54:00:12:34:56")),
    }
}
