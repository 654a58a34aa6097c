//! A request as options. The only spelling of their values.

use super::{Opt, Shape};
use crate::memsize::MemSize;
use crate::request::{
    CellWish, DeviceWish, Extras, GpuWish, HugePages, IommufdWish, L3Wish, Near, P2pWish,
    PinPolicy, Policy, Prefer, Profile, Request, Spelled, VfSettings,
};

/// Options for the same choice, of which a command has those of one.
pub const GPU_OPTIONS: [Opt; 3] = [Opt::Gpus, Opt::Gpu, Opt::GpuIndex];

/// An option that differs between two requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The option.
    pub opt: Opt,
    /// Its values, none for a switch; none at all: it is left out.
    pub values: Option<Vec<String>>,
}

/// Returns the options that make this request, without those that leave a default. A switch has no
/// value.
pub fn options(request: &Request) -> Vec<(Opt, Vec<String>)> {
    // Each field is named, so that a new one has to get its words.
    let Request {
        gpus: wish,
        gpu_model,
        vgpu,
        vcpus: _,
        vcpus_at_start: _,
        memory_kib,
        huge_pages,
        profile,
        pins,
        cells,
        threads,
        extras,
        reserve,
        policy,
        prefer,
        l3,
        allow,
        p2p_clique,
        p2p,
        iommufd,
        spare_ports,
        machine,
        movable,
        // Not of the request as it was made.
        template: _,
        rounding: _,
    } = request;
    let mut list = List(gpus(wish));
    list.some(Opt::GpuModel, gpu_model.clone());
    list.some(Opt::Vgpu, vgpu.as_ref().map(ToString::to_string));
    devices(extras, &mut list);
    list.switch(Opt::P2pClique, *p2p_clique);
    list.word(Opt::P2p, *p2p, P2pWish::default());
    list.word(Opt::Iommufd, *iommufd, IommufdWish::default());
    list.number(Opt::SparePorts, *spare_ports);
    let (start, most) = vcpus(request);
    list.number(Opt::Vcpus, start);
    list.number(Opt::MaxVcpus, most);
    list.some(Opt::Memory, memory_kib.map(MemSize::typed));
    list.word(Opt::HugePages, *huge_pages, HugePages::usual(*profile));
    // That profile has pins of its own.
    let has_own = *profile == Profile::NvidiaVm && *pins != PinPolicy::None;
    list.word(Opt::Pins, if has_own { PinPolicy::Auto } else { *pins }, PinPolicy::Auto);
    list.number(
        Opt::Cells,
        match cells {
            CellWish::Auto => None,
            CellWish::Count(number) => Some(*number),
        },
    );
    list.number(Opt::Threads, *threads);
    list.word(Opt::Profile, *profile, Profile::default());
    list.number(Opt::ReserveCores, Some(reserve.cores).filter(|cores| *cores > 0));
    list.some(Opt::ReserveMemory, reserve.memory_kib.map(MemSize::typed));
    list.each(Opt::Allow, allow.rules().into_iter().map(|rule| rule.word().to_owned()).collect());
    list.word(Opt::Policy, *policy, Policy::default());
    list.word(Opt::Prefer, *prefer, Prefer::default());
    list.word(Opt::L3, *l3, L3Wish::default());
    list.some(Opt::Machine, machine.as_ref().map(ToString::to_string));
    list.switch(Opt::Movable, *movable);
    list.0
}

/// Returns the options by which a request differs from another, in the order of [`options`]; those
/// that it does not have come last.
pub fn changes(from: &Request, to: &Request) -> Vec<Changed> {
    let (was, now) = (options(from), options(to));
    let of_gpus = |opt: Opt| GPU_OPTIONS.contains(&opt);
    let has_other_gpus = from.gpus != to.gpus;
    let is_so = |one: &(Opt, Vec<String>)| {
        if of_gpus(one.0) { !has_other_gpus } else { was.contains(one) }
    };
    let given = now.iter().filter(|one| !is_so(one));
    let given = given.map(|(opt, values)| Changed { opt: *opt, values: Some(values.clone()) });
    // A guest without GPUs is requested by their number.
    let none = (has_other_gpus && to.gpus.number() == 0)
        .then(|| Changed { opt: Opt::Gpus, values: Some(vec!["0".to_owned()]) });
    let gone =
        was.iter().filter(|(opt, _)| now.iter().all(|(other, _)| other != opt) && !of_gpus(*opt));
    let gone = gone.map(|(opt, _)| Changed { opt: *opt, values: None });
    none.into_iter().chain(given).chain(gone).collect()
}

/// A number, or the word for none.
pub(super) fn word(number: Option<u32>, none: &str) -> String {
    number.map_or_else(|| none.to_owned(), |number| number.to_string())
}

struct List(Vec<(Opt, Vec<String>)>);

impl List {
    /// Adds an option with several values, if there are any.
    fn each(&mut self, opt: Opt, values: Vec<String>) {
        debug_assert!(matches!(opt.shape(), Shape::Each | Shape::Joined), "{opt}");
        if !values.is_empty() {
            self.0.push((opt, values));
        }
    }

    /// Adds an option with one value, if there is one.
    fn some(&mut self, opt: Opt, value: Option<String>) {
        self.0.extend(value.map(|value| (opt, vec![value])));
    }

    /// Adds a number, if there is one.
    fn number(&mut self, opt: Opt, number: Option<u32>) {
        self.some(opt, number.map(|number| number.to_string()));
    }

    /// Adds a word that is not the default.
    fn word<T: Spelled>(&mut self, opt: Opt, value: T, usual: T) {
        self.some(opt, (value != usual).then(|| value.word().to_owned()));
    }

    /// Adds a switch that is on.
    fn switch(&mut self, opt: Opt, is_on: bool) {
        if is_on {
            self.0.push((opt, Vec::new()));
        }
    }
}

/// The vCPUs at start, and the most that there may be where these are more.
fn vcpus(request: &Request) -> (Option<u32>, Option<u32>) {
    match (request.vcpus, request.vcpus_at_start) {
        (Some(most), Some(start)) => (Some(start.min(most)), Some(most)),
        (vcpus, _) => (vcpus, None),
    }
}

fn gpus(wish: &GpuWish) -> Vec<(Opt, Vec<String>)> {
    match wish {
        GpuWish::Count(0) => Vec::new(),
        GpuWish::Count(count) => vec![(Opt::Gpus, vec![count.to_string()])],
        GpuWish::Run { first, count } => {
            vec![(Opt::Gpus, vec![count.to_string()]), (Opt::GpuIndex, vec![first.to_string()])]
        }
        GpuWish::Exact(bdfs) => vec![(Opt::Gpu, bdfs.iter().map(ToString::to_string).collect())],
        GpuWish::Indexes(indexes) => {
            vec![(Opt::Gpu, indexes.iter().map(ToString::to_string).collect())]
        }
    }
}

/// NICs, virtual functions and drives, and how near they are; of none a nearness is not requested.
fn devices(extras: &Extras, list: &mut List) {
    let Extras { nics, vfs, vf_settings, nic_near, nvmes, nvme_near } = extras;
    let near = |near: Near, number: usize| if number > 0 { near } else { Near::Any };
    list.each(Opt::Nic, named(nics, &[]));
    list.word(Opt::NicNear, near(*nic_near, nics.number() + vfs.number()), Near::Any);
    list.each(Opt::Vf, named(vfs, vf_settings));
    list.each(Opt::Nvme, named(nvmes, &[]));
    list.word(Opt::NvmeNear, near(*nvme_near, nvmes.number()), Near::Any);
}

/// How many or which devices, with the settings of each.
fn named(wish: &DeviceWish, settings: &[VfSettings]) -> Vec<String> {
    let which = match wish {
        DeviceWish::Count(0) => Vec::new(),
        DeviceWish::Count(count) => vec![count.to_string()],
        DeviceWish::Exact(bdfs) => bdfs.iter().map(ToString::to_string).collect(),
    };
    let with = |(at, word): (usize, String)| {
        let settings = settings.get(at).map(ToString::to_string);
        word + &settings.unwrap_or_default()
    };
    which.into_iter().enumerate().map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::PageSize;

    /// The changes as words, `-` before those that are left out.
    fn said(from: &Request, to: &Request) -> String {
        let word = |one: Changed| match one.values {
            None => format!("-{}", one.opt),
            Some(values) => format!("{} {}", one.opt, values.join(",")),
        };
        changes(from, to).into_iter().map(word).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_change_names_differences_only() {
        let base = Request {
            vcpus: Some(50),
            huge_pages: HugePages::Size(PageSize::OneGib),
            pins: PinPolicy::Auto,
            ..Request::for_gpus(4)
        };
        assert_eq!(said(&base, &base), "");
        let usual = |gpus| Request { pins: PinPolicy::Auto, ..Request::for_gpus(gpus) };
        let fewer = Request { vcpus: Some(40), ..usual(2) };
        assert_eq!(said(&base, &fewer), "gpus 2; vcpus 40; -huge-pages");
        let off = Request { huge_pages: HugePages::Off, ..usual(0) };
        assert_eq!(said(&usual(0), &off), "huge-pages off");
        let vendor = Request { profile: Profile::NvidiaVm, pins: PinPolicy::Thread, ..off };
        assert_eq!(said(&usual(0), &vendor), "profile nvidia-vm", "it means normal pages");
        let mut to = base.clone();
        (to.allow.remote, to.allow.split) = (true, true);
        to.memory_kib = Some(MemSize::from_kib(1536 << 10));
        to.extras.nics = DeviceWish::Count(1);
        to.extras.nic_near = Near::Node;
        let all = "nic 1; nic-near node; memory 1536M; allow remote,split";
        assert_eq!(said(&base, &to), all);
        assert_eq!(said(&to, &base), "-nic; -nic-near; -memory; -allow");
        let first = Request { gpus: GpuWish::Run { first: 2, count: 1 }, ..base.clone() };
        assert_eq!(said(&first, &base), "gpus 4");
        assert_eq!(said(&base, &first), "gpus 1; gpu-index 2");
        assert_eq!(said(&base, &Request { gpus: GpuWish::Count(0), ..base.clone() }), "gpus 0");
    }
}
