//! Parts that tuning removes are removed wherever the document refers to them: libvirt would refuse
//! a dangling reference.

use super::domains::{Wanted, tuned};
use crate::xml::guests::host;
use gpuvm::domain::DomainXml;
use gpuvm::placement::Occupancy;
use gpuvm::request::PageSize;
use gpuvm::tune::{Item, Items, TuneError, Tuned};

/// Tunes a guest with eight GPUs whose document has more in it, by these items.
fn tune(wanted: Wanted, change: fn(&str) -> String, items: &Items) -> Result<Tuned, TuneError> {
    let dgx2 = host("dgx-2");
    let xml = DomainXml::parse(&change(&wanted.xml(&dgx2))).unwrap();
    tuned(&xml, &dgx2, &Occupancy::default(), items)
}

#[test]
fn schedulers_lose_the_iothreads_that_are_no_more() {
    let wanted = Wanted { more: "\n  <iothreads>46</iothreads>", ..Wanted::vendor(0, 8) };
    let with = |xml: &str| {
        let schedulers = "    <iothreadsched iothreads='1-3' scheduler='batch'/>
    <iothreadsched iothreads='3,5' scheduler='rr' priority='1'/>
    <iothreadsched iothreads='1' scheduler='idle'/>\n  </cputune>";
        xml.replacen("  </cputune>", schedulers, 1)
    };
    let text = tune(wanted, with, &Items::all()).unwrap().after.text().to_owned();
    assert!(text.contains("<iothreads>1</iothreads>"), "{text}");
    let schedulers: Vec<&str> =
        text.lines().map(str::trim).filter(|line| line.starts_with("<iothreadsched")).collect();
    assert_eq!(
        schedulers,
        [
            "<iothreadsched iothreads='1' scheduler='batch'/>",
            "<iothreadsched iothreads='1' scheduler='idle'/>"
        ]
    );
}

#[test]
fn cells_with_pages_of_their_own_stay_unless_the_pages_are_set_too() {
    let wanted = || Wanted {
        pins: Vec::new(),
        memory_kib: 8 << 20,
        more: "\n  <memoryBacking><hugepages><page size='1' unit='GiB' nodeset='0'/>\
               <page size='2' unit='MiB' nodeset='1'/></hugepages></memoryBacking>",
        ..Wanted::vendor(0, 2)
    };
    let with = |xml: &str| {
        let cells = "<cpu mode='host-passthrough' check='none'><numa>\
                     <cell id='0' cpus='0-4' memory='4' unit='GiB'/>\
                     <cell id='1' cpus='5-9' memory='4' unit='GiB'/></numa></cpu>";
        xml.replacen("<cpu mode='host-passthrough' check='none'/>", cells, 1)
    };
    let kept = tune(wanted(), with, &Items::all()).unwrap();
    assert!(kept.after.text().contains("<cell id='1' cpus='5-9' memory='4' unit='GiB'/>"));
    assert!(
        kept.reasons.iter().any(|reason| reason.because.to_string().contains("pages of their own"))
    );
    let off = Items { cells: Item::Off, ..Items::default() };
    let error = tune(wanted(), with, &off).unwrap_err().to_string();
    assert!(error.contains("its cells have pages of their own, so its cells stay"), "{error}");
    let pages = Items { huge_pages: Item::To(PageSize::TwoMib), ..Items::all() };
    let text = tune(wanted(), with, &pages).unwrap().after.text().to_owned();
    assert!(text.contains("<cell id='0' cpus='0-9'") && !text.contains("<cell id='1'"), "{text}");
    assert!(!text.contains("<page size='1'"), "{text}");
    assert!(text.contains("<page size='2048' unit='KiB'/>"), "{text}");
}

#[test]
fn disks_served_by_another_process_are_left_to_it() {
    let with = |xml: &str| {
        let served = "<disk type='vhostuser' device='disk'>
      <source type='unix' path='/run/served.sock'/>
      <target dev='vdc' bus='virtio'/>
    </disk>";
        xml.replacen("    <interface", &format!("    {served}\n    <interface"), 1)
    };
    let text = tune(Wanted::vendor(0, 8), with, &Items::all()).unwrap().after.text().to_owned();
    let served = text.split("type='vhostuser'").nth(1).unwrap().split("</disk>").next().unwrap();
    assert!(served.contains("served.sock") && !served.contains("<driver"), "{served}");
    assert_eq!(text.matches("queues='32'").count(), 2, "{text}");
}
