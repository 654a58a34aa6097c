//! A guest's creation options, by name: recorded of each new one, so that a later request for it
//! can be compared, and `get` can print it.

use super::CreateRequest;
use crate::apply::Preallocate;
use crate::images;
use crate::memsize::MemSize;
use crate::storage::{self, DataRequest, ImageRequest, NcclWanted, OsDisk, SeedWanted};
use gpuvm_core::guest::Opt;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The values of options; defaults are omitted, except for the size of a boot disk.
pub(crate) type CreationOptions = BTreeMap<String, Vec<String>>;

/// Returns the creation options of a guest of this request.
pub(crate) fn creation_options(wanted: &CreateRequest) -> CreationOptions {
    let mut options = CreationOptions::new();
    let mut add = |option: Opt, values: Vec<String>| {
        if !values.is_empty() {
            options.insert(option.field().to_owned(), values);
        }
    };
    let one = |path: Option<&PathBuf>| path.map(|path| text(path)).into_iter().collect();
    let if_so = |is_so: bool, word: &str| is_so.then(|| word.to_owned()).into_iter().collect();
    add(Opt::AcceptSharedFabric, if_so(wanted.accept_shared_fabric, "true"));
    add(Opt::AcceptBacking, wanted.storage.accept_backing.clone());
    add(Opt::Template, one(wanted.guest.template.as_ref()));
    let disks = &wanted.storage;
    if disks.disk.is_empty() {
        let image = match &disks.image {
            ImageRequest::Newest => Vec::new(),
            ImageRequest::Named(name) => vec![name.to_string()],
            ImageRequest::Blank => vec!["none".to_owned()],
        };
        add(Opt::Image, image);
        add(Opt::ImagePool, if_so(disks.image_pool != images::POOL, &disks.image_pool));
        add(Opt::OsDisk, if_so(disks.os_disk == OsDisk::Qcow2, "qcow2"));
        add(Opt::OsDisk, if_so(disks.os_disk == OsDisk::Overlay, "overlay"));
        add(Opt::OsSize, vec![disks.os_size.typed()]);
    }
    add(Opt::Pool, if_so(disks.pool != storage::POOL, &disks.pool));
    add(Opt::DiskDir, one(disks.disk_dir.as_ref()));
    let data = match disks.data {
        DataRequest::Share | DataRequest::ShareWithNotice => Vec::new(),
        DataRequest::None | DataRequest::NoneTold => vec!["none".to_owned()],
        DataRequest::Bytes(bytes) => {
            vec![MemSize::from_kib(bytes.div_ceil(1024)).typed()]
        }
    };
    add(Opt::DataSize, data);
    add(Opt::DataDir, one(disks.data_dir.as_ref()));
    let preallocate = match disks.preallocate {
        Preallocate::Reserve => Vec::new(),
        Preallocate::None => vec!["none".to_owned()],
        Preallocate::Full => vec!["full".to_owned()],
    };
    add(Opt::Preallocate, preallocate);
    let seed = &wanted.seed;
    add(Opt::SshKey, seed.ssh_key.iter().map(|path| text(path)).collect());
    add(Opt::User, seed.user.iter().cloned().collect());
    // Never the hash itself.
    add(Opt::PasswordHash, one(seed.password_file.as_ref()));
    add(Opt::UserData, one(seed.user_data.as_ref()));
    add(Opt::MetaData, one(seed.meta_data.as_ref()));
    add(Opt::NetworkConfig, one(seed.network_config.as_ref()));
    add(Opt::NoAgent, if_so(!seed.agent, "true"));
    add(Opt::NoNccl, if_so(seed.nccl == NcclWanted::No, "true"));
    add(Opt::Nccl, if_so(seed.nccl == NcclWanted::Conf, "conf"));
    add(Opt::ImexNode, seed.imex_nodes.iter().map(ToString::to_string).collect());
    add(Opt::NoSeed, if_so(seed.wanted == SeedWanted::No, "true"));
    options
}

/// An absolute path.
fn text(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.to_string_lossy().into_owned()
}
