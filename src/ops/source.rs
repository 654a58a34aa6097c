//! The source of a domain definition to be checked or tuned: a file or a hypervisor.

use crate::domain::DomainXml;
use crate::error::{Error, Refusal, Result};
use crate::input::{self, DOMAIN_BYTES};
use crate::shell::word;
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
    /// Guesses from the form of a name whether it is a file or a domain.
    pub fn guess(named: &str) -> Source {
        let xml_name = Path::new(named).extension().is_some_and(|e| e.eq_ignore_ascii_case("xml"));
        let is_file = named == "-" || named.contains('/') || xml_name || Path::new(named).exists();
        if is_file { Source::File(named.to_owned()) } else { Source::Domain(named.to_owned()) }
    }

    /// A text whose commands name the domain that was read: of a file they name the file, since
    /// there need be no such domain.
    pub fn naming(&self, text: &str, domain: &str) -> String {
        let Source::File(file) = self else { return text.to_owned() };
        // Standard input is not there a second time.
        let file = if file == "-" { Cow::Borrowed("FILE") } else { word(file) };
        let mut text = text.to_owned();
        for verb in ["check", "nccl", "tune"] {
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

    #[test]
    fn what_looks_like_a_file_is_one_and_all_else_is_a_domain() {
        for file in ["-", "a.xml", "a.XML", "./a", "/etc/libvirt/qemu/a", "Cargo.toml"] {
            assert_eq!(Source::guess(file), Source::File(file.into()));
        }
        for domain in ["a", "train-a", "xml", "a.xml.1"] {
            assert_eq!(Source::guess(domain), Source::Domain(domain.into()));
        }
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
    fn a_file_that_is_no_domain_is_named_with_what_helps() {
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
