//! Writes jump stubs for the libvirt functions listed in `hypervisor/libvirt.symbols`, so that the program does
//! not load libvirt before a verb needs it (see `hypervisor/lazy.rs`). On Linux on x86-64 and aarch64; elsewhere
//! libvirt is linked as usual.

use std::fmt::Write as _;
use std::path::Path;

/// Returns the instructions that go where 8 bytes of the table at this offset say, with every argument as it is.
/// aarch64 has a register that calls may destroy on their way (AAPCS64 6.1.1: x16, IP0).
fn jump(architecture: &str, offset: usize) -> Option<String> {
    let slot = format!("gpuvm_libvirt_slots + {offset}");
    match architecture {
        "x86_64" => Some(format!("jmp qword ptr [rip + {slot}]")),
        "aarch64" => Some(format!("adrp x16, {slot}\nldr x16, [x16, :lo12:{slot}]\nbr x16")),
        _ => None,
    }
}

fn main() {
    println!("cargo:rerun-if-changed=hypervisor/libvirt.symbols");
    println!("cargo:rerun-if-changed=build.rs");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let architecture = var("CARGO_CFG_TARGET_ARCH");
    let lazy = jump(&architecture, 0).is_some() && var("CARGO_CFG_TARGET_OS") == "linux";
    println!("cargo:rustc-check-cfg=cfg(lazy_libvirt)");
    if !lazy || std::env::var_os("CARGO_FEATURE_LIBVIRT").is_none() {
        return;
    }
    println!("cargo:rustc-cfg=lazy_libvirt");
    let list = include_str!("hypervisor/libvirt.symbols");
    let names: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let mut stubs = String::from(".text\n");
    for (slot, name) in names.iter().enumerate() {
        let jump = jump(&architecture, slot * 8).expect("asked above");
        writeln!(stubs, ".globl {name}\n.type {name},@function\n{name}: {jump}").expect("text");
    }
    let table = format!("[{}]", names.iter().map(|n| format!("c{n:?},")).collect::<String>());
    let out = var("OUT_DIR");
    let write = |file: &str, text: &str| {
        std::fs::write(Path::new(&out).join(file), text).expect("OUT_DIR is writable");
    };
    write("libvirt_stubs.s", &stubs);
    write("libvirt_names.rs", &table);
}
