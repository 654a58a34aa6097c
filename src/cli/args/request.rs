//! Converts the arguments of a guest to requests to the operations. Knows the clock and the user,
//! which make a name.

use super::program::called_as_vendor;
use super::{
    CreateArgs, ExportArgs, FleetPlanArgs, GpuArgs, GuestArgs, HeldArgs, PlanArgs, ShapeArgs,
    TakenArgs,
};
use crate::apply::now_s;
use crate::bdf::Bdf;
use crate::cli::refuse::usage;
use crate::domain::guest::VirtType;
use crate::request::{
    DeviceWish, DomainName, Extras, GpuWish, HugePages, Near, PinPolicy, Profile, Request,
    RequestError, Reserve, Rule, Template, VfWish, Which,
};
use gpuvm_ops::create::CreateRequest;
use gpuvm_ops::guest::{GuestRequest, NameRequest, PlannedPlace};
use gpuvm_ops::taken::Taken;

impl GuestArgs {
    /// Returns the request; an error where the arguments are invalid on any host. Made once in a
    /// run: a name that was asked about is the same a minute later.
    pub fn request(&self) -> anyhow::Result<GuestRequest> {
        self.request_named(None)
    }

    /// The same, with a name that is given without its option.
    fn request_named(&self, named: Option<&DomainName>) -> anyhow::Result<GuestRequest> {
        let place = self.plan.as_deref().map(PlannedPlace::read).transpose()?;
        let name = match (named.or(self.name.as_ref()), &self.domain) {
            (Some(name), _) => NameRequest::Exact(name.clone()),
            (None, Some(base)) => NameRequest::Base(base.to_string()),
            (None, None) if let Some(place) = &place => NameRequest::Exact(place.name.clone()),
            (None, None) if called_as_vendor() => NameRequest::Base(vendor_base()),
            (None, None) => NameRequest::Usual,
        };
        Ok(GuestRequest {
            request: request(&self.gpus, &self.shape)?,
            name,
            template: self.template.clone().or_else(|| place.as_ref()?.template.clone()),
            virt: match (self.virt_type, &place) {
                (VirtType::Kvm, Some(place)) => place.virt.unwrap_or(VirtType::Kvm),
                (named, _) => named,
            },
            networks: self.network.clone(),
            taken: Taken { assume: self.assume, ..Taken::from(&self.taken) },
            place,
        })
    }
}

impl PlanArgs {
    /// Returns the request, as [`GuestArgs::request`].
    pub fn request(&self) -> anyhow::Result<GuestRequest> {
        self.guest.request_named(self.named.as_ref())
    }
}

impl ExportArgs {
    /// Returns the request, as [`GuestArgs::request`].
    pub fn request(&self) -> anyhow::Result<GuestRequest> {
        let named = self.of.as_deref().map(DomainName::new).transpose();
        let named = named.map_err(|error| usage(error.to_string(), "`gpuvm export train-a`"))?;
        self.guest.request_named(named.as_ref())
    }
}

impl FleetPlanArgs {
    /// Returns the request, as [`GuestArgs::request`].
    pub fn request(&self) -> anyhow::Result<GuestRequest> {
        self.guest.request_named(self.named.as_ref())
    }
}

impl CreateArgs {
    /// Returns the request; an error where the arguments are invalid on any host.
    pub fn request(&self) -> anyhow::Result<CreateRequest> {
        let mut guest = self.guest.request_named(self.named.as_ref())?;
        guest.request.movable = self.movable;
        Ok(CreateRequest {
            guest,
            storage: self.storage.request()?,
            seed: self.seed.request()?,
            uuid: None,
            private_net: self.private_ip,
            without_nics: false,
            reserve_pages: self.reserve_pages,
            accept_shared_fabric: self.accept_shared_fabric,
            starts: !self.no_start,
            applied: None,
            job: None,
        })
    }
}

impl From<&HeldArgs> for Taken {
    fn from(args: &HeldArgs) -> Taken {
        Taken { assume: args.assume, ..Taken::from(&args.taken) }
    }
}

impl From<&TakenArgs> for Taken {
    fn from(args: &TakenArgs) -> Taken {
        let TakenArgs { assume_empty, domain_xml } = args;
        Taken { assume_empty: *assume_empty, domain_xml: domain_xml.clone(), assume: None }
    }
}

/// Makes the request of the arguments; an error where they cannot be meant, whatever the host.
pub fn request(gpus: &GpuArgs, shape: &ShapeArgs) -> anyhow::Result<Request> {
    let (gpu_model, vgpu) = (gpus.gpu_model.clone(), gpus.vgpu.clone());
    let gpus = gpu_wish(gpus)?;
    if vgpu.is_some() && gpus.number() > 0 {
        return Err(usage(both(gpus.number()), "leave --gpus out, or --vgpu"));
    }
    let extras = extras(shape)?;
    contradictions(&gpus, &extras, shape)?;
    let profile = shape.profile.unwrap_or_else(usual_profile);
    let request = Request {
        gpus,
        gpu_model,
        vgpu,
        vcpus: shape.max_vcpus.or(shape.vcpus),
        vcpus_at_start: shape.max_vcpus.and(shape.vcpus),
        memory_kib: shape.memory,
        huge_pages: shape.huge_pages.unwrap_or_else(|| HugePages::usual(profile)),
        profile,
        pins: shape.pins,
        cells: shape.cells.0,
        threads: shape.threads,
        extras,
        reserve: Reserve { cores: shape.reserve_cores, memory_kib: shape.reserve_memory },
        policy: shape.policy,
        prefer: shape.prefer.unwrap_or_default(),
        l3: shape.l3.unwrap_or_default(),
        allow: shape.allow.iter().copied().collect(),
        p2p_clique: shape.p2p_clique,
        p2p: shape.p2p.unwrap_or_default(),
        iommufd: shape.iommufd.unwrap_or_default(),
        spare_ports: shape.spare_ports,
        machine: shape.machine.clone(),
        movable: false,
        template: Template::default(),
        rounding: None,
    };
    request.check().map_err(|error| {
        let hint = match &error {
            RequestError::MaxVcpus { start, .. } => format!("--max-vcpus takes {start} or more"),
            _ => String::new(),
        };
        usage(error.to_string(), hint)
    })?;
    Ok(request)
}

/// The error of whole GPUs beside vGPUs.
pub(super) fn both(gpus: u32) -> String {
    format!("--vgpu cannot be used with --gpus {gpus}: a guest has whole GPUs or vGPUs, not both")
}

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
        vf_settings: VfWish::settings(&shape.vf),
        nic_near: shape.nic_near.unwrap_or_default(),
        nvmes: device_wish("--nvme", &shape.nvme)?,
        nvme_near: shape.nvme_near.unwrap_or_default(),
    })
}

/// One number, or addresses.
pub(super) fn device_wish(flag: &str, values: &[Which]) -> anyhow::Result<DeviceWish> {
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

/// Refuses options about parts that the guest does not have.
fn contradictions(gpus: &GpuWish, extras: &Extras, shape: &ShapeArgs) -> anyhow::Result<()> {
    let near = |arg: Option<Near>| arg.is_some_and(|near| near != Near::Any);
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
    let floats = shape.pins == PinPolicy::None;
    let profile = shape.profile.unwrap_or_else(usual_profile);
    if profile == Profile::NvidiaVm && !matches!(shape.pins, PinPolicy::None | PinPolicy::Auto) {
        return Err(usage(
            "profile nvidia-vm has pins of its own: the first threads of all cores, then the others",
            "leave --pins out, or --profile nvidia-vm",
        ));
    }
    if !floats && shape.threads.is_some() {
        return Err(usage(
            "--threads goes only with --pins none: a pinned guest takes it from its host cores",
            "add --pins none, or leave --threads out",
        ));
    }
    if floats && (shape.reserve_cores > 0 || shape.allow.contains(&Rule::Remote)) {
        let flag = if shape.reserve_cores > 0 { "--reserve-cores" } else { "--allow remote" };
        return Err(usage(
            format!("{flag} says which cores a guest gets, and with --pins none it gets none"),
            format!("leave out {flag} or --pins none"),
        ));
    }
    Ok(())
}

/// The profile where none is asked for: under the name `nvidia-vm` guests have its sizes and pins.
fn usual_profile() -> Profile {
    if called_as_vendor() { Profile::NvidiaVm } else { Profile::Share }
}

/// The default base of `nvidia-vm`: `dgx2vm-` with user, weekday and time of day, as
/// `dgx2vm-labThu1726`. The time is UTC: no library here knows the local one.
fn vendor_base() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    stamped_base(&user, now_s())
}

/// The default base of `nvidia-vm` for a user and a time in seconds since 1970.
fn stamped_base(user: &str, seconds: u64) -> String {
    /// Weekdays from the first day of 1970, a Thursday.
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let user: String = user.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let day = DAYS.iter().cycle().nth((seconds / 86_400 % 7) as usize).copied().unwrap_or("Thu");
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("dgx2vm-{user}{day}{hour:02}{minute:02}")
}

#[cfg(test)]
mod law;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Verb};
    use crate::memsize::MemSize;
    use crate::request::{Allow, CellWish, L3Wish, Policy, Prefer};
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
            "--profile nvidia-vm --pins core --gpus 1",
            "--profile nvidia-vm --pins thread --gpus 1",
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
        let usual = Request { pins: PinPolicy::Auto, ..Request::for_gpus(0) };
        assert_eq!(wish("--cells per-node").unwrap(), usual);
        let all = wish(
            "--gpus 2 --nic 2 --vf 1 --nic-near node --nvme 5e:00.0 --nvme 5f:00.0 --nvme-near \
             switch --pins thread --reserve-cores 2 --reserve-memory 8G --policy spread --prefer \
             package --l3 large --allow split,remote",
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
            l3: L3Wish::Large,
            allow: Allow { remote: true, split: true, mig: false },
            ..Request::for_gpus(2)
        };
        assert_eq!(all.unwrap(), expected);
    }

    #[test]
    fn the_vendors_name_has_user_and_time() {
        // 2018-11-22 17:26 UTC was a Thursday.
        assert_eq!(stamped_base("lab", 1_542_907_560), "dgx2vm-labThu1726");
        assert_eq!(stamped_base("a/b c", 0), "dgx2vm-abcThu0000");
    }
}
