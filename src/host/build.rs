//! Writes jump stubs for the libvirt functions listed in `hypervisor/libvirt.symbols`, so that
//! libvirt is loaded only when a verb needs it (see `hypervisor/lazy.rs`). On Linux on x86-64 and
//! aarch64; elsewhere libvirt is linked as usual.

#[path = "hypervisor/stubs.rs"]
mod stubs;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=hypervisor/libvirt.symbols");
    println!("cargo:rerun-if-changed=hypervisor/stubs.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let architecture = var("CARGO_CFG_TARGET_ARCH");
    let list = include_str!("hypervisor/libvirt.symbols");
    let names: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let stubs = stubs::stubs(&architecture, &names);
    let stubs = stubs.filter(|_| var("CARGO_CFG_TARGET_OS") == "linux");
    println!("cargo:rustc-check-cfg=cfg(lazy_libvirt)");
    let Some(stubs) = stubs.filter(|_| std::env::var_os("CARGO_FEATURE_LIBVIRT").is_some()) else {
        return;
    };
    println!("cargo:rustc-cfg=lazy_libvirt");
    let table = format!("[{}]", names.iter().map(|n| format!("c{n:?},")).collect::<String>());
    let out = var("OUT_DIR");
    let write = |file: &str, text: &str| {
        std::fs::write(Path::new(&out).join(file), text).expect("OUT_DIR is writable");
    };
    write("libvirt_stubs.s", &stubs);
    write("libvirt_names.rs", &table);
}
