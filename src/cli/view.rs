//! `--html` and `--svg`: pictures of the host and its guests, for the verbs that show them.

use super::args::ViewArgs;
use super::context::Context;
use super::error::usage;
use super::offer::{self, Nameless, nameless as nameless_offers};
use super::options::Edit;
use super::output::offered_text;
use gpuvm_core::view::{PAGE_MARK, Page, SVG_MARK, page, svg};
use gpuvm_ops::files::write_own;
use std::path::Path;

/// Until it is dropped, commands name neither machine nor connection, unless --identify is given: a
/// page is given to others.
pub fn nameless(args: &ViewArgs) -> Option<Nameless> {
    (!args.identify).then(nameless_offers)
}

/// Refuses options that contradict each other, before anything is read.
pub fn check(args: &ViewArgs, cx: &Context<'_>) -> anyhow::Result<()> {
    let is_out = |file: &Option<std::path::PathBuf>| file.as_deref() == Some(Path::new("-"));
    let (html, picture) = (is_out(&args.html), is_out(&args.svg));
    if html && picture {
        return Err(usage(
            "--html and --svg both name standard output",
            "write one of them to a file: --html FILE",
        ));
    }
    if args.html.is_some() && args.html == args.svg {
        return Err(usage(
            "--html and --svg both name one file",
            "name two: --html host.html --svg host.svg",
        ));
    }
    if (html || picture) && cx.output.json {
        return Err(usage(
            "--json prints its document on standard output, where the picture goes, too",
            "write the picture to a file; a page has the document of --json in it",
        ));
    }
    if args.identify && !args.is_wanted() {
        return Err(usage(
            "--identify is about a picture, and none is asked for",
            drawn("host.html").unwrap_or_else(|| "add --html FILE or --svg FILE".to_owned()),
        ));
    }
    Ok(())
}

/// The command that draws the subject of this call in a file; `None` outside a run.
pub fn drawn(file: &str) -> Option<String> {
    let html = Edit::to("--html", file);
    Some(format!("`{}` draws it", offer::instead(&[html])?))
}

/// Writes the requested views. Returns whether standard output has been used, so that nothing else
/// is printed there.
pub fn write(args: &ViewArgs, cx: &Context<'_>, shown: &Page<'_>) -> anyhow::Result<bool> {
    let mut is_printed = false;
    let mut put = |file: &Path, (mark, end): (&str, &str), text: &str| -> anyhow::Result<()> {
        if file == Path::new("-") {
            is_printed = true;
            return Ok(cx.output.document(text)?);
        }
        let is_whole = |there: &str| there.trim_end().ends_with(end);
        Ok(write_own(file, mark, is_whole, text.as_bytes())?)
    };
    if let Some(file) = &args.svg {
        put(file, (SVG_MARK, "</svg>"), &svg(&shown.subject))?;
    }
    if let Some(file) = &args.html {
        put(file, (PAGE_MARK, "</html>"), &page(shown))?;
    }
    Ok(is_printed)
}

/// Sentences as they are shown: commands can be pasted, secrets are left out.
pub fn shown(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    lines.into_iter().map(|line| offered_text(&line)).collect()
}
