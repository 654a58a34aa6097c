//! From arguments to a planned guest: the request, its place and its name. Knows the clock and the user, which the
//! planner must not; does not know what is written or started afterwards.

use super::args::{
    AllowArg, GpuArgs, GuestArgs, NearArg, PinsArg, ShapeArgs, StorageArgs, Which, vf_settings,
};
use super::context::Context;
use super::error::{Refused, usage};
use super::offer;
use super::options::{changes, told};
use super::render::{refuse_foreign, template_file};
use super::storage::refuse_unfit;
use crate::apply::now_s;
use crate::bdf::Bdf;
use crate::domain::view::gpu_indexes;
use crate::placement::{Occupancy, Placement, nearest, plan};
use crate::request::{
    Allow, DeviceWish, DomainName, Extras, GpuWish, Prefer, Request, RequestError, Reserve,
    Template,
};
use crate::topology::Topology;
use gpuvm_ops::guest::Planned;
use std::path::Path;
use std::sync::OnceLock;

/// Reads the host and what is taken on it, and finds the guest's place and name. `disks`: those of a guest whose
/// definition is written; none where it is only planned.
pub fn resolve(
    args: &GuestArgs,
    disks: Option<&StorageArgs>,
    cx: &Context<'_>,
) -> anyhow::Result<Planned> {
    let mut request = request(&args.gpus, &args.shape)?;
    if let Some(path) = &args.template {
        let remaps_interrupts = template_file(path)?.remaps_interrupts();
        request.template = Template { is_given: true, remaps_interrupts };
    }
    let topology = cx.topology()?;
    let occupancy = cx.taken(&args.taken)?;
    let placement = match (place(&topology, &occupancy, &request), disks) {
        (Ok(placement), _) => placement,
        (Err(refused), None) => return Err(refused.into()),
        (Err(refused), Some(disks)) => {
            // What no other size mends is said first: sizes would be offered in vain.
            refuse_foreign(args, &topology)?;
            refuse_unfit(disks, &occupancy, cx)?;
            return Err(refused.into());
        }
    };
    let gpus = (gpu_indexes(&topology, &placement.devices), displays(&topology, &placement));
    let name = match (&args.name, &args.domain) {
        (Some(name), _) => name.clone(),
        (None, Some(base)) => suffixed(base.as_str(), &gpus)?,
        (None, None) if called_as_vendor() => suffixed(&vendor_base(), &gpus)?,
        (None, None) => default_name(&gpus, &occupancy)?,
    };
    Ok(Planned { topology, request, placement, name, occupancy })
}

/// Finds the guest's place; where there is none, the error names the nearest requests that have one.
fn place(
    topology: &Topology,
    occupancy: &Occupancy,
    request: &Request,
) -> Result<Placement, Refused> {
    plan(topology, occupancy, request).map_err(|error| {
        let nearest = nearest(topology, occupancy, request);
        let edits = nearest.iter().map(|near| offer::needed(changes(request, near)));
        let edits: Vec<_> = edits.collect();
        let command = edits.first().and_then(|edits| offer::instead(edits));
        Refused { error, nearest: edits.iter().map(|edits| told(edits)).collect(), command }
    })
}

/// Makes the request of the arguments; an error where they cannot be meant, whatever the host.
pub fn request(gpus: &GpuArgs, shape: &ShapeArgs) -> anyhow::Result<Request> {
    let gpu_model = gpus.gpu_model.clone();
    let gpus = gpu_wish(gpus)?;
    let extras = extras(shape)?;
    contradictions(&gpus, &extras, shape)?;
    let request = Request {
        gpus,
        gpu_model,
        vcpus: shape.vcpus,
        memory_kib: shape.memory,
        huge_pages: shape.huge_pages.map(Into::into),
        profile: shape.profile.into(),
        pins: shape.pins.into(),
        cells: shape.cells.0,
        threads: shape.threads,
        extras,
        reserve: Reserve { cores: shape.reserve_cores, memory_kib: shape.reserve_memory },
        policy: shape.policy.into(),
        prefer: shape.prefer.map_or(Prefer::Auto, Into::into),
        allow: Allow {
            remote: shape.allow.contains(&AllowArg::Remote),
            split: shape.allow.contains(&AllowArg::Split),
        },
        p2p_clique: shape.p2p_clique,
        template: Template::default(),
        rounding: None,
    };
    request.check().map_err(|error| usage(error.to_string(), ""))?;
    Ok(request)
}

/// Which GPUs are wanted.
fn gpu_wish(args: &GpuArgs) -> anyhow::Result<GpuWish> {
    if !args.gpu.is_empty() {
        let (indexes, bdfs) = sorted_out(&args.gpu);
        return match (indexes.is_empty(), bdfs.is_empty()) {
            (false, true) => Ok(GpuWish::Indexes(indexes)),
            (true, _) => Ok(GpuWish::Exact(bdfs)),
            (false, false) => Err(usage(
                "--gpu is given with indexes and with PCI addresses",
                "name all GPUs in one way; `gpuvm host show` prints both",
            )),
        };
    }
    match (args.gpu_index, args.gpus) {
        (Some(_), Some(0)) => Err(usage(
            "--gpu-index is given, but --gpus is 0",
            "leave --gpu-index out for a guest without GPUs",
        )),
        (Some(first), count) => Ok(GpuWish::Run { first, count: count.unwrap_or(1) }),
        (None, count) => Ok(GpuWish::Count(count.unwrap_or(0))),
    }
}

/// Which NICs, virtual functions and NVMe drives are wanted, and how near.
fn extras(shape: &ShapeArgs) -> anyhow::Result<Extras> {
    let which: Vec<Which> = shape.vf.iter().map(|vf| vf.which).collect();
    Ok(Extras {
        nics: device_wish("--nic", &shape.nic)?,
        vfs: device_wish("--vf", &which)?,
        vf_settings: vf_settings(&shape.vf),
        nic_near: shape.nic_near.map(Into::into).unwrap_or_default(),
        nvmes: device_wish("--nvme", &shape.nvme)?,
        nvme_near: shape.nvme_near.map(Into::into).unwrap_or_default(),
    })
}

/// One number, or addresses.
fn device_wish(flag: &str, values: &[Which]) -> anyhow::Result<DeviceWish> {
    match sorted_out(values) {
        (counts, bdfs) if counts.is_empty() && bdfs.is_empty() => Ok(DeviceWish::default()),
        (counts, bdfs) if counts.is_empty() => Ok(DeviceWish::Exact(bdfs)),
        (counts, bdfs) if counts.len() == 1 && bdfs.is_empty() => Ok(DeviceWish::Count(counts[0])),
        _ => Err(usage(
            format!("{flag} takes one number, or PCI addresses, not both and no second number"),
            format!("{flag} 2, or {flag} once for each address"),
        )),
    }
}

/// Numbers and addresses apart.
fn sorted_out(values: &[Which]) -> (Vec<u32>, Vec<Bdf>) {
    let (mut numbers, mut bdfs) = (Vec::new(), Vec::new());
    for value in values {
        match value {
            Which::Number(number) => numbers.push(*number),
            Which::At(bdf) => bdfs.push(*bdf),
        }
    }
    (numbers, bdfs)
}

/// Refuses options that say something of what the guest does not have.
fn contradictions(gpus: &GpuWish, extras: &Extras, shape: &ShapeArgs) -> anyhow::Result<()> {
    let near = |arg: Option<NearArg>| arg.is_some_and(|near| near != NearArg::Any);
    let nics = extras.nics.number() + extras.vfs.number();
    for (flag, arg, number, add) in [
        ("--nic-near", shape.nic_near, nics, "--nic or --vf"),
        ("--nvme-near", shape.nvme_near, extras.nvmes.number(), "--nvme"),
    ] {
        if arg.is_some() && number == 0 {
            let hint = format!("add {add}, or leave {flag} out");
            return Err(usage(format!("{flag} is given, but not {add}"), hint));
        }
        if near(arg) && *gpus == GpuWish::Count(0) {
            let hint = format!("add --gpus, or leave {flag} out");
            return Err(usage(format!("{flag} means near to GPUs, and the guest has none"), hint));
        }
    }
    let floats = shape.pins == PinsArg::None;
    if !floats && shape.threads.is_some() {
        return Err(usage(
            "--threads goes only with --pins none: a pinned guest takes it from its host cores",
            "add --pins none, or leave --threads out",
        ));
    }
    if floats && (shape.reserve_cores > 0 || shape.allow.contains(&AllowArg::Remote)) {
        let flag = if shape.reserve_cores > 0 { "--reserve-cores" } else { "--allow remote" };
        return Err(usage(
            format!("{flag} says which cores a guest gets, and with --pins none it gets none"),
            format!("leave out {flag} or --pins none"),
        ));
    }
    Ok(())
}

/// Displays that a guest gets, as its name has them: they have an address and no index.
fn displays(topology: &Topology, placement: &Placement) -> Vec<Bdf> {
    let shown = topology.displays().map(|(gpu, _)| gpu.bdf);
    shown.filter(|bdf| placement.devices.contains(bdf)).collect()
}

/// Is what a name says of a guest's GPUs: indexes, and addresses of displays.
type NamedGpus = (Vec<usize>, Vec<Bdf>);

/// Adds the GPUs to a base as the replaced tool did (gpuvm-nvidia-vm(7), COMMAND LINES): `-1g8`,
/// `-2g0-1`; nothing without GPUs. GPUs that do not stand in a row are named each, `-2g0+5`, so
/// that the name does not claim those between. A display is named by its address, `-1g00.02.0`,
/// since it has no index.
fn suffixed(base: &str, (indexes, displays): &NamedGpus) -> Result<DomainName, RequestError> {
    let count = indexes.len() + displays.len();
    let name = match indexes[..] {
        [] if count == 0 => base.to_owned(),
        [first, .., last] if displays.is_empty() && last - first + 1 == count => {
            format!("{base}-{count}g{first}-{last}")
        }
        _ => {
            let address = |bdf: &Bdf| match bdf.segment() {
                0 => bdf.to_string().split_off("0000:".len()).replace(':', "."),
                _ => bdf.to_string().replace(':', "."),
            };
            let indexes = indexes.iter().map(usize::to_string);
            let each: Vec<String> = indexes.chain(displays.iter().map(address)).collect();
            format!("{base}-{count}g{}", each.join("+"))
        }
    };
    DomainName::new(&name)
}

/// The name of a guest that nobody named: `gpuvm-2g0-1`, without GPUs `gpuvm-0g`; `.2`, `.3` and so on are added while
/// a domain has that name. The same host and domains give the same name.
fn default_name(gpus: &NamedGpus, held: &Occupancy) -> Result<DomainName, RequestError> {
    let has_none = gpus.0.is_empty() && gpus.1.is_empty();
    let plain = suffixed(if has_none { "gpuvm-0g" } else { "gpuvm" }, gpus)?;
    let taken = |name: &str| held.domains.iter().any(|domain| domain.domain == name);
    if !taken(plain.as_str()) {
        return Ok(plain);
    }
    let mut number = 2;
    while taken(&format!("{plain}.{number}")) {
        number += 1;
    }
    DomainName::new(&format!("{plain}.{number}"))
}

/// Whether the program runs under the name of the tool that it replaces.
fn called_as_vendor() -> bool {
    let program = std::env::args_os().next();
    program.is_some_and(|path| Path::new(&path).file_name().is_some_and(|n| n == "nvidia-vm"))
}

/// The replaced tool's default base: `dgx2vm-` with user, weekday and time of day, as `dgx2vm-labThu1726`. The time is
/// UTC: no library here knows the local one.
fn vendor_base() -> String {
    /// One in a run: a name that was asked about is the same a minute later.
    static BASE: OnceLock<String> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
        stamped_base(&user, now_s())
    });
    base.clone()
}

/// The replaced tool's default base for a user and a time in seconds since 1970.
fn stamped_base(user: &str, seconds: u64) -> String {
    /// Weekdays from the first day of 1970, a Thursday.
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let user: String = user.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let day = DAYS.iter().cycle().nth((seconds / 86_400 % 7) as usize).copied().unwrap_or("Thu");
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("dgx2vm-{user}{day}{hour:02}{minute:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Verb};
    use crate::memsize::MemSize;
    use crate::placement::Held;
    use crate::request::{CellWish, Near, PinPolicy, Policy, Prefer};
    use clap::Parser;

    /// The request of a `plan` command line.
    fn wish(line: &str) -> anyhow::Result<Request> {
        let words = ["gpuvm", "plan"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Plan(args) => request(&args.guest.gpus, &args.guest.shape),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refuses_arguments_that_cannot_be_meant() {
        for line in [
            "--threads 2",
            "--pins thread --threads 2",
            "--pins none --threads 0",
            "--pins none --gpus 1 --reserve-cores 1",
            "--pins none --gpus 1 --allow split,remote",
            "--vcpus 0",
            "--memory 1K",
            "--gpu-index 3 --gpus 0",
            "--gpu 34:00.0 --gpu 0000:34:00.0",
            "--gpu 3 --gpu 34:00.0",
            "--gpu 3 --gpu 3",
            "--gpus 1 --nic 1 --nic 35:00.0",
            "--gpus 1 --nvme 1 --nvme 1",
            "--gpus 1 --nic-near switch",
            "--gpus 1 --nic 0 --nic-near any",
            "--gpus 1 --nic 1 --nvme-near node",
            "--nic 1 --nic-near switch",
            "--gpus 1 --nic 35:00.0 --vf 35:00.0",
        ] {
            let error = wish(line).unwrap_err();
            assert_eq!(crate::cli::error::exit_code(&error), 2, "{line}: {error}");
        }
    }

    #[test]
    fn maps_arguments_to_wishes() {
        for (line, gpus) in [
            ("", GpuWish::Count(0)),
            ("--gpus 4", GpuWish::Count(4)),
            ("--gpu-index 5", GpuWish::Run { first: 5, count: 1 }),
            ("--gpu-count 8 --gpu-index 8", GpuWish::Run { first: 8, count: 8 }),
            ("--gpu 34:00.0", GpuWish::Exact(vec!["34:00.0".parse().unwrap()])),
            ("--gpu 3 --gpu 5", GpuWish::Indexes(vec![3, 5])),
        ] {
            assert_eq!(wish(line).unwrap().gpus, gpus, "{line}");
        }
        let cells = wish("--pins none --cells 2 --threads 2 --vcpus 4").unwrap();
        assert_eq!((cells.cells, cells.threads), (CellWish::Count(2), Some(2)));
        assert_eq!(wish("--cells per-node").unwrap(), Request::for_gpus(0));
        let all = wish(
            "--gpus 2 --nic 2 --vf 1 --nic-near node --nvme 5e:00.0 --nvme 5f:00.0 --nvme-near switch \
             --pins thread --reserve-cores 2 --reserve-memory 8G --policy spread --prefer package --allow \
             split,remote",
        );
        let nvme = |bus| format!("{bus}:00.0").parse().unwrap();
        let expected = Request {
            extras: Extras {
                nics: DeviceWish::Count(2),
                vfs: DeviceWish::Count(1),
                vf_settings: Vec::new(),
                nic_near: Near::Node,
                nvmes: DeviceWish::Exact(vec![nvme("5e"), nvme("5f")]),
                nvme_near: Near::Switch,
            },
            pins: PinPolicy::Thread,
            reserve: Reserve { cores: 2, memory_kib: Some(MemSize::from_gib(8)) },
            policy: Policy::Spread,
            prefer: Prefer::Package,
            allow: Allow { remote: true, split: true },
            ..Request::for_gpus(2)
        };
        assert_eq!(all.unwrap(), expected);
    }

    #[test]
    fn names_as_the_replaced_tool_did() {
        let run = |range: std::ops::Range<usize>| range.collect::<Vec<_>>();
        for (base, indexes, name) in [
            ("testme", run(8..16), "testme-8g8-15"),
            ("nvme-passthrough", run(0..16), "nvme-passthrough-16g0-15"),
            ("disk-passthrough", run(9..10), "disk-passthrough-1g9"),
            ("2gpu-vm", run(0..2), "2gpu-vm-2g0-1"),
            ("odd", vec![0, 5], "odd-2g0+5"),
            ("plain", vec![], "plain"),
        ] {
            assert_eq!(suffixed(base, &(indexes, vec![])).unwrap().as_str(), name);
        }
        for (indexes, display, name) in [
            (vec![], "0000:00:02.0", "x-1g00.02.0"),
            (vec![0, 2], "0001:0a:00.1", "x-3g0+2+0001.0a.00.1"),
        ] {
            let gpus = (indexes, vec![display.parse().unwrap()]);
            assert_eq!(suffixed("x", &gpus).unwrap().as_str(), name);
        }
        assert!(suffixed(&"x".repeat(128), &(vec![0], vec![])).is_err());
        // 2018-11-22 17:26 UTC was a Thursday.
        assert_eq!(stamped_base("lab", 1_542_907_560), "dgx2vm-labThu1726");
        assert_eq!(stamped_base("a/b c", 0), "dgx2vm-abcThu0000");
    }

    #[test]
    fn a_default_name_avoids_those_that_are_there() {
        let held = |names: &[&str]| Occupancy {
            domains: names
                .iter()
                .map(|&name| Held { domain: name.into(), ..Held::default() })
                .collect(),
            ..Occupancy::default()
        };
        let name = |indexes: &[usize], names: &[&str]| {
            default_name(&(indexes.to_vec(), vec![]), &held(names)).unwrap().as_str().to_owned()
        };
        assert_eq!(name(&[0, 1], &[]), "gpuvm-2g0-1");
        assert_eq!(name(&[], &[]), "gpuvm-0g");
        assert_eq!(name(&[], &["gpuvm-0g", "gpuvm-0g.2"]), "gpuvm-0g.3");
    }
}
