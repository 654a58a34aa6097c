//! From arguments to a planned guest: the request, its place and its name. Knows the clock and the user, which the
//! planner must not; does not know what is written or started afterwards.

use super::args::{GuestArgs, PinsArg};
use super::context::Context;
use super::error::usage;
use crate::bdf::Bdf;
use crate::placement::{Occupancy, Placement, plan};
use crate::request::{CellWish, DomainName, GpuWish, Request, RequestError};
use crate::topology::Topology;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Is a guest with its place and its name, and what they were made from.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The host.
    pub topology: Topology,
    /// What was wanted.
    pub request: Request,
    /// Where it goes.
    pub placement: Placement,
    /// Its name.
    pub name: DomainName,
    /// What was taken on the host.
    pub occupancy: Occupancy,
}

/// Reads the host and what is taken on it, and finds the guest's place and name.
pub fn resolve(args: &GuestArgs, cx: &Context<'_>) -> anyhow::Result<Planned> {
    let request = request(args)?;
    let topology = cx.topology()?;
    let occupancy = cx.occupancy(args.assume_empty)?;
    let placement = plan(&topology, &occupancy, &request)?;
    let indexes = gpu_indexes(&topology, &placement.devices);
    let name = match (&args.name, &args.domain) {
        (Some(name), _) => name.clone(),
        (None, Some(base)) => suffixed(base.as_str(), &indexes)?,
        (None, None) if called_as_vendor() => suffixed(&vendor_base(), &indexes)?,
        (None, None) => default_name(&indexes, &occupancy)?,
    };
    Ok(Planned { topology, request, placement, name, occupancy })
}

/// Makes the request of the arguments; an error where they cannot be meant, whatever the host.
pub fn request(args: &GuestArgs) -> anyhow::Result<Request> {
    let gpus = match (args.gpu_index, args.gpus) {
        _ if !args.gpu.is_empty() => GpuWish::Exact(args.gpu.clone()),
        (Some(_), Some(0)) => {
            return Err(usage(
                "--gpu-index is given, but --gpus is 0",
                "leave --gpu-index out for a guest without GPUs",
            ));
        }
        (Some(first), count) => GpuWish::Run { first, count: count.unwrap_or(1) },
        (None, count) => GpuWish::Count(count.unwrap_or(0)),
    };
    if args.pins == PinsArg::Core && (args.cells.is_some() || args.threads.is_some()) {
        let flag = if args.cells.is_some() { "--cells" } else { "--threads" };
        return Err(usage(
            format!(
                "{flag} goes only with --pins none: a pinned guest takes it from its host nodes"
            ),
            format!("add --pins none, or leave {flag} out"),
        ));
    }
    if args.cells == Some(0) {
        return Err(usage("a guest needs at least one NUMA cell", "leave --cells out for one"));
    }
    let request = Request {
        gpus,
        vcpus: args.vcpus,
        memory_kib: args.memory,
        huge_pages: args.huge_pages.map(Into::into),
        profile: args.profile.into(),
        pins: args.pins.into(),
        cells: args.cells.map_or(CellWish::Auto, CellWish::Count),
        threads: args.threads,
        ..Request::for_gpus(0)
    };
    request.check().map_err(|error| usage(error.to_string(), ""))?;
    Ok(request)
}

/// Indexes of the GPUs among these devices, by PCI address from 0; ascending.
pub fn gpu_indexes(topology: &Topology, devices: &[Bdf]) -> Vec<usize> {
    let gpus = topology.gpus().enumerate();
    gpus.filter(|(_, gpu)| devices.contains(&gpu.bdf)).map(|(index, _)| index).collect()
}

/// Adds the GPUs to a base as the replaced tool did (spec/nvidia-vm.md 2.2): `-1g8`, `-2g0-1`; nothing without GPUs.
/// GPUs that do not stand in a row are named each, `-2g0+5`, so that the name does not claim those between.
fn suffixed(base: &str, indexes: &[usize]) -> Result<DomainName, RequestError> {
    let count = indexes.len();
    let name = match indexes {
        [] => base.to_owned(),
        [only] => format!("{base}-1g{only}"),
        [first, .., last] if last - first + 1 == count => format!("{base}-{count}g{first}-{last}"),
        _ => {
            let each: Vec<String> = indexes.iter().map(usize::to_string).collect();
            format!("{base}-{count}g{}", each.join("+"))
        }
    };
    DomainName::new(&name)
}

/// The name of a guest that nobody named: `gpuvm-2g0-1`, without GPUs `gpuvm-0g`; `.2`, `.3` and so on are added while
/// a domain has that name. The same host and domains give the same name.
fn default_name(indexes: &[usize], held: &Occupancy) -> Result<DomainName, RequestError> {
    let plain = suffixed(if indexes.is_empty() { "gpuvm-0g" } else { "gpuvm" }, indexes)?;
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
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    stamped_base(&user, now)
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
    use crate::placement::Held;
    use clap::Parser;

    /// The guest arguments of a `plan` command line.
    fn guest(line: &str) -> GuestArgs {
        let words = ["gpuvm", "plan"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Plan(args) => args.guest,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refuses_arguments_that_cannot_be_meant() {
        for line in [
            "--cells 2",
            "--threads 2",
            "--pins core --cells 1",
            "--pins none --cells 0",
            "--pins none --threads 0",
            "--vcpus 0",
            "--memory 1K",
            "--gpu-index 3 --gpus 0",
            "--gpu 34:00.0 --gpu 0000:34:00.0",
        ] {
            let error = request(&guest(line)).unwrap_err();
            assert_eq!(crate::cli::error::exit_code(&error), 2, "{line}: {error}");
        }
    }

    #[test]
    fn maps_arguments_to_wishes() {
        for (line, wish) in [
            ("", GpuWish::Count(0)),
            ("--gpus 4", GpuWish::Count(4)),
            ("--gpu-index 5", GpuWish::Run { first: 5, count: 1 }),
            ("--gpu-count 8 --gpu-index 8", GpuWish::Run { first: 8, count: 8 }),
            ("--gpu 34:00.0", GpuWish::Exact(vec!["34:00.0".parse().unwrap()])),
        ] {
            assert_eq!(request(&guest(line)).unwrap().gpus, wish, "{line}");
        }
        let cells = request(&guest("--pins none --cells 2 --threads 2 --vcpus 4")).unwrap();
        assert_eq!((cells.cells, cells.threads), (CellWish::Count(2), Some(2)));
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
            assert_eq!(suffixed(base, &indexes).unwrap().as_str(), name);
        }
        assert!(suffixed(&"x".repeat(128), &[0]).is_err());
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
            default_name(indexes, &held(names)).unwrap().as_str().to_owned()
        };
        assert_eq!(name(&[0, 1], &[]), "gpuvm-2g0-1");
        assert_eq!(name(&[], &[]), "gpuvm-0g");
        assert_eq!(name(&[], &["gpuvm-0g", "gpuvm-0g.2"]), "gpuvm-0g.3");
    }
}
