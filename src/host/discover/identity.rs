//! Identities of PCI functions as the host reports them now. Serial numbers of drives, UUIDs of
//! GPUs and MAC addresses of NICs are known only while the function's own driver has it; identities
//! read before vfio-pci took it are remembered for this boot ([`remember`]).

use super::capability::extended;
use super::drives::function_of;
use super::pci::Ids;
use crate::fsroot::{Dir, FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::topology::identity::{CLASS_NETWORK, CLASS_STORAGE};
use gpuvm_core::topology::{DeviceIdentity, KnownDevice, Likeness, MarkKind, is_vfio};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

/// The ID of the Device Serial Number capability.
const DSN: u16 = 0x0003;
/// Class of NVMe controllers, without the programming interface.
const CLASS_NVME: u32 = 0x0108;
/// Class of InfiniBand adapters, without the programming interface.
const CLASS_INFINIBAND: u32 = 0x0207;
/// Where identities read during this boot are remembered; writable by root only.
const REMEMBERED: &str = "run/gpuvm/identities";
/// How often, and how long between, to look for a serial number that a driver has yet to read.
const LOOKS: u32 = 100;
/// See [`LOOKS`].
const PAUSE: Duration = Duration::from_millis(100);

/// A function as it is now.
#[derive(Debug)]
pub struct Present {
    /// Its identity.
    pub identity: DeviceIdentity,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Its driver.
    pub driver: Option<String>,
    /// Whether it is a virtual function.
    pub is_virtual: bool,
}

impl Present {
    /// Whether a wrong one would lose data: a drive, or a controller with drives.
    pub fn is_storage(&self) -> bool {
        self.class >> 16 == CLASS_STORAGE
    }

    /// Whether it is left alone unless it is proven to be the recorded one: a drive of the host
    /// would lose its data, a NIC of the host would cut it off.
    pub fn needs_proof(&self) -> bool {
        self.is_storage() || self.class >> 16 == CLASS_NETWORK
    }

    /// The option of `set` that names such a function.
    pub fn option(&self) -> &'static str {
        match self.class >> 16 {
            CLASS_STORAGE => "--nvme",
            CLASS_NETWORK if self.is_virtual => "--vf",
            CLASS_NETWORK => "--nic",
            _ => "--gpu",
        }
    }

    /// The module of the InfiniBand adapter's driver that knows its GUID, which udev would load.
    pub fn guid_module(&self) -> Option<&'static str> {
        match self.driver.as_deref() {
            Some("mlx5_core") if self.class >> 8 == CLASS_INFINIBAND => Some("mlx5_ib"),
            Some("mlx4_core") if self.class >> 8 == CLASS_INFINIBAND => Some("mlx4_ib"),
            _ => None,
        }
    }

    /// Whether a driver of the host has it.
    pub fn is_of_host(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| !is_vfio(driver))
    }
}

/// Reads the identity of a function; none if there is no such function. The PCI serial number of a
/// drive is no part of it: some makers give all drives of a model one.
pub fn read(root: &FsRoot, bdf: Bdf) -> Result<Option<Present>, FsError> {
    let Some((mut present, of, card)) = named(root, bdf)? else { return Ok(None) };
    let identity = &mut present.identity;
    let has_one = identity.values(MarkKind::Dsn).next().is_some();
    let number = if present.class >> 16 == CLASS_STORAGE || has_one {
        None
    } else {
        serial_number(&of).filter(|number| is_alone(root, card, &of, number))
    };
    identity.add(MarkKind::Dsn, &number.unwrap_or_default());
    Ok(Some(present))
}

/// The same without the PCI serial number, which takes a look at all other functions; with the
/// function that has it: the card of a virtual function.
fn named(root: &FsRoot, bdf: Bdf) -> Result<Option<(Present, Dir<'_>, Bdf)>, FsError> {
    let Some(dir) = root.dir(&path(bdf))? else { return Ok(None) };
    let ids = Ids::read(&dir)?;
    let subsystem = (ids.subsystem_vendor, ids.subsystem_device);
    let mut identity = DeviceIdentity::new((ids.vendor, ids.device), subsystem);
    let card = dir.link_name("physfn")?.and_then(|name| name.parse::<Bdf>().ok());
    let driver = dir.link_name("driver")?;
    let of_card = card.map(|card| root.dir(&path(card))).transpose()?.flatten();
    // Of a virtual function only its place on the card is known.
    let (of, at) = match (card, of_card) {
        (Some(card), Some(of)) => {
            identity.add(MarkKind::Part, &virtual_part(&of, bdf)?.unwrap_or_default());
            marks(root, &of, card, Ids::read(&of)?.class, &mut identity)?;
            (of, card)
        }
        _ => {
            let part = bdf.to_string();
            let part = part.rsplit_once('.').map(|(_, number)| format!("fn{number}"));
            identity.add(MarkKind::Part, &part.unwrap_or_default());
            marks(root, &dir, bdf, ids.class, &mut identity)?;
            (dir, bdf)
        }
    };
    if !identity.is_named()
        && driver.as_deref().is_none_or(is_vfio)
        && let Some(before) = remembered(root, bdf)
        && before.ids() == identity.ids()
    {
        identity.complete(&before);
    }
    let is_virtual = card.is_some();
    Ok(Some((Present { identity, class: ids.class, driver, is_virtual }, of, at)))
}

/// Which virtual function of a card a function is.
fn virtual_part(card: &Dir<'_>, bdf: Bdf) -> Result<Option<String>, FsError> {
    let own = bdf.to_string();
    for number in 0.. {
        match card.link_name(&format!("virtfn{number}"))? {
            None => break,
            Some(name) if name == own => return Ok(Some(format!("vf{number}"))),
            Some(_) => {}
        }
    }
    Ok(None)
}

/// How often drivers at boot may still be waited for, for all functions together: they initialize
/// their devices at the same time.
#[derive(Debug)]
pub struct Patience(u32);

impl Default for Patience {
    fn default() -> Patience {
        Patience(LOOKS)
    }
}

impl Patience {
    /// Waits again; returns whether it did.
    fn waits(&mut self, root: &FsRoot) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        std::thread::sleep(if root.is_live() { PAUSE } else { Duration::ZERO });
        true
    }
}

/// The same for a function that its driver may still be initializing: waits some seconds for the
/// serial number of an NVMe drive that a driver of the host has.
pub fn settled(root: &FsRoot, bdf: Bdf) -> Result<Option<Present>, FsError> {
    settles(root, bdf, &mut Patience::default(), |present| present.class >> 8 == CLASS_NVME)
}

/// The same at boot, for the identity of any drive or NIC.
pub fn settled_at_boot(
    root: &FsRoot,
    bdf: Bdf,
    patience: &mut Patience,
) -> Result<Option<Present>, FsError> {
    settles(root, bdf, patience, Present::needs_proof)
}

/// Waits for the identity of a function that a driver of the host has.
fn settles(
    root: &FsRoot,
    bdf: Bdf,
    patience: &mut Patience,
    is_slow: impl Fn(&Present) -> bool,
) -> Result<Option<Present>, FsError> {
    loop {
        let Some(present) = read(root, bdf)? else { return Ok(None) };
        let is_waited_for = is_slow(&present) && present.is_of_host();
        if present.identity.is_named() || !is_waited_for || !patience.waits(root) {
            return Ok(Some(present));
        }
    }
}

/// Reads the identities of functions that report one; those that are absent are left out.
/// `before`: those that are recorded.
pub fn known(
    root: &FsRoot,
    functions: &[Bdf],
    before: &[KnownDevice],
) -> Result<Vec<KnownDevice>, FsError> {
    let mut known = Vec::new();
    for &bdf in functions {
        let recorded = before.iter().find(|one| one.bdf == bdf).map(|one| &one.identity);
        let identity = renewed(root, bdf, recorded)?.filter(DeviceIdentity::is_marked);
        known.extend(identity.map(|identity| KnownDevice { bdf, identity }));
    }
    Ok(known)
}

/// The identity to record for a function: the one that it reports now. The earlier record
/// (`before`) is kept while its driver does not report more, and the function is not seen to be
/// another one.
pub fn renewed(
    root: &FsRoot,
    bdf: Bdf,
    before: Option<&DeviceIdentity>,
) -> Result<Option<DeviceIdentity>, FsError> {
    let now = read(root, bdf)?.map(|present| present.identity);
    let is_kept = |before: &&DeviceIdentity| match &now {
        None => true,
        Some(now) => {
            before.is_marked() && !now.is_named() && before.likeness(now) != Likeness::Other
        }
    };
    Ok(before.filter(is_kept).cloned().or(now))
}

/// Finds the address of a recorded device now; `None` if it is not on this host, does not report
/// its identity, or several report it.
pub fn find(root: &FsRoot, identity: &DeviceIdentity) -> Result<Option<Bdf>, FsError> {
    match Finder::new(root).places(identity)?[..] {
        [only] => Ok(Some(only)),
        _ => Ok(None),
    }
}

/// The known facts about the place of a recorded device.
#[derive(Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Whether the device at the recorded address is it; an absent one is another.
    pub likeness: Likeness,
    /// The other addresses at which it is now. Several: they cannot be distinguished.
    pub places: Vec<Bdf>,
}

/// Finds recorded devices on a host, of which it reads no more than it needs.
pub struct Finder<'r> {
    root: &'r FsRoot,
    /// Functions by their ids; read on first use.
    by_ids: OnceCell<BTreeMap<String, Vec<Bdf>>>,
}

impl<'r> Finder<'r> {
    /// A finder that has read nothing yet.
    pub fn new(root: &'r FsRoot) -> Finder<'r> {
        Finder { root, by_ids: OnceCell::new() }
    }

    /// Finds a recorded device. Other functions are examined only if it is not proven to be at its
    /// address.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn whereabouts(&self, known: &KnownDevice) -> Result<Whereabouts, FsError> {
        let likeness = self.at_address(known)?;
        let places = if likeness == Likeness::Same {
            Vec::new()
        } else {
            let mut places = self.places(&known.identity)?;
            places.retain(|place| *place != known.bdf);
            places
        };
        Ok(Whereabouts { likeness, places })
    }

    /// Compares the device at the recorded address.
    fn at_address(&self, known: &KnownDevice) -> Result<Likeness, FsError> {
        let KnownDevice { bdf, identity } = known;
        let Some((now, of, _)) = named(self.root, *bdf)? else { return Ok(Likeness::Other) };
        let likeness = identity.likeness(&now.identity);
        if likeness == Likeness::Same || now.is_storage() {
            return Ok(likeness);
        }
        match has_number(identity, &of) {
            // A number that others have, too, does not say that it has moved.
            Some(true) if likeness == Likeness::Unproven => Ok(Likeness::Same),
            None => Ok(likeness),
            Some(_) => {
                let now = read(self.root, *bdf)?;
                Ok(now.map_or(Likeness::Other, |now| identity.likeness(&now.identity)))
            }
        }
    }

    /// Returns the addresses of all functions that are proven to be the recorded device.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn places(&self, identity: &DeviceIdentity) -> Result<Vec<Bdf>, FsError> {
        if !identity.is_marked() {
            return Ok(Vec::new());
        }
        let by_ids = match self.by_ids.get() {
            Some(by_ids) => by_ids,
            None => {
                let read = self.functions()?;
                self.by_ids.get_or_init(|| read)
            }
        };
        let mut places = Vec::new();
        for &bdf in by_ids.get(&identity.ids()).into_iter().flatten() {
            if self.is_it(bdf, identity)? {
                places.push(bdf);
            }
        }
        Ok(places)
    }

    /// The functions of the host, by ids.
    fn functions(&self) -> Result<BTreeMap<String, Vec<Bdf>>, FsError> {
        let mut by_ids: BTreeMap<String, Vec<Bdf>> = BTreeMap::new();
        for name in self.root.names("sys/bus/pci/devices")? {
            let Ok(bdf) = name.parse::<Bdf>() else { continue };
            let Some(dir) = self.root.dir(&path(bdf))? else { continue };
            let Ok(ids) = Ids::read(&dir) else { continue };
            let ids = format!("{:04x}:{:04x}", ids.vendor, ids.device);
            by_ids.entry(ids).or_default().push(bdf);
        }
        Ok(by_ids)
    }

    /// Whether a function is proven to be the recorded device.
    fn is_it(&self, bdf: Bdf, identity: &DeviceIdentity) -> Result<bool, FsError> {
        let Some((now, of, _)) = named(self.root, bdf)? else { return Ok(false) };
        if identity.likeness(&now.identity) == Likeness::Same {
            return Ok(true);
        }
        if now.is_storage() || has_number(identity, &of) != Some(true) {
            return Ok(false);
        }
        let now = read(self.root, bdf)?;
        Ok(now.is_some_and(|now| identity.likeness(&now.identity) == Likeness::Same))
    }
}

/// Whether a function has the recorded PCI serial number, which others may have, too; `None` if
/// none is recorded, or it has none.
fn has_number(identity: &DeviceIdentity, of: &Dir<'_>) -> Option<bool> {
    identity.values(MarkKind::Dsn).next()?;
    let number = serial_number(of)?;
    Some(identity.values(MarkKind::Dsn).any(|recorded| recorded == number))
}

fn path(bdf: Bdf) -> String {
    format!("sys/bus/pci/devices/{bdf}")
}

fn marks(
    root: &FsRoot,
    dir: &Dir<'_>,
    bdf: Bdf,
    class: u32,
    identity: &mut DeviceIdentity,
) -> Result<(), FsError> {
    if class >> 8 == CLASS_NVME {
        nvme(dir, identity)?;
    } else if class >> 16 == CLASS_STORAGE {
        drives_behind(root, bdf, identity)?;
    }
    network(dir, identity)?;
    let gpu = root.read(&format!("proc/driver/nvidia/gpus/{bdf}/information"))?;
    for line in gpu.iter().flat_map(|text| text.lines()) {
        if let Some(uuid) = line.strip_prefix("GPU UUID:") {
            identity.add(MarkKind::Uuid, uuid);
        }
    }
    Ok(())
}

/// Adds the NVMe driver's report of its controller and namespaces.
fn nvme(dir: &Dir<'_>, identity: &mut DeviceIdentity) -> Result<(), FsError> {
    let Some(list) = dir.dir("nvme")? else { return Ok(()) };
    for name in list.names()? {
        let Some(controller) = list.dir(&name)? else { continue };
        for (kind, file) in [(MarkKind::Serial, "serial"), (MarkKind::Model, "model")] {
            identity.add(kind, &controller.read_if_any(file)?.unwrap_or_default());
        }
        for child in controller.names()?.iter().filter(|child| child.starts_with("nvme")) {
            let Some(namespace) = controller.dir(child)? else { continue };
            for file in ["nguid", "eui"] {
                identity.add(MarkKind::Eui, &namespace.read_if_any(file)?.unwrap_or_default());
            }
        }
    }
    Ok(())
}

/// Adds the WWIDs of the drives behind a controller.
fn drives_behind(root: &FsRoot, bdf: Bdf, identity: &mut DeviceIdentity) -> Result<(), FsError> {
    for name in root.names("sys/class/block")? {
        if function_of(root, &name)? != Some(bdf) {
            continue;
        }
        let Some(device) = root.dir(&format!("sys/class/block/{name}/device"))? else { continue };
        identity.add(MarkKind::Wwid, &device.read_if_any("wwid")?.unwrap_or_default());
    }
    Ok(())
}

/// Adds permanent MAC addresses and node GUIDs. A MAC address that was set, as by a bond, is not
/// permanent (`addr_assign_type`, Documentation/ABI/testing/sysfs-class-net).
fn network(dir: &Dir<'_>, identity: &mut DeviceIdentity) -> Result<(), FsError> {
    if let Some(list) = dir.dir("net")? {
        for name in list.names()? {
            let Some(netdev) = list.dir(&name)? else { continue };
            let is_ethernet = netdev.read_if_any("type")?.as_deref() == Some("1");
            let is_permanent = netdev.read_if_any("addr_assign_type")?.as_deref() == Some("0");
            let of_bond = netdev.dir("bonding_slave")?;
            let mac = match of_bond {
                Some(bond) => bond.read_if_any("perm_hwaddr")?,
                None if is_permanent => netdev.read_if_any("address")?,
                None => None,
            };
            identity.add(MarkKind::Mac, &mac.filter(|_| is_ethernet).unwrap_or_default());
        }
    }
    if let Some(list) = dir.dir("infiniband")? {
        for name in list.names()? {
            let Some(device) = list.dir(&name)? else { continue };
            identity.add(MarkKind::Guid, &device.read_if_any("node_guid")?.unwrap_or_default());
        }
    }
    Ok(())
}

/// Reads the PCI Device Serial Number.
fn serial_number(dir: &Dir<'_>) -> Option<String> {
    let [low, high] = extended(dir, DSN)?;
    Some(format!("{:016x}", u64::from(high) << 32 | u64::from(low)))
}

/// Whether no other device of the same ids has a serial number: some makers give all devices of a
/// model one. Functions of one device share it.
fn is_alone(root: &FsRoot, bdf: Bdf, of: &Dir<'_>, number: &str) -> bool {
    let ids = |dir: &Dir<'_>| Ids::read(dir).map(|ids| (ids.vendor, ids.device)).ok();
    let own = ids(of);
    let slot = |bdf: Bdf| bdf.to_string().rsplit_once('.').map(|(slot, _)| slot.to_owned());
    let names = root.names("sys/bus/pci/devices").unwrap_or_default();
    let others = names.iter().filter_map(|name| name.parse::<Bdf>().ok());
    let mut others = others.filter(|other| slot(*other) != slot(bdf));
    !others.any(|other| {
        let Ok(Some(dir)) = root.dir(&path(other)) else { return false };
        let is_virtual = matches!(dir.link_name("physfn"), Ok(Some(_)));
        !is_virtual && ids(&dir) == own && serial_number(&dir).as_deref() == Some(number)
    })
}

/// The number of a function's directory, which a device that is plugged in later does not get.
fn node(root: &FsRoot, bdf: Bdf) -> io::Result<u64> {
    Ok(std::fs::metadata(root.path().join(path(bdf)))?.ino())
}

/// Remembers the identity of a function for this boot, before vfio-pci takes it. Another caller
/// than root remembers nothing.
pub fn remember(root: &FsRoot, bdf: Bdf) {
    if !root.is_live() || !nix::unistd::geteuid().is_root() {
        return;
    }
    let Ok(Some(present)) = read(root, bdf) else { return };
    if present.is_of_host() && present.identity.is_named() {
        // Without it a start says that the identity cannot be read.
        let _ = keep(root, bdf, &present.identity);
    }
}

fn keep(root: &FsRoot, bdf: Bdf, identity: &DeviceIdentity) -> io::Result<()> {
    let dir = root.path().join(REMEMBERED);
    DirBuilder::new().recursive(true).mode(0o755).create(&dir)?;
    let file = dir.join(bdf.to_string());
    let new = dir.join(format!(".{bdf}.{}", std::process::id()));
    let text = format!("{} {}\n", node(root, bdf)?, String::from(identity.clone()));
    std::fs::write(&new, text)?;
    std::fs::set_permissions(&new, Permissions::from_mode(0o644))?;
    std::fs::rename(new, file)
}

/// The remembered identity of a function that has been present since; only one that root alone can
/// have written.
fn remembered(root: &FsRoot, bdf: Bdf) -> Option<DeviceIdentity> {
    let file: PathBuf = root.path().join(REMEMBERED).join(bdf.to_string());
    for at in file.ancestors().take(3) {
        let meta = at.symlink_metadata().ok()?;
        if root.is_live() && (meta.uid() != 0 || meta.mode() & 0o022 != 0 || meta.is_symlink()) {
            return None;
        }
    }
    let text = root.read(&format!("{REMEMBERED}/{bdf}")).ok()??;
    let (number, word) = text.split_once(' ')?;
    let is_same = number.parse::<u64>().ok()? == node(root, bdf).ok()?;
    if is_same { word.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A host with a drive of each serial number, from 0000:05:00.0 on.
    fn drives(dir: &Path, serials: &[&str]) -> FsRoot {
        for (bus, serial) in (5..).zip(serials) {
            let of = dir.join(format!("sys/bus/pci/devices/0000:{bus:02x}:00.0"));
            let controller = of.join("nvme/nvme0");
            fs::create_dir_all(&controller).unwrap();
            for (file, text) in [
                ("vendor", "0x144d\n"),
                ("device", "0xa80a\n"),
                ("subsystem_vendor", "0x144d\n"),
                ("subsystem_device", "0xa801\n"),
                ("class", "0x010802\n"),
            ] {
                fs::write(of.join(file), text).unwrap();
            }
            fs::write(controller.join("model"), "SAMSUNG MZQL23T8HCLS-00A07             \n")
                .unwrap();
            fs::write(controller.join("serial"), format!("{serial}      \n")).unwrap();
        }
        FsRoot::at(dir).unwrap()
    }

    /// An address.
    fn at(text: &str) -> Bdf {
        text.parse().unwrap()
    }

    /// Makes functions those of another class than drives.
    fn reclass(dir: &Path, bdfs: &[&str]) {
        for bdf in bdfs {
            let class = dir.join(format!("sys/bus/pci/devices/{bdf}/class"));
            fs::write(class, "0x030200\n").unwrap();
        }
    }

    /// Gives a function a PCI serial number.
    fn number(dir: &Path, bdf: &str, number: u64) {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&[0x03, 0x00, 0x01, 0x00]);
        config[0x104..0x10c].copy_from_slice(&number.to_le_bytes());
        fs::write(dir.join(format!("sys/bus/pci/devices/{bdf}/config")), config).unwrap();
    }

    #[test]
    fn drives_of_one_model_are_distinguished_and_found_where_they_are_now() {
        let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let was = drives(before.path(), &["S1A", "S2B"]);
        let now = drives(after.path(), &["S2B", "S1A"]);
        let [first, second] = &known(&was, &[at("05:00.0"), at("06:00.0")], &[]).unwrap()[..]
        else {
            panic!("two drives");
        };
        let there = |bdf| read(&now, at(bdf)).unwrap().unwrap().identity;
        assert_eq!(first.identity.likeness(&there("05:00.0")), Likeness::Other);
        assert_eq!(second.identity.likeness(&there("05:00.0")), Likeness::Same);
        assert_eq!(find(&now, &first.identity).unwrap(), Some(at("06:00.0")));
        let said = first.identity.to_string();
        assert_eq!(said, "SAMSUNG MZQL23T8HCLS-00A07 with serial number S1A");
        let gone = drives(tempfile::tempdir().unwrap().path(), &["S2B"]);
        assert_eq!(find(&gone, &first.identity).unwrap(), None);
    }

    #[test]
    fn a_pci_serial_number_that_several_devices_have_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = drives(dir.path(), &["", "000000"]);
        reclass(dir.path(), &["0000:05:00.0", "0000:06:00.0"]);
        let dsn = |bdf| {
            let identity = read(&root, at(bdf)).unwrap().unwrap().identity;
            let mut values = identity.values(MarkKind::Dsn);
            values.next().map(str::to_owned)
        };
        number(dir.path(), "0000:05:00.0", 0x1234);
        assert_eq!(dsn("05:00.0").as_deref(), Some("0000000000001234"));
        number(dir.path(), "0000:06:00.0", 0x1234);
        assert_eq!((dsn("05:00.0"), dsn("06:00.0")), (None, None));
        number(dir.path(), "0000:06:00.0", 0);
        assert_eq!((dsn("05:00.0").is_some(), dsn("06:00.0")), (true, None));
        assert_eq!(known(&root, &[at("06:00.0"), at("07:00.0")], &[]).unwrap(), []);
    }

    #[test]
    fn a_pci_serial_number_alone_proves_no_drive() {
        let dir = tempfile::tempdir().unwrap();
        let root = drives(dir.path(), &["S1A", ""]);
        number(dir.path(), "0000:05:00.0", 0x1234);
        number(dir.path(), "0000:06:00.0", 0x5678);
        assert_eq!(known(&root, &[at("06:00.0")], &[]).unwrap(), []);
        // As an older version recorded it.
        let mut old = read(&root, at("06:00.0")).unwrap().unwrap().identity;
        old.add(MarkKind::Dsn, "0000000000005678");
        let now = read(&root, at("06:00.0")).unwrap().unwrap().identity;
        assert_eq!(old.likeness(&now), Likeness::Unproven);
        assert_eq!(find(&root, &old).unwrap(), None);
    }

    #[test]
    fn a_device_that_several_functions_report_is_found_at_none() {
        let dir = tempfile::tempdir().unwrap();
        let root = drives(dir.path(), &["S1A", "S2B"]);
        let known = known(&root, &[at("05:00.0")], &[]).unwrap().remove(0);
        let there = |likeness, places: &[&str]| {
            let places = places.iter().map(|bdf| at(bdf)).collect();
            let found = Finder::new(&root).whereabouts(&known).unwrap();
            assert_eq!(found, Whereabouts { likeness, places });
        };
        there(Likeness::Same, &[]);
        drives(dir.path(), &["S3C", "S1A"]);
        there(Likeness::Other, &["06:00.0"]);
        drives(dir.path(), &["S3C", "S1A", "S1A"]);
        there(Likeness::Other, &["06:00.0", "07:00.0"]);
        assert_eq!(find(&root, &known.identity).unwrap(), None);
        let of = dir.path().join("sys/bus/pci/devices/0000:05:00.0");
        fs::remove_dir_all(of.join("nvme")).unwrap();
        there(Likeness::Unproven, &["06:00.0", "07:00.0"]);
        fs::remove_dir_all(of).unwrap();
        there(Likeness::Other, &["06:00.0", "07:00.0"]);
    }

    #[test]
    fn virtual_functions_of_one_card_are_not_taken_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let root = drives(dir.path(), &["", "", ""]);
        reclass(dir.path(), &["0000:05:00.0", "0000:06:00.0", "0000:07:00.0"]);
        number(dir.path(), "0000:05:00.0", 0x1234);
        let devices = dir.path().join("sys/bus/pci/devices");
        let link = |of: &str, name: &str, to: &str| {
            let at = devices.join(of).join(name);
            let _ = fs::remove_file(&at);
            std::os::unix::fs::symlink(format!("../{to}"), at).unwrap();
        };
        for vf in ["0000:06:00.0", "0000:07:00.0"] {
            link(vf, "physfn", "0000:05:00.0");
        }
        let order = |first: &str, second: &str| {
            link("0000:05:00.0", "virtfn0", first);
            link("0000:05:00.0", "virtfn1", second);
        };
        order("0000:06:00.0", "0000:07:00.0");
        let known = known(&root, &[at("06:00.0"), at("07:00.0")], &[]).unwrap();
        for one in &known {
            assert_eq!(find(&root, &one.identity).unwrap(), Some(one.bdf));
        }
        order("0000:07:00.0", "0000:06:00.0");
        let found = Finder::new(&root).whereabouts(&known[0]).unwrap();
        let places = vec![at("07:00.0")];
        assert_eq!(found, Whereabouts { likeness: Likeness::Other, places });
        // Recorded without its place on the card.
        let text = String::from(known[0].identity.clone());
        let old = text.split_once("=part:").unwrap().0.parse().unwrap();
        assert_eq!(find(&root, &old).unwrap(), None);
    }

    #[test]
    fn links_are_remembered_until_the_device_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let root = drives(dir.path(), &["S1A"]);
        let bdf = at("05:00.0");
        let identity = read(&root, bdf).unwrap().unwrap().identity;
        keep(&root, bdf, &identity).unwrap();
        let of = dir.path().join("sys/bus/pci/devices/0000:05:00.0");
        fs::remove_dir_all(of.join("nvme")).unwrap();
        let now = read(&root, bdf).unwrap().unwrap();
        assert_eq!(identity.likeness(&now.identity), Likeness::Same);
        fs::rename(&of, dir.path().join("old")).unwrap();
        drives(dir.path(), &["S9Z"]);
        fs::remove_dir_all(of.join("nvme")).unwrap();
        let now = read(&root, bdf).unwrap().unwrap();
        assert_eq!(identity.likeness(&now.identity), Likeness::Unproven);
    }
}
