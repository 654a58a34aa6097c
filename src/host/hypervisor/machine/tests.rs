//! Tests of finding a connection's machine.

use super::*;

struct Fake {
    uri: &'static str,
    name: Option<String>,
}

impl MachineReport for Fake {
    fn uri(&self) -> String {
        self.uri.into()
    }
    fn host_name(&self) -> Option<String> {
        self.name.clone()
    }
    fn uuid(&self) -> Option<String> {
        Some("11111111-2222-3333-4444-555555555555".into())
    }
    fn own_name(&self) -> Option<String> {
        None
    }
}

#[test]
fn a_uri_that_may_lead_elsewhere_has_to_prove_itself() {
    let elsewhere = |host: &str| Machine::Elsewhere { host: host.into() };
    let ours = Some(host_name());
    let other = Some("another-host".to_owned());
    for (uri, name, machine) in [
        ("qemu:///system", &ours, Machine::Here),
        ("qemu:///system", &None, Machine::Here),
        ("qemu:///system", &other, elsewhere("another-host")),
        ("qemu+unix:///session", &ours, Machine::Here),
        ("qemu+unix:///system?socket=/run/libvirt/virtqemud-sock", &ours, Machine::Here),
        ("qemu:///embed?root=/tmp/x", &other, Machine::Here),
        ("test:///default", &other, Machine::Here),
        ("host:", &None, Machine::Here),
        // The same name by chance, but another UUID.
        ("qemu+ssh://root@dgx:22/system", &ours, elsewhere("dgx")),
        ("qemu+ssh:///system", &ours, elsewhere(&host_name())),
        ("qemu+tcp://[::1]:16509/system", &ours, elsewhere("::1")),
        ("qemu+unix:///system?socket=/nowhere", &other, elsewhere("another-host")),
        ("qemu+unix:///system?socket=/nowhere", &ours, elsewhere(&host_name())),
        // libvirt uses the last of several, case-insensitively, and a path may lead out of its
        // directory.
        ("qemu:///system?socket=/run/libvirt/../x", &ours, elsewhere(&host_name())),
        ("qemu:///system?socket=/run/libvirt/x&Socket=/nowhere", &ours, elsewhere(&host_name())),
        ("qemu:///system?s%6fcket=/nowhere", &ours, elsewhere(&host_name())),
        ("qemu+unix:///embed?socket=/nowhere", &ours, elsewhere(&host_name())),
        ("qemu://dgx/system", &None, elsewhere("dgx")),
        ("qemu+ext:///system?command=/bin/x", &ours, elsewhere(&host_name())),
        ("test+tcp://dgx/default", &ours, elsewhere("dgx")),
        ("qemu+tcp://dgx/embed", &ours, elsewhere("dgx")),
    ] {
        assert_eq!(decide(&Fake { uri, name: name.clone() }), machine, "{uri} {name:?}");
    }
}

#[test]
fn names_are_the_same_where_one_lacks_its_domain() {
    for (one, other, same) in [
        ("dgx", "dgx", true),
        ("DGX", "dgx.", true),
        ("dgx", "dgx.example.com", true),
        ("dgx.a.com", "dgx.b.com", false),
        ("dgx", "dgx1", false),
        ("", "", false),
    ] {
        assert_eq!(is_same_name(one, other), same, "{one} {other}");
    }
}

#[test]
fn a_uri_is_taken_apart() {
    let uri = Uri::parse("qemu+ssh://me@[fe80::1%25eth0]:2222/system?socket=/a%20b&x=1").unwrap();
    assert_eq!(
        (uri.driver, uri.transport, uri.user.as_deref(), uri.host.as_deref(), uri.port),
        ("qemu", Some("ssh"), Some("me"), Some("fe80::1%eth0"), Some("2222"))
    );
    assert_eq!(uri.parameter("socket").as_deref(), Some("/a b"));
    assert!(uri.may_ask() && !uri.is_plain());
    let uri = Uri::parse("qemu+ssh://ad%5Cme%40x@d%67x/system").unwrap();
    assert_eq!((uri.user.as_deref(), uri.host.as_deref()), (Some("ad\\me@x"), Some("dgx")));
    assert_eq!(Uri::parse("dgx"), None);
    assert!(!is_plain("dgx") && is_plain("qemu:///system") && is_plain("host:"));
}

#[test]
fn the_log_of_a_guest_is_named_where_it_is_known() {
    let log = |uri| log_of(uri, "a").map(|path| path.to_str().unwrap().to_owned());
    for uri in ["qemu:///system", "qemu+ssh://dgx/system", "qemu:///system?socket=/x"] {
        assert_eq!(log(uri).as_deref(), Some("/var/log/libvirt/qemu/a.log"), "{uri}");
    }
    assert_eq!(log("qemu:///embed?root=/r%20a").as_deref(), Some("/r a/log/qemu/a.log"));
    for uri in ["test:///default", "qemu+ssh://dgx/session", "xen:///system", "dgx"] {
        assert_eq!(log(uri), None, "{uri}");
    }
}

#[test]
fn machines_are_distinguished_by_uuid_first() {
    let of = |host: &str, uuid: Option<&str>| Identity {
        host: host.into(),
        uuid: uuid.map(str::to_owned),
    };
    assert!(of("a", Some("12-AB")).is_same(&of("b", Some("12ab"))));
    assert!(!of("a", Some("12")).is_same(&of("a", Some("13"))));
    assert!(of("a", None).is_same(&of("a", Some("13"))));
    assert!(!of("a", None).is_same(&of("b", None)));
}

#[test]
fn no_host_is_taken_for_an_option() {
    assert_eq!(command_there("dgx", "list"), "ssh dgx gpuvm list");
    assert_eq!(command_there("-oProxyCommand=x", "list"), "ssh HOST gpuvm list");
    assert_eq!(command_there("a;b", "list"), "ssh HOST gpuvm list");
}

#[test]
fn a_command_there_is_read_by_two_shells() {
    assert_eq!(run_there("dgx", "rm -i -- /raid/a.raw"), "ssh dgx rm -i -- /raid/a.raw");
    let twice = run_there("dgx", "rm -i -- '/raid/a; reboot'");
    assert_eq!(twice, r"ssh dgx 'rm -i -- '\''/raid/a; reboot'\'''");
    // A shell in place of ssh, which passes the parsed words to the other machine's shell.
    let twice = twice.replacen("ssh dgx 'rm -i --", "sh -c 'printf %s", 1);
    let said = crate::program::command("sh").args(["-c", &twice]).output().unwrap();
    assert_eq!(String::from_utf8(said.stdout).unwrap(), "/raid/a; reboot");
}

#[test]
fn a_uri_of_others_may_only_have_known_parts() {
    for fine in [
        "qemu:///system",
        "qemu+ssh://root@dgx:22/system",
        "qemu+ssh://dgx/system?no_tty=1",
        "qemu+ssh://dgx/system?no_tty=1;mode=direct",
        "qemu+libssh2://dgx/system?sshauth=agent",
        "qemu+tls://dgx/system",
        "qemu+tcp://127.0.0.1:16509/system",
        "qemu+unix:///system?socket=/run/x",
        "lxc:///",
        "test:///default",
        "an-alias_1",
    ] {
        assert_eq!(unsafe_uri(fine), None, "{fine}");
    }
    for (uri, part) in [
        ("qemu+ext:///system", "transport `ext`"),
        ("qemu+EXT:///system", "transport `EXT`"),
        ("qemu+ssh+x://dgx/system", "transport `ssh+x`"),
        ("qemu+ssh://dgx/system?command=x", "parameter `command`"),
        ("qemu+ssh://dgx/system?%63omm%61nd=x", "parameter `command`"),
        ("qemu+ssh://dgx/system?no_tty=1&;;&COMMAND=x", "parameter `COMMAND`"),
        ("qemu+ssh://dgx/system?no_tty=1;netcat=x&mode=auto", "parameter `netcat`"),
        ("qemu+ssh://dgx/system?socket=/x", "parameter `socket`"),
        ("qemu+unix://dgx/system?socket=/x", "parameter `socket`"),
        ("qemu:///embed?root=/x", "parameter `root`"),
        ("test:///x.xml", "file `/x.xml`"),
        ("TEST:///x.xml", "file `/x.xml`"),
        ("qemu+ssh://-ox@dgx/system", "a name that begins with `-`"),
        ("qemu+ssh://%2dox/system", "a name that begins with `-`"),
    ] {
        assert_eq!(unsafe_uri(uri), Some(UnsafeUri::Part(part.into())), "{uri}");
    }
    for uri in ["qemu+ext:/system?command=x", "qemu:/system", "an alias", "a/b"] {
        assert_eq!(unsafe_uri(uri), Some(UnsafeUri::Malformed), "{uri}");
    }
}

#[test]
fn a_program_in_a_uri_is_found_however_it_is_written() {
    for uri in ["qemu+ext:///system", "qemu+Ext:/system", "qemu:///system?Command=x"] {
        assert!(program_in(uri).is_some(), "{uri}");
    }
    for uri in [
        "qemu:///system",
        "an-alias",
        "host:",
        "qemu+ssh://a/system?netcat=nc&keyfile=/k",
        "qemu+unix:///system?socket=/x/command",
        "qemu:///system#?command=x",
    ] {
        assert_eq!(program_in(uri), None, "{uri}");
    }
}
