//! The host of a connection to another machine: read by the gpuvm there over ssh, as the same user
//! and at the same port as libvirt's connection. Nobody is prompted, and data of this machine is
//! never used instead.

use crate::command::{CommandError, output_for_caller};
use crate::error::{Coded, Error, Result};
use crate::hypervisor::machine::{Uri, command_there};
use crate::topology::Topology;
use crate::topology::file::from_json;

/// The reason the layout of another machine is not known.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "remote-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RemoteError {
    /// The layout of the machine cannot be requested over this connection.
    #[error("{uri} leads to machine `{host}`, whose layout is not known here")]
    UnknownLayout { uri: String, host: String },
    /// The output of gpuvm on the machine cannot be parsed.
    #[error("cannot read what gpuvm on `{host}` reports of its host: {error}")]
    Malformed { host: String, error: String },
    /// gpuvm is not installed on the machine.
    #[error("gpuvm is not installed on machine `{host}`, so its layout is not known")]
    NotInstalled { host: String },
    /// The layout of the machine cannot be read.
    #[error("the layout of machine `{host}` cannot be read: {error}")]
    Unreachable { host: String, error: String },
}

impl Coded for RemoteError {}

/// Seconds that ssh may take to connect.
const CONNECT_S: u32 = 10;
/// Limit of the whole command in seconds; a host of 1,500 pcpus is read in less than one.
const ALL_S: u64 = 60;
const CAPTURE: [&str; 4] = ["gpuvm", "host", "capture", "-"];

/// Reads the host named `host`, to which the connection at `uri` leads.
pub fn topology(uri: &str, host: &str) -> Result<Topology> {
    let parsed = Uri::parse(uri);
    let Some(argv) = parsed.as_ref().and_then(command) else {
        return Err(RemoteError::UnknownLayout { uri: uri.to_string(), host: host.to_string() }
            .hint(hint(host)));
    };
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let text = output_for_caller(&argv, ALL_S).map_err(|error| failed(&error, host))?;
    let read = from_json(&text).map_err(|error| {
        RemoteError::Malformed { host: host.to_string(), error: error.to_string() }
            .refusal(hint(host))
    })?;
    Ok(read)
}

/// The error that the host could not be read over ssh.
fn failed(error: &CommandError, host: &str) -> Error {
    match error {
        CommandError::Failed { status: Some(127), .. } => {
            RemoteError::NotInstalled { host: host.to_string() }.hint(hint(host))
        }
        error => RemoteError::Unreachable { host: host.to_string(), error: error.to_string() }
            .hint(hint(host)),
    }
}

fn hint(host: &str) -> String {
    format!(
        "`{} >host.json` records it, and `--host host.json` plans on the record; or run there: \
         `{}`",
        command_there(host, "host capture -"),
        command_there(host, "...")
    )
}

/// The command that reads the host; none if the connection does not use ssh, or its parts are not
/// safe on a command line.
fn command(uri: &Uri<'_>) -> Option<Vec<String>> {
    let way = way(uri)?;
    // The caller's session settings (persistent masters, forwarding) are unsuitable for a command
    // that only reads.
    let quiet = "ssh -T -a -x -o BatchMode=yes -o ControlMaster=no -o ClearAllForwardings=yes -o \
                 ServerAliveInterval=5 -o";
    let mut argv: Vec<String> = quiet.split(' ').map(str::to_owned).collect();
    argv.push(format!("ConnectTimeout={CONNECT_S}"));
    argv.extend(way);
    argv.extend(CAPTURE.map(str::to_owned));
    Some(argv)
}

/// The arguments with which ssh reaches the host of a connection, ending with `--` and the host;
/// none if the connection does not use ssh, or its parts are not safe on a command line.
pub fn way(uri: &Uri<'_>) -> Option<Vec<String>> {
    let host = uri.host.as_deref().filter(|_| uri.may_ask() && uri.transport != Some("ext"))?;
    // A name that begins with `-` would be an option to ssh, and shell metacharacters are not part
    // of names. A user of a directory service has a backslash or a plus sign in it.
    let fit = |text: &str, more: &str| {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-:%@".contains(c);
        !text.starts_with('-') && text.chars().all(|c| is_fit(c) || more.contains(c))
    };
    let mut argv = Vec::new();
    if let Some(port) = uri.port {
        argv.extend(["-p".to_owned(), port.parse::<u16>().ok()?.to_string()]);
    }
    if let Some(user) = &uri.user {
        argv.extend(["-l".to_owned(), Some(user).filter(|user| fit(user, "\\+"))?.to_string()]);
    }
    if let Some(key) = uri.parameter("keyfile") {
        // ssh itself reads `~/` as the home of its user.
        let is_fit = |key: &String| key.starts_with('/') || key.starts_with("~/");
        argv.extend(["-i".to_owned(), Some(key).filter(is_fit)?]);
    }
    argv.extend(["--".to_owned(), Some(host).filter(|host| fit(host, ""))?.to_owned()]);
    Some(argv)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command for a URI, in one line.
    fn line(uri: &str) -> Option<String> {
        command(&Uri::parse(uri).unwrap()).map(|argv| argv.join(" "))
    }

    #[test]
    fn the_same_user_and_port_are_asked() {
        let ssh = "ssh -T -a -x -o BatchMode=yes -o ControlMaster=no -o ClearAllForwardings=yes -o \
                   ServerAliveInterval=5 -o ConnectTimeout=10";
        let all = "gpuvm host capture -";
        for (uri, said) in [
            ("qemu+ssh://dgx/system", format!("{ssh} -- dgx {all}")),
            ("qemu+ssh://root@dgx:2222/system", format!("{ssh} -p 2222 -l root -- dgx {all}")),
            ("qemu+libssh2://[::1]/system", format!("{ssh} -- ::1 {all}")),
            ("qemu+ssh://dgx/system?keyfile=/k", format!("{ssh} -i /k -- dgx {all}")),
            ("qemu+ssh://dgx/system?keyfile=~/a%20k", format!("{ssh} -i ~/a k -- dgx {all}")),
            ("qemu+ssh://ad%5Cme@d%67x/system", format!("{ssh} -l ad\\me -- dgx {all}")),
            ("qemu+ssh://[fe80::1%25eth0]/system", format!("{ssh} -- fe80::1%eth0 {all}")),
        ] {
            assert_eq!(line(uri), Some(said), "{uri}");
        }
    }

    #[test]
    fn nothing_becomes_an_option_or_a_command() {
        for uri in [
            "qemu+ssh://-oProxyCommand=x/system",
            "qemu+ssh://-l@dgx/system",
            "qemu+ssh://dgx;reboot/system",
            "qemu+ssh://$(reboot)@dgx/system",
            "qemu+ssh://%24(reboot)@dgx/system",
            "qemu+ssh://%2dl@dgx/system",
            "qemu+ssh://dgx%0areboot/system",
            "qemu+ssh://dgx:22x/system",
            "qemu+ssh://dgx/system?keyfile=-oProxyCommand",
            "qemu+tcp://dgx/system",
            "qemu+ext://dgx/system",
            "qemu+unix:///system?socket=/a",
        ] {
            assert_eq!(line(uri), None, "{uri}");
        }
    }
}
