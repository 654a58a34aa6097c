//! Snapshots of domains as libvirt reports them.

use super::error::{HypervisorError, unsupported};
use serde::{Deserialize, Serialize};

/// Where the state of a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotKind {
    /// In the images of its disks, of a guest that was off.
    Internal,
    /// In image files of its own, over or beside those of the disks.
    External,
    /// With the memory of a guest that ran.
    Running,
}

impl SnapshotKind {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            SnapshotKind::Internal => "internal",
            SnapshotKind::External => "external",
            SnapshotKind::Running => "running",
        }
    }
}

/// A snapshot of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// Where its state is.
    pub kind: SnapshotKind,
    /// The description by its maker.
    pub description: Option<String>,
    /// The disks whose content it has, by their names in the guest, each with its file.
    pub disks: Vec<(String, String)>,
}

/// The document of a snapshot, as far as it is read.
#[derive(Deserialize)]
struct Document {
    name: String,
    description: Option<String>,
    #[serde(default)]
    state: String,
    #[serde(rename = "creationTime")]
    made_s: u64,
    #[serde(default)]
    disks: Disks,
    #[serde(default)]
    domain: Domain,
}

#[derive(Default, Deserialize)]
struct Disks {
    #[serde(default)]
    disk: Vec<Disk>,
}

#[derive(Deserialize)]
struct Disk {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@snapshot")]
    snapshot: Option<String>,
}

#[derive(Default, Deserialize)]
struct Domain {
    #[serde(default)]
    devices: Devices,
}

#[derive(Default, Deserialize)]
struct Devices {
    #[serde(default)]
    disk: Vec<Defined>,
}

#[derive(Deserialize)]
struct Defined {
    source: Option<Source>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Source {
    #[serde(rename = "@file")]
    file: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    #[serde(rename = "@dev")]
    dev: String,
}

impl Snapshot {
    /// Reads libvirt's document.
    pub fn read(text: &str) -> Result<Snapshot, String> {
        let read: Document = quick_xml::de::from_str(text).map_err(|error| error.to_string())?;
        let is = |disk: &Disk, kind: &str| disk.snapshot.as_deref() == Some(kind);
        let kind = match &*read.state {
            "shutoff" if !read.disks.disk.iter().any(|disk| is(disk, "external")) => {
                SnapshotKind::Internal
            }
            "shutoff" | "disk-snapshot" => SnapshotKind::External,
            _ => SnapshotKind::Running,
        };
        let file = |name: &str| {
            let named = |disk: &&Defined| disk.target.as_ref().is_some_and(|t| t.dev == name);
            let disk = read.domain.devices.disk.iter().find(named)?;
            disk.source.as_ref()?.file.clone()
        };
        let inside = read.disks.disk.iter().filter(|disk| is(disk, "internal"));
        let disks = inside.map(|disk| (disk.name.clone(), file(&disk.name).unwrap_or_default()));
        let disks = disks.collect();
        let (name, description) = (read.name, read.description);
        Ok(Snapshot { name, made_s: read.made_s, kind, description, disks })
    }

    /// The document that a snapshot of a domain that is off is made by.
    pub fn document(name: &str, description: &str) -> String {
        let escaped = |text: &str| quick_xml::escape::escape(text).into_owned();
        format!(
            "<domainsnapshot><name>{}</name><description>{}</description></domainsnapshot>",
            escaped(name),
            escaped(description)
        )
    }
}

/// The snapshots of domains; by default there are none.
pub trait Snapshots {
    /// The snapshots of a domain; empty if unsupported.
    fn snapshots(&self, _name: &str) -> Result<Vec<Snapshot>, HypervisorError> {
        Ok(Vec::new())
    }
    /// Makes a snapshot of a domain that is off, in the images of its disks.
    fn make_snapshot(&self, name: &str, snapshot: &str, _: &str) -> Result<(), HypervisorError> {
        no_snapshots(name, snapshot)
    }
    /// Gives the disks of a domain that is off the content of a snapshot, and the domain its
    /// definition of that time.
    fn revert_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        no_snapshots(name, snapshot)
    }
    /// Deletes a snapshot; the disks keep their content.
    fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<(), HypervisorError> {
        no_snapshots(name, snapshot)
    }
}

/// Refuses a change where there are none.
fn no_snapshots(name: &str, snapshot: &str) -> Result<(), HypervisorError> {
    let doing = format_args!("change snapshot `{snapshot}` of domain `{name}`");
    unsupported(doing, "has no snapshots")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libvirts_documents_are_read() {
        let of = |state: &str, disk: &str| {
            format!(
                "<domainsnapshot><name>s</name><description>d</description><state>{state}</state>\
                 <creationTime>17</creationTime><memory snapshot='no'/><disks><disk name='vda' \
                 {disk}/>\
                 <disk name='vdb' snapshot='no'/></disks><domain type='kvm'><name>a</name><devices>\
                 <emulator>/q</emulator><disk type='file'><source file='/a.qcow2'/><target \
                 dev='vda'/></disk>\
                 <disk type='file' device='cdrom'><target dev='vdb'/></disk><controller \
                 type='usb'/>\
                 </devices></domain></domainsnapshot>"
            )
        };
        let read = Snapshot::read(&of("shutoff", "snapshot='internal'")).unwrap();
        let disks = vec![("vda".to_owned(), "/a.qcow2".to_owned())];
        let (name, description) = ("s".to_owned(), Some("d".to_owned()));
        let kind = SnapshotKind::Internal;
        assert_eq!(read, Snapshot { name, made_s: 17, kind, description, disks });
        for (state, disk, kind) in [
            ("shutoff", "snapshot='external'", SnapshotKind::External),
            ("disk-snapshot", "snapshot='external'", SnapshotKind::External),
            ("running", "snapshot='internal'", SnapshotKind::Running),
        ] {
            assert_eq!(Snapshot::read(&of(state, disk)).unwrap().kind, kind, "{state}");
        }
        assert!(Snapshot::read("<domainsnapshot/>").is_err());
        let document = Snapshot::document("a", "<&");
        assert!(document.contains("<description>&lt;&amp;</description>"), "{document}");
    }
}
