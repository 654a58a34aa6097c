//! Reads our metadata of a domain.

use super::arguments::{Arguments, is_uuid};
use super::claims::Claims;
use super::device::{disk_path, hostdev_bdf};
use super::guest::{
    Bound, Guarded, Made, NAMESPACE, Record, Reserved, Role, SeededNccl, VolumeRef,
};
use super::{DomainXml, DomainXmlError, Element};
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::memsize::MemSize;
use crate::occupancy::GuestVgpu;
use crate::request::Guard;
use crate::topology::{Binding, KnownDevice};
use crate::user::is_user_name;
use crate::versions::{Stack, Version};

impl DomainXml {
    /// Returns the record of how the guest was made; none if we did not make it.
    pub fn record(&self) -> Result<Option<Record>, DomainXmlError> {
        let Some(guest) = self.ours() else { return Ok(None) };
        let child = |of: Element<'_>, name: &str| {
            of.elements().find(|e| local(e.name()) == name).map(|e| e.node)
        };
        let part = |node| Element { node, ..guest };
        let Some(request) = child(guest, "request").map(part) else {
            let message = "there is no request in our metadata".into();
            return Err(DomainXmlError::Value { path: guest.path(), message });
        };
        let parsed = serde_json::from_str(&request.text());
        let parsed = parsed.map_err(|error| DomainXmlError::Value {
            path: request.path(),
            message: format!("not a request that this program knows: {error}"),
        })?;
        let (made, bound) = (made(guest), bound(guest));
        let (reserved, guarded, vgpus) = (reserved(guest), guarded(guest), vgpus(guest));
        let (nccl, known, user) = (nccl(guest), known(guest), user(guest));
        let assumed = assumed(guest);
        Ok(Some(Record {
            request: parsed,
            made,
            bound,
            reserved,
            guarded,
            vgpus,
            nccl,
            known,
            user,
            assumed,
        }))
    }

    /// Whether our metadata belongs to a domain of another UUID: the definition is a copy, and
    /// objects made, bound and reserved for the original are not its own.
    pub fn is_copy(&self) -> bool {
        match (self.recorded_uuid(), self.uuid()) {
            (Some(recorded), Some(own)) => !recorded.eq_ignore_ascii_case(&own),
            _ => false,
        }
    }

    /// Whether gpuvm made it: our metadata has its UUID. Without one the metadata is that of an
    /// export, or of a definition whose UUID was removed.
    pub fn is_ours(&self) -> bool {
        self.recorded_uuid().is_some() && !self.is_copy()
    }

    /// Returns why the request in our metadata cannot be read, as where a later version wrote it or
    /// an edit removed it; none: it can be, or the metadata is not the domain's own.
    pub fn unread_request(&self) -> Option<DomainXmlError> {
        self.ours().filter(|_| self.is_ours())?;
        self.record().err()
    }

    /// Whether our metadata has a request at all.
    pub fn has_request(&self) -> bool {
        self.request_text().is_some()
    }

    /// Whether that is JSON, whatever its fields mean.
    pub fn has_whole_request(&self) -> bool {
        let is_json = |text: String| serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        self.request_text().is_some_and(is_json)
    }

    fn request_text(&self) -> Option<String> {
        let request = self.ours()?.elements().find(|element| local(element.name()) == "request")?;
        Some(request.text().into_owned())
    }

    /// Whether the resources recorded as bound, reserved and set up for the guest can be its own,
    /// so that they may be released: anybody can write metadata.
    fn may_give_back(&self) -> Result<bool, DomainXmlError> {
        let Some(guest) = self.ours().filter(|_| !self.is_copy()) else { return Ok(false) };
        let wrong = |what: String| {
            let message = format!("domain `{}`: {what}", self.name());
            Err(DomainXmlError::Value { path: guest.path(), message })
        };
        for Bound { bdf, was } in bound(guest) {
            for driver in [was.driver, was.driver_override].into_iter().flatten() {
                if !is_driver(&driver) {
                    return wrong(format!("{driver:?}, the driver of {bdf}, is no driver's name"));
                }
            }
        }
        let mut pages = MemSize::default();
        let mut nodes = std::collections::BTreeSet::new();
        for Reserved { node, page_kib, count, .. } in reserved(guest) {
            let size =
                page_kib.kib().checked_mul(count).filter(|_| page_kib.kib().is_power_of_two());
            let Some(size) = size.filter(|_| nodes.insert((node, page_kib))) else {
                return wrong(format!("{count} pages of {page_kib} on node {node} cannot be"));
            };
            // The last page of a node may be used only in part.
            pages = pages + MemSize::from_kib(size.saturating_sub(page_kib.kib()));
        }
        let memory = Claims::read(self).memory.value;
        if pages > memory {
            wrong(format!("{pages} of huge pages are more than its memory, {memory}"))
        } else {
            Ok(true)
        }
    }

    /// Returns the UUID of the domain that our metadata belongs to; none without metadata, or from
    /// a version that did not write it. If it is not the domain's own, the definition is a copy,
    /// and the recorded resources are not its own.
    pub fn recorded_uuid(&self) -> Option<String> {
        Some(self.ours()?.attr("uuid")?.into_owned())
    }

    /// Returns the disks made for the guest, even if the rest of our metadata cannot be read.
    pub fn made(&self) -> Vec<Made> {
        self.ours().map(made).unwrap_or_default()
    }

    /// Returns the functions bound for the guest, even if the rest of our metadata cannot be read;
    /// none for a copy of another domain. Impossible records are an error.
    pub fn bound(&self) -> Result<Vec<Bound>, DomainXmlError> {
        self.given(bound)
    }

    /// Returns the identities of the guest's passed-through functions, as recorded; none for a copy
    /// of another domain.
    pub fn known_devices(&self) -> Vec<KnownDevice> {
        self.ours().filter(|_| !self.is_copy()).map(known).unwrap_or_default()
    }

    /// Returns those that a definition which holds these functions has no longer: others have taken
    /// them from it, and the record counts no more.
    pub fn stale_devices(&self, functions: &[Bdf]) -> Vec<KnownDevice> {
        let mut known = self.known_devices();
        known.retain(|one| !functions.contains(&one.bdf));
        known
    }

    /// Returns the others.
    pub fn valid_devices(&self, functions: &[Bdf]) -> Vec<KnownDevice> {
        let mut known = self.known_devices();
        known.retain(|one| functions.contains(&one.bdf));
        known
    }

    /// Returns the huge pages reserved for the guest, as [`DomainXml::bound`] does.
    pub fn reserved(&self) -> Result<Vec<Reserved>, DomainXmlError> {
        self.given(reserved)
    }

    /// Returns the virtual functions set up on their cards for the guest, as [`DomainXml::bound`]
    /// does.
    pub fn guarded(&self) -> Result<Vec<Guarded>, DomainXmlError> {
        self.given(guarded)
    }

    /// Returns the vGPUs that the guest was given, as [`DomainXml::bound`] does.
    pub fn vgpus(&self) -> Result<Vec<GuestVgpu>, DomainXmlError> {
        self.given(vgpus)
    }

    /// Returns the NCCL topology file that the guest's seed installed; none for a copy of another
    /// domain.
    pub fn seeded_nccl(&self) -> Option<SeededNccl> {
        nccl(self.ours().filter(|_| !self.is_copy())?)
    }

    /// Returns the user that the guest's seed makes, also of a copy, whose disk has that user;
    /// `None` for that of its image. Anybody can write metadata: it is a name and nothing else.
    pub fn login_user(&self) -> Option<String> {
        user(self.ours()?)
    }

    /// Reads a part of our metadata whose resources are released with the guest.
    fn given<T>(&self, part: impl Fn(Element<'_>) -> Vec<T>) -> Result<Vec<T>, DomainXmlError> {
        Ok(if self.may_give_back()? {
            self.ours().map(part).unwrap_or_default()
        } else {
            Vec::new()
        })
    }

    /// Returns passed-through functions that libvirt does not bind (`managed='no'`, or by arguments
    /// of QEMU): they must be bound before the start.
    pub fn unmanaged(&self) -> Vec<Bdf> {
        let devices = self.root().children("devices");
        let hostdevs = devices.flat_map(|devices| devices.children("hostdev"));
        let unmanaged = hostdevs.filter(|h| h.attr("managed").as_deref() != Some("yes"));
        let unmanaged = unmanaged.filter_map(|hostdev| hostdev_bdf(hostdev)?.parse().ok());
        let of_arguments = Arguments::read(self.root()).functions.into_iter();
        unmanaged.chain(of_arguments.map(|function| function.value)).collect()
    }

    /// Returns the element of the disk at a path; `None` if the domain has no such disk.
    pub fn disk(&self, path: &str) -> Option<Element<'_>> {
        let mut disks = self.root().child("devices")?.children("disk");
        disks.find(|&disk| disk_path(disk).as_deref() == Some(path))
    }

    fn ours(&self) -> Option<Element<'_>> {
        let ours = |element: &Element<'_>| {
            element.namespace() == Some(NAMESPACE) && local(element.name()) == "guest"
        };
        self.root().child("metadata")?.elements().find(ours)
    }
}

/// Whether a word can be the name of a kernel driver.
fn is_driver(word: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=64).contains(&word.len()) && word.chars().all(good)
}

fn local(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, local)| local)
}

/// Reads the disks made for a guest from our metadata's root.
fn made(guest: Element<'_>) -> Vec<Made> {
    let below = guest.elements().filter(|element| local(element.name()) == "made");
    let disks = below.flat_map(Element::elements).filter(|disk| local(disk.name()) == "disk");
    let text = |disk: Element<'_>, name: &str| disk.attr(name).map(|value| value.into_owned());
    let read = |disk: Element<'_>| {
        let role = text(disk, "role");
        let role = Role::ALL.into_iter().find(|known| role.as_deref() == Some(known.as_str()));
        let (pool, name) = (text(disk, "pool"), text(disk, "volume"));
        Some(Made {
            // A role from a later version is treated like data: kept.
            role: role.unwrap_or(Role::Data),
            path: text(disk, "path")?,
            volume: pool.zip(name).map(|(pool, name)| VolumeRef { pool, name }),
        })
    };
    disks.filter_map(read).collect()
}

/// Returns the functions in the named list of our metadata's root.
fn listed<'a>(guest: Element<'a>, name: &'static str) -> impl Iterator<Item = Element<'a>> {
    let below = guest.elements().filter(move |element| local(element.name()) == name);
    below.flat_map(Element::elements).filter(|element| local(element.name()) == "device")
}

/// Reads the functions bound for a guest from our metadata's root.
fn bound(guest: Element<'_>) -> Vec<Bound> {
    let text = |device: Element<'_>, name: &str| device.attr(name).map(|value| value.into_owned());
    let read = |device: Element<'_>| {
        let bdf = text(device, "bdf")?.parse().ok()?;
        let (driver, driver_override) = (text(device, "driver"), text(device, "override"));
        Some(Bound { bdf, was: Binding { driver, driver_override } })
    };
    listed(guest, "bound").filter_map(read).collect()
}

/// Reads the identities of functions from our metadata's root. One that cannot be read, from a
/// later version, counts as not recorded.
fn known(guest: Element<'_>) -> Vec<KnownDevice> {
    let read = |device: Element<'_>| {
        let identity = device.attr("identity")?.parse().ok()?;
        Some(KnownDevice { bdf: device.attr("bdf")?.parse().ok()?, identity })
    };
    listed(guest, "known").filter_map(read).collect()
}

/// Reads the virtual functions set up on their cards for a guest from our metadata's root.
fn guarded(guest: Element<'_>) -> Vec<Guarded> {
    let is_on = |device: Element<'_>, name: &str| Some(device.attr(name)? == "on");
    let read = |device: Element<'_>| {
        let guard =
            |trust, spoof| Guard { trust: is_on(device, trust), spoof: is_on(device, spoof) };
        let (to, was) = (guard("trust", "spoof"), guard("was-trust", "was-spoof"));
        Some(Guarded { bdf: device.attr("bdf")?.parse().ok()?, to, was })
    };
    listed(guest, "guarded").filter_map(read).collect()
}

/// Reads the vGPUs of a guest from our metadata's root.
fn vgpus(guest: Element<'_>) -> Vec<GuestVgpu> {
    let read = |device: Element<'_>| {
        let text = |name: &str| device.attr(name).map(|value| value.into_owned());
        let is_word = |word: &String| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            (1..=64).contains(&word.len()) && word.chars().all(is_plain) && !word.starts_with('.')
        };
        Some(GuestVgpu {
            card: text("card")?.parse().ok()?,
            function: text("bdf")?.parse().ok()?,
            type_id: text("type").filter(is_word)?,
            name: text("name")?,
            uuid: text("uuid").filter(|uuid| is_uuid(uuid)),
        })
    };
    listed(guest, "vgpus").filter_map(read).collect()
}

/// Reads the NCCL topology file in a guest's seed from our metadata's root.
fn nccl(guest: Element<'_>) -> Option<SeededNccl> {
    let found = guest.elements().find(|element| local(element.name()) == "nccl")?;
    let address = |device: Element<'_>, name: &str| device.attr(name)?.parse::<Bdf>().ok();
    let read = |device: Element<'_>| Some((address(device, "bdf")?, address(device, "guest")?));
    let functions = listed(guest, "nccl").filter_map(read).collect();
    Some(SeededNccl { sum: found.attr("sum")?.into_owned(), functions })
}

/// Reads the stack that was assumed for a definition from our metadata's root.
fn assumed(guest: Element<'_>) -> Option<Stack> {
    let found = guest.elements().find(|element| local(element.name()) == "assumed")?;
    let version = |name| Version::read(&found.attr(name)?);
    Some(Stack::assumed(version("libvirt")?, version("qemu")?))
}

/// Reads the user that a guest's seed makes from our metadata's root.
fn user(guest: Element<'_>) -> Option<String> {
    let found = guest.elements().find(|element| local(element.name()) == "login")?;
    Some(found.attr("user")?.into_owned()).filter(|user| is_user_name(user))
}

/// Reads the huge pages reserved for a guest from our metadata's root.
fn reserved(guest: Element<'_>) -> Vec<Reserved> {
    let below = guest.elements().filter(|element| local(element.name()) == "reserved");
    let pages = below.flat_map(Element::elements).filter(|e| local(e.name()) == "pages");
    let read = |pages: Element<'_>| {
        let number = |name: &str| pages.attr(name)?.parse::<u64>().ok();
        Some(Reserved {
            node: NodeId(u32::try_from(number("node")?).ok()?),
            page_kib: MemSize::from_kib(number("kib").filter(|kib| *kib > 0)?),
            count: number("count")?,
            boot: pages.attr("boot")?.into_owned(),
        })
    };
    pages.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_a_word() {
        for good in ["nvidia", "vfio-pci", "mlx5_core", "a"] {
            assert!(is_driver(good), "{good}");
        }
        for bad in ["", "a.b", "a b", "../x"] {
            assert!(!is_driver(bad), "{bad}");
        }
        assert!(is_driver(&"a".repeat(64)) && !is_driver(&"a".repeat(65)));
    }
}
