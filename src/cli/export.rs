//! `export`: plans a guest and prints its domain XML.

use super::args::{ExportArgs, ExportFormat};
use super::context::Context;
use super::error::EXIT_DONE;
use super::output::{Answer, Document};
use gpuvm_ops::export::export;
use gpuvm_ops::files::FileError;
use gpuvm_ops::nccl::nccl_of;
use serde::Serialize;
use std::io::Write as _;
use std::path::Path;

/// Name of the answer as JSON.
const FORMAT: &str = "gpuvm-export";

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
    let (name, xml) = export(cx, &args.guest.request()?, &args.storage.request()?)?;
    if args.format == ExportFormat::Nccl {
        let told = nccl_of(cx, &xml)?;
        return print(args, cx, "gpuvm-nccl", &told, &told.file);
    }
    let exported = Exported { name: name.as_str(), xml: xml.text() };
    print(args, cx, FORMAT, &exported, exported.xml)
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
            write(path, &text).map_err(FileError::of(path))?;
        }
        None if cx.output.json => cx.output.json_document(format, answer)?,
        None => cx.output.document(document)?,
    }
    Ok(EXIT_DONE)
}

/// Replaces a file atomically. Anything but a regular file, such as a pipe, is written directly.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if path.exists() && !path.is_file() {
        return std::fs::write(path, text).map(|()| crate::trace::wrote(path));
    }
    // A link's target is replaced, not the link.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // The mode of an ordinary new file, subject to the umask.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut file = builder.permissions(mode).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    if let Ok(there) = std::fs::metadata(path) {
        file.as_file().set_permissions(there.permissions())?;
    }
    file.persist(path)?;
    crate::trace::wrote(path);
    Ok(())
}
