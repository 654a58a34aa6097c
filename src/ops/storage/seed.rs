//! The seed: the volume that cloud-init reads a guest's first settings from. All of the admin's
//! input is read and checked here, before anything is created.

use super::error::StorageError;
use super::{Disks, Keyless, NcclWanted, Place, SeedRequest, SeedWanted};
use crate::apply::{Secret, Step, VolumeStep};
use crate::bdf::Bdf;
use crate::domain::guest::{Disk, DiskFormat, DiskIo, DiskKind, Made, Role, VolumeRef};
use crate::error::{Coded as _, Error, Refusal, Result, usage};
use crate::hypervisor::storage::NewVolume;
use crate::input;
use crate::paths::path_text;
use crate::seed::{self, Hidden, MAX_BYTES, Seed, SeedError, SshKey};
use crate::topology::{FabricModel, GPUS_PER_TRAY, Topology};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Adds the guest's seed if it gets one.
pub(super) fn add(place: &Place<'_>, is_made_of_image: bool, disks: &mut Disks) -> Result<()> {
    let Some(wanted) = place.seed.filter(|wanted| is_wanted(wanted, is_made_of_image)) else {
        return Ok(());
    };
    let seed = read(wanted, place, disks)?;
    seed::check(&seed)?;
    let (dir, make_pool) = place.pool()?;
    let (pool, name) = (place.wanted.pool.clone(), format!("{}.seed", place.planned.name));
    let path = path_text(&dir.join(&name))?;
    let volume = NewVolume {
        name: name.clone(),
        format: DiskFormat::Raw.as_str().to_owned(),
        capacity_bytes: seed::VOLUME_BYTES as u64,
        // libvirtd 11.3 crashes with a double free if a pool becomes full in the middle of a
        // stream.
        preallocated: true,
        backing: None,
        mode: 0o600,
    };
    let mut steps: Vec<Step> = make_pool.into_iter().collect();
    steps.push(VolumeStep::Make { pool: pool.clone(), volume, from: None }.into());
    let content = Secret::of(seed.clone());
    disks.seed = Some(seed);
    steps.push(VolumeStep::Seal { pool: pool.clone(), name: name.clone(), content }.into());
    let disk = Disk {
        // It is read only once; this mode works on every file system.
        io: DiskIo::Threads,
        read_only: true,
        ..Disk::new(&path, DiskFormat::Raw, DiskKind::File)
    };
    let volume = Some(VolumeRef { pool, name });
    disks.make(steps, disk, Made { role: Role::Seed, path, volume });
    Ok(())
}

/// Rewrites the seed in the steps that create it, with the data that only the guest's definition
/// has.
pub fn complete(steps: &mut [Step], seed: &Seed) -> Result<()> {
    for step in steps {
        if let Step::Volume(VolumeStep::Seal { content, .. }) = step {
            seed::check(seed)?;
            *content = Secret::of(seed.clone());
        }
    }
    Ok(())
}

/// Whether a guest gets a seed.
fn is_wanted(wanted: &SeedRequest, is_made_of_image: bool) -> bool {
    let SeedRequest { ssh_key, user, password_hash, user_data, meta_data, network_config, .. } =
        wanted;
    let files = [user_data, meta_data, network_config];
    let is_told = !ssh_key.is_empty()
        || !wanted.imex_nodes.is_empty()
        || user.is_some()
        || password_hash.is_some()
        || files.into_iter().any(Option::is_some);
    match wanted.wanted {
        SeedWanted::No => false,
        SeedWanted::Usual => is_made_of_image || is_told,
        SeedWanted::Yes => true,
    }
}

/// Reads the settings for the guest.
fn read(wanted: &SeedRequest, place: &Place<'_>, disks: &mut Disks) -> Result<Seed> {
    if let Some(user) = &wanted.user {
        seed::user_name(user)
            .map_err(|error| usage(error.to_string(), "--user takes a name such as `lab`"))?;
    }
    let document = |path: &Option<PathBuf>, check: &dyn Fn(&str) -> Result<(), SeedError>| {
        let Some(path) = path else { return Ok::<_, Error>(None) };
        let text = text(path)?;
        check(&text).map_err(|error| wrong(path, &error))?;
        Ok(Some(Hidden::from(text)))
    };
    let user_data = document(&wanted.user_data, &seed::user_data)?;
    let meta_data = document(&wanted.meta_data, &|text| seed::document("meta-data", text))?;
    let network_config =
        document(&wanted.network_config, &|text| seed::document("network-config", text))?;
    let may_log_in = wanted.password_hash.is_some() || user_data.is_some();
    let name = place.planned.name.as_str();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let placement = &place.planned.placement;
    if !wanted.imex_nodes.is_empty() {
        refuse_imex(&place.planned.topology, &placement.devices)?;
    }
    let seed = Seed {
        host_name: seed::host_name(name),
        instance: format!("{name}-{:x}", since.as_nanos()),
        user: wanted.user.clone(),
        ssh_keys: keys(wanted, place, may_log_in, disks)?,
        password_hash: wanted.password_hash.clone(),
        guest_agent: wanted.agent,
        data_disk: disks.made.iter().any(|made| made.role == Role::Data),
        fabric_wait: placement.partition.is_some()
            && place.planned.topology.fabric().model == FabricModel::SharedNvswitch,
        user_data,
        meta_data,
        network_config,
        nccl: None,
        nccl_conf: wanted.nccl == NcclWanted::Conf,
        imex_nodes: wanted.imex_nodes.clone(),
        nics: Vec::new(),
    };
    for key in seed.overruled() {
        disks.warn(format!(
            "`{key}` of the user-data takes the place of gpuvm's own, which is not done then"
        ));
    }
    Ok(seed)
}

/// Refuses IMEX to a guest that does not have all GPUs of a tray.
fn refuse_imex(topology: &Topology, functions: &[Bdf]) -> Result<()> {
    let of_rack = topology.gpus().map(|gpu| gpu.bdf).filter(|gpu| topology.is_of_rack(*gpu));
    let (own, others): (Vec<Bdf>, Vec<Bdf>) = of_rack.partition(|gpu| functions.contains(gpu));
    let (lack, hint) = match (own.len(), others.len()) {
        (0, _) => {
            let lack = "the guest has no GPU whose NVLinks leave the host".to_owned();
            (lack, "leave --imex-node out".to_owned())
        }
        (GPUS_PER_TRAY.., _) => return Ok(()),
        (own, others) => {
            let lack = format!("the guest has {own} of the tray's {GPUS_PER_TRAY} GPUs");
            match own + others {
                GPUS_PER_TRAY.. => {
                    let hint = format!(
                        "request all with `--gpus {GPUS_PER_TRAY}`, or leave --imex-node out"
                    );
                    (lack, hint)
                }
                seen => {
                    let lack = format!("{lack}, of which the host has only {seen}");
                    (lack, "leave --imex-node out".to_owned())
                }
            }
        }
    };
    Err(StorageError::ImexTray { lack }.hint(hint))
}

/// The keys that may log in: the named ones, otherwise the caller's own.
fn keys(
    wanted: &SeedRequest,
    place: &Place<'_>,
    may_log_in: bool,
    disks: &mut Disks,
) -> Result<Vec<SshKey>> {
    let mut keys = Vec::new();
    for path in &wanted.ssh_key {
        keys.extend(SshKey::read_all(&text(path)?).map_err(|error| wrong(path, &error))?);
    }
    // A recorded host is not the one that the caller will log in to.
    if !wanted.ssh_key.is_empty() || place.recorded {
        return Ok(keys);
    }
    let home = wanted.home.as_deref();
    keys = home.map(|home| own_keys(home, disks)).unwrap_or_default();
    if keys.is_empty() && !may_log_in {
        let looked = home.map_or("and no home directory is known".to_owned(), |home| {
            format!("and {} has no id_*.pub", home.join(".ssh").display())
        });
        match wanted.keyless {
            Keyless::Accepted => return Ok(keys),
            Keyless::Warned => {}
            Keyless::Refused => {
                let name = place.planned.name.to_string();
                return Err(StorageError::NoLogin { name, looked }.hint(
                    "`ssh-keygen -t ed25519` makes a key; --no-login makes a guest that is entered \
                     by its console or its agent (`gpuvm shell NAME`)",
                ));
            }
        }
        disks.warn(format!(
            "no user can log in to `{}`: no --ssh-key, --password-hash or --user-data, \
             {looked}; `ssh-keygen` makes a key",
            place.planned.name
        ));
    }
    Ok(keys)
}

/// The public keys of a home directory, sorted by file name. Files that are no keys are skipped,
/// since they were not named.
fn own_keys(home: &Path, disks: &mut Disks) -> Vec<SshKey> {
    let Ok(paths) = input::list(&home.join(".ssh")) else { return Vec::new() };
    let is_own = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("id_") && name.ends_with(".pub")
    };
    let mut keys = Vec::new();
    for path in paths.into_iter().filter(is_own) {
        let read = text(&path)
            .and_then(|text| SshKey::read_all(&text).map_err(|error| wrong(&path, &error)));
        match read {
            Ok(read) => keys.extend(read),
            Err(error) => disks.warn(format!("left out: {error}")),
        }
    }
    keys
}

/// Reads a text file that the admin named.
fn text(path: &Path) -> Result<String> {
    Ok(input::text(path, MAX_BYTES as u64)?)
}

/// The error that a file is not of the expected form.
fn wrong(path: &Path, error: &SeedError) -> Error {
    let message = format!("{}: {error}", path.display());
    Error::from(error.clone()).around(Refusal::around(message, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A public key of the right form.
    fn key(comment: &str) -> String {
        format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{} {comment}\n", "a".repeat(44))
    }

    #[test]
    fn own_keys_are_those_of_the_home_directory() {
        let home = tempfile::tempdir().unwrap();
        let mut disks = Disks::default();
        assert_eq!(own_keys(home.path(), &mut disks), []);
        let ssh = home.path().join(".ssh");
        std::fs::create_dir(&ssh).unwrap();
        for (name, text) in [
            ("id_rsa.pub", key("second")),
            ("id_ed25519.pub", key("first")),
            ("id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----".into()),
            ("known_hosts", key("other")),
            ("id_bad.pub", "secret words\n".into()),
        ] {
            std::fs::write(ssh.join(name), text).unwrap();
        }
        nix::unistd::mkfifo(&ssh.join("id_pipe.pub"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let keys = own_keys(home.path(), &mut disks);
        let keys: Vec<&str> = keys.iter().map(SshKey::as_str).collect();
        assert_eq!(keys, [key("first").trim(), key("second").trim()]);
        let notices: Vec<String> = disks.notices.iter().map(ToString::to_string).collect();
        let [bad, pipe] = &notices[..] else { panic!("{notices:?}") };
        assert!(bad.contains("id_bad.pub: SSH key, line 1") && pipe.contains("id_pipe.pub"));
    }

    #[test]
    fn oversized_and_binary_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let refused = |path: &Path| text(path).unwrap_err().to_string();
        assert!(
            refused(&write("large", &vec![b'a'; MAX_BYTES + 1])).contains("more than the limit of")
        );
        assert!(refused(&write("bytes", b"secret\xff")).ends_with("is not UTF-8 text: byte 6"));
        assert!(refused(dir.path()).contains("is a directory"));
        assert!(refused(&dir.path().join("absent")).contains("No such file"));
        assert_eq!(text(&write("good", b"a")).unwrap(), "a");
    }
}
