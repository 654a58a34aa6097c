//! Finds which machine an open connection belongs to: [`decide`] alone, from the connection's
//! report and this machine's identity. If it is another one, this machine's files, sysfs, leases
//! and history do not apply.
//!
//! A URI without a host through libvirt's own socket, and a driver in this process, belong to this
//! machine unless both host name and system UUID differ. Anything that may lead elsewhere (a host,
//! a transport such as ssh, a custom socket path, which may be forwarded) belongs to this machine
//! only if both are the same, or if the kernel says that the process at the other end of the socket
//! is a libvirt daemon here.

use gpuvm_core::shell::word;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files with the firmware's system UUID, which libvirt uses as the host's.
const UUIDS: [&str; 2] =
    ["/sys/devices/virtual/dmi/id/product_uuid", "/sys/class/dmi/id/product_uuid"];
/// Configuration files in which an admin can set another.
const CONFIGURATION: [&str; 2] = ["/etc/libvirt/libvirtd.conf", "/etc/libvirt/virtqemud.conf"];
/// The file with the kernel's host name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The identity of an installed system.
const MACHINE_ID: &str = "/etc/machine-id";
const SOCKETS: [&str; 2] = ["/run/libvirt/", "/var/run/libvirt/"];
/// Names of the sockets of the system's libvirt in them.
const SOCKET_FILES: [&str; 2] = ["virtqemud-sock", "libvirt-sock"];
/// Placeholders that the firmware of many boards has instead of a UUID.
const NONE: [&str; 4] = [
    "03000200040005000006000700080009",
    "00020003000400050006000700080009",
    "12345678123456781234567812345678",
    "123456781234567890abcddeefaabbcc",
];
const DAEMONS: [&str; 3] = ["libvirtd", "virtqemud", "virtproxyd"];

/// The machine that a connection is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "machine", rename_all = "kebab-case")]
pub enum Machine {
    /// The one that this program runs on.
    Here,
    /// Another.
    Elsewhere {
        /// Its name, as one would reach it.
        host: String,
    },
}

impl Machine {
    /// Whether it is this machine.
    pub fn is_here(&self) -> bool {
        *self == Machine::Here
    }

    /// Returns the name of another machine.
    pub fn elsewhere(&self) -> Option<&str> {
        match self {
            Machine::Here => None,
            Machine::Elsewhere { host } => Some(host),
        }
    }
}

/// The identity of a machine, as recorded in a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Identity {
    /// Its host name.
    pub host: String,
    /// Its UUID: of this machine the installed system's, of another one that of its libvirt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl Identity {
    /// This machine's.
    pub fn of_this_machine() -> Identity {
        let id = std::fs::read_to_string(MACHINE_ID).ok();
        let uuid = id.map(|id| plain(&id)).filter(|id| !id.is_empty());
        Identity { host: host_name(), uuid }
    }

    /// Whether two are of the same machine: by UUID if both have one, otherwise by name.
    pub fn is_same(&self, other: &Identity) -> bool {
        match (&self.uuid, &other.uuid) {
            (Some(one), Some(other)) => plain(one) == plain(other),
            _ => is_same_name(&self.host, &other.host),
        }
    }
}

/// A connection's report of its machine. Expensive queries are made only if needed.
pub trait MachineReport {
    /// The URI actually opened, with aliases resolved.
    fn uri(&self) -> String;
    /// The host name; none if unknown.
    fn host_name(&self) -> Option<String>;
    /// The UUID of the host; none if unknown.
    fn uuid(&self) -> Option<String>;
    /// This machine's name as libvirt reads it here.
    fn own_name(&self) -> Option<String>;
}

/// A parsed libvirt URI.
#[derive(Debug, PartialEq, Eq)]
pub struct Uri<'u> {
    /// The driver: `qemu`.
    pub driver: &'u str,
    /// The transport: `ssh`, `unix`.
    pub transport: Option<&'u str>,
    /// The user on the host, decoded.
    pub user: Option<Cow<'u, str>>,
    /// The host, decoded.
    pub host: Option<Cow<'u, str>>,
    /// The port.
    pub port: Option<&'u str>,
    /// The path and the rest.
    path: &'u str,
    query: &'u str,
}

impl<'u> Uri<'u> {
    /// Parses it; none if it is not a URI, such as an alias.
    pub fn parse(text: &'u str) -> Option<Uri<'u>> {
        let (scheme, rest) = text.split_once("://")?;
        let (driver, transport) = match scheme.split_once('+') {
            Some((driver, transport)) => (driver, Some(transport)),
            None => (scheme, None),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.find('/').map_or((place, ""), |at| place.split_at(at));
        let (user, at) = match authority.rsplit_once('@') {
            Some((user, at)) => (Some(user), at),
            None => (None, authority),
        };
        let (host, port) = match at.strip_prefix('[').and_then(|at| at.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match at.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (at, None),
            },
        };
        let full = |text: &&str| !text.is_empty();
        // libvirt reads both so.
        let plain = |text: &'u str| {
            if text.contains('%') { Cow::Owned(decoded(text)) } else { Cow::Borrowed(text) }
        };
        Some(Uri {
            driver,
            transport,
            user: user.filter(full).map(plain),
            host: Some(host).filter(full).map(plain),
            port: port.filter(full),
            path,
            query,
        })
    }

    /// A parameter, decoded, as libvirt reads it: case-insensitive, the last of several.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split(['&', ';']);
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let of_name = |(key, _): &(&str, &str)| decoded(key).eq_ignore_ascii_case(name);
        Some(decoded({ pairs }.rfind(of_name)?.1))
    }

    /// Whether it is of a driver in this process.
    fn is_in_process(&self) -> bool {
        let direct = self.transport.is_none() && self.host.is_none();
        direct && (self.driver == "test" || self.path == "/embed")
    }

    /// Whether its form alone leads to this machine: no host, and libvirt's own socket.
    pub fn is_plain(&self) -> bool {
        let by_socket = matches!(self.transport, None | Some("unix"));
        let own = |socket: String| {
            SOCKETS.iter().any(|dir| socket.starts_with(dir)) && !socket.contains("/../")
        };
        let socket = self.parameter("socket").is_none_or(own);
        self.host.is_none() && by_socket && socket && self.parameter("command").is_none()
    }

    /// Returns the part that names a program of this machine for libvirt to run; `None` if there is
    /// no such part.
    pub fn program(&self) -> Option<String> {
        let is_ext = |way: &&str| way.eq_ignore_ascii_case("ext");
        let way = self.transport.filter(is_ext).map(|way| format!("transport `{way}`"));
        way.or_else(|| self.parameter("command").map(|_| "parameter `command`".to_owned()))
    }

    /// Returns the first part that a connection written by others must not have: any part that may
    /// run a program, name a file, or keep the caller from verifying the peer. Only parts known to
    /// do none of it are accepted.
    pub fn unsafe_part(&self) -> Option<String> {
        /// Transports that run nothing but the system's ssh.
        const WAYS: [&str; 6] = ["ssh", "libssh", "libssh2", "tls", "tcp", "unix"];
        /// Parameters whose values are fixed words or numbers.
        const PARAMETERS: [&str; 4] = ["no_tty", "mode", "sshauth", "tls_priority"];
        let way = self.transport.filter(|way| !WAYS.contains(way));
        if let Some(way) = way {
            return Some(format!("transport `{way}`"));
        }
        let is_option =
            |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| text.starts_with('-'));
        if is_option(&self.user) || is_option(&self.host) {
            return Some("a name that begins with `-`".to_owned());
        }
        if self.driver.eq_ignore_ascii_case("test") && self.path != "/default" {
            return Some(format!("file `{}`", self.path));
        }
        // libvirt splits at `&` first and at `;` only behind the last one: every name that it may
        // find is among these.
        let names = self.query.split(['&', ';']).filter(|pair| !pair.is_empty());
        let names = names.map(|pair| decoded(pair.split('=').next().unwrap_or_default()));
        // A socket of this machine runs nothing; on another one it is an argument of a program.
        let is_here = self.host.is_none() && matches!(self.transport, None | Some("unix"));
        let is_fit = |name: &str| PARAMETERS.contains(&name) || (is_here && name == "socket");
        let mut other = names.filter(|name| !is_fit(name));
        other.next().map(|name| format!("parameter `{name}`"))
    }

    /// Whether the connection uses a program that may prompt the user.
    pub fn may_ask(&self) -> bool {
        self.transport.is_some_and(|way| way.contains("ssh") || way == "ext")
    }
}

/// Whether the form of a URI alone leads to this machine, for decisions before, or without, a
/// connection.
pub fn is_plain(uri: &str) -> bool {
    uri == super::none::URI || Uri::parse(uri).is_some_and(|uri| uri.is_plain())
}

/// Why a connection in a file that others may have written is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnsafeUri {
    /// This part may run a program, or name a file or socket.
    Part(String),
    /// It is neither a URI nor an alias.
    Malformed,
}

/// Judges a connection in a file that others may have written; `None` if it is accepted. An alias
/// is one of the caller's own configuration of libvirt (libvirt.org/uri.html), and has no other
/// characters.
pub fn unsafe_uri(uri: &str) -> Option<UnsafeUri> {
    match Uri::parse(uri) {
        Some(parsed) => parsed.unsafe_part().map(UnsafeUri::Part),
        None => {
            let is_fit = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            (!uri.chars().all(is_fit)).then_some(UnsafeUri::Malformed)
        }
    }
}

/// The part of a URI that names a program of this machine for libvirt to run. libvirt reads
/// `qemu+ext:/system` as `qemu+ext:///system`.
pub fn program_in(uri: &str) -> Option<String> {
    let whole = match uri.split_once(':') {
        Some((scheme, rest)) if !rest.starts_with("//") => format!("{scheme}://{rest}"),
        _ => uri.to_owned(),
    };
    Uri::parse(&whole)?.program()
}

/// Whether two URIs of this machine may lead to the same hypervisor: one may name the transport and
/// the other not, and an alias may be any.
pub fn is_same_hypervisor(one: &str, other: &str) -> bool {
    let (Some(a), Some(b)) = (Uri::parse(one), Uri::parse(other)) else { return true };
    let is_own = |uri: &Uri<'_>| !uri.is_plain() && uri.parameter("socket").is_some();
    let by_sockets = !(is_own(&a) && is_own(&b)) || a.parameter("socket") == b.parameter("socket");
    let in_process = a.is_in_process() || b.is_in_process();
    one == other || (!in_process && a.driver == b.driver && a.path == b.path && by_sockets)
}

/// Where the packages of the system's libvirt keep the logs of guests; a private daemon may have
/// another directory, which it does not report.
pub const SYSTEM_LOGS: &str = "/var/log/libvirt/qemu";
/// Where the system's libvirt keeps the settings of guests' firmware.
pub const SYSTEM_NVRAM: &str = "/var/lib/libvirt/qemu/nvram";

/// Where the system's libvirt keeps the state of guests' emulated TPMs, by their UUIDs.
const SYSTEM_TPM: &str = "/var/lib/libvirt/swtpm";

/// Returns the log that libvirt keeps of a domain's QEMU (libvirt.org/drvqemu.html); `None` for
/// another hypervisor, or in an unknown home directory.
pub fn log_of(uri: &str, name: &str) -> Option<PathBuf> {
    let uri = Uri::parse(uri).filter(|uri| uri.driver == "qemu")?;
    let dir = match uri.path.trim_end_matches('/') {
        "/system" => PathBuf::from(SYSTEM_LOGS),
        "/embed" => Path::new(&uri.parameter("root")?).join("log/qemu"),
        "/session" if uri.host.is_none() => {
            let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
            let cache = var("XDG_CACHE_HOME").map(PathBuf::from);
            cache
                .or_else(|| Some(Path::new(&var("HOME")?).join(".cache")))?
                .join("libvirt/qemu/log")
        }
        _ => return None,
    };
    Some(dir.join(format!("{name}.log")))
}

/// The directory in which libvirt keeps the settings of guests' firmware where a definition names
/// no file (libvirt.org/formatdomain.html, `nvram`); `None` for another hypervisor, or if not known.
pub fn nvram_dir_of(uri: &str) -> Option<PathBuf> {
    let uri = Uri::parse(uri).filter(|uri| uri.driver == "qemu")?;
    match uri.path.trim_end_matches('/') {
        "/system" => Some(PathBuf::from(SYSTEM_NVRAM)),
        "/embed" => Some(Path::new(&uri.parameter("root")?).join("lib/qemu/nvram")),
        "/session" if uri.host.is_none() => {
            let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
            let config = var("XDG_CONFIG_HOME").map(PathBuf::from);
            let config = config.or_else(|| Some(Path::new(&var("HOME")?).join(".config")))?;
            Some(config.join("libvirt/qemu/nvram"))
        }
        _ => None,
    }
}

/// Where the system's libvirt keeps the state of a domain's emulated TPM; `None` for another
/// hypervisor, or not known.
pub fn tpm_state_of(uri: &str, uuid: &str) -> Option<PathBuf> {
    let uri = Uri::parse(uri).filter(|uri| uri.driver == "qemu")?;
    let is_system = uri.path.trim_end_matches('/') == "/system" && !uuid.is_empty();
    is_system.then(|| Path::new(SYSTEM_TPM).join(uuid))
}

/// Whether it is of libvirt's test driver, whose guests do not really run.
pub fn is_test(uri: &str) -> bool {
    uri.starts_with("test:")
}

/// Decides which machine a connection belongs to.
pub fn decide(report: &dyn MachineReport) -> Machine {
    let text = report.uri();
    let uri = Uri::parse(&text);
    if text == super::none::URI || uri.as_ref().is_some_and(Uri::is_in_process) {
        return Machine::Here;
    }
    let name = report.host_name();
    let same_name = name.as_deref().map(|name| {
        is_same_name(name, &host_name())
            || report.own_name().is_some_and(|own| is_same_name(name, &own))
    });
    let plain = uri.as_ref().is_some_and(Uri::is_plain);
    let here = match same_name {
        // A driver without a host name has nothing to compare.
        None => plain,
        Some(true) if plain => true,
        Some(true) => uri.as_ref().is_some_and(ends_here) || has_our_uuid(report),
        Some(false) => plain && has_our_uuid(report),
    };
    if here && !uri.as_ref().is_some_and(is_outside) {
        return Machine::Here;
    }
    let of_uri = uri.and_then(|uri| uri.host.map(Cow::into_owned));
    let host = of_uri.or(name).unwrap_or(text);
    Machine::Elsewhere { host }
}

/// Whether the other side has this machine's UUID, as libvirt would read it here.
fn has_our_uuid(report: &dyn MachineReport) -> bool {
    let ours = own_uuids();
    !ours.is_empty() && report.uuid().is_some_and(|uuid| ours.contains(&plain(&uuid)))
}

/// Returns the UUIDs that a libvirt of this machine may report.
fn own_uuids() -> Vec<String> {
    let mut found: Vec<String> =
        UUIDS.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    for text in CONFIGURATION.iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match key.trim() {
                "host_uuid" => found.push(value.to_owned()),
                "host_uuid_source" if value == "machine-id" => {
                    found.extend(std::fs::read_to_string(MACHINE_ID));
                }
                _ => {}
            }
        }
    }
    found.iter().map(|uuid| plain(uuid)).filter(|uuid| is_one(uuid)).collect()
}

/// Whether a UUID is of one machine, and no placeholder.
pub fn is_one(uuid: &str) -> bool {
    let uuid = plain(uuid);
    // Those of a single repeated digit are placeholders.
    let differ = uuid.bytes().any(|b| b != uuid.as_bytes()[0]);
    uuid.len() == 32 && differ && !NONE.contains(&&*uuid)
}

/// Whether a libvirt daemon of this machine listens on a socket at a custom path, according to the
/// kernel. A forwarded socket belongs to the forwarder.
fn ends_here(uri: &Uri<'_>) -> bool {
    if uri.host.is_some() || !matches!(uri.transport, None | Some("unix")) {
        return false;
    }
    let Some(pid) = uri.parameter("socket").and_then(|socket| peer(Path::new(&socket))) else {
        return false;
    };
    let name = std::fs::read_to_string(process(pid).join("comm"));
    name.is_ok_and(|name| DAEMONS.contains(&name.trim())) && !has_other_root(pid)
}

/// Returns the pid of the process listening on a socket, from the kernel; 0: it is outside the
/// visible pid namespaces. `None` if no process listens, or its backlog is full.
fn peer(socket: &Path) -> Option<i32> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket as open, sockopt,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = open(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(stream.as_raw_fd(), &UnixAddr::new(socket).ok()?).ok()?;
    Some(getsockopt(&stream, sockopt::PeerCredentials).ok()?.pid())
}

fn process(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Whether a process has another root file system: it, or this one, is in a container. Without
/// permission to read its root this is unknown.
fn has_other_root(pid: i32) -> bool {
    let root = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let (theirs, ours) = (root(&process(pid).join("root")), root(Path::new("/")));
    theirs.is_some() && theirs != ours
}

/// Whether this program is in a container and the system's libvirt outside of it: then libvirt's
/// files, processes and devices are not those visible here.
fn is_outside(uri: &Uri<'_>) -> bool {
    if !uri.is_plain() || uri.driver == "test" || uri.path != "/system" {
        return false;
    }
    let own = || SOCKETS.map(|dir| SOCKET_FILES.map(|file| format!("{dir}{file}"))).concat();
    let sockets = uri.parameter("socket").map_or_else(own, |socket| vec![socket]);
    // Like libvirt, the first that exists: connecting to another might start an unneeded daemon.
    let socket = sockets.iter().map(Path::new).find(|socket| socket.exists());
    socket.and_then(peer).is_some_and(|pid| pid == 0 || has_other_root(pid))
}

/// The host name as the kernel has it.
pub fn host_name() -> String {
    std::fs::read_to_string(HOST_NAME).map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// Whether two names refer to one host; one may lack the domain part.
pub fn is_same_name(one: &str, other: &str) -> bool {
    let (one, other) = (one.trim_end_matches('.'), other.trim_end_matches('.'));
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let short = |name: &str| !name.contains('.');
    !one.is_empty()
        && (one.eq_ignore_ascii_case(other)
            || (short(one) || short(other)) && first(one) == first(other))
}

/// A UUID as its digits alone.
fn plain(uuid: &str) -> String {
    uuid.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase()
}

fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let hex = (byte == b'%').then(|| behind.get(..2)).flatten();
        let hex = hex.and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(coded) => {
                bytes.push(coded);
                rest = &behind[2..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the gpuvm command to run on another machine.
pub fn command_there(host: &str, arguments: &str) -> String {
    run_there(host, &format!("gpuvm {arguments}"))
}

/// Returns the ssh command that runs a command on another machine, quoted for its shell, too; the
/// host is quoted as one word.
pub fn run_there(host: &str, command: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_./@%+=:,".contains(c);
    let command = if command.chars().all(plain) { Cow::Borrowed(command) } else { word(command) };
    let safe = |c: char| c.is_ascii_alphanumeric() || ".-_:@%".contains(c);
    let host = if host.chars().all(safe) && !host.starts_with('-') {
        Cow::Borrowed(host)
    } else {
        Cow::Borrowed("HOST")
    };
    format!("ssh {host} {command}")
}

#[cfg(test)]
mod tests;
