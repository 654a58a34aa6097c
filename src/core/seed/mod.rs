//! The cloud-init seed of a guest (NoCloud data source): users and keys, installed packages, the
//! mount of the data disk. Text and bytes only; does not know where the seed is stored.
//!
//! cloud-init reads YAML, a superset of JSON, so the documents are written as JSON, which prevents
//! injection through values. The admin's user-data stays as it is; our settings then go into the
//! vendor-data, which the user-data overrides.

mod given;
mod hidden;
mod imex;
mod volume;

pub use given::{
    MAX_BYTES, SeedError, SshKey, document, host_name, password_hash, user_data, user_name,
};
pub use hidden::Hidden;
pub use volume::{VOLUME_BYTES, check, is_seed, volume};

use crate::nccl::place;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Where cloud-init finds the data disk: libvirt gives virtio disks the serial of their definition.
pub const DATA_DISK_SERIAL: &str = "gpuvm-data";

/// The seed of a guest, read at its first boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seed {
    /// Its host name.
    pub host_name: String,
    /// The instance id, which changes when cloud-init has to run again: the domain's UUID.
    pub instance: String,
    /// The user to create; `None` for the image's own default user.
    pub user: Option<String>,
    /// Keys that may log in as this user.
    pub ssh_keys: Vec<SshKey>,
    /// Hash of the user's password; `None` without password.
    pub password_hash: Option<Hidden>,
    /// Whether the QEMU guest agent is installed and enabled.
    pub guest_agent: bool,
    /// Whether a blank data disk is formatted and mounted on /raid.
    pub data_disk: bool,
    /// Whether services that need CUDA wait until the NVSwitch fabric is ready (gpuvm-hardware(7),
    /// NVSWITCH MODELS).
    pub fabric_wait: bool,
    /// The topology file for NCCL, as `gpuvm nccl` prints it; `None` if the guest gets none.
    pub nccl: Option<String>,
    /// Whether the guest's settings of NCCL name that file, too, where they name none.
    pub nccl_conf: bool,
    /// Addresses of the guests of its IMEX domain, its own among them; none: it is in none.
    pub imex_nodes: Vec<IpAddr>,
    /// The admin's own user-data, as it is.
    pub user_data: Option<Hidden>,
    /// The admin's own keys of the meta-data, JSON or YAML as it is; in place of ours.
    pub meta_data: Option<Hidden>,
    /// The admin's own network configuration, as it is; `None` if ours if there are several NICs,
    /// otherwise cloud-init's default, DHCP on the only one.
    pub network_config: Option<Hidden>,
    /// MAC addresses of its NICs, in the guest's order.
    pub nics: Vec<String>,
}

/// Formats and mounts an empty data disk: `blkid -p` exits with 2 only if it finds no signature,
/// and unknown content is not all zeros.
const DATA_DISK: &str = r#"set -eu
disk=/dev/disk/by-id/virtio-gpuvm-data
[ -b "$disk" ] || exit 0
found=0; blkid -p "$disk" >/dev/null 2>&1 || found=$?
if [ "$found" != 2 ] || ! cmp -s -n 1048576 "$disk" /dev/zero; then
  echo "gpuvm: $disk is not blank and is left alone" >&2
  exit 0
fi
mkfs.ext4 -q -F -L raid -m 0 "$disk"
mkdir -p /raid
grep -q '^LABEL=raid ' /etc/fstab || echo 'LABEL=raid /raid ext4 defaults,nofail,discard 0 2' >>/etc/fstab
mount /raid
"#;

/// Installs the guest agent if the image has none, with the distribution's package manager. Not by
/// cloud-init's `packages`, which uses the network even if nothing is missing, and fails without
/// one.
const AGENT: &str = r#"command -v qemu-ga >/dev/null || [ -x /usr/sbin/qemu-ga ] || {
  export DEBIAN_FRONTEND=noninteractive
  if command -v apt-get >/dev/null; then
    apt-get -q update; apt-get -q install -y --no-install-recommends qemu-guest-agent
  elif command -v dnf >/dev/null; then dnf -q -y install qemu-guest-agent
  elif command -v zypper >/dev/null; then zypper -n -q install qemu-guest-agent
  elif command -v apk >/dev/null; then apk add -q qemu-guest-agent
  fi
}
systemctl enable qemu-guest-agent
systemctl start --no-block qemu-guest-agent
"#;

/// Waits until each GPU has joined the fabric; until then CUDA returns error 802.
const FABRIC_WAIT: &str = r#"#!/bin/sh
# Waits, at most ten minutes, until no GPU of this guest is still joining the NVSwitch fabric.
command -v nvidia-smi >/dev/null || exit 0
for try in $(seq 300); do
  states=$(nvidia-smi -q 2>/dev/null | sed -n '/^ *Fabric$/,/^ *Status/p')
  if [ -n "$states" ]; then
    echo "$states" | grep -Eq 'State *: *(In Progress|Not Started)' || exit 0
  fi
  sleep 2
done
echo "gpuvm: the NVSwitch fabric is not ready after ten minutes" >&2
exit 1
"#;

/// The unit that waits, ordered before services that need CUDA.
const FABRIC_UNIT: &str = "[Unit]
Description=Wait for the NVSwitch fabric
After=systemd-modules-load.service
Before=nvidia-persistenced.service nvidia-dcgm.service docker.service
[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=660
ExecStart=/usr/local/sbin/gpuvm-fabric-wait
[Install]
WantedBy=multi-user.target
RequiredBy=nvidia-persistenced.service
";

impl Seed {
    /// The files of the volume, by name.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let meta = json!({ "instance-id": self.instance, "local-hostname": self.host_name });
        let meta = self.meta_data.as_deref().map_or_else(|| format!("{meta:#}\n"), str::to_owned);
        let ours = format!("#cloud-config\n{:#}\n", self.config());
        let mut files = vec![("meta-data", meta)];
        match &self.user_data {
            None => files.push(("user-data", ours)),
            Some(given) => {
                files.push(("user-data", given.to_string()));
                files.push(("vendor-data", ours));
            }
        }
        let network = self.network_config.as_deref().map(str::to_owned).or_else(|| self.all_nics());
        files.extend(network.map(|network| ("network-config", network)));
        files
    }

    /// Returns the network configuration that brings up every NIC if there are several:
    /// cloud-init's own default uses one of them, not always the first. Without `set-name`, so that
    /// the guest's names stay; cloud-init 20.1 and later finds the device by its MAC address. Of
    /// `dhcp4-overrides` every renderer of cloud-init supports the metric.
    fn all_nics(&self) -> Option<String> {
        if self.nics.len() < 2 {
            return None;
        }
        let nic = |(nth, mac): (usize, &String)| {
            let mut nic = json!({
                "match": { "macaddress": mac },
                "dhcp4": true,
                // The default route is the first one's; another one is used only if the first has
                // none.
                "dhcp4-overrides": { "route-metric": 100 * (nth + 1) },
            });
            if nth > 0 {
                // The boot does not wait for this NIC.
                nic["optional"] = json!(true);
            }
            (format!("nic{nth}"), nic)
        };
        let nics: serde_json::Map<String, Value> = self.nics.iter().enumerate().map(nic).collect();
        Some(format!("{:#}\n", json!({ "version": 2, "ethernets": nics })))
    }

    /// Returns our keys that the admin's user-data has, too: cloud-init then uses its value for the
    /// whole key. Only keys at the start of a line are found, where YAML has top-level keys.
    pub fn overruled(&self) -> Vec<String> {
        let Value::Object(ours) = self.config() else { return Vec::new() };
        let merged = ["users", "ssh_authorized_keys", "runcmd", "write_files"];
        let has = |key: &&String| merged.contains(&key.as_str()) && self.has_own(key);
        ours.keys().filter(has).cloned().collect()
    }

    /// Whether the admin's user-data has a key, even as a JSON object.
    pub fn has_own(&self, key: &str) -> bool {
        let Some(text) = &self.user_data else { return false };
        let body = text.split_once('\n').map_or("", |(_, body)| body);
        if let Ok(Value::Object(object)) = serde_json::from_str(body) {
            return object.contains_key(key);
        }
        let named = [key.to_owned(), format!("\"{key}\""), format!("'{key}'")];
        let mut after = text
            .lines()
            .flat_map(|line| named.iter().filter_map(|named| line.strip_prefix(named.as_str())));
        after.any(|rest| rest.trim_start().starts_with(':'))
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "hostname": self.host_name,
            "manage_etc_hosts": true,
            "ssh_pwauth": self.password_hash.is_some(),
        });
        let keys: Vec<&str> = self.ssh_keys.iter().map(SshKey::as_str).collect();
        match &self.user {
            None => {
                config["ssh_authorized_keys"] = json!(keys);
                if let Some(hash) = &self.password_hash {
                    // Overrides the image's settings of its own user.
                    config["user"] = json!({ "lock_passwd": false, "hashed_passwd": **hash });
                }
            }
            Some(user) => {
                let mut made = json!({
                    "name": user,
                    "groups": ["adm", "sudo"],
                    "shell": "/bin/bash",
                    "sudo": "ALL=(ALL) NOPASSWD:ALL",
                    "lock_passwd": self.password_hash.is_none(),
                    "ssh_authorized_keys": keys,
                });
                if let Some(hash) = &self.password_hash {
                    made["hashed_passwd"] = json!(**hash);
                }
                config["users"] = json!([made]);
            }
        }
        let (mut files, mut commands, mut of_files) = (Vec::new(), Vec::new(), Vec::new());
        if self.data_disk {
            commands.push(json!(["sh", "-c", DATA_DISK]));
        }
        if self.fabric_wait {
            files.push(file("/usr/local/sbin/gpuvm-fabric-wait", FABRIC_WAIT, "0755"));
            let unit = "/etc/systemd/system/gpuvm-fabric-wait.service";
            files.push(file(unit, FABRIC_UNIT, "0644"));
            of_files.push(json!(["systemctl", "daemon-reload"]));
            of_files.push(json!(["systemctl", "enable", "gpuvm-fabric-wait.service"]));
            let start = ["systemctl", "start", "--no-block", "gpuvm-fabric-wait.service"];
            of_files.push(json!(start));
        }
        if let Some(nccl) = &self.nccl {
            files.push(file(place::FILE, nccl, "0644"));
            files.push(file(place::TMPFILES, place::TMPFILES_TEXT, "0644"));
            of_files.push(json!(["systemd-tmpfiles", "--create", place::TMPFILES_NAME]));
            if self.nccl_conf {
                of_files.push(json!(["sh", "-c", place::APPEND]));
            }
        }
        imex::add(&self.imex_nodes, &mut files, &mut of_files);
        // Files overridden by the user-data do not exist.
        if !self.has_own("write_files") {
            commands.append(&mut of_files);
        }
        if self.guest_agent {
            commands.push(json!(["sh", "-c", AGENT]));
        }
        if !files.is_empty() {
            config["write_files"] = json!(files);
        }
        if !commands.is_empty() {
            config["runcmd"] = json!(commands);
        }
        config
    }
}

/// A file that cloud-init writes.
fn file(path: &str, content: &str, permissions: &str) -> Value {
    json!({ "path": path, "content": content, "permissions": permissions })
}

#[cfg(test)]
mod tests;
