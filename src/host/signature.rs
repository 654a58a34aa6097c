//! Signatures of vendors' files, checked by the system's gpgv against the vendor's keyring.

use crate::command::{CommandError, output_of};
use crate::input;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use gpuvm_core::image::fits;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// The largest keyring, in bytes.
const MOST_KEYRING: u64 = 16 << 20;
/// Seconds that a check may take.
const LIMIT_S: u64 = 60;

/// The reason a signature is not accepted.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "signature-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SignatureError {
    /// It is not made by a key of the keyring, or not of this text.
    #[error("it is not signed by a key of {keyrings}: {message}")]
    Invalid { keyrings: String, message: String },
    /// It cannot be checked.
    #[error("its signature cannot be checked: {0}")]
    Unreadable(io::Error),
}

/// The facts about a signed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signed {
    /// It is signed by a key of the keyring.
    By {
        /// The fingerprint of the key.
        key: String,
        /// The signed text, and nothing beside it.
        text: Vec<u8>,
    },
    /// It was not checked.
    Unchecked {
        /// Why not.
        why: String,
    },
}

/// Checks a text against its detached signature, or against the one around it (none). Without gpgv
/// or any of the keyrings it is not checked.
pub fn check(
    keyrings: &[PathBuf],
    text: &[u8],
    detached: Option<&[u8]>,
) -> Result<Signed, SignatureError> {
    let there: Vec<&PathBuf> = keyrings.iter().filter(|path| path.is_file()).collect();
    if there.is_empty() {
        let names: Vec<String> = keyrings.iter().map(|path| path.display().to_string()).collect();
        return Ok(Signed::Unchecked { why: format!("there is no {}", names.join(", no ")) });
    }
    let dir = tempfile::tempdir().map_err(SignatureError::Unreadable)?;
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).map_err(SignatureError::Unreadable)?;
        Ok(path)
    };
    let (signed, plain) = (put("text", text)?, dir.path().join("plain"));
    let mut words: Vec<PathBuf> = ["--status-fd", "1", "--homedir"].map(PathBuf::from).to_vec();
    words.push(dir.path().to_owned());
    for (at, path) in there.iter().enumerate() {
        let bytes = input::state_bytes(path).map_err(SignatureError::Unreadable)?;
        let bytes = bytes.filter(|bytes| bytes.len() as u64 <= MOST_KEYRING).unwrap_or_default();
        let keys = without_armour(&bytes).unwrap_or(bytes);
        words.extend(["--keyring".into(), put(&format!("keys-{at}.gpg"), &keys)?]);
    }
    match detached {
        Some(signature) => words.extend([put("signature", signature)?, signed]),
        None => words.extend(["--output".into(), plain.clone(), signed]),
    }
    let words: Vec<&OsStr> = words.iter().map(|word| word.as_os_str()).collect();
    let said = match output_of("gpgv", &words, LIMIT_S) {
        Ok(said) => said,
        Err(CommandError::Unstarted { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Signed::Unchecked { why: "gpgv is not installed".into() });
        }
        Err(error) => return Err(invalid(&there, &message(&error))),
    };
    let key = said.lines().find_map(|line| line.strip_prefix("[GNUPG:] VALIDSIG "));
    let Some(key) = key.and_then(|rest| rest.split(' ').next()) else {
        return Err(invalid(&there, "gpgv names no valid signature"));
    };
    let text = match detached {
        Some(_) => text.to_vec(),
        None => std::fs::read(plain).map_err(SignatureError::Unreadable)?,
    };
    Ok(Signed::By { key: key.to_owned(), text })
}

/// The last message of gpgv, without its own name.
fn message(error: &CommandError) -> String {
    let CommandError::Failed { message, .. } = error else { return error.to_string() };
    let last = message.rsplit("gpgv: ").next().unwrap_or(message);
    last.trim().to_owned()
}

/// The error of a signature by no key of these keyrings.
fn invalid(keyrings: &[&PathBuf], message: &str) -> SignatureError {
    let names: Vec<String> = keyrings.iter().map(|path| path.display().to_string()).collect();
    SignatureError::Invalid { keyrings: names.join(", "), message: message.to_owned() }
}

/// The keys of an armoured keyring (RFC 9580, 6.2), as gpgv reads them; `None` if it has no armour.
fn without_armour(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut keys = Vec::new();
    for block in text.split("-----BEGIN PGP PUBLIC KEY BLOCK-----").skip(1) {
        let (block, _) = block.split_once("-----END PGP PUBLIC KEY BLOCK-----")?;
        // Headers end with an empty line, a checksum line follows the data.
        let lines = block.trim_start_matches(['\r', '\n', ' ']).lines().map(str::trim);
        let is_data =
            |line: &&str| !line.is_empty() && !line.contains(": ") && !line.starts_with('=');
        let data: String = lines.filter(is_data).collect();
        keys.extend(BASE64_STANDARD.decode(data).ok()?);
    }
    (!keys.is_empty()).then_some(keys)
}

/// The keyrings that are there, `*` in a file's name standing for any text.
pub fn there(keyrings: &[PathBuf]) -> Vec<PathBuf> {
    let expanded = keyrings.iter().flat_map(|path| {
        let (dir, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
        let Some(pattern) = name.to_str().filter(|name| name.contains('*')) else {
            return vec![path.clone()];
        };
        let mut found = input::list(dir).unwrap_or_default();
        let name = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).map(str::to_owned);
        found.retain(|path| name(path).is_some_and(|name| fits(&name, pattern)));
        found
    });
    expanded.filter(|path| path.is_file()).collect()
}

/// Whether gpgv and one of these keyrings are there.
pub fn is_checkable(keyrings: &[PathBuf]) -> bool {
    let gpgv = crate::program::PATH.split(':').any(|dir| Path::new(dir).join("gpgv").is_file());
    gpgv && keyrings.iter().any(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_without_a_keyring_is_not_checked_and_a_wrong_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = dir.path().join("keys.asc");
        let check = || check(std::slice::from_ref(&keyring), b"text", Some(b"no signature"));
        let Signed::Unchecked { why } = check().unwrap() else { panic!("it was checked") };
        assert_eq!(why, format!("there is no {}", keyring.display()));
        std::fs::write(&keyring, "no keys").unwrap();
        match check() {
            Err(SignatureError::Invalid { keyrings, .. }) => assert!(keyrings.contains("keys.asc")),
            Ok(Signed::Unchecked { why }) => assert_eq!(why, "gpgv is not installed"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn armour_of_a_keyring_is_taken_off() {
        let block = |data: &str| {
            format!(
                "-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: x\n\n{data}\n=AbCd\n\
                 -----END PGP PUBLIC KEY BLOCK-----\n"
            )
        };
        let two = format!("a comment\n{}{}", block("YWJj\nZGVm"), block("Z2hp"));
        assert_eq!(without_armour(two.as_bytes()).unwrap(), b"abcdefghi");
        assert_eq!(without_armour(b"\x99\x01"), None);
        assert_eq!(without_armour(block("*").as_bytes()), None);
    }
}
