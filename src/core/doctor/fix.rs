//! Commands that fix findings. Only texts; nothing is run.

use super::Finding;
use crate::topology::Facts;
use crate::topology::facts::{BootLoader, InitramfsTool};

/// Commands that apply to all changes before them.
const UPDATE_GRUB: &str = "update-grub";
/// As [`UPDATE_GRUB`].
const PROXMOX: &str = "proxmox-boot-tool refresh";
/// The note after a change of the kernel's arguments.
const NEXT_BOOT: &str = "# takes effect at the next boot";
/// Where no known program makes the initramfs.
const SOME_INITRAMFS: &str =
    "# renew the initramfs: `update-initramfs -u -k all` or `dracut --force --regenerate-all`";

/// Returns the commands of findings as a script, each below the findings that it fixes. No command
/// appears twice, and commands that apply changes of all findings come last.
pub fn script(findings: &[Finding]) -> Vec<String> {
    let tools = [InitramfsTool::UpdateInitramfs, InitramfsTool::Dracut, InitramfsTool::Mkinitcpio];
    let of_tools = tools.iter().map(|tool| tool.command());
    let last: Vec<&str> =
        of_tools.chain([SOME_INITRAMFS, UPDATE_GRUB, PROXMOX, NEXT_BOOT]).collect();
    let mut lines: Vec<String> = Vec::new();
    for finding in findings {
        lines.push(format!("# {}: {} ({})", finding.severity, finding.says.message, finding.rule));
        for line in &finding.says.fix {
            if !last.contains(&line.as_str()) && !lines.contains(line) {
                lines.push(line.clone());
            }
        }
    }
    let all = || findings.iter().flat_map(|finding| &finding.says.fix);
    let wanted = last.into_iter().filter(|last| all().any(|line| line == last));
    lines.extend(wanted.map(str::to_owned));
    lines
}

/// Commands that change the kernel's arguments.
pub(super) fn kernel(facts: &Facts, add: &[&str], remove: &[&str]) -> Vec<String> {
    let mut lines = Vec::new();
    // Words of the command line are the host's own, and become part of commands for root.
    let is_plain =
        |word: &&&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.,:=".contains(c));
    let all_plain = add.iter().chain(remove).all(|word| is_plain(&word));
    match facts.boot_loader.filter(|_| all_plain) {
        Some(BootLoader::Grubby) => {
            let mut line = "grubby --update-kernel=ALL".to_owned();
            for (option, words) in [("--args", add), ("--remove-args", remove)] {
                if !words.is_empty() {
                    line += &format!(" {option}='{}'", words.join(" "));
                }
            }
            lines.push(line);
        }
        Some(BootLoader::UpdateGrub) => {
            let file = "/etc/default/grub";
            for word in remove {
                let of = pattern(word);
                let has = format!(r"grep -q '^GRUB_CMDLINE_LINUX.*\b{of}\b' {file}");
                let sed = format!(r"sed -i '/^GRUB_CMDLINE_LINUX/s/\b{of}\b *//' {file}");
                lines.push(format!("if {has}; then {sed}; {}; fi", elsewhere(word, file)));
            }
            for word in add {
                let has = format!(r"grep -q '^GRUB_CMDLINE_LINUX=.*\b{}\b' {file}", pattern(word));
                let sed = format!(r#"sed -i '/^GRUB_CMDLINE_LINUX=/s/"$/ {word}"/' {file}"#);
                lines.push(format!("{has} || {sed}"));
                lines.push(format!("{has} || echo '# add {word} to GRUB_CMDLINE_LINUX in {file}'"));
            }
            lines.push(UPDATE_GRUB.to_owned());
        }
        Some(BootLoader::ProxmoxBootTool) => {
            let file = "/etc/kernel/cmdline";
            for word in remove {
                let of = pattern(word);
                let has = format!(r"grep -q '\b{of}\b' {file}");
                let sed = format!(r"sed -i 's/\b{of}\b *//' {file}");
                lines.push(format!("if {has}; then {sed}; {}; fi", elsewhere(word, file)));
            }
            for word in add {
                let has = format!(r"grep -q '\b{}\b' {file}", pattern(word));
                lines.push(format!("{has} || sed -i '1s/$/ {word}/' {file}"));
            }
            lines.push(PROXMOX.to_owned());
        }
        None => {
            let each = |verb: &str, words: &[&str]| {
                let joined = words.join(" ");
                (!words.is_empty()).then(|| format!("# {verb} the kernel's arguments: {joined}"))
            };
            lines.extend([each("add to", add), each("remove from", remove)].into_iter().flatten());
        }
    }
    lines.push(NEXT_BOOT.to_owned());
    lines
}

/// The rest of a command that takes a word out of a file: another file may give it.
fn elsewhere(word: &str, file: &str) -> String {
    format!("else echo '# {word} is not in {file}: remove it where the boot loader has it'")
}

/// A word as a pattern of `sed`.
fn pattern(word: &str) -> String {
    word.replace('.', r"\.").replace('/', r"\/")
}

/// A command that appends an option of a module to a file of the admin's.
pub(super) fn module_option(line: &str) -> String {
    format!("echo '{line}' >>/etc/modprobe.d/vfio-local.conf")
}

/// The command that renews the initramfs.
pub(super) fn initramfs(facts: &Facts) -> String {
    facts.initramfs.map_or(SOME_INITRAMFS, InitramfsTool::command).to_owned()
}
