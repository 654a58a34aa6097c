//! The machine of a connection.

use super::super::machine::{Identity, Machine, Told, decide};
use super::Libvirt;
use serde::Deserialize;
use virt::connect::Connect;

/// A driver of libvirt's client library, which reads this machine's name like every driver.
const IN_PROCESS: &str = "test:///default";

/// libvirt's host capabilities, as far as needed.
#[derive(Debug, Deserialize)]
struct Capabilities {
    host: Host,
}

#[derive(Debug, Deserialize)]
struct Host {
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
    /// Returns the machine of its domains, read once.
    pub(super) fn its_machine(&self) -> &Machine {
        self.machine.get_or_init(|| decide(self))
    }

    /// Returns the identity of that machine.
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
