//! The packages, packed from the program under test: their content, that packing gives the same
//! bytes, their effects on a machine. Checks that take minutes are ignored except by `make
//! test-nightly`: lintian and rpmlint, a new Debian, two whole builds, the source archive.

use crate::support::daemon::namespaces;
use crate::support::{lawful, project, run, skip, tree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Packages of the program under test.
struct Packed {
    /// The Debian packages.
    deb: PathBuf,
    /// Those of a later version.
    later: PathBuf,
    /// The RPM packages.
    rpm: PathBuf,
    /// The program, without symbols, as it is packed.
    program: PathBuf,
    /// All of this.
    _dir: tempfile::TempDir,
}

/// A script of this project, in an environment in which cargo works also where sudo changed it.
fn script(path: &str, args: &[&Path]) -> Command {
    let cargo = PathBuf::from(std::env::var_os("CARGO").expect("cargo runs the tests"));
    let home = option_env!("CARGO_HOME").map_or_else(
        || Path::new(option_env!("HOME").unwrap_or("/root")).join(".cargo"),
        PathBuf::from,
    );
    let path_of_cargo = cargo.parent().unwrap().display().to_string();
    let mut command = Command::new(project().join(path));
    command.args(args).env("CARGO_HOME", home).env("CARGO_NET_OFFLINE", "true");
    command.env("PATH", format!("{path_of_cargo}:{}", std::env::var("PATH").unwrap()));
    command.env("SOURCE_DATE_EPOCH", "1795000000").env("GPUVM_PACK_LEVEL", "none");
    command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    command.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS");
    command
}

/// Runs a command that must succeed. Returns its output.
fn done(command: &mut Command) -> String {
    let (code, out, err) = run(command);
    assert_eq!(code, 0, "{command:?}: {out}{err}");
    out
}

/// Whether these programs are here; otherwise the test is skipped.
fn have(programs: &[&str]) -> bool {
    let lacks = |program: &&&str| {
        !Command::new("which").arg(program).output().is_ok_and(|found| found.status.success())
    };
    match programs.iter().find(lacks) {
        Some(missing) => skip(format!("{missing} is not installed")),
        None => true,
    }
}

/// The packages of this test run; none, with the reason reported, if this machine cannot pack.
fn packed() -> Option<&'static Packed> {
    static PACKED: OnceLock<Packed> = OnceLock::new();
    if !have(&["dpkg-shlibdeps", "rpmbuild", "strip", "objcopy", "python3"]) {
        return None;
    }
    Some(PACKED.get_or_init(|| {
        let dir = tree::scratch();
        let at = |name: &str| dir.path().join(name);
        let program = at("gpuvm");
        fs::copy(env!("CARGO_BIN_EXE_gpuvm"), &program).unwrap();
        done(Command::new("strip").arg(&program));
        done(&mut script("src/packaging/deb", &[&program, &at("deb")]));
        done(script("src/packaging/deb", &[&program, &at("later")]).env("GPUVM_VERSION", "0.1.1"));
        done(&mut script("src/packaging/rpm", &[&program, &at("rpm")]));
        let (deb, later, rpm) = (at("deb"), at("later"), at("rpm"));
        Packed { deb, later, rpm, program, _dir: dir }
    }))
}

/// The files of a folder, by name.
fn of_folder(dir: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

/// The package of a folder whose name starts so.
fn package(dir: &Path, start: &str) -> PathBuf {
    let found = of_folder(dir).into_iter().find(|(name, _)| name.starts_with(start));
    found.expect(start).1
}

/// The version in Cargo.toml.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Files with their modes and owners, sorted; of folders whose content is that of a folder of the
/// project, and grows with it, one line with the ending of names.
fn summed(lines: impl Iterator<Item = String>) -> String {
    let grows = ["/usr/share/man/man", "/usr/share/gpuvm/"];
    let lines = lines.map(|line| match grows.iter().any(|dir| line.contains(dir)) {
        true if line.contains("nvidia-vm.1.gz") => line,
        true => {
            let (dir, name) = line.rsplit_once('/').unwrap();
            let end = name.split_once('.').map_or("", |(_, end)| end);
            format!("{dir}/*.{end}")
        }
        false => line,
    });
    BTreeSet::from_iter(lines).into_iter().map(|line| line + "\n").collect()
}

/// The files of a Debian package: mode, owner, path, target of a link.
fn listed(deb: &Path) -> Vec<String> {
    let text = done(Command::new("dpkg-deb").arg("-c").arg(deb));
    let lines = text.lines().filter(|line| !line.starts_with('d')).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{} {} {}", words[0], words[1], words[5..].join(" ").trim_start_matches('.'))
    });
    lines.collect()
}

/// The files of an RPM package, in the same words.
fn listed_rpm(rpm: &Path) -> Vec<String> {
    let form =
        "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES} %{FILELINKTOS}\n]";
    let text = done(Command::new("rpm").args(["-qp", "--qf", form]).arg(rpm));
    let files = text.lines().filter(|line| !line.starts_with('d'));
    files.map(|line| line.trim_end().to_owned()).collect()
}

/// Compares with a golden file, or writes it.
fn golden(name: &str, text: &str) {
    let path = project().join("tests/golden/packages").join(name);
    if std::env::var_os("GPUVM_RENEW").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}

#[test]
fn packages_have_these_files() {
    let Some(packed) = packed() else { return };
    for (name, dir, list) in [
        ("deb.txt", &packed.deb, listed as fn(&Path) -> Vec<String>),
        ("rpm.txt", &packed.rpm, listed_rpm),
    ] {
        let mut text = String::new();
        for (package, path) in of_folder(dir) {
            text += &format!(
                "{}\n{}",
                package.replace(version(), "VERSION"),
                summed(list(&path).into_iter())
            );
        }
        golden(name, &text);
    }
    // A line above is a part of the project.
    let has = |end: &str| {
        listed(&package(&packed.deb, "gpuvm_")).iter().filter(|l| l.contains(end)).count()
    };
    let ours = |dir: &str, end: &str| {
        let all = of_folder(&project().join(dir));
        all.keys().filter(|name| name.ends_with(end)).count()
    };
    assert_eq!(has("/man/man1/gpuvm"), ours("man", ".1"));
    assert_eq!(has("/man/man7/gpuvm"), ours("man", ".7"));
    assert_eq!(has("/usr/share/gpuvm/templates/"), ours("templates", ".xml"));
    assert_eq!(has("/usr/share/gpuvm/topologies/"), ours("topologies", ".json"));
    assert_eq!(has("/usr/share/gpuvm/schemas/"), ours("src/cli/schemas", ".json"));
}

#[test]
fn packing_again_gives_the_same_bytes() {
    let Some(packed) = packed() else { return };
    let dir = tree::scratch();
    for (kind, first) in [("deb", &packed.deb), ("rpm", &packed.rpm)] {
        let again = dir.path().join(kind);
        let path = project().join("src/packaging").join(kind);
        // Another umask, time zone, language, folder and time of the program's file.
        let program = dir.path().join("other-name");
        fs::copy(&packed.program, &program).unwrap();
        let mut command = script("tests/packages/with-umask", &[]);
        command.arg("077").arg(path).arg(&program).arg(&again);
        command.env("TZ", "Asia/Kathmandu").env("LC_ALL", "C.UTF-8").env("TMPDIR", dir.path());
        done(&mut command);
        let bytes = |dir: &Path| -> BTreeMap<String, Vec<u8>> {
            of_folder(dir).into_iter().map(|(name, path)| (name, fs::read(path).unwrap())).collect()
        };
        assert!(bytes(first) == bytes(&again), "{kind} differs when it is packed again");
    }
}

#[test]
fn make_install_has_the_files_of_the_packages_and_uninstall_removes_them() {
    let Some(packed) = packed() else { return };
    let dir = tree::scratch();
    let root = dir.path().join("root");
    let stage = |act: &[&Path]| {
        let args: Vec<&Path> =
            [Path::new("/usr"), Path::new("plain")].iter().chain(act).copied().collect();
        done(&mut script("src/packaging/stage", &args))
    };
    stage(&[Path::new("install"), &packed.program, &root]);
    let listed_ones: BTreeSet<String> = stage(&[]).lines().map(str::to_owned).collect();
    let found = done(Command::new("find").arg(&root).args(["-type", "f", "-printf", "/%P\n"]));
    assert_eq!(found.lines().map(str::to_owned).collect::<BTreeSet<_>>(), listed_ones);
    let is_own = |path: &String| {
        let is_document = path.starts_with("/usr/share/doc/")
            && !path.starts_with("/usr/share/doc/gpuvm/examples/");
        !is_document && !path.contains("/lintian/")
    };
    let of_deb = listed(&package(&packed.deb, "gpuvm_")).into_iter();
    let of_deb = of_deb.map(|line| line.split(' ').nth(2).unwrap().to_owned()).filter(is_own);
    let plain = |path: String| {
        if path.contains("/man/") {
            path.trim_end_matches(".gz").to_owned()
        } else {
            path.replace("/vendor-completions/_", "/site-functions/_")
        }
    };
    assert_eq!(of_deb.map(plain).collect::<BTreeSet<_>>(), listed_ones);
    // Elsewhere the units run the installed program.
    let other =
        [Path::new("/opt/x"), Path::new("plain"), Path::new("install"), &packed.program, &root];
    done(&mut script("src/packaging/stage", &other));
    let unit =
        fs::read_to_string(root.join("opt/x/lib/systemd/system/gpuvm-recover.service")).unwrap();
    assert!(unit.contains("\nExecStart=/opt/x/bin/gpuvm --quiet recover\n"), "{unit}");
    fs::remove_dir_all(root.join("opt")).unwrap();
    stage(&[Path::new("uninstall"), &root]);
    let left = done(Command::new("find").arg(&root).args(["-type", "f"]));
    assert_eq!(left, "");
    for own in ["gpuvm", "doc/gpuvm"] {
        assert!(!root.join("usr/share").join(own).exists(), "{own}");
    }
}

/// Runs make with these words, and with programs that are built already. Returns its exit code and
/// output.
fn make(packed: &Packed, home: &Path, words: &[&str]) -> (i32, String) {
    let target = home.join("target");
    fs::create_dir_all(target.join("dist")).unwrap();
    fs::copy(&packed.program, target.join("dist/gpuvm")).unwrap();
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "CARGO=true"]).args(words).current_dir(project());
    command.env_remove("MAKEFLAGS").env_remove("MAKEOVERRIDES").env_remove("PREFIX");
    let (code, out, err) = run(command.env("HOME", home).env("CARGO_TARGET_DIR", target));
    (code, out + &err)
}

#[test]
fn make_install_takes_a_tilde_and_refuses_odd_prefixes() {
    let Some(packed) = packed() else { return };
    let dir = tree::scratch();
    let home = dir.path().join("home");
    let root = dir.path().join("root");
    let destdir = format!("DESTDIR={}", root.display());
    // As dash passes it on.
    for (prefix, place) in [("~/.local", home.join(".local")), ("/opt/a+b", "/opt/a+b".into())] {
        let prefix = format!("PREFIX={prefix}");
        let at = |path: &str| root.join(place.strip_prefix("/").unwrap()).join(path);
        let (code, said) = make(packed, &home, &["install", &prefix, &destdir]);
        assert_eq!(code, 0, "{said}");
        let unit = fs::read_to_string(at("lib/systemd/system/gpuvm-recover.service")).unwrap();
        let command =
            format!("\nExecStart={} --quiet recover\n", place.join("bin/gpuvm").display());
        assert!(unit.contains(&command), "{unit}");
        assert!(at("bin/gpuvm").is_file() && at("share/man/man1/gpuvm.1").is_file());
        assert_eq!(fs::read_link(at("bin/nvidia-vm")).unwrap(), Path::new("gpuvm"));
        let (code, said) = make(packed, &home, &["uninstall", &prefix, &destdir]);
        assert_eq!((code, below(&root)), (0, BTreeSet::new()), "{said}");
    }
    for prefix in ["/a b", "/100%", "/a&b", "~root/x", "/a'b", "/a\"b"] {
        let (code, said) = make(packed, &home, &["install", &format!("PREFIX={prefix}"), &destdir]);
        assert!(code != 0 && below(&root).is_empty(), "{prefix}: {said}");
    }
    let (code, said) = make(packed, &home, &["install", "PREFIX=/a b", &destdir]);
    assert!(code != 0 && said.contains("has other characters than letters"), "{said}");
    let (code, said) = make(packed, &home, &["install", "DESTDIR=~/x"]);
    assert!(code != 0 && said.contains("a tilde that no shell has expanded"), "{said}");
    assert!(!project().join("~").exists());
}

#[test]
fn uninstall_is_refused_while_its_units_are_enabled() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let dir = tree::scratch();
    let (prefix, units) = (dir.path().join("here"), dir.path().join("units/timers.target.wants"));
    let file = prefix.join("bin/gpuvm");
    let timer = "lib/systemd/system/gpuvm-verify.timer";
    // Enabled units of this machine are no part of it: a directory stands in their place.
    let tried = |target: &Path| {
        put(&prefix, &[("bin/gpuvm", ""), (timer, "")]);
        let _ = fs::remove_dir_all(&units);
        fs::create_dir_all(&units).unwrap();
        symlink(target, units.join("gpuvm-verify.timer")).unwrap();
        let script = "mkdir -p /etc/systemd/system && mount --bind \"$1\" /etc/systemd/system && \"$0\" \"$2\" plain uninstall \"\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(project().join("src/packaging/stage"));
        run(command.arg(units.parent().unwrap()).arg(&prefix))
    };
    let (code, _, err) = tried(&prefix.join(timer));
    assert!(code == 1 && err.contains("`systemctl disable --now gpuvm-verify.timer`"), "{err}");
    assert!(file.exists());
    // That of a package is another's.
    let (code, _, err) = tried(Path::new("/usr/lib/systemd/system/gpuvm-verify.timer"));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(!file.exists());
}

/// Packages with versions.
type Parts = BTreeSet<(String, String)>;

/// Reads them from JSON: a name and a version each.
fn parts(json: &serde_json::Value) -> Parts {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    json.as_array()
        .unwrap()
        .iter()
        .map(|part| (text(&part["name"]), text(&part["version"])))
        .collect()
}

#[test]
fn the_list_of_parts_matches_the_linked_ones() {
    let Some(packed) = packed() else { return };
    let dir = tree::scratch();
    done(Command::new("dpkg-deb").arg("-x").arg(package(&packed.deb, "gpuvm_")).arg(dir.path()));
    let beside = fs::read(dir.path().join("usr/share/doc/gpuvm/sbom.cdx.json")).unwrap();
    let bom: serde_json::Value = serde_json::from_slice(&beside).unwrap();
    assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let mut all = parts(&bom["components"]);
    assert!(all.insert(("gpuvm".into(), version().into())), "the program is one of its own parts");

    // The same list is in the program, as tools that read cargo-auditable's expect it.
    let section = dir.path().join("section");
    let mut copy = Command::new("objcopy");
    copy.args(["-O", "binary", "--only-section=.dep-v0", "--set-section-flags", ".dep-v0=alloc"]);
    done(copy.arg(dir.path().join("usr/bin/gpuvm")).arg(&section));
    let inflate =
        "import sys, zlib; print(zlib.decompress(open(sys.argv[1], 'rb').read()).decode())";
    let inside = done(Command::new("python3").args(["-c", inflate]).arg(&section));
    let inside: serde_json::Value = serde_json::from_str(&inside).unwrap();
    assert_eq!(parts(&inside["packages"]), all);
    let roots = inside["packages"].as_array().unwrap().iter().filter(|part| part["root"] == true);
    assert_eq!(roots.map(|part| &part["name"]).collect::<Vec<_>>(), ["gpuvm"]);

    // Every part is locked, with the checksum that the list has.
    let lock = fs::read_to_string(project().join("Cargo.lock")).unwrap();
    for part in bom["components"].as_array().unwrap() {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str().unwrap());
        let head = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
        let entry =
            lock.split(&head).nth(1).unwrap_or_else(|| panic!("{name} {version} is not locked"));
        let entry = entry.split("[[package]]").next().unwrap();
        if let Some(sum) = part["hashes"][0]["content"].as_str() {
            assert!(entry.contains(&format!("checksum = \"{sum}\"")), "{name} {version}");
        } else {
            assert!(name.starts_with("gpuvm-") && !entry.contains("checksum"), "{name} {version}");
        }
    }

    // Where panics of crates come from stands in the program, so each of these is in the list.
    let bytes = fs::read(env!("CARGO_BIN_EXE_gpuvm")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let named: BTreeSet<&str> = text
        .split("/registry/src/")
        .skip(1)
        .filter_map(|rest| rest.split('/').nth(1))
        .filter(|name| name.len() < 80)
        .collect();
    assert!(named.len() > 20, "{named:?}");
    let known: BTreeSet<String> =
        all.iter().map(|(name, version)| format!("{name}-{version}")).collect();
    let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "linked and not in the list: {missing:?}");
    // And each has its licence told.
    let copyright = fs::read_to_string(dir.path().join("usr/share/doc/gpuvm/copyright")).unwrap();
    for (name, version) in all.iter().filter(|(name, _)| !name.starts_with("gpuvm")) {
        assert!(copyright.contains(&format!("\nFiles: vendor/{name}-{version}/*\n")), "{name}");
    }
}

#[test]
fn units_are_sound_and_confined() {
    if !have(&["systemd-analyze"]) {
        return;
    }
    let dir = tree::scratch();
    let mut services = 0;
    for (name, path) in of_folder(&project().join("src/packaging/units")) {
        // The program need not be installed here.
        let text = fs::read_to_string(path).unwrap().replace("/usr/bin/gpuvm", "/bin/true");
        fs::write(dir.path().join(&name), text).unwrap();
        let unit = dir.path().join(&name);
        let (code, out, err) =
            run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
        assert!(code == 0 && !err.contains("gpuvm"), "{name}: {out}{err}");
        if name.ends_with(".service") {
            services += 1;
            let mut security = Command::new("systemd-analyze");
            // In tenths: below 6.
            done(security.args(["security", "--offline=true", "--threshold=59"]).arg(&unit));
        }
    }
    assert_eq!(services, 4);
}

/// Runs a script of the Debian packages on the machine below a directory, as dpkg would.
fn maintained(script: &str, act: &str, root: &Path) -> (i32, String) {
    let mut command = Command::new("sh");
    command.arg(project().join("src/packaging/debian").join(script)).arg(act);
    command.env("DPKG_MAINTSCRIPT_PACKAGE", "gpuvm");
    let (code, out, err) = run(command.env("DPKG_ROOT", root));
    (code, out + &err)
}

/// Writes files below a directory.
fn put(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// A UUID of a domain.
const UUID: &str = "11111111-2222-3333-4444-555555555555";
/// State that nothing needs any more, and settings.
const UNNEEDED: [(&str, &str); 7] = [
    ("var/lib/gpuvm/history/11111111-2222-3333-4444-555555555555/1.json", "{}"),
    ("var/lib/gpuvm/disks/a.json", "{}"),
    ("var/lib/gpuvm/health.json", "{}"),
    ("run/gpuvm/lock", ""),
    ("etc/gpuvm/trust.json", "{}"),
    ("etc/gpuvm/excluded.json", "{}"),
    ("etc/gpuvm/module-ids.json", "{}"),
];

/// A machine below a directory with [`UNNEEDED`] and these files.
fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tree::scratch();
    put(dir.path(), &UNNEEDED);
    put(dir.path(), files);
    dir
}

/// The files below a directory.
fn below(root: &Path) -> BTreeSet<String> {
    let mut find = Command::new("find");
    done(find.arg(root).args(["!", "-type", "d", "-printf", "%P\n"]))
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn purge_keeps_needed_files_and_says_why() {
    let have_helper = Path::new("/usr/bin/deb-systemd-helper").exists();
    let uuid = format!("<domain><uuid>{UUID}</uuid></domain>");
    let ours = "<domain><metadata><g:guest xmlns:g='urn:gpuvm:domain:1'/></metadata></domain>";
    for (path, text, reason) in [
        ("etc/libvirt/qemu/tuned.xml", uuid.as_str(), "`gpuvm undo` needs for tuned\n"),
        ("run/libvirt/qemu/tuned.xml", &uuid, "`gpuvm undo` needs for tuned\n"),
        ("etc/libvirt/qemu/train.xml", ours, "guests of gpuvm are defined: train\n"),
        ("var/lib/gpuvm/journal/1.json", "{}", "`gpuvm recover` needs"),
        ("var/lib/gpuvm/arrays/md0.json", "{}", "`gpuvm drive restore-array` needs"),
        ("var/lib/gpuvm/history/host/1.json", "{}", "`gpuvm host undo` needs"),
        ("var/lib/gpuvm/networks/1.json", "{}", "`gpuvm network undo` needs"),
        ("var/lib/gpuvm/host-bridge/br0.json", "{}", "`gpuvm network host-bridge delete` needs"),
        ("usr/local/bin/gpuvm", "", "are kept for "),
    ] {
        let dir = machine(&[(path, text)]);
        let program = dir.path().join("usr/local/bin/gpuvm");
        if program.exists() {
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let before = below(dir.path());
        let (code, said) = maintained("postrm", "remove", dir.path());
        assert!(code == 0 && !said.contains(reason), "{path}: {said}");
        // Where there is another program, its units are not masked.
        let masked: BTreeSet<String> = below(dir.path()).difference(&before).cloned().collect();
        let units = masked.iter().filter(|path| path.starts_with("etc/systemd/system/")).count();
        let expected = if program.exists() || !have_helper { 0 } else { 4 };
        assert_eq!(units, expected, "{path}: {masked:?}");
        let (code, said) = maintained("postrm", "purge", dir.path());
        assert!(code == 0 && said.contains(reason), "{path}: {said}");
        assert_eq!(below(dir.path()), before, "{path}: {said}");
    }
    // A domain of another UUID is no reason, nor is another's setting.
    let other = uuid.replace('5', "6");
    let dir = machine(&[("etc/libvirt/qemu/other.xml", &other), ("etc/gpuvm/theirs.json", "{}")]);
    assert_eq!(maintained("postrm", "purge", dir.path()), (0, String::new()));
    let left = ["etc/gpuvm/theirs.json", "etc/libvirt/qemu/other.xml", "run/gpuvm/lock"];
    assert_eq!(below(dir.path()), left.map(str::to_owned).into());
    assert!(!dir.path().join("var/lib/gpuvm").exists());
    fs::remove_file(dir.path().join("etc/gpuvm/theirs.json")).unwrap();
    assert_eq!(maintained("postrm", "purge", dir.path()), (0, String::new()));
}

#[test]
fn purge_of_state_that_is_elsewhere_is_whole() {
    // A journal, or all of the state, on another disk by a link.
    let dir = machine(&[("data/journal/1.json", "{}")]);
    let state = dir.path().join("var/lib/gpuvm");
    symlink(dir.path().join("data/journal"), state.join("journal")).unwrap();
    let before = below(dir.path());
    let (code, said) = maintained("postrm", "purge", dir.path());
    assert!(code == 0 && said.contains("`gpuvm recover` needs"), "{said}");
    assert_eq!(below(dir.path()), before);
    fs::remove_file(state.join("journal")).unwrap();
    fs::rename(&state, dir.path().join("data/state")).unwrap();
    symlink(dir.path().join("data/state"), &state).unwrap();
    let (code, said) = maintained("postrm", "purge", dir.path());
    assert!(code == 0 && said.ends_with("is empty, and stays\n"), "{said}");
    let left = ["data/journal/1.json", "run/gpuvm/lock", "var/lib/gpuvm"];
    assert_eq!(below(dir.path()), left.map(str::to_owned).into());

    if !namespaces() {
        return skip("namespaces need root");
    }
    // Mount points, which cannot be removed.
    let mounted = |place: &str| {
        let dir = machine(&[]);
        let script = "mkdir -p \"$1\" && mount -t tmpfs none \"$1\" && echo >\"$1/a.json\" && sh \"$0\" purge && ls -A \"$1\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]);
        command.arg(project().join("src/packaging/debian/postrm")).arg(dir.path().join(place));
        command.env("DPKG_MAINTSCRIPT_PACKAGE", "gpuvm");
        let said = done(command.env("DPKG_ROOT", dir.path()));
        (said, below(dir.path()).len())
    };
    let (said, left) = mounted("var/lib/gpuvm");
    assert!(said.ends_with("is empty, and stays\n"), "{said}");
    // Below the mount, which is not searched, and the lock.
    assert_eq!(left, 4);
    let (said, left) = mounted("var/lib/gpuvm/history");
    assert!(said.contains("is kept: mounts below it: ") && said.ends_with("a.json\n"), "{said}");
    assert_eq!(left, UNNEEDED.len());
}

#[test]
fn packages_do_not_overwrite_another_program_named_as_the_vendors_tool() {
    let Some(packed) = packed() else { return };
    let dir = tree::scratch();
    let path = dir.path().join("usr/bin/nvidia-vm");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut query = Command::new("rpm");
    query.args(["-qp", "--qf", "%{PREIN}"]).arg(package(&packed.rpm, "gpuvm-nvidia-vm-"));
    let of_rpm = done(&mut query).replace("=/usr/bin/nvidia-vm", &format!("={}", path.display()));
    assert!(of_rpm.contains(path.to_str().unwrap()), "{of_rpm}");
    let tried = |accepted: bool| {
        let (code, said) = maintained("preinst-nvidia-vm", "install", dir.path());
        assert_eq!(code, i32::from(!accepted), "{said}");
        let (code, out, err) = run(Command::new("sh").args(["-ec", &of_rpm]));
        assert_eq!(code, i32::from(!accepted), "{out}{err}");
        for said in [&said, &err] {
            assert_eq!(said.contains("is another program, and is not overwritten"), !accepted);
        }
    };
    tried(true);
    for (target, accepted) in [("gpuvm", true), ("/usr/bin/gpuvm", true), ("/opt/vm", false)] {
        symlink(target, &path).unwrap();
        tried(accepted);
        fs::remove_file(&path).unwrap();
    }
    fs::write(&path, "theirs").unwrap();
    tried(false);
    // The package has the script.
    let mut info = Command::new("dpkg-deb");
    let scripts = done(info.arg("-I").arg(package(&packed.deb, "gpuvm-nvidia-vm_")));
    assert!(scripts.contains(" preinst "), "{scripts}");
}

#[test]
fn rpm_installs_and_its_program_needs_an_old_glibc_only() {
    let Some(packed) = packed() else { return };
    let dir = tree::scratch();
    let mut install = Command::new("rpm");
    install.arg("--root").arg(dir.path()).args(["--nodeps", "--noscripts", "-i"]);
    done(install.args(of_folder(&packed.rpm).values()));
    for path in ["usr/bin/gpuvm", "usr/share/man/man1/gpuvm.1.gz", "usr/lib/tmpfiles.d/gpuvm.conf"]
    {
        assert!(dir.path().join(path).is_file(), "{path}");
    }
    assert_eq!(fs::read_link(dir.path().join("usr/bin/nvidia-vm")).unwrap(), Path::new("gpuvm"));
    // README.md says for which distributions the packages are: RHEL 9 has glibc 2.34, Debian 12 has
    // 2.36.
    let symbols = done(Command::new("objdump").arg("-T").arg(dir.path().join("usr/bin/gpuvm")));
    let newest = symbols.split("GLIBC_2.").skip(1).filter_map(|rest| {
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|minor| minor.parse::<u32>().ok())
    });
    let newest = newest.max().unwrap_or_else(|| panic!("{symbols}"));
    let mut requires = Command::new("rpm");
    let file = package(&packed.rpm, "gpuvm-0");
    let requires = done(requires.args(["-qp", "--requires"]).arg(file));
    assert!(requires.contains(&format!("libc.so.6(GLIBC_2.{newest})")), "{newest}: {requires}");
    // Rust's library takes pidfd_spawnp of 2.39 where it is built: Debian 13 makes packages for
    // itself, and for releases as new as that.
    let here = done(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    let (_, own) = here.trim().split_once("glibc 2.").unwrap();
    let most = if own.parse::<u32>().unwrap() < 39 { 34 } else { 39 };
    assert!(newest <= most, "{symbols}");
}

#[test]
fn scripts_of_the_rpm_switch_units_on_once_and_off_at_removal() {
    let Some(packed) = packed() else { return };
    if !namespaces() {
        return skip("namespaces need root");
    }
    let dir = tree::scratch();
    let mut later = script("src/packaging/rpm", &[&packed.program, dir.path()]);
    done(later.env("GPUVM_VERSION", "0.1.1"));
    let args = [Path::new("machine"), &packed.rpm, dir.path(), Path::new("inside-rpm")];
    let (code, out, err) = run(&mut script("tests/packages/root", &args));
    match code {
        77 => skip(lawful::NO_OVERLAY),
        _ => assert!(code == 0 && out.contains("\n== done ("), "{code} {out}{err}"),
    }
}

#[test]
fn licences_that_apply_together_are_all_listed() {
    if !have(&["python3"]) {
        return;
    }
    let load = "import importlib.machinery, importlib.util, sys\n\
        loader = importlib.machinery.SourceFileLoader('parts', sys.argv[1])\n\
        parts = importlib.util.module_from_spec(importlib.util.spec_from_loader('parts', loader))\n\
        sys.dont_write_bytecode = True\n\
        loader.exec_module(parts)\n\
        print(*parts.chosen({'name': 'x', 'license': sys.argv[2]}), sep=' and ')";
    let chosen = |licence: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", load]).arg(project().join("src/packaging/parts")).arg(licence);
        let (code, out, err) = run(&mut python);
        if code == 0 { out.trim().to_owned() } else { err }
    };
    for (licence, told) in [
        ("MIT", "Expat"),
        ("MIT OR Apache-2.0", "Apache-2.0"),
        ("MIT/Apache-2.0", "Apache-2.0"),
        ("Unlicense OR MIT", "Expat"),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", "Apache-2.0"),
        ("(MIT OR Apache-2.0) AND ISC", "Apache-2.0 and ISC"),
        ("ISC AND (Unlicense OR MIT)", "ISC and Expat"),
        ("MIT AND ISC OR LGPL-2.1-only", "LGPL-2.1"),
        ("MIT AND MIT", "Expat"),
    ] {
        assert_eq!(chosen(licence), told, "{licence}");
    }
    for unknown in ["(MIT OR Apache-2.0) AND Unicode-3.0", "Unlicense", ""] {
        let said = chosen(unknown);
        assert!(said.contains("knows no licence") && said.contains(unknown), "{unknown}: {said}");
    }
}

#[test]
fn a_guest_survives_upgrade_removal_and_purge() {
    let Some(packed) = packed() else { return };
    if !namespaces() {
        return skip("namespaces need root");
    }
    if !have(&["libvirtd", "virtlogd", "qemu-system-x86_64", "dnsmasq", "man", "dpkg"]) {
        return;
    }
    let mut install =
        script("tests/packages/root", &[Path::new("machine"), &packed.deb, &packed.later]);
    let (code, out, err) = run(&mut install);
    match code {
        77 => skip(lawful::NO_OVERLAY),
        _ => assert_eq!(code, 0, "{out}{err}"),
    }
}

/// Left to the nightly set: a Debian and two builds of packages take longer than all of CI.
#[test]
#[ignore = "nightly: debootstrap makes a bare Debian, and packages are built"]
fn a_bare_debian_takes_upgrade_removal_and_purge_beside_a_guest() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if !have(&["debootstrap"]) {
        return;
    }
    let Some(packed) = packed() else { return };
    let args = [packed.deb.as_path(), &packed.later];
    done(&mut script("tests/packages/bookworm", &args));
}

/// README.md's sections Install and First guest, typed on a new machine that boots, has no network
/// and no GPU: from the package alone to a guest of an image, its metrics, an interrupted change,
/// and the removal of all. Left to the nightly set: two Debians are made and boot by emulation.
#[test]
#[ignore = "nightly: two bare Debians are made, and boot"]
fn the_first_day_of_a_bare_debian_is_as_the_readme_says() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if !have(&["debootstrap", "systemd-nspawn"]) {
        return;
    }
    let Some(packed) = packed() else { return };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-image");
    done(Command::new(project().join("tests/guest-image")).arg(&dir));
    let image = dir.join("guest.qcow2");
    for suite in ["trixie", "bookworm"] {
        let mut day = script("tests/packages/first-day", &[packed.deb.as_path(), &image]);
        done(day.env("SUITE", suite));
    }
}

/// The files that bind devices at boot are in an initramfs of Debian's own tools, and work there
/// before the drivers of the devices are loaded. Left to the nightly set: it boots by emulation.
#[test]
#[ignore = "nightly: debootstrap makes a Debian, whose initramfs is booted by emulation"]
fn a_real_initramfs_keeps_functions_for_vfio() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if have(&["debootstrap", "qemu-system-x86_64"]) {
        let program = Path::new(env!("CARGO_BIN_EXE_gpuvm"));
        done(&mut script("tests/packages/initramfs", &[program]));
    }
}

#[test]
#[ignore = "nightly: debootstrap makes a Debian with the programs that read them"]
fn examples_are_taken_by_those_who_read_them() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if have(&["debootstrap"]) {
        done(&mut script("tests/packages/examples", &[]));
    }
}

#[test]
#[ignore = "nightly: packages are built, and apt fetches their linters"]
fn lintian_and_rpmlint_find_no_error() {
    let Some(packed) = packed() else { return };
    if !have(&["lintian", "rpmlint"]) {
        return;
    }
    // Those of the other tests are not compressed, which lintian finds.
    let dir = tree::scratch();
    let mut deb = script("src/packaging/deb", &[&packed.program, dir.path()]);
    done(deb.env("GPUVM_PACK_LEVEL", "1"));
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--profile", "debian"]);
    done(lintian.args(of_folder(dir.path()).values()));
    let mut rpmlint = Command::new("rpmlint");
    rpmlint.arg("--config").arg(project().join("src/packaging/rpmlint.toml"));
    let said = done(rpmlint.args(of_folder(&packed.rpm).values()));
    assert!(said.contains(" 0 errors,"), "{said}");
}

#[test]
#[ignore = "nightly: the program is built from nothing, more than once"]
fn two_builds_and_the_source_archive_give_one_program() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    // Gigabytes: not in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    done(script("tests/packages/builds", &[dir.path()]).env_remove("CARGO_NET_OFFLINE"));
}
