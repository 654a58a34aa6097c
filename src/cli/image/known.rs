//! The images that are known by name: those of the program, and those of an administrator's file.

use crate::cli::args::KnownArgs;
use crate::cli::error::Coded as _;
use crate::image::ImageName;
use crate::input;
use crate::tree::{Fault, Node, Spot, Value, toml};
use gpuvm_ops::images::error::ImagesFileError;
use gpuvm_ops::images::fetch::KnownImage;
use std::path::{Path, PathBuf};

const OWN: &str = include_str!("../images.toml");
/// The largest file, in bytes.
const MOST: u64 = 1 << 20;
const FIELDS: [&str; 5] = ["url", "sums", "signature", "keyrings", "ca"];

/// Reads the known images; entries of the file replace those of the same name.
pub fn read(args: &KnownArgs) -> anyhow::Result<Vec<KnownImage>> {
    let mut known = Reader { path: Path::new("images.toml") }.images(OWN)?;
    let path = &args.images;
    let is_default = path == Path::new(KnownArgs::DEFAULT);
    if is_default && path.symlink_metadata().is_err() {
        return Ok(known);
    }
    for image in (Reader { path }).images(&input::text(path, MOST)?)? {
        known.retain(|own| own.name != image.name);
        known.push(image);
    }
    known.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    Ok(known)
}

struct Reader<'f> {
    /// Its path, as given.
    path: &'f Path,
}

impl Reader<'_> {
    /// A place in the file, as compilers print it.
    fn place(&self, at: Spot) -> String {
        format!("{}:{}:{}", self.path.display(), at.line, at.column)
    }

    fn bad<T>(&self, at: Spot, why: impl Into<String>) -> anyhow::Result<T> {
        let hint = "an image is `[image.NAME]` with `url = \"https://...\"`; gpuvm-image(1) has the \
                    other fields";
        Err(ImagesFileError::Value { at: self.place(at), why: why.into() }.hint(hint))
    }

    /// The images of the whole file.
    fn images(&self, text: &str) -> anyhow::Result<Vec<KnownImage>> {
        let tree = toml(text).map_err(|Fault { at, why }| {
            ImagesFileError::Syntax { at: self.place(at), why }.bare::<anyhow::Error>()
        })?;
        let Value::Map(fields) = tree.value else {
            return self.bad(tree.at, "`image` is missing");
        };
        let mut images = Vec::new();
        for (key, at, node) in fields {
            match (key.as_str(), node.value) {
                ("image", Value::Map(entries)) => {
                    for (name, at, node) in entries {
                        images.push(self.image(&name, at, node)?);
                    }
                }
                ("image", _) => return self.bad(at, "`image` is to be a table of images by name"),
                _ => return Err(self.unknown(at, &key, &["image"])),
            }
        }
        Ok(images)
    }

    fn image(&self, name: &str, at: Spot, node: Node) -> anyhow::Result<KnownImage> {
        let name = match ImageName::new(name) {
            Ok(name) => name,
            Err(error) => return self.bad(at, error.to_string()),
        };
        let Value::Map(fields) = node.value else {
            return self.bad(node.at, format!("image `{name}` is to be a table"));
        };
        let mut image = KnownImage::at(name, String::new());
        for (key, at, node) in fields {
            match key.as_str() {
                "url" => {
                    let (at, url) = (node.at, placed(&self.text(node)?));
                    if !url.starts_with("https://") || url.chars().any(char::is_whitespace) {
                        return self.bad(at, "`url` is to be of scheme https, without blanks");
                    }
                    image.url = url;
                }
                "sums" => image.sums = self.names(node)?,
                "signature" => image.signature = Some(self.name(node)?),
                "keyrings" => {
                    let files = self.texts(node)?.into_iter().map(|file| self.file(&file));
                    image.keyrings = files.collect();
                }
                "ca" => image.ca = Some(self.file(&self.text(node)?)),
                _ => return Err(self.unknown(at, &key, &FIELDS)),
            }
        }
        if image.url.is_empty() {
            return self.bad(at, format!("image `{}` has no `url`", image.name));
        }
        if image.signature.is_some() && (image.keyrings.is_empty() || image.sums.is_empty()) {
            return self.bad(at, "`signature` needs `keyrings` and `sums`");
        }
        Ok(image)
    }

    /// A text that is not empty.
    fn text(&self, node: Node) -> anyhow::Result<String> {
        match node.value {
            Value::Text(text) if !text.trim().is_empty() => Ok(text),
            _ => self.bad(node.at, "a text is missing here"),
        }
    }

    /// A text, or a list of texts.
    fn texts(&self, node: Node) -> anyhow::Result<Vec<String>> {
        match node.value {
            Value::List(list) => list.into_iter().map(|node| self.text(node)).collect(),
            _ => Ok(vec![self.text(node)?]),
        }
    }

    /// The name of a file beside the image.
    fn name(&self, node: Node) -> anyhow::Result<String> {
        let (at, name) = (node.at, placed(&self.text(node)?));
        if name.contains('/') || name.chars().any(char::is_whitespace) {
            return self.bad(at, "a file beside the image is named without a path");
        }
        Ok(name)
    }

    /// Names of files beside the image.
    fn names(&self, node: Node) -> anyhow::Result<Vec<String>> {
        match node.value {
            Value::List(list) => list.into_iter().map(|node| self.name(node)).collect(),
            _ => Ok(vec![self.name(node)?]),
        }
    }

    /// A path, relative to the file.
    fn file(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The error of an unknown field, with the nearest one.
    fn unknown(&self, at: Spot, field: &str, known: &[&str]) -> anyhow::Error {
        let near = similar::get_close_matches(field, known, 1, 0.6);
        let hint = match near.first() {
            Some(near) => format!("`{near}`"),
            None => format!("known: {}", known.join(", ")),
        };
        let field = field.escape_debug().to_string();
        ImagesFileError::Field { at: self.place(at), field }.hint(hint)
    }
}

/// A text with the architecture of this machine in its places.
fn placed(text: &str) -> String {
    let arch = std::env::consts::ARCH;
    let debian = match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    text.replace("{arch}", arch).replace("{debarch}", debian)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file of this text.
    fn known(text: &str) -> Result<Vec<KnownImage>, String> {
        let read = Reader { path: Path::new("/x/i.toml") }.images(text);
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn the_programs_own_table_names_eight_images_with_checksums() {
        let own = known(OWN).unwrap();
        let names: Vec<&str> = own.iter().map(|image| image.name.as_str()).collect();
        let expected = [
            "debian-12",
            "debian-13",
            "ubuntu-24.04",
            "ubuntu-26.04",
            "fedora",
            "rocky-9",
            "rocky-10",
            "alma",
        ];
        assert_eq!(names, expected);
        assert!(own.iter().all(|image| !image.sums.is_empty() && !image.url.contains('{')));
    }

    #[test]
    fn entries_of_a_file_are_checked_where_they_stand() {
        let image = "[image.a]\nurl = \"https://h/a-{arch}.img\"\n";
        let read = known(&format!("{image}ca = \"ca.pem\"\nsums = \"S\"")).unwrap().remove(0);
        assert_eq!(read.url, format!("https://h/a-{}.img", std::env::consts::ARCH));
        assert_eq!((read.ca, read.sums), (Some("/x/ca.pem".into()), vec!["S".to_owned()]));
        for (text, says) in [
            ("[image.a]\n", "/x/i.toml:1:8: image `a` has no `url`"),
            ("[image.a]\nurl = \"http://h/a\"", "/x/i.toml:2:7: `url` is to be of scheme https"),
            ("[image.\"../a\"]\nurl = \"https://h/a\"", "image name"),
            ("[images.a]", "unknown field `images`"),
            ("image = 1", "`image` is to be a table"),
            (&format!("{image}sum = \"S\""), "/x/i.toml:3:1: unknown field `sum`"),
            (&format!("{image}sums = \"../S\""), "/x/i.toml:3:8: a file beside the image"),
            (&format!("{image}signature = \"inline\""), "`signature` needs `keyrings`"),
            (&format!("{image}url = \"\""), "duplicate key"),
        ] {
            let error = known(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
