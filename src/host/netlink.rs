//! The kernel's routing socket (rtnetlink(7)): one request with all messages of the answer. Their
//! meaning is left to the callers.

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::fmt;
use std::io;

/// Bytes of the largest answer: a card with 255 virtual functions takes about 200 bytes for each.
const ANSWER_BYTES: usize = 256 << 10;

/// Sends a request and returns the kernel's answer: one message, many for a dump (`NLM_F_DUMP`),
/// `None` for a plain acknowledgement. Errors: those of the kernel.
pub fn ask(flags: u16, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let mut answers = Vec::new();
    loop {
        let mut read = Vec::with_capacity(ANSWER_BYTES);
        let got = socket.recv(&mut read, 0)?;
        if got == 0 || part(&read, &mut answers)? {
            return Ok(answers);
        }
    }
}

/// Reads one datagram of an answer; returns whether it is the last.
fn part(read: &[u8], answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    /// The flag that more messages follow (`NLM_F_MULTI`).
    const MORE: u16 = 2;
    let other = |what: &dyn fmt::Display| io::Error::other(what.to_string());
    let mut rest = read;
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
        let message = message.map_err(|error| other(&error))?;
        // Messages begin at multiples of four bytes.
        let length = usize::try_from(message.header.length).unwrap_or(0).next_multiple_of(4);
        rest = rest.get(length.max(4)..).unwrap_or_default();
        match message.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::InnerMessage(inner) => answers.push(inner),
            NetlinkPayload::Noop => {}
            _ => return Err(other(&"the kernel's answer is not understood")),
        }
        if message.header.flags & MORE == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
