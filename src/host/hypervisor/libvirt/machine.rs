//! What a connection tells of its machine.

use super::super::machine::{Identity, Machine, Told, decide};
use super::Libvirt;
use serde::Deserialize;
use virt::connect::Connect;

/// A driver of libvirt's client library, which reads this machine's name as every driver does.
const IN_PROCESS: &str = "test:///default";

/// What libvirt says of a host, as far as it is looked at.
#[derive(Debug, Deserialize)]
struct Capabilities {
    /// The host.
    host: Host,
}

/// The host of them.
#[derive(Debug, Deserialize)]
struct Host {
    /// Its UUID.
    uuid: Option<String>,
}

impl Told for Libvirt {
    fn uri(&self) -> String {
        self.connection().uri().unwrap_or_else(|_| self.uri.clone())
    }

    fn host_name(&self) -> Option<String> {
        self.connection().hostname().ok()
    }

    fn uuid(&self) -> Option<String> {
        let text = self.connection().capabilities().ok()?;
        quick_xml::de::from_str::<Capabilities>(&text).ok()?.host.uuid
    }

    fn own_name(&self) -> Option<String> {
        Connect::open_read_only(Some(IN_PROCESS)).ok()?.hostname().ok()
    }
}

impl Libvirt {
    /// The machine that its domains are on; asked for once.
    pub(super) fn its_machine(&self) -> &Machine {
        self.machine.get_or_init(|| decide(self))
    }

    /// What tells that machine from others.
    pub(super) fn its_identity(&self) -> Identity {
        match self.its_machine() {
            Machine::Here => Identity::of_this_machine(),
            Machine::Elsewhere { host } => Identity {
                host: self.host_name().unwrap_or_else(|| host.clone()),
                uuid: self.uuid(),
            },
        }
    }
}
