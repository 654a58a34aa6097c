//! Settings of the host that guests benefit from: how many files they may have open (`host files`),
//! and the kernel settings that `verify` judges (`host tuning`).

use crate::apply::Step;
use crate::apply::boot::steps as boot_steps;
use crate::apply::setting::{SettingStep, boot};
use crate::apply::text::TextStep;
use crate::discover::files::with_limit;
use crate::discover::tuning::{BALANCING, TRANSPARENT, value};
use crate::error::{Coded, Result, coded};
use crate::files::configuration;
use crate::fsroot::FsRoot;
use crate::world::World;
use gpuvm_core::verify::tuning::{CONF, MAX_FILES};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The reason a setting of the host is not changed.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "host-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HostVerbError {
    /// The kernel allows a process fewer open files.
    #[error("{count} open files: the kernel allows a process at most {most}")]
    TooManyFiles { count: String, most: String },
    /// The configuration of libvirt's QEMU driver does not exist.
    #[error("{path} does not exist")]
    NoQemuConf { path: String },
    /// No module id of a GPU is known.
    #[error("no module id is known, so {path} is not written")]
    NoModuleIds { path: String },
    /// A directory cannot be made.
    #[error("cannot make {dir}: {error}")]
    NoDirectory { dir: String, error: String },
    /// More huge pages are in use than would be left.
    #[error("{used} pages of {page} on node {node} are in use, so {count} are too few")]
    PagesInUse { used: String, page: String, node: String, count: String },
    /// The node's memory is a GPU's, whose driver gives it to programs.
    #[error("the memory of node {node} is that of GPU {gpu}, and no guest gets it")]
    MemoryOfGpu { node: String, gpu: String },
    /// The host does not have the setting.
    #[error("{option}: this host does not have {name}")]
    NoSetting { option: String, name: String },
    /// The host does not know the value of the setting.
    #[error("{option} {wish}: not supported by this host")]
    NoValue { option: String, wish: String },
    /// A recorded host does not contain its kernel settings.
    #[error("a recorded host does not include kernel settings")]
    NotRecorded,
}

impl Coded for HostVerbError {}

/// The kernel's limit of open files for any process.
const MOST: &str = "proc/sys/fs/nr_open";

/// The governors of all pcpus, as a pattern for systemd-tmpfiles.
const GOVERNORS: &str = "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";

/// A setting of the kernel.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Setting {
    /// Its option.
    pub option: &'static str,
    /// Its name, for people.
    #[serde(skip)]
    pub name: &'static str,
    /// Its files with their values.
    pub values: BTreeMap<String, String>,
    /// Its possible values; empty: unknown.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub known: BTreeSet<String>,
    /// The value at boot, from our file.
    pub at_boot: Option<String>,
    /// The recommended value for guests; `None` if it depends, or this host has no such setting.
    pub advised: Option<&'static str>,
    /// Why.
    pub why: &'static str,
}

/// The steps that let guests have this many files open; none if they may already.
pub fn open_files(count: u64) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let most = root.read(MOST)?.and_then(|text| text.trim().parse::<u64>().ok());
    if most.is_some_and(|most| count > most) {
        let most = most.unwrap_or(0).to_string();
        let hint =
            format!("no guest would start then; `sysctl fs.nr_open` is that number, in /{MOST}");
        return Err(HostVerbError::TooManyFiles { count: count.to_string(), most }.hint(hint));
    }
    let path = Path::new("/").join(CONF);
    let Some(before) = configuration(&path)? else {
        let path = path.display().to_string();
        return Err(HostVerbError::NoQemuConf { path }
            .hint("it comes with libvirt's driver for QEMU; is that installed?"));
    };
    let after = with_limit(&before, count);
    let after =
        after.map_err(|error| coded((&error).into(), error.to_string(), "mend that line first"))?;
    let step = after.map(|after| {
        let what = format!("let guests have {count} files open: {MAX_FILES} = {count}");
        TextStep { path, before, after, what }.into()
    });
    Ok(step.into_iter().collect())
}

/// The settings of the examined host.
pub fn settings_now(world: &World) -> Result<[Setting; 3]> {
    let topology = world.topology()?;
    let nodes = topology.nodes().iter().filter(|node| !node.memory_kib.is_zero()).count();
    let Some(root) = world.root()? else {
        let hint = "`--host` takes a directory that holds a machine's sys/ and proc/";
        return Err(HostVerbError::NotRecorded.hint(hint));
    };
    settings(&root, nodes)
}

/// The settings of a host, in the order of the options.
fn settings(root: &FsRoot, nodes: usize) -> Result<[Setting; 3]> {
    let one = |path: &str| -> Result<BTreeMap<String, String>> {
        Ok(value(root, path)?.map(|now| (path.to_owned(), now)).into_iter().collect())
    };
    let (mut governors, mut known) = (BTreeMap::new(), Vec::new());
    for name in root.names("sys/devices/system/cpu")? {
        let dir = format!("sys/devices/system/cpu/{name}/cpufreq");
        // The kernel does not report it for an offline pcpu.
        let Ok(Some(now)) = value(root, &format!("{dir}/scaling_governor")) else { continue };
        let all = root.read(&format!("{dir}/scaling_available_governors")).ok().flatten();
        let all = all.unwrap_or_default();
        known.push(all.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>());
        governors.insert(format!("{dir}/scaling_governor"), now);
    }
    let known = known.into_iter().reduce(|all, one| &all & &one).unwrap_or_default();
    let words = root.read(TRANSPARENT)?.unwrap_or_default();
    let words = words.split_whitespace().map(|word| word.trim_matches(['[', ']']).to_owned());
    let written = boot::values(root)?;
    let at_boot = |path: &str| written.get(path).cloned();
    Ok([
        Setting {
            option: "--numa-balancing",
            name: "automatic NUMA balancing",
            values: one(BALANCING)?,
            known: ["0", "1"].map(str::to_owned).into(),
            at_boot: at_boot(BALANCING),
            advised: (nodes > 1).then_some("1"),
            why: "memory that nothing binds follows its vCPUs to their node; memory that is bound, \
                  on huge pages or mapped for passed functions does not move",
        },
        Setting {
            option: "--governor",
            name: "the governor of frequencies",
            values: governors,
            known,
            at_boot: at_boot(GOVERNORS),
            advised: Some("performance"),
            why: "a pcpu that sleeps deeply or runs slowly answers its guest late",
        },
        Setting {
            option: "--transparent-huge-pages",
            name: "transparent huge pages",
            values: one(TRANSPARENT)?,
            known: words.collect(),
            at_boot: at_boot(TRANSPARENT),
            advised: Some("madvise"),
            why: "QEMU asks for them for memory on normal pages; `never` walks more levels at each \
                  access",
        },
    ])
}

/// The steps that set the requested values, in the order of the settings; `at_boot`: also when the
/// machine boots.
pub fn tuned(wishes: &[Option<String>; 3], at_boot: bool) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let (mut steps, mut at_boot_values) = (Vec::new(), boot::values(&root)?);
    for (setting, wish) in settings(&root, 1)?.into_iter().zip(wishes) {
        let Some(wish) = wish else { continue };
        let Setting { option, name, values, known, .. } = setting;
        if values.is_empty() {
            let (option, name) = (option.to_string(), name.to_string());
            return Err(HostVerbError::NoSetting { option, name }
                .hint("`gpuvm host tuning` shows what can be set"));
        }
        if !known.is_empty() && !known.contains(wish) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let (option, wish) = (option.to_string(), wish.clone());
            return Err(HostVerbError::NoValue { option, wish }
                .hint(format!("it knows {}", known.join(", "))));
        }
        let was: BTreeMap<String, String> =
            values.into_iter().filter(|(_, now)| now != wish).collect();
        if !was.is_empty() {
            let to = was.keys().map(|path| (path.clone(), wish.clone())).collect();
            steps.push(SettingStep { name: name.to_owned(), to, was }.into());
        }
        let path = match option {
            "--governor" => GOVERNORS,
            "--numa-balancing" => BALANCING,
            _ => TRANSPARENT,
        };
        at_boot_values.insert(path.to_owned(), wish.clone());
    }
    if at_boot {
        steps.extend(boot_steps(boot::files(&at_boot_values))?);
    }
    Ok(steps)
}
