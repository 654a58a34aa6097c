//! Slurm's description of a job that gets a guest, and the configuration of a node. Runs no program
//! and trusts nothing that a job's owner has written.

mod conf;
mod limits;
#[cfg(test)]
mod tests;

pub use conf::{
    Conf, ConfRequest, SlurmConfError, VgpuCount, conf, gpu_type, gpus_by_file, vgpu_type,
};
pub use limits::{JobLimits, Resources};

/// The GRES that gpuvm counts guests' GPUs by. Slurm drops a GRES named `gpu` that has no device
/// files (`Removing file-less GPU`, Slurm 22.05), and before a guest runs there are none.
pub const GRES: &str = "gpuvm";
/// The GRES of GPUs with device files.
pub const GPU: &str = "gpu";
/// The length of the longest reason that a cancelled job gets, in bytes.
const LONGEST_REASON: usize = 900;
/// The length of the longest value in a comment, in bytes.
const LONGEST_VALUE: usize = 128;

/// An error in the request of a job.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "slurm-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum JobError {
    /// A word of the comment has another key.
    #[error("comment of the job: unknown key `{key}`; it takes {known}")]
    #[strum(to_string = "comment-key")]
    Key { key: String, known: String },
    /// A key of the comment has no usable value.
    #[error("comment of the job: {key}={value:?} is not a value: {why}")]
    #[strum(to_string = "comment-value")]
    Value { key: &'static str, value: String, why: &'static str },
    /// More than the job may request.
    #[error("comment of the job: {key}={wanted} exceeds the {most} that this job may request")]
    #[strum(to_string = "comment-too-much")]
    TooMuch { key: &'static str, wanted: String, most: String },
    /// An image that jobs may not choose.
    #[error("comment of the job: jobs on this node may not choose image `{image}`")]
    #[strum(to_string = "comment-image")]
    Image { image: String },
    /// The number of GPUs cannot be read.
    #[error("{text:?} is not a GRES request of Slurm")]
    Gres { text: String },
    /// GPUs of several models.
    #[error("the job requests GPUs of several types: {types}")]
    Types { types: String },
}

/// The number and the type of the GPUs that a job requests on each of its nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GresRequest {
    /// How many.
    pub count: u32,
    /// Their type; `None` for any.
    pub of: Option<String>,
}

impl GresRequest {
    /// Reads the GRES of this name from the output of `squeue` for a job (`%b`):
    /// `gres:gpuvm:v100:2`, or `gres/gpuvm:2` of newer versions, several joined by commas.
    pub fn read(text: &str, name: &str) -> Result<GresRequest, JobError> {
        let mut found = GresRequest::default();
        if matches!(text, "" | "N/A" | "(null)") {
            return Ok(found);
        }
        let wrong = || JobError::Gres { text: shortened(text) };
        for part in text.split(',') {
            let part = part.trim();
            let rest = part.strip_prefix("gres:").or_else(|| part.strip_prefix("gres/"));
            let mut words = rest.unwrap_or(part).split(':');
            if words.next() != Some(name) {
                continue;
            }
            let words: Vec<&str> = words.collect();
            let (of, count) = match words[..] {
                [] => (None, 1),
                [one] => match one.parse() {
                    Ok(count) => (None, count),
                    Err(_) if one.starts_with(|c: char| c.is_ascii_digit()) => return Err(wrong()),
                    Err(_) => (Some(one), 1),
                },
                [of, count] => (Some(of), count.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            };
            found.count = found.count.checked_add(count).ok_or_else(wrong)?;
            match (&found.of, of) {
                (Some(known), Some(of)) if known != of => {
                    return Err(JobError::Types { types: shortened(&format!("{known}, {of}")) });
                }
                (None, Some(of)) => found.of = Some(of.to_owned()),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The options of a guest that the owner of a job may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The image that it boots from.
    Image,
    /// Its vCPUs.
    Vcpus,
    /// Its memory.
    Memory,
}

impl Key {
    const ALL: [Key; 3] = [Key::Image, Key::Vcpus, Key::Memory];

    /// Its word in a comment, which is that of the option of `create`.
    pub fn as_str(self) -> &'static str {
        match self {
            Key::Image => "image",
            Key::Vcpus => "vcpus",
            Key::Memory => "memory",
        }
    }
}

/// Reads the comment of a job: words `KEY=VALUE`; others are for people. Values have no character
/// with a meaning to a shell, a path or an option.
pub fn read_comment(text: &str) -> Result<Vec<(Key, String)>, JobError> {
    let mut found: Vec<(Key, String)> = Vec::new();
    for word in text.split_whitespace() {
        let Some((key, value)) = word.split_once('=') else { continue };
        let known = Key::ALL.into_iter().find(|known| known.as_str() == key);
        let Some(known) = known else {
            let known = Key::ALL.map(Key::as_str).join(", ");
            return Err(JobError::Key { key: shortened(key), known });
        };
        let wrong =
            |why| Err(JobError::Value { key: known.as_str(), value: shortened(value), why });
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        if value.is_empty() {
            return wrong("it is empty");
        } else if value.len() > LONGEST_VALUE {
            return wrong("it is too long");
        } else if value.starts_with(['-', '.']) || !value.chars().all(is_plain) {
            return wrong("it may have letters, digits and `._+-`, and begins with none of `.-`");
        } else if found.iter().any(|(other, _)| *other == known) {
            return wrong("the key appears twice");
        }
        found.push((known, value.to_owned()));
    }
    Ok(found)
}

/// Shortens foreign text to the length of a message.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(64) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns a reason as Slurm can show it: in one line, without control characters and quotes,
/// which it would end at.
pub fn reason(text: &str) -> String {
    let mut said = String::new();
    for word in text.split_whitespace() {
        if said.len() + word.len() >= LONGEST_REASON {
            said.push_str(" ..");
            break;
        }
        if !said.is_empty() {
            said.push(' ');
        }
        said.extend(word.chars().filter(|c| !c.is_control()).map(|c| match c {
            '"' | '`' => '\'',
            other => other,
        }));
    }
    said
}
