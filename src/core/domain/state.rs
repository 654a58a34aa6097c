//! The state of a guest beside its disks: the settings of its firmware and of its emulated TPM.

use super::{DomainXml, Element};

impl DomainXml {
    /// Returns the path of the file with the settings of its firmware (NVRAM).
    pub fn nvram(&self) -> Option<String> {
        let nvram = self.root().find("os/nvram")?;
        let source = nvram.child("source").and_then(|source| source.attr("file"));
        let path = source.map_or_else(|| nvram.text().into_owned(), |path| path.into_owned());
        path.starts_with('/').then_some(path)
    }

    /// Whether it has an emulated TPM, which has a state.
    pub fn has_tpm(&self) -> bool {
        self.emulated_tpm().is_some()
    }

    /// Returns where an administrator has put the state of its TPM; `None` for libvirt's own
    /// directory.
    pub fn foreign_tpm(&self) -> Option<String> {
        Some(self.emulated_tpm()?.child("source")?.attr("path")?.into_owned())
    }

    /// The backend of its emulated TPM.
    fn emulated_tpm(&self) -> Option<Element<'_>> {
        let tpms = self.root().children("devices").flat_map(|all| all.children("tpm"));
        let mut backends = tpms.filter_map(|tpm| tpm.child("backend"));
        backends.find(|of| of.attr("type").is_some_and(|kind| kind == "emulator"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tpm_state_of_a_path_that_an_administrator_chose_is_foreign() {
        let of = |backend: &str| {
            DomainXml::parse(&format!(
                "<domain type='qemu'><name>a</name><memory>1024</memory><devices>\
                 <tpm model='tpm-crb'>{backend}</tpm></devices></domain>"
            ))
            .unwrap()
        };
        let own = of("<backend type='emulator' version='2.0'/>");
        assert!(own.has_tpm() && own.foreign_tpm().is_none());
        let theirs =
            of("<backend type='emulator'><source type='dir' path='/srv/tpm a'/></backend>");
        assert!(theirs.foreign_tpm().as_deref() == Some("/srv/tpm a"));
        let passed = of("<backend type='passthrough'><device path='/dev/tpm0'/></backend>");
        assert!(!passed.has_tpm() && passed.foreign_tpm().is_none());
    }
}
