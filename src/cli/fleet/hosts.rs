//! The file of hosts.

use crate::cli::args::HostsArgs;
use crate::cli::error::{Coded, usage};
use crate::cli::guests::begins_as_toml;
use crate::input::{self, InputError};
use crate::tree::{Fault, Node, Spot, Value, toml, yaml};
use gpuvm_host::hypervisor::machine::{UnsafeUri, unsafe_uri};
use gpuvm_ops::error::coded;
use gpuvm_ops::fleet::{FleetHost, HostsError};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The largest file, in bytes.
const MOST: u64 = 16 << 20;
const FIELDS: [&str; 4] = ["connect", "record", "domain_xml", "assume"];

struct Reader<'f> {
    /// Its path, as given.
    path: &'f Path,
}

/// Reads the hosts that are asked.
pub fn read(args: &HostsArgs) -> anyhow::Result<Vec<FleetHost>> {
    let text = input::text_or_stdin(&args.hosts, MOST).map_err(unread)?;
    let reader = Reader { path: &args.hosts };
    let ends = |end: &str| args.hosts.extension().is_some_and(|own| own.eq_ignore_ascii_case(end));
    let is_toml = ends("toml") || begins_as_toml(&text) || text.trim().is_empty();
    let tree = if is_toml { toml(&text) } else { yaml(&text) };
    let tree = tree.map_err(|Fault { at, why }| {
        HostsError::Syntax { at: reader.place(at), why }.bare::<anyhow::Error>()
    })?;
    let mut hosts = reader.hosts(tree)?;
    mark_shared(&mut hosts);
    if let Some(missing) =
        args.only.iter().find(|name| hosts.iter().all(|host| host.name != **name))
    {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).take(20).collect();
        return Err(usage(
            format!("{} has no host `{missing}`", args.hosts.display()),
            format!("it has {}", names.join(", ")),
        ));
    }
    hosts.retain(|host| args.only.is_empty() || args.only.contains(&host.name));
    Ok(hosts)
}

/// The error of a file that cannot be read; for a missing one, with its required content.
fn unread(error: InputError) -> anyhow::Error {
    match &error {
        InputError::Unreadable { source, .. } if source.kind() == ErrorKind::NotFound => {
            let hint = "it lists hosts, two lines each: `[host.dgx1]`, and \
                        `connect = \"qemu+ssh://root@dgx1/system\"`; gpuvm-guide(7), MANY HOSTS";
            coded((&error).into(), error.to_string(), hint).into()
        }
        _ => error.into(),
    }
}

/// The names of the hosts in a file; `None` if it cannot be read.
pub fn names(file: &Path) -> Option<Vec<String>> {
    let args = HostsArgs { hosts: file.to_owned(), only: Vec::new(), limit: 1 };
    Some(read(&args).ok()?.into_iter().map(|host| host.name).collect())
}

/// Marks the hosts whose record is that of another one, too.
fn mark_shared(hosts: &mut [FleetHost]) {
    let place = |path: &Path| {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        Some(dir.canonicalize().ok()?.join(path.file_name()?))
    };
    let mut number: BTreeMap<PathBuf, u32> = BTreeMap::new();
    let places: Vec<Option<PathBuf>> =
        hosts.iter().map(|host| place(host.record.as_ref()?)).collect();
    for path in places.iter().flatten() {
        *number.entry(path.clone()).or_default() += 1;
    }
    for (host, place) in hosts.iter_mut().zip(places) {
        host.is_shared = place.is_some_and(|place| number[&place] > 1);
    }
}

impl Reader<'_> {
    /// A place in the file, as compilers print it.
    fn place(&self, at: Spot) -> String {
        format!("{}:{}:{}", self.path.display(), at.line, at.column)
    }

    fn bad<T>(&self, at: Spot, why: impl Into<String>) -> anyhow::Result<T> {
        let hint = "a host is `[host.NAME]` with `connect = \"URI\"`, `record = \"FILE\"` or both";
        Err(HostsError::Value { at: self.place(at), why: why.into() }.hint(hint))
    }

    /// The error of a connection that a file of hosts must not name.
    fn refused<T>(&self, at: Spot, uri: &str, why: UnsafeUri) -> anyhow::Result<T> {
        let (why, hint) = match why {
            UnsafeUri::Part(part) => (
                format!(
                    "{part} is not accepted here: a connection in a file may run no program and \
                     name no file"
                ),
                "keys, programs and ports of a host are set in ~/.ssh/config, or in an alias of \
                 libvirt.conf",
            ),
            UnsafeUri::Malformed => (
                format!(
                    "`{uri}` is not accepted here: it is neither a libvirt URI nor an alias of \
                     libvirt.conf"
                ),
                "a URI has two slashes before the host, which may be empty: `qemu:///system`, \
                 `qemu+ssh://HOST/system`",
            ),
        };
        Err(HostsError::Value { at: self.place(at), why }.hint(hint))
    }

    /// The hosts of the whole file.
    fn hosts(&self, tree: Node) -> anyhow::Result<Vec<FleetHost>> {
        let Value::Map(fields) = tree.value else {
            return self.bad(tree.at, "`host` is missing");
        };
        if let Some((key, at, _)) = fields.iter().find(|(key, ..)| key != "host") {
            return Err(self.unknown(*at, key, &["host"]));
        }
        let Some((_, at, node)) = fields.into_iter().next() else {
            return self.bad(tree.at, "the file has no host");
        };
        let Value::Map(hosts) = node.value else {
            return self.bad(at, "`host` is to be a table of hosts by name");
        };
        hosts.into_iter().map(|(name, at, node)| self.host(name, at, node)).collect()
    }

    fn host(&self, name: String, at: Spot, node: Node) -> anyhow::Result<FleetHost> {
        let is_fit = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if !name.starts_with(char::is_alphanumeric) || !name.chars().all(is_fit) {
            let why = format!(
                "a host's name has letters, digits, `-`, `_`, `.`, and begins with none of them but \
                 a letter or digit: {name:?}"
            );
            return self.bad(at, why);
        }
        let Value::Map(fields) = node.value else {
            return self.bad(node.at, format!("host `{name}` is to be a table"));
        };
        let mut host = FleetHost {
            name,
            connect: None,
            record: None,
            is_shared: false,
            domain_xml: Vec::new(),
            assume: None,
        };
        // Fields that a connection replaces.
        let mut only_recorded = None;
        for (key, at, node) in fields {
            match key.as_str() {
                "connect" => {
                    let (at, uri) = (node.at, self.text(node)?);
                    if let Some(why) = unsafe_uri(&uri) {
                        return self.refused(at, &uri, why);
                    }
                    host.connect = Some(uri);
                }
                "record" => host.record = Some(self.file(node)?),
                "domain_xml" => {
                    only_recorded = Some((at, "`domain_xml`"));
                    host.domain_xml = match node.value {
                        Value::List(list) => list
                            .into_iter()
                            .map(|node| self.file(node))
                            .collect::<Result<_, _>>()?,
                        _ => vec![self.file(node)?],
                    };
                }
                "assume" => {
                    only_recorded = Some((at, "`assume`"));
                    let (at, text) = (node.at, self.text(node)?);
                    host.assume = match text.parse() {
                        Ok(stack) => Some(stack),
                        Err(why) => return self.bad(at, why),
                    };
                }
                _ => return Err(self.unknown(at, &key, &FIELDS)),
            }
        }
        if host.connect.is_none() && host.record.is_none() {
            return self.bad(at, format!("host `{}` has no `connect` and no `record`", host.name));
        }
        match only_recorded {
            Some((at, field)) if host.connect.is_some() => {
                let why = format!("{field} is for hosts without `connect`, which is asked instead");
                self.bad(at, why)
            }
            _ => Ok(host),
        }
    }

    /// A text that is not empty.
    fn text(&self, node: Node) -> anyhow::Result<String> {
        match node.value {
            Value::Text(text) if !text.trim().is_empty() => Ok(text),
            _ => self.bad(node.at, "a text is missing here"),
        }
    }

    /// A path, relative to the file.
    fn file(&self, node: Node) -> anyhow::Result<PathBuf> {
        let path = PathBuf::from(self.text(node)?);
        let dir = self.path.parent().filter(|_| self.path != Path::new("-"));
        Ok(dir.unwrap_or(Path::new("")).join(path))
    }

    /// The error of an unknown field, with the nearest one.
    fn unknown(&self, at: Spot, field: &str, known: &[&str]) -> anyhow::Error {
        let near = similar::get_close_matches(field, known, 1, 0.6);
        let hint = match near.first() {
            Some(near) => format!("`{near}`"),
            None => format!("known: {}", known.join(", ")),
        };
        HostsError::Field { at: self.place(at), field: field.escape_debug().to_string() }.hint(hint)
    }
}
