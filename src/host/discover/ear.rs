//! What guests say of their addresses on the wire: ARP packets, heard and not asked for. It is how the address of a guest
//! on a bridge or macvtap shows whose lease is of another server and whom the host itself never spoke with. Of the network
//! namespace that this program runs in; only root may listen.

use super::network::mac;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Packets that are looked at in one call at most, so that a host of much traffic holds nobody up.
const MOST: usize = 50_000;

/// An open ear: it hears from now on, on every network device.
#[derive(Debug)]
pub struct Ear(OwnedFd);

impl Ear {
    /// Opens it. Errors: the system says no, to anyone but root.
    pub fn open() -> io::Result<Ear> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        // What the host's NIC sends for a macvtap is heard by a socket for all protocols alone.
        let all = SockProtocol::EthAll;
        Ok(Ear(socket(AddressFamily::Packet, SockType::Raw, flags, all)?))
    }

    /// The addresses that these MAC addresses said since the last call, each once.
    pub fn hear(&self, macs: &[String]) -> Vec<(String, Ipv4Addr)> {
        let mut heard: Vec<(String, Ipv4Addr)> = Vec::new();
        let mut frame = [0; 64];
        for _ in 0..MOST {
            // Of longer packets the rest is lost.
            match recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                Ok(length) => {
                    let said = said(&frame[..length.min(frame.len())]);
                    let said = said.filter(|said| macs.contains(&said.0) && !heard.contains(said));
                    heard.extend(said);
                }
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        heard
    }
}

/// Who says in an ARP packet (RFC 826) that an address is theirs; none: it is none, or says nothing.
fn said(frame: &[u8]) -> Option<(String, Ipv4Addr)> {
    /// Ethernet type ARP, then hardware Ethernet, protocol IPv4, and the lengths of their addresses.
    const HEAD: [u8; 8] = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4];
    let (sender, said) = (frame.get(6..12)?, frame.get(22..28)?);
    if frame.get(12..20)? != HEAD || sender != said {
        return None;
    }
    let ip: [u8; 4] = frame.get(28..32)?.try_into().ok()?;
    let ip = Ipv4Addr::from(ip);
    (!ip.is_unspecified()).then(|| (mac(said), ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ARP request of 52:54:00:00:00:07, which has 10.0.0.7.
    const ASKS: [u8; 42] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 7, 0x08, 0x06, 0, 1, 0x08, 0, 6,
        4, 0, 1, 0x52, 0x54, 0, 0, 0, 7, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1,
    ];

    #[test]
    fn arp_packets_say_whose_address_it_is() {
        let mac = "52:54:00:00:00:07".to_owned();
        assert_eq!(said(&ASKS), Some((mac, Ipv4Addr::new(10, 0, 0, 7))));
        let with = |at: usize, byte: u8| {
            let mut frame = ASKS;
            frame[at] = byte;
            said(&frame)
        };
        // Another protocol, another sender than it says, an address that is none (a probe).
        assert_eq!(
            (with(13, 0), with(11, 8), with(28, 0).map(|(_, ip)| ip)),
            (None, None, Some(Ipv4Addr::new(0, 0, 0, 7)))
        );
        let mut probe = ASKS;
        probe[28..32].fill(0);
        assert_eq!(said(&probe), None);
        (0..32).for_each(|length| assert_eq!(said(&ASKS[..length]), None));
    }
}
