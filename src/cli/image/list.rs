//! `image list`: every image of the pool, and who uses it.

use super::super::args::ImageListArgs;
use super::super::context::Context;
use super::super::error::EXIT_DONE;
use super::super::table::Table;
use crate::hypervisor::uses::Uses;
use crate::memsize::MemSize;
use gpuvm_ops::images::{Image, images};
use serde::Serialize;

/// Is one row.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Row {
    /// The image.
    #[serde(flatten)]
    image: Image,
    /// Domains that have it as a disk or below one, by name.
    domains: Vec<String>,
    /// Volumes that lie over it, as `pool/volume`.
    volumes: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &ImageListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_without_guests("image list")?;
    let hypervisor = cx.hypervisor()?;
    let images = images(hypervisor.storage(), &args.pool.pool)?;
    let uses = if images.is_empty() { Uses::default() } else { Uses::read(&*hypervisor)? };
    let row = |image: Image| Row {
        domains: uses.domains(&image.path),
        volumes: uses.volumes(&image.path),
        image,
    };
    let rows: Vec<Row> = images.into_iter().map(row).collect();
    if cx.output.json {
        cx.output.json_rows("gpuvm-image-list", &rows)?;
    } else if rows.is_empty() {
        cx.output.progress("there is no image; `gpuvm image add FILE` adds one");
    } else {
        cx.output.table(&table(&rows))?;
    }
    for image in rows.iter().map(|row| &row.image) {
        if let Some(fault) = &image.fault {
            cx.output.warning(&format!("image `{}` cannot be used: {fault}", image.name));
        }
    }
    Ok(EXIT_DONE)
}

/// The rows as a table.
fn table(rows: &[Row]) -> Table {
    let size = |bytes: u64| MemSize::from_kib(bytes.div_ceil(1024)).to_string();
    let mut table = Table::new(["NAME", "FORMAT", "SIZE", "ON DISK", "USED BY"]);
    for Row { image, domains, volumes } in rows {
        // Volumes tell more only where no domain has them.
        let users = if domains.is_empty() { volumes } else { domains };
        table.push([
            image.name.to_string(),
            image.format.to_string(),
            size(image.virtual_bytes),
            size(image.disk_bytes),
            if users.is_empty() { "-".to_owned() } else { users.join(", ") },
        ]);
    }
    table
}
