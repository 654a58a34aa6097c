//! The way into a running guest by ssh: its address, its user, and the jump host.

use crate::address::{AddressWanted, Addresses, addresses};
use crate::apply::mac_owner;
use crate::discover::network::is_own_address;
use crate::discover::reach::Reach;
use crate::domain::DomainXml;
use crate::error::{Class, Result, classed};
use crate::guest::{find_alive, has_ended};
use crate::history::guest;
use crate::hypervisor::machine::{Machine, Uri};
use crate::hypervisor::{Hypervisor, XmlOf};
use crate::lookup::find;
use crate::network::GuestAddress;
use crate::remote::way;
use crate::shell::word;
use crate::world::World;
use serde::Serialize;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A request to log in to a guest.
#[derive(Debug, Clone)]
pub struct LoginWanted {
    /// The domain.
    pub name: String,
    /// The user in the guest, if given by the caller.
    pub user: Option<String>,
    /// Whether the caller's options for ssh name the user.
    pub user_is_set: bool,
    /// The address, if given by the caller, who answers for it.
    pub address: Option<IpAddr>,
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
    /// Whether packets to it are known to reach the guest; false: the caller named it, or only
    /// another machine's libvirt does.
    pub proven: bool,
    /// The user in the guest; `None` if unknown.
    pub user: Option<String>,
    /// Arguments of `ssh` that lead to its machine; `None` for this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<Vec<String>>,
}

impl Login {
    /// Options of ssh that keep a guest from using anything of the caller, and that lead to it
    /// alone.
    pub fn safe_options(&self) -> Vec<String> {
        // A guest may use anything forwarded to it: keys of the agent, the display, credentials.
        let forwards = ["ForwardAgent", "ForwardX11", "GSSAPIDelegateCredentials"];
        let mut options: Vec<String> =
            forwards.iter().map(|forward| format!("{forward}=no")).collect();
        // A shared connection is found by address alone, and networks of several machines use the
        // same addresses.
        options.push("ControlPath=none".into());
        // A proxy in the caller's settings for such an address is not meant for this guest.
        options.push(self.through.as_ref().map_or("ProxyCommand=none".to_owned(), |through| {
            // ssh expands percent signs.
            let words: Vec<String> = through.iter().map(|w| word(w).replace('%', "%%")).collect();
            format!("ProxyCommand=ssh -W '[%h]:%p' {}", words.join(" "))
        }));
        options
    }

    /// The name by which ssh knows the guest's host key.
    pub fn key_alias(&self) -> String {
        format!("gpuvm-{}", self.uuid)
    }
}

/// Finds the way into a guest, and waits for its address.
pub fn login(world: &World, wanted: &LoginWanted) -> Result<Login> {
    let LoginWanted { name, user, .. } = wanted;
    world.refuse_without_guests("ssh")?;
    let hypervisor = &*world.hypervisor()?;
    let uuid = find(hypervisor, name)?.uuid;
    let through = through(world, name)?;
    let (address, proven) = match wanted.address {
        Some(ip) => {
            find_alive(hypervisor, name, "it has no address")?;
            (ip.to_canonical(), false)
        }
        None => proven(world, wanted, hypervisor, &uuid)?,
    };
    // Behind a way of ssh, this machine's addresses may be those of guests, but for these.
    let is_no_guests = address.is_loopback() || address.is_unspecified();
    if is_no_guests || through.is_none() && is_own_address(address) {
        let message = format!("{address} is an address of this machine, not of `{name}`");
        let hint = format!("`gpuvm ip {} --all` lists the guest's addresses", word(name));
        return Err(classed(Class::Refused, message, hint));
    }
    let recorded =
        || guest::creation_options(world.state(), &uuid)?.remove("user")?.into_iter().next();
    let user = user.clone().or_else(|| user_of(hypervisor, name)).or_else(recorded);
    if user.is_none() && !wanted.user_is_set {
        let message = format!("the user to log in to `{name}` as is not recorded");
        let hint = "--user NAME: the one of its image, such as `ubuntu` or `debian`";
        return Err(classed(Class::Refused, message, hint));
    }
    Ok(Login { domain: name.clone(), uuid, address, proven, user, through })
}

/// The user in the record that the domain itself has, which whoever may see the domain can read.
fn user_of(hypervisor: &dyn Hypervisor, name: &str) -> Option<String> {
    DomainXml::parse(&hypervisor.xml(name, XmlOf::Live).ok()?).ok()?.login_user()
}

/// Waits until a server of ssh answers at a guest's address, which is proven again then; none of it
/// where one answers at once, or on another machine, which is not reached from here. One that never
/// answers is left to ssh itself.
pub fn wait_for_server(
    world: &World,
    wanted: &LoginWanted,
    found: Login,
    port: u16,
    time: Duration,
) -> Result<Login> {
    let (name, at) = (&wanted.name, SocketAddr::new(found.address, port));
    if found.through.is_some() || time.is_zero() || answers(at) {
        return Ok(found);
    }
    world.progress(&format!("waiting up to {} s for ssh of `{name}` at {at}", time.as_secs()));
    let hypervisor = &*world.hypervisor()?;
    let (until, mut uuid) = (Instant::now() + time, Some(found.uuid.clone()));
    while !answers(at) {
        if has_ended(hypervisor, name, &mut uuid) {
            let message = format!("domain `{name}` has ended before its ssh answered");
            let hint = format!("`gpuvm logs {}` shows its last messages", word(name));
            return Err(classed(Class::WrongState, message, hint));
        }
        if Instant::now() >= until {
            world.warning(&format!(
                "no ssh server answers at {at} after {} s; `gpuvm console {name}` shows whether the \
                 guest has started, `gpuvm shell {name}` needs no ssh",
                time.as_secs(),
                name = word(name)
            ));
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    // Another may have taken the address meanwhile.
    login(world, wanted)
}

/// Whether a server of ssh answers: it sends its version first (RFC 4253, 4.2). One that systemd
/// starts for the connection may take a moment.
fn answers(at: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(2)) else {
        return false;
    };
    let mut first = [0; 4];
    let limited = stream.set_read_timeout(Some(Duration::from_secs(10)));
    limited.and_then(|()| stream.read_exact(&mut first)).is_ok() && first == *b"SSH-"
}

/// Finds the address of a guest at which packets of this machine arrive at the guest itself, and
/// whether that is proven. On another machine this cannot be verified: its lease is taken unproven.
fn proven(
    world: &World,
    wanted: &LoginWanted,
    hypervisor: &dyn Hypervisor,
    uuid: &str,
) -> Result<(IpAddr, bool)> {
    let LoginWanted { name, wait_s, .. } = wanted;
    let asked = AddressWanted { name: name.clone(), wait_s: *wait_s, all: false };
    let Addresses::Best(found) = addresses(world, &asked)? else {
        unreachable!("one address is asked for")
    };
    let GuestAddress { ip, mac, .. } = &found;
    let doctor = format!("`gpuvm network doctor {}` looks into it", word(name));
    let refused = |message, hint| Err(classed(Class::Refused, message, hint));
    // A definition that cannot be read prevents no login: the answering machine is checked below.
    let owner = |mac: &str| mac_owner(hypervisor, mac, Some(uuid)).unwrap_or_default();
    if let Some(other) = owner(mac).filter(|other| other.state.is_active()) {
        let message =
            format!("domains `{name}` and `{}` both run with MAC address {mac}", other.name);
        return refused(message, doctor);
    }
    let hint = format!(
        "{doctor}; if you know that {ip} is this guest's: `gpuvm ssh {} --address {ip}`",
        word(name)
    );
    match hypervisor.reach(name, &found)? {
        Reach::Guest => Ok((*ip, true)),
        Reach::Leased => Ok((*ip, false)),
        Reach::Other(other) => {
            let whose = owner(&other).map(|row| format!(" of domain `{}`", row.name));
            let message = format!(
                "{ip} is answered by {other}{}, not by {mac} of `{name}`",
                whose.unwrap_or_default()
            );
            refused(message, hint)
        }
        Reach::Silent => refused(format!("`{name}` does not answer at {ip}"), hint),
        Reach::Elsewhere => {
            let message = format!(
                "it cannot be confirmed that packets to {ip} reach `{name}`: no direct route leads \
                 to it over the guest's bridge on this machine"
            );
            refused(message, hint)
        }
    }
}

/// How ssh reaches the guests' machine; `None` if it is this one.
fn through(world: &World, name: &str) -> Result<Option<Vec<String>>> {
    let Machine::Elsewhere { host } = world.machine()? else { return Ok(None) };
    let uri = world.hypervisor()?.opened_uri();
    let found = Uri::parse(&uri).as_ref().and_then(way);
    found.map(Some).ok_or_else(|| {
        let message = format!("domain `{name}` is on `{host}`, and the connection is not by ssh");
        classed(Class::OtherMachine, message, format!("run `gpuvm ssh {}` on `{host}`", word(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::fake::{Fake, xml};
    use crate::stage::{Caller, UUID};
    use crate::world::Settings;
    use gpuvm_core::network::{AddressSource, GuestAddress};
    use std::io::Write as _;
    use std::rc::Rc;

    #[test]
    fn an_address_of_this_machine_is_no_guests() {
        assert!(is_own_address("127.0.0.1".parse().unwrap()));
        assert!(!is_own_address("192.0.2.7".parse().unwrap()));
    }

    /// MAC address of the guests' NIC.
    const MAC: &str = "52:54:00:00:00:01";

    /// A running guest with this MAC address.
    fn guest(name: &str, uuid: &str, mac: &str) -> String {
        let nic = format!(
            "<devices><interface type='network'><mac address='{mac}'/><source \
             network='default'/></interface></devices></domain>"
        );
        xml(name, uuid).replace("</domain>", &nic)
    }

    /// A world in which a guest has a leased address, at which packets arrive so.
    fn entered(others: &[String], reach: Reach, wanted: &LoginWanted) -> Result<Login> {
        let fake = Rc::new(Fake::default());
        fake.put_xml(&guest("g", UUID, MAC), true);
        others.iter().for_each(|other| fake.put_xml(other, true));
        fake.reach.replace(Some(reach));
        let (ip, source) = ("192.0.2.7".parse().unwrap(), AddressSource::Lease);
        fake.addresses.replace(vec![GuestAddress { mac: MAC.into(), ip, source }]);
        let world = World::on(fake, Settings::default(), Caller::who_says(Answer::Nobody));
        login(&world, wanted)
    }

    fn wanted() -> LoginWanted {
        let user = Some("me".into());
        LoginWanted { name: "g".into(), user, user_is_set: false, address: None, wait_s: 0 }
    }

    #[test]
    fn a_guest_of_this_machine_is_entered_at_its_address() {
        let found = entered(&[], Reach::Guest, &wanted()).unwrap();
        let address: IpAddr = "192.0.2.7".parse().unwrap();
        let user = Some("me".to_owned());
        let (domain, uuid) = ("g".to_owned(), UUID.to_owned());
        let proven = true;
        assert_eq!(found, Login { domain, uuid, address, proven, user, through: None });
    }

    #[test]
    fn an_address_where_another_machine_answers_is_refused() {
        let other = "22222222-2222-4333-8444-555555555555";
        let thief = "52:54:00:00:00:02";
        let second = guest("thief", other, thief);
        let twin = guest("twin", other, MAC);
        for (others, reach, says) in [
            (vec![second], Reach::Other(thief.into()), "by 52:54:00:00:00:02 of domain `thief`"),
            (vec![], Reach::Other(thief.into()), "is answered by 52:54:00:00:00:02, not by"),
            (vec![], Reach::Silent, "`g` does not answer at 192.0.2.7"),
            (vec![], Reach::Elsewhere, "cannot be confirmed that packets to 192.0.2.7 reach"),
            (vec![twin], Reach::Guest, "domains `g` and `twin` both run with MAC address"),
        ] {
            let error = entered(&others, reach, &wanted()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        // The caller may answer for an address, but not for one of this machine.
        let named = |ip: &str| {
            let wanted = LoginWanted { address: Some(ip.parse().unwrap()), ..wanted() };
            entered(&[], Reach::Elsewhere, &wanted)
        };
        let found = named("192.0.2.9").unwrap();
        assert!(!found.proven && found.address.to_string() == "192.0.2.9");
        for own in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "127.8.8.8"] {
            let error = named(own).unwrap_err().to_string();
            assert!(error.contains("is an address of this machine"), "{own}: {error}");
        }
    }

    #[test]
    fn the_user_of_the_domains_record_is_taken_and_another_word_is_not() {
        let of = |user: &str| {
            let ours = format!(
                "<metadata><g:guest xmlns:g='urn:gpuvm:domain:1' uuid='{UUID}'><g:login \
                 user='{user}'/></g:guest></metadata><devices>"
            );
            let fake = Fake::default();
            fake.put_xml(&guest("g", UUID, MAC).replace("<devices>", &ours), true);
            user_of(&fake, "g")
        };
        assert_eq!(of("lab").as_deref(), Some("lab"));
        // Words that ssh would take for something else, and none.
        for bad in ["-oProxyCommand=x", "a b", "a@b", ""] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn ssh_is_waited_for_until_it_says_its_version() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        assert!(!answers(at));
        let listener = std::net::TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for said in ["HTTP", "SSH-2.0-x\r\n"] {
                listener.accept().unwrap().0.write_all(said.as_bytes()).unwrap();
            }
        });
        assert!(!answers(at) && answers(at));
        let fake = Rc::new(Fake::default());
        fake.put_xml(&guest("g", UUID, MAC), true);
        let caller = Caller::who_says(Answer::Nobody);
        let world = World::on(fake.clone(), Settings::default(), caller.clone());
        let found = |through| Login {
            domain: "g".into(),
            uuid: UUID.into(),
            address: "127.0.0.1".parse().unwrap(),
            proven: true,
            user: None,
            through,
        };
        let second = Duration::from_secs(1);
        let wait = |found, time| wait_for_server(&world, &wanted(), found, at.port(), time);
        // It says so, and then leaves it to ssh; on another machine nothing is known.
        assert!(wait(found(Some(Vec::new())), second).is_ok());
        assert_eq!(caller.heard("waiting up to"), 0);
        assert!(wait(found(None), second).is_ok());
        assert_eq!(
            (caller.heard("waiting up to 1 s for ssh"), caller.heard("no ssh server")),
            (1, 1)
        );
        fake.put_xml(&guest("g", UUID, MAC), false);
        let error = wait(found(None), second).unwrap_err();
        assert!(error.to_string().contains("has ended"), "{error}");
    }

    #[test]
    fn the_user_is_never_the_guests_word() {
        let nobody = LoginWanted { user: None, ..wanted() };
        let error = entered(&[], Reach::Guest, &nobody).unwrap_err();
        assert!(error.to_string().contains("the user to log in to `g` as is not recorded"));
        let set = LoginWanted { user_is_set: true, ..nobody };
        assert_eq!(entered(&[], Reach::Guest, &set).unwrap().user, None);
    }
}
