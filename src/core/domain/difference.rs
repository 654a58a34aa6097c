//! Differences between a planned and a defined domain. Parts that libvirt adds by itself (a UUID,
//! models, chassis numbers, default devices) are not differences, and neither is order.

use super::DomainXml;
use super::element::Element;
use super::element::number;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// One place where a defined domain differs from the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Difference {
    /// Path of the element or attribute: `domain/cputune/vcpupin[2]/@cpuset`.
    pub path: String,
    /// The planned value; none if the defined domain has more than the plan.
    pub planned: Option<String>,
    /// The defined value; none if it is missing.
    pub defined: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.planned, &self.defined) {
            (Some(planned), Some(defined)) => {
                write!(f, "{}: planned `{planned}`, defined `{defined}`", self.path)
            }
            (Some(planned), None) => write!(f, "{}: planned `{planned}`, not there", self.path),
            (None, Some(defined)) => write!(f, "{}: not planned, defined `{defined}`", self.path),
            (None, None) => f.write_str(&self.path),
        }
    }
}

/// Elements that libvirt never adds, so that an extra one is a difference.
const NEVER_ADDED: [&str; 8] =
    ["vcpupin", "emulatorpin", "iothreadpin", "memnode", "cell", "hostdev", "disk", "interface"];

/// Finds where `defined` differs from `planned`, in the order of `planned`.
pub fn differences(planned: &DomainXml, defined: &DomainXml) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(planned.root(), defined.root(), &mut found);
    found
}

/// Whether a defined element has all that was planned.
fn covers(planned: Element<'_>, defined: Element<'_>) -> bool {
    let mut found = Vec::new();
    compare(planned, defined, &mut found);
    found.is_empty()
}

/// Compares two elements of the same name.
fn compare(planned: Element<'_>, defined: Element<'_>, found: &mut Vec<Difference>) {
    for (name, value) in planned.attrs().filter(|(name, _)| !name.starts_with("xmlns")) {
        let there = defined.attr(name);
        if there.as_ref().is_none_or(|there| !is_same(name, &value, there)) {
            let path = format!("{}/@{name}", planned.path());
            let shown = |value: Cow<'_, str>| match name {
                // Never shown to readers of the output.
                "passwd" => "***".to_owned(),
                _ => value.into_owned(),
            };
            let (planned, defined) = (Some(shown(value)), there.map(shown));
            found.push(Difference { path, planned, defined });
        }
    }
    let (text, there) = (planned.text(), defined.text());
    if !text.is_empty() && text != there {
        let (planned_text, defined) = (Some(text.into_owned()), Some(there.into_owned()));
        found.push(Difference { path: planned.path(), planned: planned_text, defined });
    }
    let mut names: Vec<&str> = Vec::new();
    let extra = defined.elements().filter(|e| NEVER_ADDED.contains(&e.name()));
    for name in planned.elements().filter(|e| !is_nothing(*e)).chain(extra).map(Element::name) {
        if !names.contains(&name) {
            names.push(name);
            compare_siblings(planned, defined, name, found);
        }
    }
}

/// Whether an element says nothing: libvirt drops a `<driver/>` that has lost its last attribute.
fn is_nothing(element: Element<'_>) -> bool {
    element.name() == "driver"
        && element.attrs().next().is_none()
        && element.elements().next().is_none()
}

/// Compares the elements of a name in two elements: equal ones are paired first, the rest in order.
fn compare_siblings(
    planned: Element<'_>,
    defined: Element<'_>,
    name: &str,
    found: &mut Vec<Difference>,
) {
    let mut left: Vec<Element<'_>> = defined.children(name).collect();
    let mut unlike = Vec::new();
    for wanted in planned.children(name) {
        match left.iter().position(|there| covers(wanted, *there)) {
            Some(at) => drop(left.remove(at)),
            None => unlike.push(wanted),
        }
    }
    let mut left = left.into_iter();
    for wanted in unlike {
        match left.next() {
            Some(there) => compare(wanted, there, found),
            None => {
                let planned = Some(brief(wanted));
                found.push(Difference { path: wanted.path(), planned, defined: None });
            }
        }
    }
    for there in left.filter(|_| NEVER_ADDED.contains(&name)) {
        let defined = Some(brief(there));
        found.push(Difference { path: there.path(), planned: None, defined });
    }
}

/// The start tag of an element, in one line.
fn brief(element: Element<'_>) -> String {
    let place = element.place();
    element.tree.slice(&place.open).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether two values of an attribute mean the same: numbers in any base, and machine types by the
/// short name that libvirt replaces.
fn is_same(name: &str, planned: &str, defined: &str) -> bool {
    let newest = |short: &str, long: &str| planned == short && defined.starts_with(long);
    planned == defined
        || number(planned).is_some_and(|value| number(defined) == Some(value))
        || (name == "machine"
            && (newest("q35", "pc-q35-") || newest("pc", "pc-i440fx-") || newest("virt", "virt-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The differences of two documents, as text.
    fn between(planned: &str, defined: &str) -> Vec<String> {
        let parse = |text: &str| DomainXml::parse(text).unwrap();
        differences(&parse(planned), &parse(defined)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn additions_by_libvirt_and_their_order_are_no_difference() {
        let planned = "<domain type='kvm' xmlns:q='urn:q'><!-- c --><name>a</name><os><type machine='q35'>hvm</type></os>
            <devices><disk type='file'><target dev='vda' bus='virtio'/><address bus='0x4'/></disk>
            <disk type='block'/><rng model='virtio'/></devices></domain>";
        let defined = "<domain id='3' type=\"kvm\"><devices><rng model='virtio'/><disk type='block' x='y'/>
            <disk type='file'><address bus='0x04'/><target bus='virtio' dev='vda'/><alias name='x'/></disk>
            <controller/></devices><uuid>1</uuid><os><type machine='pc-q35-10.0'>hvm</type></os><name> a </name></domain>";
        assert_eq!(between(planned, defined), Vec::<String>::new());
    }

    #[test]
    fn an_element_that_has_lost_its_last_attribute_is_none() {
        let of =
            |inside: &str| format!("<domain><devices><disk>{inside}</disk></devices></domain>");
        assert_eq!(between(&of("<driver/>"), &of("")), [""; 0]);
        assert_eq!(between(&of("<driver name='qemu'/>"), &of("")).len(), 1);
        assert_eq!(between(&of("<shareable/>"), &of("")).len(), 1);
    }

    #[test]
    fn names_the_place_of_each() {
        let planned = "<domain type='kvm'><vcpu>4</vcpu><cputune><vcpupin vcpu='0' cpuset='0'/>
            <vcpupin vcpu='1' cpuset='48'/></cputune><numatune/></domain>";
        let defined = "<domain><vcpu>5</vcpu><cputune><vcpupin vcpu='1' cpuset='49'/>
            <vcpupin vcpu='0' cpuset='0'/></cputune><devices><hostdev type='pci'/></devices></domain>";
        assert_eq!(
            between(planned, defined),
            [
                "domain/@type: planned `kvm`, not there",
                "domain/vcpu: planned `4`, defined `5`",
                "domain/cputune/vcpupin[2]/@cpuset: planned `48`, defined `49`",
                "domain/numatune: planned `<numatune/>`, not there",
            ]
        );
        let more = "<domain><devices><hostdev type='pci'/></devices></domain>";
        let less = "<domain><devices></devices></domain>";
        assert_eq!(
            between(less, more),
            ["domain/devices/hostdev: not planned, defined `<hostdev type='pci'/>`"]
        );
        assert_eq!(
            between(more, less),
            ["domain/devices/hostdev: planned `<hostdev type='pci'/>`, not there"]
        );
    }
}
