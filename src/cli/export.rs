//! `export`: plans a guest and prints its domain XML, or its shape for another platform; or writes
//! a guest as a bundle.

use super::args::{ExportArgs, ExportFormat};
use super::change::manner;
use super::context::Context;
use super::error::{EXIT_DONE, usage};
use super::output::{Answer, Document};
use crate::shell::word;
use gpuvm_ops::bundle::{BundleRequest, bundle};
use gpuvm_ops::export::{export, to_kubevirt, to_nova};
use gpuvm_ops::files::write_target;
use gpuvm_ops::nccl::nccl_of;
use gpuvm_ops::session::{Manner, Session};
use serde::Serialize;

/// Name of the answer as JSON.
const FORMAT: &str = "gpuvm-export";
const KUBEVIRT_FORMAT: &str = "gpuvm-export-kubevirt";
const NOVA_FORMAT: &str = "gpuvm-export-nova";

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Exported<'a> {
    /// Name of the domain.
    name: &'a str,
    /// Its XML.
    xml: &'a str,
}

/// Runs the verb.
pub fn run(args: &ExportArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if let (Some(name), Some(path)) = (&args.of, &args.bundle) {
        let (name, without) = (name.clone(), args.without.clone());
        return write_bundle(&BundleRequest { name, path: path.clone(), without }, args, cx);
    }
    refuse_of_others(args)?;
    let (guest, disks) = (args.request()?, args.storage.request()?);
    match args.format {
        ExportFormat::KubeVirt => {
            let made = to_kubevirt(cx, &guest, &disks, &args.resource)?;
            let text = if args.cluster { made.cluster_text()? } else { made.text()? };
            print(args, cx, KUBEVIRT_FORMAT, &made, &text)
        }
        ExportFormat::Nova => {
            let made = to_nova(cx, &guest, &disks, &args.resource)?;
            let text = if args.host_part { made.host_text()? } else { made.text() };
            print(args, cx, NOVA_FORMAT, &made, &text)
        }
        ExportFormat::Nccl => {
            let noted = nccl_of(cx, &export(cx, &guest, &disks)?.1)?;
            print(args, cx, "gpuvm-nccl", &noted, &noted.file)
        }
        ExportFormat::Libvirt => {
            let (name, xml) = export(cx, &guest, &disks)?;
            let exported = Exported { name: name.as_str(), xml: xml.text() };
            print(args, cx, FORMAT, &exported, exported.xml)
        }
    }
}

fn refuse_of_others(args: &ExportArgs) -> anyhow::Result<()> {
    let is = |format| args.format == format;
    let named = !args.resource.is_empty();
    for (option, given, fits, format) in [
        ("--cluster", args.cluster, is(ExportFormat::KubeVirt), "kubevirt"),
        ("--host-part", args.host_part, is(ExportFormat::Nova), "nova"),
        ("--resource", named, is(ExportFormat::KubeVirt) || is(ExportFormat::Nova), "kubevirt"),
    ] {
        if given && !fits {
            let hint = format!("add --format {format}, or leave {option} out");
            return Err(usage(format!("{option} is not for this format"), hint));
        }
    }
    Ok(())
}

/// Writes a guest as a bundle.
fn write_bundle(wanted: &BundleRequest, args: &ExportArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("export --bundle")?;
    cx.refuse_elsewhere("export --bundle")?;
    let manner = Manner { dry_run: args.dry_run, ..manner(&args.lock) };
    let done = Session::begin(cx, manner)?.run(|world| bundle(world, wanted))?;
    if !done.made {
        return Ok(EXIT_DONE);
    }
    let about = done.change.about;
    let path = about.bundle.to_string_lossy();
    cx.output.progress(&format!(
        "{path} has domain `{}`; `gpuvm import {}` on the other host makes it",
        about.name,
        word(&path)
    ));
    if cx.output.json {
        cx.output.json("gpuvm-exported", &about)?;
    }
    Ok(EXIT_DONE)
}

/// Prints an answer, or writes it to the given file.
fn print<T: Answer>(
    args: &ExportArgs,
    cx: &Context<'_>,
    format: &'static str,
    answer: &T,
    document: &str,
) -> anyhow::Result<u8> {
    match &args.output {
        Some(path) => {
            let mut text = if cx.output.json {
                serde_json::to_string_pretty(&Document::new(format, answer))?
            } else {
                document.to_owned()
            };
            if !text.ends_with('\n') {
                text.push('\n');
            }
            write_target(path, text.as_bytes())?;
        }
        None if cx.output.json => cx.output.json_document(format, answer)?,
        None => cx.output.document(document)?,
    }
    Ok(EXIT_DONE)
}
