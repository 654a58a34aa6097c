//! What a guest is told only while it is made, by the names of options: recorded of each new one,
//! so that a later request for it can be compared, and `get` can print it.

use super::CreateRequest;
use crate::apply::Preallocate;
use crate::images;
use crate::memsize::MemSize;
use crate::storage::{self, DataRequest, ImageRequest, NcclWanted, OsDisk, SeedWanted};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The option that takes NVLinks which other guests reach: known of a guest, and not compared.
pub(crate) const ACCEPTED: &str = "accept-shared-fabric";

/// The option that takes images below others: known of a guest, and not compared.
pub(crate) const ACCEPTED_BACKING: &str = "accept-backing";

/// The values of options; what has its default is left out, but for the size of a boot disk.
pub(crate) type Told = BTreeMap<String, Vec<String>>;

/// Returns what a guest of this request is told.
pub(crate) fn told(wanted: &CreateRequest) -> Told {
    let mut told = Told::new();
    let mut add = |option: &str, values: Vec<String>| {
        if !values.is_empty() {
            told.insert(option.to_owned(), values);
        }
    };
    let one = |path: Option<&PathBuf>| path.map(|path| text(path)).into_iter().collect();
    let if_so = |is_so: bool, word: &str| is_so.then(|| word.to_owned()).into_iter().collect();
    add(ACCEPTED, if_so(wanted.accept_shared_fabric, "true"));
    add(ACCEPTED_BACKING, wanted.storage.accept_backing.clone());
    add("template", one(wanted.guest.template.as_ref()));
    let disks = &wanted.storage;
    if disks.disk.is_empty() {
        let image = match &disks.image {
            ImageRequest::Newest => Vec::new(),
            ImageRequest::Named(name) => vec![name.to_string()],
            ImageRequest::Blank => vec!["none".to_owned()],
        };
        add("image", image);
        add("image-pool", if_so(disks.image_pool != images::POOL, &disks.image_pool));
        add("os-disk", if_so(disks.os_disk == OsDisk::Qcow2, "qcow2"));
        add("os-disk", if_so(disks.os_disk == OsDisk::Overlay, "overlay"));
        add("os-size", vec![disks.os_size.typed()]);
    }
    add("pool", if_so(disks.pool != storage::POOL, &disks.pool));
    add("disk-dir", one(disks.disk_dir.as_ref()));
    let data = match disks.data {
        DataRequest::Share | DataRequest::ShareTold => Vec::new(),
        DataRequest::None | DataRequest::NoneTold => vec!["none".to_owned()],
        DataRequest::Bytes(bytes) => {
            vec![MemSize::from_kib(bytes.div_ceil(1024)).typed()]
        }
    };
    add("data-size", data);
    add("data-dir", one(disks.data_dir.as_ref()));
    let preallocate = match disks.preallocate {
        Preallocate::Reserve => Vec::new(),
        Preallocate::None => vec!["none".to_owned()],
        Preallocate::Full => vec!["full".to_owned()],
    };
    add("preallocate", preallocate);
    let seed = &wanted.seed;
    add("ssh-key", seed.ssh_key.iter().map(|path| text(path)).collect());
    add("user", seed.user.iter().cloned().collect());
    // Never the hash itself.
    add("password-hash", one(seed.password_file.as_ref()));
    add("user-data", one(seed.user_data.as_ref()));
    add("meta-data", one(seed.meta_data.as_ref()));
    add("network-config", one(seed.network_config.as_ref()));
    add("no-agent", if_so(!seed.agent, "true"));
    add("no-nccl", if_so(seed.nccl == NcclWanted::No, "true"));
    add("nccl", if_so(seed.nccl == NcclWanted::Conf, "conf"));
    add("no-seed", if_so(seed.wanted == SeedWanted::No, "true"));
    told
}

/// An absolute path.
fn text(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.to_string_lossy().into_owned()
}
