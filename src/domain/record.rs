//! Our metadata of a domain, read back.

use super::guest::{NAMESPACE, Record};
use super::{DomainXml, DomainXmlError, Element};

impl DomainXml {
    /// What was remembered of how the guest was made; none where it was not made by us.
    pub fn record(&self) -> Result<Option<Record>, DomainXmlError> {
        let metadata = self.root().child("metadata");
        let ours = |element: &Element<'_>| {
            element.namespace() == Some(NAMESPACE) && local(element.name()) == "guest"
        };
        let Some(guest) = metadata.and_then(|metadata| metadata.elements().find(ours)) else {
            return Ok(None);
        };
        let child = |of: Element<'_>, name: &str| {
            of.elements().find(|e| local(e.name()) == name).map(|e| e.node)
        };
        let part = |node| Element { node, ..guest };
        let Some(request) = child(guest, "request").map(part) else {
            let message = "there is no request in our metadata".into();
            return Err(DomainXmlError::Value { path: guest.path(), message });
        };
        let parsed = serde_json::from_str(&request.text());
        let parsed = parsed.map_err(|error| DomainXmlError::Value {
            path: request.path(),
            message: format!("not a request that this program knows: {error}"),
        })?;
        let made = child(guest, "made").map(part);
        let disks = made.into_iter().flat_map(Element::elements);
        let paths = disks.filter(|disk| local(disk.name()) == "disk");
        let made_disks = paths.filter_map(|disk| disk.attr("path").map(Into::into)).collect();
        Ok(Some(Record { request: parsed, made_disks }))
    }
}

/// A name without its prefix.
fn local(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, local)| local)
}
