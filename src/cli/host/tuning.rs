//! `host tuning`: the settings of the kernel that `verify` judges, shown with the reason of each, and set.

use super::change::change;
use crate::apply::Step;
use crate::apply::boot::steps as boot_steps;
use crate::apply::setting::{SettingStep, boot};
use crate::cli::args::HostTuningArgs;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, hinted};
use crate::cli::table::Table;
use crate::discover::tuning::{BALANCING, TRANSPARENT, value};
use crate::fsroot::FsRoot;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The governors of all pcpus, as systemd-tmpfiles takes them.
const GOVERNORS: &str = "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";

/// Is a setting.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Setting {
    /// Its option.
    option: &'static str,
    /// Its name, for people.
    #[serde(skip)]
    name: &'static str,
    /// Its files with their values.
    values: BTreeMap<String, String>,
    /// The values that it can have; empty: not known.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    known: BTreeSet<String>,
    /// What is written at boot, by our file.
    at_boot: Option<String>,
    /// What suits guests; none: it depends, or this host has no such setting.
    advised: Option<&'static str>,
    /// Why.
    why: &'static str,
}

/// Runs the verb.
pub fn run(args: &HostTuningArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let wishes = [
        args.numa_balancing.map(|on| if on.is_on() { "1" } else { "0" }.to_owned()),
        args.governor.clone(),
        args.transparent_huge_pages.map(|when| when.as_str().to_owned()),
    ];
    if wishes.iter().all(Option::is_none) {
        return show(cx);
    }
    let steps = || steps(&wishes, args.at_boot);
    let made = change("host tuning", (&args.lock, args.dry_run), steps, cx)?;
    if cx.output.json && !args.dry_run {
        cx.output.json_rows("gpuvm-steps", &made)?;
    }
    Ok(EXIT_DONE)
}

/// The settings of a host, in the order of the options.
fn settings(root: &FsRoot, nodes: usize) -> anyhow::Result<[Setting; 3]> {
    let one = |path: &str| -> anyhow::Result<BTreeMap<String, String>> {
        Ok(value(root, path)?.map(|now| (path.to_owned(), now)).into_iter().collect())
    };
    let (mut governors, mut known) = (BTreeMap::new(), Vec::new());
    for name in root.names("sys/devices/system/cpu")? {
        let dir = format!("sys/devices/system/cpu/{name}/cpufreq");
        // The kernel refuses to tell it of a pcpu that is offline.
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
            why: "memory that nothing binds follows its vCPUs to their node; memory that is bound, on huge pages or \
                  mapped for passed functions does not move",
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
            why: "QEMU asks for them for memory on normal pages; `never` walks more levels at each access",
        },
    ])
}

/// The steps that lead to what is wished, in the order of the settings.
fn steps(wishes: &[Option<String>; 3], at_boot: bool) -> anyhow::Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let (mut steps, mut at_boot_values) = (Vec::new(), boot::values(&root)?);
    for (setting, wish) in settings(&root, 1)?.into_iter().zip(wishes) {
        let Some(wish) = wish else { continue };
        let Setting { option, name, values, known, .. } = setting;
        if values.is_empty() {
            let message = format!("{option}: this host does not have {name}");
            return Err(hinted(message, "`gpuvm host tuning` shows what can be set"));
        }
        if !known.is_empty() && !known.contains(wish) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let message = format!("{option} {wish}: this host does not know it");
            return Err(hinted(message, format!("it knows {}", known.join(", "))));
        }
        let was: BTreeMap<String, String> =
            values.into_iter().filter(|(_, now)| now != wish).collect();
        if !was.is_empty() {
            let to = was.keys().map(|path| (path.clone(), wish.clone())).collect();
            steps.push(Step::Set(SettingStep { name: name.to_owned(), to, was }));
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

/// Shows the settings.
fn show(cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let nodes = topology.nodes().iter().filter(|node| !node.memory_kib.is_zero()).count();
    let Some(root) = cx.root()? else {
        let hint = "`--host` takes a directory that holds a machine's sys/ and proc/";
        return Err(hinted("how a kernel is set is not recorded in a file", hint));
    };
    let settings = settings(&root, nodes)?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-host-tuning", &settings)?;
        return Ok(EXIT_DONE);
    }
    let head = ["OPTION", "NOW", "AT BOOT", "ADVISED", "WHY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for Setting { option, values, at_boot, advised, why, .. } in settings {
        let now: BTreeSet<&str> = values.values().map(String::as_str).collect();
        let now = if now.is_empty() { vec!["-"] } else { now.into_iter().collect() };
        let cells = [option, &now.join(" "), at_boot.as_deref().unwrap_or("-")];
        let mut row: Vec<String> = cells.map(str::to_owned).into();
        row.extend([advised.unwrap_or("-").to_owned(), why.to_owned()]);
        rows.push(row);
    }
    cx.output.table(&Table::of(rows))?;
    Ok(EXIT_DONE)
}
