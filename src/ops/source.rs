//! The source of a domain definition to be checked or tuned: a file or a hypervisor.

use crate::domain::DomainXml;
use crate::error::{Error, Refusal, Result};
use crate::input::{self, DOMAIN_BYTES};
use crate::shell::word;
use crate::world::World;
use std::borrow::Cow;
use std::path::Path;

/// A named source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file of domain XML; `-` is standard input.
    File(String),
    /// A domain of the hypervisor.
    Domain(String),
}

impl Source {
    /// Tells from the form of a name whether it is a file or a domain. Where that leaves it open, a
    /// domain of this name is meant, and not what happens to lie in the working directory: `./NAME`
    /// is that.
    pub fn named_by(named: &str, world: &World) -> Source {
        let (file, domain) = (Source::File(named.to_owned()), Source::Domain(named.to_owned()));
        if named == "-" || named.contains('/') {
            return file;
        }
        let path = Path::new(named);
        let is_there = path.metadata().is_ok_and(|meta| !meta.is_dir());
        let has_suffix = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("xml"));
        match (has_suffix, is_there) {
            (true, true) => file,
            (false, false) => domain,
            _ if is_domain(named, world) => domain,
            _ => file,
        }
    }

    /// A text whose commands name the domain that was read: of a file they name the file, since
    /// there need be no such domain.
    pub fn naming(&self, text: &str, domain: &str) -> String {
        let Source::File(file) = self else { return text.to_owned() };
        // Standard input is not there a second time.
        let file = if file == "-" { Cow::Borrowed("FILE") } else { word(file) };
        let mut text = text.to_owned();
        for verb in ["check", "nccl", "set", "tune"] {
            for after in [" ", "`"] {
                let of = |named: &str| format!("`gpuvm {verb} {named}{after}");
                text = text.replace(&of(&word(domain)), &of(&file));
            }
        }
        text
    }

    /// The name as it was given.
    pub fn named(&self) -> &str {
        match self {
            Source::File(named) | Source::Domain(named) => named,
        }
    }
}

/// Whether there is a domain of this name, as far as known.
fn is_domain(named: &str, world: &World) -> bool {
    if world.is_recorded() {
        return false;
    }
    let found = world.hypervisor().and_then(|hypervisor| Ok(hypervisor.domain(named)?));
    found.is_ok_and(|found| found.is_some())
}

/// Reads a file with domain XML.
pub fn read_file(file: &str) -> Result<String> {
    input::text_or_stdin(Path::new(file), DOMAIN_BYTES).map_err(|error| {
        let hint = error.hint().unwrap_or_else(|| {
            "name a file with domain XML (`virsh dumpxml NAME`), `-`, or a domain of `gpuvm list`"
                .into()
        });
        let message = error.to_string();
        Error::from(error).around(Refusal::around(message, hint))
    })
}

/// Reads a definition from a file.
pub fn definition(file: &str) -> Result<DomainXml> {
    DomainXml::parse(&read_file(file)?).map_err(|error| {
        let message = format!("{file}: {error}");
        Error::from(error)
            .around(Refusal::around(message, "`virt-xml-validate FILE domain` says more"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::{Stage, UUID};

    #[test]
    fn paths_are_files_and_other_words_domains() {
        // Tests run in the crate's directory, which has `Cargo.toml` and the directory `check`.
        let stage = Stage::who_says(Answer::Nobody);
        for name in ["a", "b.xml", "Cargo.toml", "check"] {
            stage.fake.put(name, UUID, false);
        }
        let of = |named: &str| Source::named_by(named, &stage.world);
        for file in ["-", "a.xml", "a.XML", "./a", "/etc/libvirt/qemu/a", "lib.rs"] {
            assert_eq!(of(file), Source::File(file.into()));
        }
        for domain in ["a", "train-a", "xml", "a.xml.1", "b.xml", "Cargo.toml", "check", "tune"] {
            assert_eq!(of(domain), Source::Domain(domain.into()));
        }
        // Without a hypervisor only the file can be meant.
        stage.fake.gone.set(true);
        assert_eq!(of("Cargo.toml"), Source::File("Cargo.toml".into()));
    }

    #[test]
    fn commands_name_the_file_that_was_read() {
        let text = "as `gpuvm tune a b --pcie on` does, or `gpuvm nccl 'a b'`; `gpuvm tune 'a b' \
                    --pcie on`";
        let file = Source::File("/tmp/a.xml".into());
        let named = "as `gpuvm tune a b --pcie on` does, or `gpuvm nccl /tmp/a.xml`; `gpuvm tune \
                     /tmp/a.xml --pcie on`";
        assert_eq!(file.naming(text, "a b"), named);
        assert_eq!(Source::Domain("a b".into()).naming(text, "a b"), text);
        assert!(Source::File("-".into()).naming(text, "a b").contains("`gpuvm nccl FILE`"));
    }

    #[test]
    fn an_invalid_domain_file_is_named_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.xml").display().to_string();
        let hint = |error: Error| error.refusal().unwrap().hint.clone();
        assert!(hint(definition(&file).unwrap_err()).contains("virsh dumpxml"));
        std::fs::write(&file, "<domain").unwrap();
        let error = definition(&file).unwrap_err();
        assert!(error.to_string().starts_with(&file), "{error}");
        assert!(hint(error).contains("virt-xml-validate"));
    }
}
