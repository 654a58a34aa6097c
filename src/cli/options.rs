//! A request as the options that mean it: what another request has to say instead. The reverse of [`super::guest`].

use crate::memsize::MemSize;
use crate::request::{CellWish, DeviceWish, GpuWish, Near, PageSize, Policy, Prefer, Request};

/// The options that make `to` of `from`: `--gpus 2 --allow remote`, or `no --huge-pages` for one that is left out.
pub fn changes(from: &Request, to: &Request) -> String {
    let mut options = Vec::new();
    let mut add = |changed: bool, option: String| {
        if changed {
            options.push(option);
        }
    };
    add(from.gpus != to.gpus, gpus(&to.gpus));
    add(from.gpu_model != to.gpu_model, option("--gpu-model", to.gpu_model.clone()));
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    add(from.vcpus != to.vcpus, option("--vcpus", number(to.vcpus)));
    let memory = |r: &Request| r.memory_kib.map(MemSize::typed);
    add(from.memory_kib != to.memory_kib, option("--memory", memory(to)));
    let page = |page| if page == PageSize::TwoMib { "2M" } else { "1G" }.to_owned();
    add(from.huge_pages != to.huge_pages, option("--huge-pages", to.huge_pages.map(page)));
    let cells = match to.cells {
        CellWish::Auto => "auto".to_owned(),
        CellWish::Count(cells) => cells.to_string(),
    };
    add(from.cells != to.cells, option("--cells", Some(cells)));
    add(from.threads != to.threads, option("--threads", number(to.threads)));
    let (a, b) = (&from.extras, &to.extras);
    for (flag, from, to) in
        [("--nic", &a.nics, &b.nics), ("--vf", &a.vfs, &b.vfs), ("--nvme", &a.nvmes, &b.nvmes)]
    {
        add(from != to, devices(flag, to));
    }
    add(a.nic_near != b.nic_near, option("--nic-near", Some(near(b.nic_near))));
    add(a.nvme_near != b.nvme_near, option("--nvme-near", Some(near(b.nvme_near))));
    let (a, b) = (from.reserve, to.reserve);
    let cores = Some(b.cores).filter(|&cores| cores > 0).map(|cores| cores.to_string());
    add(a.cores != b.cores, option("--reserve-cores", cores));
    let memory = b.memory_kib.map(MemSize::typed);
    add(a.memory_kib != b.memory_kib, option("--reserve-memory", memory));
    let policy = if to.policy == Policy::Pack { "pack" } else { "spread" };
    add(from.policy != to.policy, option("--policy", Some(policy.to_owned())));
    let prefer = match to.prefer {
        Prefer::Auto => None,
        Prefer::Nic => Some("nic".to_owned()),
        Prefer::Package => Some("package".to_owned()),
    };
    add(from.prefer != to.prefer, option("--prefer", prefer));
    let rules = [(to.allow.remote, "remote"), (to.allow.split, "split")];
    let rules: Vec<&str> = rules.into_iter().filter(|(on, _)| *on).map(|(_, rule)| rule).collect();
    let rules = Some(rules.join(",")).filter(|rules| !rules.is_empty());
    add(from.allow != to.allow, option("--allow", rules));
    let clique = if to.p2p_clique { "--p2p-clique" } else { "no --p2p-clique" };
    add(from.p2p_clique != to.p2p_clique, clique.to_owned());
    options.join(" ")
}

/// An option with its value, or that it is left out.
fn option(flag: &str, value: Option<String>) -> String {
    value.map_or_else(|| format!("no {flag}"), |value| format!("{flag} {value}"))
}

/// The options of a wish for GPUs.
fn gpus(wish: &GpuWish) -> String {
    let each = |values: Vec<String>| {
        values.iter().map(|value| format!("--gpu {value}")).collect::<Vec<_>>().join(" ")
    };
    match wish {
        GpuWish::Count(count) => format!("--gpus {count}"),
        GpuWish::Run { first, count } => format!("--gpu-index {first} --gpus {count}"),
        GpuWish::Exact(bdfs) => each(bdfs.iter().map(ToString::to_string).collect()),
        GpuWish::Indexes(indexes) => each(indexes.iter().map(ToString::to_string).collect()),
    }
}

/// The options of a wish for devices.
fn devices(flag: &str, wish: &DeviceWish) -> String {
    match wish {
        DeviceWish::Count(0) => format!("no {flag}"),
        DeviceWish::Count(count) => format!("{flag} {count}"),
        DeviceWish::Exact(bdfs) => {
            bdfs.iter().map(|bdf| format!("{flag} {bdf}")).collect::<Vec<_>>().join(" ")
        }
    }
}

/// The word for how near a device has to be.
fn near(near: Near) -> String {
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

    #[test]
    fn says_what_changes_and_nothing_else() {
        let base =
            Request { vcpus: Some(50), huge_pages: Some(PageSize::OneGib), ..Request::for_gpus(4) };
        assert_eq!(changes(&base, &base), "");
        let mut to = Request { vcpus: Some(40), huge_pages: None, ..Request::for_gpus(2) };
        assert_eq!(changes(&base, &to), "--gpus 2 --vcpus 40 no --huge-pages");
        to = base.clone();
        (to.allow.remote, to.allow.split) = (true, true);
        to.memory_kib = Some(MemSize::from_kib(1536 << 10));
        to.extras.nics = DeviceWish::Count(1);
        to.extras.nic_near = Near::Node;
        assert_eq!(
            changes(&base, &to),
            "--memory 1536M --nic 1 --nic-near node --allow remote,split"
        );
        assert_eq!(changes(&to, &base), "no --memory no --nic --nic-near any no --allow");
    }
}
