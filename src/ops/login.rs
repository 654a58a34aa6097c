//! The way into a running guest by ssh: its address, its user, and the jump host.

use crate::address::{AddressWanted, Addresses, addresses};
use crate::agent::Agent;
use crate::error::{Class, Result, classed};
use crate::guest::find;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::{Machine, Uri};
use crate::remote::way;
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

/// How long the agent may take to report the user.
const AGENT_WAIT: Duration = Duration::from_secs(10);
/// The ID of the first user of a Linux system, which cloud-init creates.
const FIRST_USER: &str = "1000";

/// A request to log in to a guest.
#[derive(Debug, Clone)]
pub struct LoginWanted {
    /// The domain.
    pub name: String,
    /// The user in the guest, if given by the caller.
    pub user: Option<String>,
    /// How long to wait for an address, in seconds.
    pub wait_s: u64,
}

/// The way into a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Login {
    /// Name of the domain.
    pub domain: String,
    /// Its UUID.
    pub uuid: String,
    /// Its address.
    pub address: IpAddr,
    /// The user in the guest; none: unknown.
    pub user: Option<String>,
    /// Arguments of `ssh` that lead to its machine; none: this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<Vec<String>>,
}

/// Finds the way into a guest, and waits for its address.
pub fn login(world: &World, wanted: &LoginWanted) -> Result<Login> {
    let LoginWanted { name, user, wait_s } = wanted;
    world.refuse_without_guests("ssh")?;
    let hypervisor = world.hypervisor()?;
    let uuid = find(&*hypervisor, name)?.uuid;
    let through = through(world, name)?;
    let asked = AddressWanted { name: name.clone(), wait_s: *wait_s, all: false };
    let Addresses::Best(found) = addresses(world, &asked)? else {
        unreachable!("one address is asked for")
    };
    // The address is the guest's own report if there is no other source.
    if through.is_none() && hypervisor.has_guests_here() && is_own(found.ip) {
        let message =
            format!("the address of `{name}` is said to be {}, of this machine", found.ip);
        let hint = format!("`gpuvm ip {} --all` shows who says so", word(name));
        return Err(classed(Class::Refused, message, hint));
    }
    let user = user.clone().or_else(|| first_user(&*hypervisor, name));
    Ok(Login { domain: name.clone(), uuid, address: found.ip, user, through })
}

/// Whether this machine has an address: a socket can be bound to it.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// How ssh reaches the guests' machine; none: it is this one.
fn through(world: &World, name: &str) -> Result<Option<Vec<String>>> {
    let Machine::Elsewhere { host } = world.machine()? else { return Ok(None) };
    let uri = world.hypervisor()?.opened_uri();
    let found = Uri::parse(&uri).as_ref().and_then(way);
    found.map(Some).ok_or_else(|| {
        let message = format!("domain `{name}` is on `{host}`, and the connection is not by ssh");
        classed(Class::OtherMachine, message, format!("run `gpuvm ssh {}` on `{host}`", word(name)))
    })
}

/// The first user of a guest, as its agent reports.
fn first_user(hypervisor: &dyn Hypervisor, name: &str) -> Option<String> {
    let agent = Agent::greet(hypervisor, name, AGENT_WAIT)?;
    first_of(&agent.read("/etc/passwd").ok()?)
}

/// The first user of a list of users (passwd(5)).
fn first_of(passwd: &str) -> Option<String> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let first = { fields }.find(|fields| fields.get(2) == Some(&FIRST_USER))?;
    let fit = |c: char| c.is_ascii_alphanumeric() || "._-$".contains(c);
    // This is input from the guest, and it goes on a command line.
    let name = first[0];
    (!name.is_empty() && !name.starts_with('-') && name.chars().all(fit)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::fake::{Fake, xml};
    use crate::stage::{Caller, UUID};
    use crate::world::Settings;
    use gpuvm_core::network::{AddressSource, GuestAddress};
    use std::rc::Rc;

    #[test]
    fn the_first_user_is_no_option() {
        let root = "root:x:0:0:root:/root:/bin/bash\n";
        let with = |line: &str| first_of(&format!("{root}{line}"));
        assert_eq!(with("ubuntu:x:1000:1000::/home/ubuntu:/bin/bash"), Some("ubuntu".into()));
        assert_eq!(with("-oProxyCommand=x:x:1000:1000::/:/bin/sh"), None);
        assert_eq!(with("a b:x:1000:1000::/:/bin/sh"), None);
        assert_eq!(with(":x:1000"), None);
        assert_eq!(with("other:x:1001:1001::/:/bin/sh"), None);
    }

    #[test]
    fn an_address_of_this_machine_is_no_guests() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn a_guest_of_this_machine_is_entered_at_its_address() {
        let fake = Rc::new(Fake::default());
        let nic = "<devices><interface type='network'><mac address='52:54:00:00:00:01'/>\
                   <source network='default'/></interface></devices></domain>";
        fake.put_xml(&xml("g", UUID).replace("</domain>", nic), true);
        let address: IpAddr = "192.0.2.7".parse().unwrap();
        let mac = "52:54:00:00:00:01".to_owned();
        fake.addresses.replace(vec![GuestAddress {
            mac,
            ip: address,
            source: AddressSource::Lease,
        }]);
        let world = World::on(fake, Settings::default(), Caller::who_says(Answer::Nobody));
        let wanted = LoginWanted { name: "g".into(), user: Some("me".into()), wait_s: 0 };
        let user = Some("me".to_owned());
        let (domain, uuid) = ("g".to_owned(), UUID.to_owned());
        let expected = Login { domain, uuid, address, user, through: None };
        assert_eq!(login(&world, &wanted).unwrap(), expected);
    }
}
