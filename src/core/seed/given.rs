//! The admin's input for a seed, checked before anything is made: keys, a password hash, user-data.

use super::Hidden;
use crate::user::is_user_name;

/// The largest document accepted, in bytes; the whole seed must fit in its volume.
pub const MAX_BYTES: usize = 512 << 10;

/// The error of an invalid input.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "seed-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SeedError {
    /// A line is no public key.
    #[error("SSH key, line {line}: {reason}")]
    Key {
        /// The line, from 1.
        line: usize,
        reason: String,
    },
    /// A password, or a hash in a form unknown to guests.
    #[error("the password hash {reason}")]
    Password {
        /// The fault; never the text itself.
        reason: String,
    },
    /// A document that cloud-init would not accept.
    #[error("{what}: {reason}")]
    Document { what: &'static str, reason: String },
    /// A name that is not a valid user name.
    #[error("user name {name:?}: a letter or `_`, then up to 31 of a-z, 0-9, `_` and `-`")]
    User { name: String },
    /// The volume cannot be written.
    #[error("cannot write the seed's volume: {reason}")]
    Volume { reason: String },
}

/// A public key as in `authorized_keys`: kind, base64, comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKey(String);

/// Kinds of keys that OpenSSH accepts today (sshd(8), `PubkeyAcceptedAlgorithms`); DSA is gone.
const KINDS: [&str; 7] = [
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

impl SshKey {
    /// Reads a file of public keys: one a line, empty lines and comments between. A private key is
    /// refused.
    pub fn read_all(text: &str) -> Result<Vec<SshKey>, SeedError> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            keys.push(SshKey::new(line).map_err(|reason| SeedError::Key { line: at + 1, reason })?);
        }
        if keys.is_empty() {
            Err(SeedError::Key { line: 1, reason: "no key is in it".into() })
        } else {
            Ok(keys)
        }
    }

    fn new(line: &str) -> Result<SshKey, String> {
        if line.contains("PRIVATE KEY") {
            return Err("this is a private key; use the file that ends with .pub".into());
        }
        if line.chars().any(char::is_control) {
            return Err("it holds a control character".into());
        }
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        if !KINDS.contains(&kind) {
            return Err(format!(
                "it begins with {:?}, not with a key type such as ssh-ed25519",
                kind.chars().take(30).collect::<String>()
            ));
        }
        let body = words.next().unwrap_or_default();
        let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
        // Every key begins with the length and the name of its kind, so with `AAAA`.
        if body.len() < 60 || !body.starts_with("AAAA") || !body.chars().all(base64) {
            return Err("its second word is not the base64 of a key".into());
        }
        Ok(SshKey(line.to_owned()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Checks a password's hash in the form of crypt(5), as `mkpasswd` and `openssl passwd -6` print
/// it. A password itself is refused: it would be readable in the seed.
pub fn password_hash(text: &str) -> Result<Hidden, SeedError> {
    let wrong = |reason: &str| SeedError::Password { reason: reason.into() };
    let text = text.trim();
    let fields: Vec<&str> = text.split('$').collect();
    let known = ["y", "gy", "7", "2b", "2y", "6", "5"];
    match fields[..] {
        ["", "1", ..] => {
            Err(wrong("is of MD5, which is broken; `openssl passwd -6` makes another"))
        }
        ["", kind, _, .., last] if known.contains(&kind) && last.len() >= 22 => {
            let printable = |c: char| c.is_ascii_graphic() && !matches!(c, ':' | '!' | '*');
            if text.chars().all(printable) {
                Ok(text.to_owned().into())
            } else {
                Err(wrong("holds a character that no hash has"))
            }
        }
        _ => Err(wrong(
            "is not valid: it must look like $6$salt$hash; `openssl passwd -6` or `mkpasswd` makes \
             one",
        )),
    }
}

/// Checks user-data: its first line declares its type to cloud-init; without it cloud-init silently
/// ignores the document.
pub fn user_data(text: &str) -> Result<(), SeedError> {
    document("user-data", text)?;
    let first = text.lines().next().unwrap_or_default().trim_end();
    let kinds =
        ["#cloud-config", "#!", "#include", "#cloud-boothook", "#part-handler", "## template:"];
    let mime = ["content-type:", "mime-version:", "from nobody"];
    let lower = first.to_ascii_lowercase();
    if kinds.iter().any(|kind| first.starts_with(kind)) || mime.iter().any(|m| lower.starts_with(m))
    {
        return Ok(());
    }
    let reason = format!(
        "its first line is {:?}; cloud-init takes what begins with #cloud-config, #!, #include, or \
         a MIME header",
        first.chars().take(40).collect::<String>()
    );
    Err(SeedError::Document { what: "user-data", reason })
}

/// Checks the requirements common to all documents of a seed, the only ones for meta-data and
/// network configuration.
pub fn document(what: &'static str, text: &str) -> Result<(), SeedError> {
    let wrong = |reason: String| Err(SeedError::Document { what, reason });
    if text.trim().is_empty() {
        return wrong("it is empty".into());
    }
    if text.len() > MAX_BYTES {
        return wrong(format!("{} bytes are more than {MAX_BYTES}", text.len()));
    }
    if let Some(at) = text.find('\0') {
        return wrong(format!("a NUL byte at {at}"));
    }
    Ok(())
}

/// Checks the name of a user as useradd(8) does.
pub fn user_name(name: &str) -> Result<(), SeedError> {
    if is_user_name(name) {
        return Ok(());
    }
    Err(SeedError::User { name: name.chars().take(40).collect() })
}

/// Returns a host name for a domain: letters, digits and `-` (RFC 1123); a dot would start a domain
/// name.
pub fn host_name(domain: &str) -> String {
    let part = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = domain.chars().map(part).take(63).collect();
    match name.trim_matches('-') {
        "" => "guest".to_owned(),
        name => name.to_owned(),
    }
}
