//! Converts requests to options: the changes from one request to another. The reverse of
//! [`super::args::request`].

use crate::memsize::MemSize;
use crate::request::{
    CellWish, DeviceWish, GpuWish, HugePages, L3Wish, Near, PageSize, PinPolicy, Policy, Prefer,
    Request,
};

/// A change of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The option: `--gpus`.
    pub flag: &'static str,
    /// Its values, each with the option before it; empty: it is left out.
    pub values: Vec<String>,
}

/// Mutually exclusive options for the same choice.
pub const ONE_OF: [&str; 3] = ["--gpus", "--gpu", "--gpu-index"];

/// The word of a policy of pins.
fn word_of_pins(pins: PinPolicy) -> &'static str {
    match pins {
        PinPolicy::Auto => "auto",
        PinPolicy::Core => "core",
        PinPolicy::Thread => "thread",
        PinPolicy::None => "none",
    }
}

/// The vCPUs at start and the most that there may be; none of either: not requested.
fn vcpus(of: &Request) -> (Option<u32>, Option<u32>) {
    match (of.vcpus, of.vcpus_at_start) {
        (Some(most), Some(start)) => (Some(start.min(most)), Some(most)),
        (vcpus, _) => (vcpus, None),
    }
}

/// Returns the option changes that turn `from` into `to`, in display order.
pub fn changes(from: &Request, to: &Request) -> Vec<Edit> {
    let mut edits = Vec::new();
    let mut add = |changed: bool, flag: &'static str, values: Vec<String>| {
        if changed {
            edits.push(Edit { flag, values });
        }
    };
    let one = |value: Option<String>| value.into_iter().collect::<Vec<_>>();
    let number = |number: Option<u32>| one(number.map(|number| number.to_string()));
    for (flag, values) in gpus(&to.gpus) {
        add(from.gpus != to.gpus, flag, values);
    }
    add(from.gpu_model != to.gpu_model, "--gpu-model", one(to.gpu_model.clone()));
    let (was, now) = (vcpus(from), vcpus(to));
    add(was.0 != now.0, "--vcpus", number(now.0));
    add(was.1 != now.1, "--max-vcpus", number(now.1));
    add(from.memory_kib != to.memory_kib, "--memory", one(to.memory_kib.map(MemSize::typed)));
    let is_usual = |of: &Request| of.huge_pages == HugePages::usual(of.profile);
    let repaged = from.huge_pages != to.huge_pages && !(is_usual(from) && is_usual(to));
    let pages = Some(to.huge_pages).filter(|_| !is_usual(to));
    let pages = pages.map(|pages| match pages {
        HugePages::Auto => "auto".to_owned(),
        HugePages::Off => "off".to_owned(),
        HugePages::Size(PageSize::TwoMib) => "2M".to_owned(),
        HugePages::Size(PageSize::OneGib) => "1G".to_owned(),
    });
    add(repaged, "--huge-pages", one(pages));
    add(from.pins != to.pins, "--pins", vec![word_of_pins(to.pins).to_owned()]);
    let cells = match to.cells {
        CellWish::Auto => "auto".to_owned(),
        CellWish::Count(cells) => cells.to_string(),
    };
    add(from.cells != to.cells, "--cells", vec![cells]);
    add(from.threads != to.threads, "--threads", number(to.threads));
    let (a, b) = (&from.extras, &to.extras);
    for (flag, from, to) in
        [("--nic", &a.nics, &b.nics), ("--vf", &a.vfs, &b.vfs), ("--nvme", &a.nvmes, &b.nvmes)]
    {
        add(from != to, flag, devices(to));
    }
    // Without devices a nearness is not requested.
    let near = |is_any: bool, near: Near| if is_any { vec![word_of(near)] } else { Vec::new() };
    let (nics, nvmes) = (b.nics.number() + b.vfs.number(), b.nvmes.number());
    let no_nic = nics == 0 && a.nics.number() + a.vfs.number() > 0;
    let no_nvme = nvmes == 0 && a.nvmes.number() > 0;
    add(a.nic_near != b.nic_near || no_nic, "--nic-near", near(nics > 0, b.nic_near));
    add(a.nvme_near != b.nvme_near || no_nvme, "--nvme-near", near(nvmes > 0, b.nvme_near));
    let (a, b) = (from.reserve, to.reserve);
    let cores = Some(b.cores).filter(|&cores| cores > 0).map(|cores| cores.to_string());
    add(a.cores != b.cores, "--reserve-cores", one(cores));
    let memory = b.memory_kib.map(MemSize::typed);
    add(a.memory_kib != b.memory_kib, "--reserve-memory", one(memory));
    let policy = if to.policy == Policy::Pack { "pack" } else { "spread" };
    add(from.policy != to.policy, "--policy", vec![policy.to_owned()]);
    let prefer = match to.prefer {
        Prefer::Auto => None,
        Prefer::Nic => Some("nic".to_owned()),
        Prefer::Package => Some("package".to_owned()),
    };
    add(from.prefer != to.prefer, "--prefer", one(prefer));
    let large = (to.l3 == L3Wish::Large).then(|| "large".to_owned());
    add(from.l3 != to.l3, "--l3", one(large));
    let rules = [(to.allow.remote, "remote"), (to.allow.split, "split")];
    let rules: Vec<&str> = rules.into_iter().filter(|(on, _)| *on).map(|(_, rule)| rule).collect();
    let rules = Some(rules.join(",")).filter(|rules| !rules.is_empty());
    add(from.allow != to.allow, "--allow", one(rules));
    // It is only ever dropped, never added, to make a request fit.
    add(from.p2p_clique && !to.p2p_clique, "--p2p-clique", Vec::new());
    edits
}

/// Returns a request in options of `create`.
pub fn words(request: &Request) -> String {
    let usual = Request { pins: PinPolicy::Auto, ..Request::for_gpus(0) };
    let mut words = told(&changes(&usual, request));
    if request.p2p_clique {
        words += " --p2p-clique";
    }
    if words.is_empty() { "--gpus 0".to_owned() } else { words }
}

/// Formats the changes: `--gpus 2 --allow remote`, with `without --huge-pages` at the end for what
/// is left out.
pub fn told(edits: &[Edit]) -> String {
    let (gone, given): (Vec<&Edit>, Vec<&Edit>) =
        edits.iter().partition(|edit| edit.values.is_empty());
    let option = |edit: &&Edit| -> Vec<String> {
        edit.values.iter().map(|value| format!("{} {value}", edit.flag)).collect()
    };
    let mut words: Vec<String> = given.iter().flat_map(option).collect();
    let flags: Vec<&str> = gone.iter().map(|edit| edit.flag).collect();
    match flags.split_last() {
        None => {}
        Some((last, [])) => words.push(format!("without {last}")),
        Some((last, first)) => words.push(format!("without {} and {last}", first.join(", "))),
    }
    words.join(" ")
}

/// Returns the options of a request for GPUs.
fn gpus(wish: &GpuWish) -> Vec<(&'static str, Vec<String>)> {
    match wish {
        GpuWish::Count(count) => vec![("--gpus", vec![count.to_string()])],
        GpuWish::Run { first, count } => {
            vec![("--gpu-index", vec![first.to_string()]), ("--gpus", vec![count.to_string()])]
        }
        GpuWish::Exact(bdfs) => vec![("--gpu", bdfs.iter().map(ToString::to_string).collect())],
        GpuWish::Indexes(indexes) => {
            vec![("--gpu", indexes.iter().map(ToString::to_string).collect())]
        }
    }
}

/// Returns the values of a request for devices.
fn devices(wish: &DeviceWish) -> Vec<String> {
    match wish {
        DeviceWish::Count(0) => Vec::new(),
        DeviceWish::Count(count) => vec![count.to_string()],
        DeviceWish::Exact(bdfs) => bdfs.iter().map(ToString::to_string).collect(),
    }
}

/// The word for how near a device has to be.
fn word_of(near: Near) -> String {
    match near {
        Near::Switch => "switch",
        Near::Node => "node",
        Near::Any => "any",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes, as they are reported.
    fn said(from: &Request, to: &Request) -> String {
        told(&changes(from, to))
    }

    #[test]
    fn says_what_changes_and_nothing_else() {
        let base = Request {
            vcpus: Some(50),
            huge_pages: HugePages::Size(PageSize::OneGib),
            ..Request::for_gpus(4)
        };
        assert_eq!(said(&base, &base), "");
        let mut to =
            Request { vcpus: Some(40), huge_pages: HugePages::Auto, ..Request::for_gpus(2) };
        assert_eq!(said(&base, &to), "--gpus 2 --vcpus 40 without --huge-pages");
        let off = Request { huge_pages: HugePages::Off, ..Request::for_gpus(0) };
        assert_eq!(said(&Request::for_gpus(0), &off), "--huge-pages off");
        let vendor = Request { profile: crate::request::Profile::NvidiaVm, ..off };
        assert_eq!(said(&Request::for_gpus(0), &vendor), "", "the profile means normal pages");
        to = base.clone();
        (to.allow.remote, to.allow.split) = (true, true);
        to.memory_kib = Some(MemSize::from_kib(1536 << 10));
        to.extras.nics = DeviceWish::Count(1);
        to.extras.nic_near = Near::Node;
        assert_eq!(said(&base, &to), "--memory 1536M --nic 1 --nic-near node --allow remote,split");
        assert_eq!(said(&to, &base), "without --memory, --nic, --nic-near and --allow");
        // Words that belong to two options do not run together.
        let (mut from, mut to) = (Request::for_gpus(1), Request::for_gpus(1));
        (from.reserve.cores, to.pins) = (400, PinPolicy::None);
        assert_eq!(said(&from, &to), "--pins none without --reserve-cores");
    }
}
