//! The consistency law from outside: libvirt's schema for one export of each shape, and the program
//! for a few pairs.

use super::clauses::{Broken, Clause};
use super::pairs::Asked;
use crate::support::{gpuvm, run};
use gpuvm::domain::{DomainXml, Element};
use gpuvm_ops::guest::needs_template;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// One export of each shape, with its pair.
#[derive(Default)]
pub struct Shapes(BTreeMap<String, (String, String)>);

/// The names of elements and attributes below an element, each once.
fn shape(element: Element<'_>, path: &str, all: &mut std::collections::BTreeSet<String>) {
    let path = format!("{path}/{}", element.name());
    for (name, _) in element.attrs() {
        all.insert(format!("{path}@{name}"));
    }
    for child in element.elements() {
        shape(child, &path, all);
    }
    all.insert(path);
}

impl Shapes {
    /// Keeps an export that is the first of its shape.
    pub fn add(&mut self, place: &str, xml: &DomainXml) {
        let mut all = Default::default();
        shape(xml.root(), "", &mut all);
        let key = all.into_iter().collect::<Vec<_>>().join(" ");
        self.0.entry(key).or_insert_with(|| (place.to_owned(), xml.text().to_owned()));
    }

    /// How many shapes there are.
    pub fn number(&self) -> usize {
        self.0.len()
    }

    /// Those that libvirt's schema refuses; none if it is not installed.
    pub fn invalid(&self) -> Vec<(String, Broken)> {
        if !crate::xml::tools::has("virt-xml-validate") {
            return Vec::new();
        }
        let dir = tempfile::tempdir().unwrap();
        let mut broken = Vec::new();
        // Guests by iommufd, such as those of Grace, are judged beside a libvirt that knows them
        // (tests/trixie).
        let knows = crate::iommufd::is_known();
        let judged = self.0.values().filter(|(_, text)| knows || !text.contains("<iommufd"));
        for (at, (place, text)) in judged.enumerate() {
            let file = dir.path().join(format!("{at}.xml"));
            std::fs::write(&file, text).unwrap();
            let how = crate::xml::tools::invalid(&file);
            broken.extend(how.map(|how| (place.clone(), Broken { clause: Clause::Valid, how })));
        }
        broken
    }
}

/// The differences between the program and the library.
pub fn program(path: &Path, size: &str, asked: &Asked<'_>) -> Vec<Broken> {
    let say = |verb: &str, more: &[&str]| {
        let mut command: Command = gpuvm(&[verb]);
        command.arg("--host").arg(path).args(size.split_whitespace()).args(more);
        let (code, out, err) = run(&mut command);
        // The suggested command is the verb's own with another size.
        let own = format!("hint: `gpuvm {verb} ");
        let lines = err.lines().filter(|line| !line.starts_with(&own));
        (code, out, lines.map(|line| format!("{line}\n")).collect::<String>())
    };
    let mut broken = Vec::new();
    let mut fault = |how: String| broken.push(Broken { clause: Clause::Program, how });
    // Where the architecture has no template, the verbs refuse requests that have a place, too.
    let place = asked.answer.as_ref().ok().filter(|_| needs_template(asked.topology).is_none());
    let (code, _, planned) = say("plan", &[]);
    if (code == 0) != place.is_some() {
        fault(format!("plan ends with {code}: {planned}"));
    }
    let (code, _, said) = say("export", &["--name", "law"]);
    match place {
        None if said != planned => fault(format!("plan says {planned}export says {said}")),
        Some(place) if (code == 0) != asked.export(place).is_ok() => {
            fault(format!("export ends with {code}: {said}"));
        }
        _ => {}
    }
    let mut more = vec!["--name", "law", "--dry-run"];
    if place.is_some_and(|place| place.shared_fabric().is_some()) {
        more.push("--accept-shared-fabric");
    }
    let (code, _, said) = say("create", &more);
    match place {
        None if said != planned => fault(format!("plan says {planned}create says {said}")),
        // The template that the plan has named is missing.
        Some(place) if asked.export(place).is_err() && said.contains("--template") => {}
        Some(_) if code != 0 => fault(format!("create --dry-run ends with {code}: {said}")),
        _ => {}
    }
    broken
}
