//! Passive ARP listening for guests' addresses. It finds the address of a guest on a bridge or
//! macvtap with a lease from another server, with which the host itself never communicated. Covers
//! this program's network namespace; only root may listen.

use super::network::mac;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// The most packets examined per call, so that heavy traffic does not delay the caller.
const MOST: usize = 50_000;

/// An ARP listener on every network device, from its opening on.
#[derive(Debug)]
pub struct Ear(OwnedFd);

impl Ear {
    /// Opens it. Errors: denied to anyone but root.
    pub fn open() -> io::Result<Ear> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        // Only a socket for all protocols receives packets that the host's NIC sends for a macvtap.
        let all = SockProtocol::EthAll;
        Ok(Ear(socket(AddressFamily::Packet, SockType::Raw, flags, all)?))
    }

    /// Returns the addresses announced by these MAC addresses since the last call, each once.
    pub fn hear(&self, macs: &[String]) -> Vec<(String, Ipv4Addr)> {
        let mut heard: Vec<(String, Ipv4Addr)> = Vec::new();
        let mut frame = [0; 64];
        for _ in 0..MOST {
            // Longer packets are truncated.
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

/// Returns the sender's MAC and IP address of an ARP packet (RFC 826); `None` if not ARP, or no
/// address.
fn said(frame: &[u8]) -> Option<(String, Ipv4Addr)> {
    /// Ethernet type ARP, then hardware Ethernet, protocol IPv4, and the lengths of their
    /// addresses.
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
        // Another protocol, another sender than it says, an empty address (a probe).
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
