//! The file with the settings of a new guest's firmware: one that is there already is not the new
//! guest's, which would boot with its keys and boot entries, and `delete` would remove it with the
//! guest. `virsh undefine --keep-nvram` leaves such a file.

use crate::domain::{DomainXml, Element};
use crate::error::{Class, Result, classed};
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::nvram_dir_of;
use crate::shell::word;
use std::path::PathBuf;

/// The ends of the names that libvirt gives to such files, by their format.
const ENDS: [&str; 2] = ["fd", "qcow2"];

/// Refuses a new guest whose firmware would get the settings of an existing file. `doing`: the
/// operation that makes the guest; `option`: the option that takes another name. Files visible only
/// to root are not found.
pub(crate) fn refuse_settings(
    xml: &DomainXml,
    (doing, option): (&str, &str),
    hypervisor: &dyn Hypervisor,
) -> Result<()> {
    if !hypervisor.machine().is_here() {
        return Ok(());
    }
    let all = files(xml, &hypervisor.opened_uri());
    let Some(there) = all.iter().find(|path| path.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    let message = format!(
        "cannot {doing}: there are settings of firmware in {} already, which the guest would get",
        there.display()
    );
    let there = there.to_string_lossy();
    let there = word(&there);
    let hint = format!(
        "`ls -l {there}` shows them, `mv -n {there} {there}.old` keeps them under another name; \
         another {option} does without"
    );
    Err(classed(Class::Exists, message, hint))
}

/// The files that may become those of a guest's firmware settings; none if it has no such settings.
fn files(xml: &DomainXml, uri: &str) -> Vec<PathBuf> {
    if let Some(path) = xml.nvram() {
        return vec![PathBuf::from(path)];
    }
    let Some(os) = xml.root().child("os") else { return Vec::new() };
    let is = |of: Option<Element<'_>>, name: &str, value: &str| {
        of.and_then(|of| of.attr(name)).is_some_and(|has| has == value)
    };
    let loader = os.child("loader");
    let is_uefi = is(Some(os), "firmware", "efi") || is(loader, "type", "pflash");
    let Some(dir) = nvram_dir_of(uri).filter(|_| is_uefi && !is(loader, "stateless", "yes")) else {
        return Vec::new();
    };
    let name = xml.name();
    ENDS.iter().map(|end| dir.join(format!("{name}_VARS.{end}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::{Stage, UUID};

    /// A definition with this `<os>`.
    fn with(os: &str) -> DomainXml {
        let os = os.replace("<os>", "<os><type>hvm</type>");
        DomainXml::parse(&format!(
            "<domain type='test'><name>a</name><uuid>{UUID}</uuid><memory>1024</memory>{os}</domain>"
        ))
        .unwrap()
    }

    #[test]
    fn the_file_is_the_named_one_or_that_of_the_name() {
        let of = |os: &str| -> Vec<String> {
            let all = files(&with(os), "qemu:///system").into_iter();
            all.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(of("<os><nvram>/raid/x.fd</nvram></os>"), ["/raid/x.fd"]);
        let named = ["fd", "qcow2"].map(|end| format!("/var/lib/libvirt/qemu/nvram/a_VARS.{end}"));
        assert_eq!(of("<os firmware='efi'><type>hvm</type></os>"), named);
        assert_eq!(of("<os><loader type='pflash'>/c.fd</loader></os>"), named);
        assert_eq!(of("<os><loader type='pflash' stateless='yes'>/c.fd</loader></os>"), [""; 0]);
        assert_eq!(of("<os></os>"), [""; 0]);
        let of_test = files(&with("<os firmware='efi'></os>"), "test:///default");
        assert!(of_test.is_empty(), "{of_test:?}");
    }

    #[test]
    fn settings_that_are_there_are_nobodys_to_adopt() {
        let stage = Stage::who_says(Answer::Nobody);
        let file = stage.dir.path().join("a_VARS.fd");
        let xml = with(&format!("<os><nvram>{}</nvram></os>", file.display()));
        let refused = || refuse_settings(&xml, ("create domain `a`", "--name"), &*stage.fake);
        refused().unwrap();
        std::fs::write(&file, "theirs").unwrap();
        let error = refused().unwrap_err();
        let refusal = error.refusal().expect("a refusal");
        assert!(refusal.hint.contains(&format!("`mv -n {0} {0}.old`", file.display())), "{error}");
    }
}
