//! Rules on one GPU: the console on it, its power, its reset, its BARs.

use super::report::{Report, Wrong, warn};
use super::{Case, fix, name};
use crate::finding::Rule;
use crate::placement::fits_no_guest;
use crate::placement::reason::WindowTooLarge;
use crate::topology::facts::FunctionFacts;
use crate::topology::vendor::VENDOR_ATI;
use crate::topology::{DeviceKind, PciDevice, is_vfio};
use crate::verify::UNHEALTHY;
use crate::versions::{
    KERNEL_CONSOLE, KERNEL_RESET, KERNEL_RESET_METHOD, KERNEL_RESET_RDNA, KERNEL_SYSFB,
};

/// vfio-pci then cannot reserve the BAR.
pub const CONSOLE: Rule =
    Rule::error("console-holds-gpu", "a GPU whose memory the host's console keeps");
/// A device that lost its power, or is about to.
pub const D3COLD: Rule =
    Rule::warning("d3cold", "a GPU that does not answer, or whose power is cut while it is idle");
/// It works in one guest, then only after a reboot of the host.
pub const RESET: Rule = Rule::warning("reset-missing", "a GPU that cannot be reset between guests");
/// Width, unlike speed, does not fall while a GPU is idle.
pub const LANES: Rule =
    Rule::warning("lanes-missing", "a GPU with fewer PCIe lanes than it and its port have");
/// The guest sees it with an invalid I/O region.
pub const BAR_WINDOW: Rule =
    Rule::error("bar-window", "a GPU whose memory has no address on the host or in a guest");

/// The device class of a VGA display.
const VGA: u32 = 0x0300;
/// 4 GiB.
const BELOW_4G: u64 = 1 << 32;

pub(super) fn judge(case: &Case<'_>, report: &mut Report<'_>) {
    console(case, report);
    for gpu in case.gpus() {
        let facts = case.facts.function(gpu.bdf);
        power(case, gpu, facts, report);
        health(gpu, report);
        reset(case, gpu, facts, report);
        bars(case, gpu, facts, report);
        lanes(case, gpu, report);
    }
    for silent in case.topology.devices().iter().filter(|device| device.may_be_silent_gpu()) {
        // A device that is lost reads all ones; no kernel lists one whose ids are zero.
        if silent.vendor == 0 && silent.device == 0 {
            let why = format!("the ids of {} are not in this record", silent.bdf);
            report.skip_part(&D3COLD, why);
            continue;
        }
        let ids = format!("{:04x}:{:04x}", silent.vendor, silent.device);
        dead(silent, &format!("its ids read {ids}"), report);
    }
    kernel(case, report);
}

/// Finds GPUs that the picture of the firmware or of the console lies in.
fn console(case: &Case<'_>, report: &mut Report<'_>) {
    for gpu in case.gpus() {
        let Some((why, at)) = picture(case, gpu, report) else { continue };
        let argument = match case.defect(&KERNEL_SYSFB) {
            Some(_) => "video=efifb:off",
            None => "initcall_blacklist=sysfb_init",
        };
        // vfio-pci then ends the console, but only one that is there before it, and on a VGA
        // display.
        let is_bound = gpu.driver.as_deref().is_some_and(is_vfio);
        let kernel = case.kernel().filter(|_| case.defect(&KERNEL_CONSOLE).is_none());
        let ends = !is_bound && gpu.class >> 8 == VGA && kernel.is_some();
        let keeps =
            if ends { "has its memory until vfio-pci is bound" } else { "keeps its memory" };
        let wrong = Wrong {
            message: format!("{}: the host's console {keeps}: {why}", name(gpu)),
            values: ("no console on a GPU for guests".into(), why),
            at,
            hint: format!(
                "make another display the primary one in the BIOS setup (the management \
                 controller's); or add `{argument}` to the kernel's arguments, which does not help \
                 where simpledrm is built in"
            ),
            fix: fix::kernel(case.facts, &[argument], &[]),
        };
        let finding = report.of(&CONSOLE, gpu.bdf, wrong);
        if ends {
            warn(finding);
        }
    }
}

/// Returns the sign that a picture is in a GPU's memory, and where that is visible.
fn picture(case: &Case<'_>, gpu: &PciDevice, report: &mut Report<'_>) -> Option<(String, String)> {
    // A driver for displays has its own picture there, and lets it go.
    if gpu.driver.as_deref().is_some_and(|driver| driver.contains("drm")) {
        return None;
    }
    let memory = case.facts.function(gpu.bdf).and_then(|facts| facts.memory.as_ref());
    match (&case.facts.framebuffers, memory) {
        (Some(buffers), Some(memory)) => {
            let mut ranges = memory.iter().filter_map(|(bar, range)| Some((bar, (*range)?)));
            ranges.find_map(|(bar, range)| {
                let held = buffers.iter().find(|buffer| range.contains(&buffer.range))?;
                Some((format!("{} is in its BAR {bar}", held.name), "/proc/iomem".to_owned()))
            })
        }
        // Without root addresses are hidden; the boot display has the picture.
        _ if gpu.boot_vga => {
            let path = "sys/bus/platform/devices";
            let device = report.need(&CONSOLE, &case.facts.framebuffer_devices, path)?.first()?;
            let what = format!("it is the boot display, and {device} is there");
            Some((what, format!("/{path}/{device}")))
        }
        (None, _) => {
            report.need(&CONSOLE, &case.facts.framebuffers, "proc/iomem");
            None
        }
        (_, None) => {
            report.skip(&CONSOLE, "the addresses of BARs are not known");
            None
        }
    }
}

/// Says that a device does not answer.
fn dead(gpu: &PciDevice, why: &str, report: &mut Report<'_>) {
    let wrong = Wrong {
        message: format!("{} does not answer: {why}", name(gpu)),
        values: ("an answer".into(), why.to_owned()),
        at: format!("/sys/bus/pci/devices/{}/config", gpu.bdf),
        hint: "power the host off and on, not only reboot it; `dmesg | grep -e AER: -e Xid` says \
               when it was lost"
            .into(),
        fix: vec!["# power the host off and on".into()],
    };
    let finding = report.of(&D3COLD, gpu.bdf, wrong);
    finding.severity = crate::finding::Severity::Error;
    finding.says.fatal = true;
}

fn power(case: &Case<'_>, gpu: &PciDevice, facts: Option<&FunctionFacts>, report: &mut Report<'_>) {
    let Some(facts) = facts else {
        report.skip(&D3COLD, "power states of GPUs are not known");
        return;
    };
    let on_vfio = gpu.driver.as_deref().is_some_and(is_vfio);
    let state = report.need(&D3COLD, &facts.power_state, "sys/bus/pci/devices/N/power_state");
    let at = format!("/sys/bus/pci/devices/{}/power_state", gpu.bdf);
    let allow = format!("echo 0 >/sys/bus/pci/devices/{}/d3cold_allowed", gpu.bdf);
    let never = fix::module_option("options vfio-pci disable_idle_d3=1");
    if state.is_some_and(|state| state == "D3cold") {
        let wrong = Wrong {
            message: format!(
                "{} is in D3cold: its power is cut, and it may not come back (\"Unable to change \
                 power state from D3cold to D0\")",
                name(gpu)
            ),
            values: ("D0 or D3hot".into(), "D3cold".into()),
            at,
            hint: format!("`{allow}`, and `options vfio-pci disable_idle_d3=1` in /etc/modprobe.d"),
            fix: vec![allow, never, fix::initramfs(case.facts)],
        };
        let finding = report.of(&D3COLD, gpu.bdf, wrong);
        // A driver of the host wakes its own GPU.
        if on_vfio || gpu.driver.is_none() {
            finding.severity = crate::finding::Severity::Error;
        }
        return;
    }
    if !on_vfio {
        return;
    }
    let idle = report.need_part(
        &D3COLD,
        &case.facts.kernel.idle_d3,
        "sys/module/vfio_pci/parameters/disable_idle_d3",
    );
    if idle != Some(&true) {
        return;
    }
    let path = "sys/bus/pci/devices/N/d3cold_allowed";
    if report.need_part(&D3COLD, &facts.d3cold_allowed, path) == Some(&true) {
        let wrong = Wrong {
            message: format!("{}: its power may be cut while no guest has it", name(gpu)),
            values: ("d3cold_allowed 0, or disable_idle_d3=Y".into(), "d3cold_allowed 1".into()),
            at: format!("/sys/bus/pci/devices/{}/d3cold_allowed", gpu.bdf),
            hint: format!("`{allow}`, or `options vfio-pci disable_idle_d3=1` in /etc/modprobe.d"),
            fix: vec![allow, never, fix::initramfs(case.facts)],
        };
        report.of(&D3COLD, gpu.bdf, wrong);
    }
}

/// Shows a GPU whose health is over a limit: no new guest gets it.
fn health(gpu: &PciDevice, report: &mut Report<'_>) {
    let Some(health) = gpu.health.as_ref().filter(|health| health.is_over()) else { return };
    let accept = format!("gpuvm gpu include {} --despite-health", gpu.bdf);
    let wrong = Wrong {
        message: format!("{} goes to no new guest: {}", name(gpu), health.why()),
        values: ("no finding over a limit".into(), health.why()),
        at: "`gpuvm gpu list`".into(),
        hint: format!("NVIDIA's field diagnostic tells more; `{accept}` gives it to guests again"),
        fix: vec![format!("# after the field diagnostic: {accept}")],
    };
    report.of(&UNHEALTHY, gpu.bdf, wrong);
}

/// Judges how a GPU is reset.
fn reset(case: &Case<'_>, gpu: &PciDevice, facts: Option<&FunctionFacts>, report: &mut Report<'_>) {
    if case.defect(&KERNEL_RESET_METHOD).is_some() {
        report.skip(&RESET, "kernels before 5.15 do not show reset methods");
        return;
    }
    let cannot = facts.is_some_and(|facts| facts.can_reset == Some(false));
    let methods = gpu.reset_methods.clone().or_else(|| cannot.then(Vec::new));
    let Some(methods) = report.need(&RESET, &methods, "sys/bus/pci/devices/N/reset_method") else {
        return;
    };
    let slot = |device: &PciDevice| (device.bdf.segment(), device.bdf.bus(), device.bdf.device());
    let bus = |device: &PciDevice| (device.bdf.segment(), device.bdf.bus());
    let is_sibling = |device: &&PciDevice| {
        bus(device) == bus(gpu) && slot(device) != slot(gpu) && device.kind() != DeviceKind::Bridge
    };
    let siblings: Vec<String> =
        case.topology.devices().iter().filter(is_sibling).map(|d| d.bdf.to_string()).collect();
    let is_rdna = gpu.vendor == VENDOR_ATI && gpu.class >> 8 == VGA;
    let why = if methods.is_empty() {
        "the kernel knows no way to reset it".to_owned()
    } else if methods.iter().all(|method| method == "bus") && !siblings.is_empty() {
        format!("only its bus can be reset, which {} shares", siblings.join(", "))
    } else if let Some(kernel) = case.defect(&KERNEL_RESET_RDNA).filter(|_| is_rdna) {
        format!("kernel {kernel}: {}", KERNEL_RESET_RDNA.what)
    } else {
        return;
    };
    let found = if methods.is_empty() { "none".to_owned() } else { methods.join(" ") };
    let is_by_kernel = !methods.is_empty() && case.defect(&KERNEL_RESET_RDNA).is_some() && is_rdna;
    let (hint, fix) = without_reset(case, gpu, is_by_kernel);
    let wrong = Wrong {
        message: format!(
            "{}: {why}; a second guest may need a reboot of the host first",
            name(gpu)
        ),
        values: ("flr, or a bus of its own".into(), found),
        at: format!("/sys/bus/pci/devices/{}/reset_method", gpu.bdf),
        hint,
        fix: vec![fix.into()],
    };
    report.of(&RESET, gpu.bdf, wrong);
}

/// The remedy for a GPU that is not reset, and the same as a line of a script; `is_by_kernel`:
/// another kernel would reset it.
fn without_reset(case: &Case<'_>, gpu: &PciDevice, is_by_kernel: bool) -> (String, &'static str) {
    let Some(place) = case.topology.fixed_place(gpu) else {
        let hint = "use another slot or a newer kernel; plan with one start of such a guest a boot";
        return (hint.into(), "# another slot, or a newer kernel");
    };
    let (kernel, fix) = if is_by_kernel {
        ("install a newer kernel, or ", "# install a newer kernel")
    } else {
        ("", "# reboot between guests: no command resets it")
    };
    let hint = format!(
        "it is {place}, so no other slot helps: {kernel}reboot the host before another guest gets \
         it, or leave it to the host"
    );
    (hint, fix)
}

/// Compares the lanes of a GPU with those that it and its port have.
fn lanes(case: &Case<'_>, gpu: &PciDevice, report: &mut Report<'_>) {
    let port = gpu.parent.and_then(|port| case.topology.device(port)).filter(|_| !gpu.is_vf());
    let most = |device: &PciDevice| device.link_max.as_ref()?.width;
    let Some(most) = port.and_then(|port| Some(most(port)?.min(most(gpu)?))) else { return };
    let width = gpu.link.as_ref().and_then(|link| link.width);
    let width = report.need(&LANES, &width, "sys/bus/pci/devices/N/current_link_width").copied();
    let Some(width) = width.filter(|width| *width < most) else { return };
    let wrong = Wrong {
        message: format!("{} has {width} PCIe lanes; it and its port have {most}", name(gpu)),
        values: (most.to_string(), width.to_string()),
        at: format!("/sys/bus/pci/devices/{}/current_link_width", gpu.bdf),
        hint:
            "seat the card and its riser again; a slot that shares its lanes needs another setting \
               in the firmware"
                .into(),
        fix: vec!["# seat the card again: no command does".into()],
    };
    report.of(&LANES, gpu.bdf, wrong);
}

/// Finds a kernel with which no GPU is reset.
fn kernel(case: &Case<'_>, report: &mut Report<'_>) {
    let Some(version) = case.defect(&KERNEL_RESET).filter(|_| case.gpus().next().is_some()) else {
        return;
    };
    let wrong = Wrong {
        message: format!("kernel {version}: {}", KERNEL_RESET.what),
        values: ("another kernel".into(), version.to_string()),
        at: "/proc/sys/kernel/osrelease".into(),
        hint: format!("install a later kernel of the same series: {}", KERNEL_RESET.source),
        fix: vec!["# install a later kernel".into()],
    };
    report.add(&RESET, wrong);
}

/// Judges the addresses of a GPU's BARs.
fn bars(case: &Case<'_>, gpu: &PciDevice, facts: Option<&FunctionFacts>, report: &mut Report<'_>) {
    let memory = facts.and_then(|facts| facts.memory.clone());
    let Some(memory) = report.need(&BAR_WINDOW, &memory, "sys/bus/pci/devices/N/resource") else {
        return;
    };
    let setup = "turn on \"Above 4G Decoding\" and \"Resizable BAR\" in the BIOS setup, and update \
                 the firmware";
    // A bridge's window for cards that come later is 2 MiB (kernel-parameters.txt, hpmmioprefsize).
    let later = "a card on Thunderbolt: boot with it plugged in, or with the kernel arguments \
                 `pci=realloc,hpmmioprefsize=16G`";
    let fix = vec!["# turn on Above 4G Decoding in the BIOS setup: no command does".to_owned()];
    let at = format!("/sys/bus/pci/devices/{}/resource", gpu.bdf);
    let without: Vec<String> = memory
        .iter()
        .filter(|(_, range)| range.is_none())
        .map(|(bar, _)| bar.to_string())
        .collect();
    if !without.is_empty() {
        let wrong = Wrong {
            message: format!("{}: BARs without an address: {}", name(gpu), without.join(", ")),
            values: ("an address for each BAR".into(), "none".into()),
            at,
            hint: format!("{setup}; {later}"),
            fix,
        };
        report.of(&BAR_WINDOW, gpu.bdf, wrong).says.fatal = true;
        return;
    }
    let low = memory.values().flatten().all(|range| range.last < BELOW_4G);
    if let Some((now, most)) = facts.and_then(|facts| facts.resizable)
        && low
        && most > now
    {
        let wrong = Wrong {
            message: format!(
                "{}: all of its BARs are below 4 GiB, and BAR 1 could have {} MiB instead of {}",
                name(gpu),
                most >> 20,
                now >> 20
            ),
            values: (format!("{} MiB", most >> 20), format!("{} MiB", now >> 20)),
            at,
            hint: setup.into(),
            fix,
        };
        warn(report.of(&BAR_WINDOW, gpu.bdf, wrong));
        return;
    }
    window(case, gpu, report);
}

/// Finds GPUs whose BARs have no room in the address space of any guest.
fn window(case: &Case<'_>, gpu: &PciDevice, report: &mut Report<'_>) {
    let Some(WindowTooLarge { window_gib, bits, .. }) = fits_no_guest(gpu.bdf, case.topology)
    else {
        return;
    };
    let needs = format!("{window_gib} GiB for its BARs");
    let wrong = Wrong {
        message: format!(
            "{}: a guest needs a window of {needs}, which does not fit into {bits} physical \
             address bits",
            name(gpu)
        ),
        values: (format!("room for {needs}"), format!("{bits} physical address bits")),
        at: "/proc/cpuinfo".into(),
        hint: "memory encryption takes address bits: turn it off in the BIOS setup if no guest \
               needs it"
            .into(),
        fix: vec!["# change the BIOS setup: no command does".into()],
    };
    report.of(&BAR_WINDOW, gpu.bdf, wrong).says.fatal = true;
}
