//! JSON Schemas of values that print as one text.

use crate::bdf::Bdf;
use crate::cpuset::{Id, IdSet};
use crate::hostnet::HostIp;
use crate::image::{ImageName, Sha256};
use crate::network::Subnet;
use crate::topology::Proximity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

fn text(description: &str, pattern: &str) -> Schema {
    json_schema!({ "type": "string", "description": description, "pattern": pattern })
}

impl JsonSchema for Bdf {
    fn schema_name() -> Cow<'static, str> {
        "Bdf".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = "^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$";
        text("A PCI address: segment, bus, device and function.", pattern)
    }
}

impl<I: Id> JsonSchema for IdSet<I> {
    fn schema_name() -> Cow<'static, str> {
        "IdSet".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text("A set of numbers as the kernel writes it: `0-3,8`.", "^([0-9]+(-[0-9]+)?(,|$))*$")
    }
}

impl JsonSchema for Proximity {
    fn schema_name() -> Cow<'static, str> {
        "Proximity".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = "^(X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS)$";
        text("How near two functions are, as `nvidia-smi topo -m` writes it.", pattern)
    }
}

impl JsonSchema for Subnet {
    fn schema_name() -> Cow<'static, str> {
        "Subnet".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text("An IPv4 subnet: `192.168.122.0/24`.", "^[0-9.]+/[0-9]+$")
    }
}

impl JsonSchema for HostIp {
    fn schema_name() -> Cow<'static, str> {
        "HostIp".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text("An address of a host with the length of its prefix.", "^[0-9a-f.:]+/[0-9]+$")
    }
}

impl JsonSchema for ImageName {
    fn schema_name() -> Cow<'static, str> {
        "ImageName".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text("The name of an image.", "^.+$")
    }
}

impl JsonSchema for Sha256 {
    fn schema_name() -> Cow<'static, str> {
        "Sha256".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text("A SHA-256.", "^[0-9a-f]{64}$")
    }
}
