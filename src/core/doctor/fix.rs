//! Commands that mend what rules find. Only texts; nothing is run.

use crate::topology::Facts;
use crate::topology::facts::BootLoader;

/// Commands that change the kernel's arguments.
pub(super) fn kernel(facts: &Facts, add: &[&str], remove: &[&str]) -> Vec<String> {
    let mut lines = Vec::new();
    match facts.boot_loader {
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
                let word = pattern(word);
                lines.push(format!(r"sed -i '/^GRUB_CMDLINE_LINUX/s/\b{word}\b *//' {file}"));
            }
            for word in add {
                lines.push(format!(r#"sed -i '/^GRUB_CMDLINE_LINUX=/s/"$/ {word}"/' {file}"#));
            }
            lines.push("update-grub".to_owned());
        }
        Some(BootLoader::ProxmoxBootTool) => {
            let file = "/etc/kernel/cmdline";
            for word in remove {
                lines.push(format!(r"sed -i 's/\b{}\b *//' {file}", pattern(word)));
            }
            for word in add {
                lines.push(format!("sed -i '1s/$/ {word}/' {file}"));
            }
            lines.push("proxmox-boot-tool refresh".to_owned());
        }
        None => {
            let each = |verb: &str, words: &[&str]| {
                let joined = words.join(" ");
                (!words.is_empty()).then(|| format!("# {verb} the kernel's arguments: {joined}"))
            };
            lines.extend([each("add to", add), each("remove from", remove)].into_iter().flatten());
        }
    }
    lines.push("# takes effect at the next boot".to_owned());
    lines
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
    facts.initramfs_command.clone().unwrap_or_else(|| {
        "# renew the initramfs: `update-initramfs -u -k all` or `dracut --force --regenerate-all`"
            .to_owned()
    })
}
