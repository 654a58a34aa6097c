//! The text of jump stubs, which `build.rs` writes: for each function a jump through a slot of a
//! table.

use std::fmt::Write as _;

/// Returns the instructions that jump to the 8-byte address in the table at this offset, preserving
/// all arguments; `None` if not on this architecture. aarch64 has a register that calls may clobber
/// (AAPCS64 6.1.1: x16, IP0).
fn jump(architecture: &str, offset: usize) -> Option<String> {
    let slot = format!("gpuvm_libvirt_slots + {offset}");
    match architecture {
        "x86_64" => Some(format!("jmp qword ptr [rip + {slot}]")),
        "aarch64" => Some(format!("adrp x16, {slot}\nldr x16, [x16, :lo12:{slot}]\nbr x16")),
        _ => None,
    }
}

/// Returns the stubs of these functions, in the order of their slots; `None` for unsupported
/// architecture.
pub fn stubs(architecture: &str, names: &[&str]) -> Option<String> {
    let mut text = String::from(".text\n");
    for (slot, name) in names.iter().enumerate() {
        let jump = jump(architecture, slot * 8)?;
        writeln!(text, ".globl {name}\n.type {name},@function\n{name}: {jump}").ok()?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::command;
    use std::path::Path;

    /// More than one, and the last one's slot on another page of the table than the first one's.
    const COUNT: usize = 600;
    /// A crate of nothing but assembly, for a target whose library is not installed.
    const CRATE: &str = "#![feature(no_core, \
                         rustc_attrs)]\n#![no_core]\n#![allow(internal_features)]\n\
                         #[rustc_builtin_macro]\nmacro_rules! global_asm { () => {} }\n";

    /// An object file made by the compiler's own assembler.
    struct Object(Vec<u8>);

    impl Object {
        /// Assembles a text for an architecture, with the assembler that also builds the program.
        fn assemble(architecture: &str, text: &str) -> Object {
            let dir = tempfile::tempdir().unwrap();
            let (source, object) = (dir.path().join("stubs.rs"), dir.path().join("stubs.o"));
            std::fs::write(&source, format!("{CRATE}global_asm!({text:?});\n")).unwrap();
            let mut compile = command(Path::new(env!("CARGO")).with_file_name("rustc"));
            compile.args(["--crate-type", "lib", "--emit", "obj", "--target"]);
            compile.arg(format!("{architecture}-unknown-linux-gnu")).arg("-o").arg(&object);
            // Building without a library needs unstable features.
            let done = compile.arg(&source).env("RUSTC_BOOTSTRAP", "1").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Object(std::fs::read(object).unwrap())
        }

        /// A number of this many bytes at an offset.
        fn number(&self, at: usize, bytes: usize) -> usize {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(&self.0[at..at + bytes]);
            usize::try_from(u64::from_le_bytes(number)).unwrap()
        }

        /// The contents of the section of this name (elf(5): `Elf64_Ehdr`, `Elf64_Shdr`): offset
        /// and size in the file.
        fn section(&self, name: &str) -> (usize, usize) {
            let (headers, count, names) =
                (self.number(0x28, 8), self.number(0x3c, 2), self.number(0x3e, 2));
            let header = |nth: usize| headers + nth * 0x40;
            let names = self.number(header(names) + 0x18, 8);
            let at =
                (0..count).map(header).find(|at| self.text(names + self.number(*at, 4)) == name);
            let at = at.unwrap_or_else(|| panic!("no section {name}"));
            (self.number(at + 0x18, 8), self.number(at + 0x20, 8))
        }

        /// A text that ends with NUL.
        fn text(&self, at: usize) -> &str {
            let end = self.0[at..].iter().position(|byte| *byte == 0).unwrap();
            std::str::from_utf8(&self.0[at..at + end]).unwrap()
        }

        /// The name and the value of a symbol (`Elf64_Sym`).
        fn symbol(&self, nth: usize) -> (&str, usize) {
            let at = self.section(".symtab").0 + nth * 0x18;
            let name = self.section(".strtab").0 + self.number(at, 4);
            (self.text(name), self.number(at + 8, 8))
        }

        /// Relocations (`Elf64_Rela`), by place: kind, symbol, addend.
        fn relocations(&self) -> Vec<(usize, usize, &str, usize)> {
            let (begin, size) = self.section(".rela.text");
            let entry = |at| {
                let info = self.number(at + 8, 8);
                let symbol = self.symbol(info >> 32).0;
                (self.number(at, 8), info & 0xffff_ffff, symbol, self.number(at + 16, 8))
            };
            let mut all: Vec<_> = (begin..begin + size).step_by(0x18).map(entry).collect();
            all.sort_unstable();
            all
        }
    }

    /// Checks that each stub begins at its symbol, has these bytes, and uses its own slot.
    fn check(architecture: &str, bytes: &[u8], filled_in: &[(usize, usize, usize)]) {
        let names: Vec<String> = (0..COUNT).map(|nth| format!("stub{nth}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let object = Object::assemble(architecture, &stubs(architecture, &names).unwrap());
        let (begin, size) = object.section(".text");
        assert_eq!(size, COUNT * bytes.len());
        let relocations = object.relocations();
        assert_eq!(relocations.len(), COUNT * filled_in.len());
        let symbols = object.section(".symtab").1 / 0x18;
        let symbols: Vec<_> = (0..symbols).map(|nth| object.symbol(nth)).collect();
        for (slot, name) in names.iter().enumerate() {
            let at = slot * bytes.len();
            assert!(symbols.contains(&(*name, at)), "{name}");
            assert_eq!(&object.0[begin + at..begin + at + bytes.len()], bytes, "{name}");
            for (nth, (offset, kind, less)) in filled_in.iter().enumerate() {
                let addend = (slot * 8).wrapping_sub(*less);
                let wanted = (at + offset, *kind, "gpuvm_libvirt_slots", addend);
                assert_eq!(relocations[slot * filled_in.len() + nth], wanted, "{name}");
            }
        }
    }

    #[test]
    fn stubs_of_aarch64_jump_where_their_slots_say_and_destroy_x16_only() {
        // ADRP x16, page; LDR x16, [x16, #offset]; BR x16 (Arm ARM C6.2.10, C6.2.166, C6.2.37), all
        // with x16.
        let words: [u32; 3] = [0x9000_0010, 0xf940_0210, 0xd61f_0200];
        // R_AARCH64_ADR_PREL_PG_HI21 and R_AARCH64_LDST64_ABS_LO12_NC (ELF for the Arm 64-bit
        // Architecture, 5.7.5).
        check("aarch64", &words.map(u32::to_le_bytes).concat(), &[(0, 275, 0), (4, 286, 0)]);
    }

    #[test]
    fn stubs_of_x86_64_jump_where_their_slots_say() {
        // JMP m64 relative to the next instruction (Intel SDM, JMP: FF /4); R_X86_64_PC32 is
        // relative to itself.
        check("x86_64", &[0xff, 0x25, 0, 0, 0, 0], &[(2, 2, 4)]);
    }

    #[test]
    fn other_architectures_have_none() {
        assert_eq!(stubs("riscv64", &["a"]), None);
    }
}
