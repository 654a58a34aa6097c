//! Writes jump stubs for the libvirt functions listed in `hypervisor/libvirt.symbols`, so that the program does
//! not load libvirt before a verb needs it (see `hypervisor/lazy.rs`). On x86-64 Linux only; elsewhere libvirt is
//! linked as usual.

use std::fmt::Write as _;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=hypervisor/libvirt.symbols");
    println!("cargo:rerun-if-changed=build.rs");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let lazy = var("CARGO_CFG_TARGET_ARCH") == "x86_64" && var("CARGO_CFG_TARGET_OS") == "linux";
    println!("cargo:rustc-check-cfg=cfg(lazy_libvirt)");
    if !lazy || std::env::var_os("CARGO_FEATURE_LIBVIRT").is_none() {
        return;
    }
    println!("cargo:rustc-cfg=lazy_libvirt");
    let list = include_str!("hypervisor/libvirt.symbols");
    let names: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let mut stubs = String::from(".text\n");
    for (slot, name) in names.iter().enumerate() {
        let at = slot * 8;
        let jump = format!("{name}: jmp qword ptr [rip + gpuvm_libvirt_slots + {at}]");
        writeln!(stubs, ".globl {name}\n.type {name},@function\n{jump}").expect("text");
    }
    let table = format!("[{}]", names.iter().map(|n| format!("c{n:?},")).collect::<String>());
    let out = var("OUT_DIR");
    let write = |file: &str, text: &str| {
        std::fs::write(Path::new(&out).join(file), text).expect("OUT_DIR is writable");
    };
    write("libvirt_stubs.s", &stubs);
    write("libvirt_names.rs", &table);
}
