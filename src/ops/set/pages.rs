//! The huge pages that were reserved for a guest and that its new size does not need.

use crate::discover::hugetlb;
use crate::domain::DomainEdit;
use crate::domain::guest::Reserved;
use crate::domain::setting::Setting;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::history::guest::set_reserved;
use crate::pages::{BOOT, give_back_these};
use crate::topology::Topology;
use crate::tune::extra::Extra;
use crate::tune::subject::Subject;
use crate::words::count;
use crate::world::World;
use gpuvm_core::check::guest::Guest;
use gpuvm_core::check::memory::wanted_pages;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::tune::Tuned;

/// Returns pages that it does not need; while it runs, it still has them, and they are only named.
pub(super) fn less(
    subject: &Subject,
    tuned: &mut Tuned,
    extra: &mut Extra,
    topology: &Topology,
    world: &World,
) -> Result<()> {
    let reserved = subject.xml.reserved()?;
    if tuned.changes.is_empty() || reserved.is_empty() || !world.has_guests_here()? {
        return Ok(());
    }
    let (stay, go) = divided(reserved, &tuned.after, topology);
    if go.is_empty() {
        return Ok(());
    }
    let setting = Setting::Reserved { reserved: stay.clone() };
    tuned.after.apply(&DomainEdit::Set { setting })?;
    if let Some(uuid) = subject.xml.uuid() {
        extra.last.extend(set_reserved(world.state(), &uuid, &stay)?);
    }
    if !subject.running {
        let back = give_back_these(go)?.into_iter();
        // Pages are returned before others are reserved: one number of pages for both.
        extra.first.splice(0..0, back);
        return Ok(());
    }
    let root = FsRoot::live()?;
    let boot = root.read(BOOT)?;
    for Reserved { node, page_kib, count: pages, .. } in
        go.into_iter().filter(|pages| Some(&pages.boot) == boot.as_ref())
    {
        let pools = hugetlb::of_node(&root, node)?.unwrap_or_default();
        let Some(pool) = pools.iter().find(|pool| pool.page_kib == page_kib) else { continue };
        let left = pool.reserved().saturating_sub(pages);
        extra.stays.push(format!(
            "{} on node {node} stay reserved until it is off: `gpuvm host pages --node {node} \
             --size {} --count {left}` gives them back then",
            count(pages, &format!("page of {page_kib}")),
            page_kib.typed(),
        ));
    }
    Ok(())
}

/// The reserved pages that a definition needs, and those that it does not.
fn divided(
    reserved: Vec<Reserved>,
    after: &DomainXml,
    topology: &Topology,
) -> (Vec<Reserved>, Vec<Reserved>) {
    let guest = Guest::read(after);
    let mut wanted = match guest.huge_pages {
        Some(_) => wanted_pages(&guest.banks(), topology),
        None => Default::default(),
    };
    let (mut stay, mut go) = (Vec::new(), Vec::new());
    for pages in reserved {
        let mut kept = 0;
        for ((nodes, page), (needed, _)) in &mut wanted {
            if *page == pages.page_kib && nodes.contains(pages.node) {
                let takes = (*needed).min(pages.count - kept);
                *needed -= takes;
                kept += takes;
            }
        }
        let part = |count| Reserved { count, ..pages.clone() };
        stay.extend((kept > 0).then(|| part(kept)));
        go.extend((kept < pages.count).then(|| part(pages.count - kept)));
    }
    (stay, go)
}
