//! Options that write a picture of the host and its guests.

use super::heading::{BEHAVIOUR, PICTURE};
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};

/// The file of a picture, and its content.
#[derive(Debug, Clone, Default, Args)]
pub struct ViewArgs {
    /// Write a page with a picture to FILE; `-`: stdout
    ///
    /// One HTML file that loads nothing: the picture of --svg, guests with their isolation,
    /// devices, distances, IOMMU groups, what changes and why, and the document of --json. The same
    /// input gives the same bytes. A file that exists is replaced only if gpuvm made it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = PICTURE)]
    pub html: Option<PathBuf>,
    /// Write a picture to FILE; `-`: stdout
    ///
    /// An SVG file: packages, nodes, pcpus with the letter of their guest, memory, devices below
    /// their PCIe switches, NVLinks.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = PICTURE)]
    pub svg: Option<PathBuf>,
    /// Date for the page, in any words
    ///
    /// Without it the page has no date, so that pages can be compared.
    #[arg(long, value_name = "TEXT", requires = "html", help_heading = PICTURE)]
    #[arg(hide_short_help = true)]
    pub date: Option<String>,
    /// Include serial numbers, MAC addresses and the host name
    ///
    /// In page and picture, as `host capture --identify`.
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub identify: bool,
}

impl ViewArgs {
    /// Whether anything is to be written.
    pub fn is_wanted(&self) -> bool {
        self.html.is_some() || self.svg.is_some()
    }

    /// Whether standard output is used.
    pub fn is_out(&self) -> bool {
        [&self.html, &self.svg].into_iter().flatten().any(|file| file == Path::new("-"))
    }
}
