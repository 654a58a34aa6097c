//! Reading stays below the root, terminates, and reports errors.

use super::*;
use std::os::unix::fs::symlink;

/// A recorded host with a file outside of it, and both ways to keep paths inside.
fn hosts() -> (tempfile::TempDir, Vec<FsRoot>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("host");
    std::fs::create_dir_all(root.join("sys/a/b")).unwrap();
    std::fs::write(dir.path().join("secret"), "outside").unwrap();
    std::fs::write(root.join("sys/a/one"), " 17 \n").unwrap();
    std::fs::write(root.join("sys/a/id"), "0x10de\n").unwrap();
    let in_root = FsRoot::at(&root).unwrap();
    let checked = FsRoot { resolve: Resolve::Checked, ..FsRoot::at(&root).unwrap() };
    (dir, vec![in_root, checked])
}

#[test]
fn a_file_of_ours_behind_a_link_to_nowhere_is_not_absent() {
    let (dir, hosts) = hosts();
    let root = dir.path().join("host");
    std::fs::create_dir_all(root.join("etc/gpuvm")).unwrap();
    std::fs::create_dir_all(root.join("var/lib")).unwrap();
    symlink("missing", root.join("etc/gpuvm/test.toml")).unwrap();
    symlink("/nowhere", root.join("var/lib/gpuvm")).unwrap();
    symlink("missing", root.join("etc/other")).unwrap();
    for host in &hosts {
        for (path, at) in
            [("etc/gpuvm/test.toml", "etc/gpuvm/test.toml"), ("var/lib/gpuvm/x", "var/lib/gpuvm")]
        {
            let error = host.read(path).unwrap_err().to_string();
            assert!(error.ends_with(&format!("{at}: {DANGLING}")), "{error}");
        }
        assert!(host.names("var/lib/gpuvm/gpus").is_err());
        for path in ["etc/other", "etc/gpuvm/absent", "etc/gpuvm/no/file", "var/lib/x"] {
            assert_eq!(host.read(path).unwrap(), None, "{path}");
        }
    }
}

#[test]
fn stays_below_the_root() {
    let (dir, hosts) = hosts();
    let sys = dir.path().join("host/sys");
    symlink(dir.path().join("secret"), sys.join("absolute")).unwrap();
    symlink("../../secret", sys.join("relative")).unwrap();
    symlink("../../../../../../../../../etc", sys.join("far")).unwrap();
    symlink(dir.path(), sys.join("a/out")).unwrap();
    symlink("loop", sys.join("loop")).unwrap();
    for host in &hosts {
        for path in ["sys/absolute", "sys/relative", "sys/far/passwd", "sys/a/out/secret"] {
            assert_eq!(host.read(path).unwrap(), None, "{path} of {host:?}");
            assert!(!host.exists(path), "{path} of {host:?}");
        }
        for path in ["../secret", "sys/../../secret", "/../secret"] {
            assert_eq!(host.read(path).unwrap(), None, "{path} of {host:?}");
        }
        assert!(host.dir("sys/a/out").unwrap().is_none());
        assert!(!matches!(host.read("sys/loop"), Ok(Some(_))));
        let sys = host.dir("sys").unwrap().unwrap();
        assert!(!matches!(sys.read("absolute"), Ok(Some(_))));
        assert!(sys.dir("far").unwrap().is_none());
    }
}

#[test]
fn takes_the_root_of_a_recorded_host_for_the_root_of_absolute_links() {
    let (dir, hosts) = hosts();
    symlink("/sys/a", dir.path().join("host/sys/link")).unwrap();
    assert_eq!(hosts[0].read("sys/link/one").unwrap().as_deref(), Some("17"));
}

#[test]
fn says_which_file_is_no_text_and_ends() {
    let (dir, hosts) = hosts();
    let sys = dir.path().join("host/sys");
    std::fs::write(sys.join("binary"), b"1\0\x002").unwrap();
    std::fs::create_dir(dir.path().join("host/etc")).unwrap();
    std::fs::write(dir.path().join("host/etc/latin"), b"caf\xe9").unwrap();
    std::fs::write(sys.join("latin"), b"caf\xe9 \xc3\xa9\n").unwrap();
    symlink(std::ffi::OsStr::from_bytes(b"/m\xfcll"), sys.join("a/latin")).unwrap();
    std::fs::File::create(sys.join("large")).unwrap().set_len(1 << 30).unwrap();
    std::fs::write(sys.join("model"), "a name of a drive ".repeat(5000)).unwrap();
    let proc = dir.path().join("host/proc");
    std::fs::create_dir(&proc).unwrap();
    std::fs::File::create(proc.join("mounts")).unwrap().set_len(1 << 30).unwrap();
    nix::unistd::mkfifo(&sys.join("fifo"), Mode::S_IRUSR).unwrap();
    for host in &hosts {
        for (name, text) in [
            ("binary", "it holds a zero byte"),
            ("large", "longer than 65536 bytes"),
            ("model", "longer than 65536 bytes"),
            ("a", "cannot read"),
        ] {
            let error = host.read(&format!("sys/{name}")).unwrap_err().to_string();
            let path = sys.join(name).display().to_string();
            assert!(error.contains(text) && error.contains(&path), "{error}");
        }
        let error = host.read("etc/latin").unwrap_err().to_string();
        assert!(error.ends_with("etc/latin: not a text: byte 3 is not UTF-8"), "{error}");
        // Names and strings reported by the kernel are not trusted.
        assert_eq!(host.read("sys/latin").unwrap().as_deref(), Some("caf\\xe9 é"));
        let link = host.dir("sys/a").unwrap().unwrap().link("latin").unwrap();
        assert_eq!(link.as_deref(), Some("/m\\xfcll"));
        let error = host.read("proc/mounts").unwrap_err().to_string();
        assert!(error.contains("longer than 8388608 bytes"), "{error}");
        assert_eq!(host.read("sys/fifo").unwrap().as_deref(), Some(""));
    }
}

#[test]
fn reads_values_and_names_the_file_of_a_bad_one() {
    let (dir, hosts) = hosts();
    let sys = dir.path().join("host/sys");
    symlink("../../bus/pci/drivers/nvme", sys.join("a/driver")).unwrap();
    std::fs::write(sys.join("a/ends"), "0-31\n\0").unwrap();
    std::fs::write(sys.join("a/long"), "1234567 ".repeat(2000)).unwrap();
    for host in &hosts {
        let a = host.dir("sys/a").unwrap().unwrap();
        assert_eq!(a.number::<u8>("one").unwrap(), Some(17));
        assert_eq!(a.hex::<u16>("id").unwrap(), Some(0x10de));
        assert_eq!(a.number::<u8>("none").unwrap(), None);
        assert_eq!(a.read("ends").unwrap().as_deref(), Some("0-31"));
        assert_eq!(a.read("long").unwrap().unwrap().len(), 15_999);
        assert_eq!(host.read("sys/a/long").unwrap().unwrap().len(), 15_999);
        assert_eq!(a.link_name("driver").unwrap().as_deref(), Some("nvme"));
        assert_eq!(a.link("one").unwrap(), None);
        assert_eq!(a.link("none").unwrap(), None);
        assert_eq!(a.names().unwrap(), ["b", "driver", "ends", "id", "long", "one"]);
        let path = sys.join("a/id").display().to_string();
        let error = a.number::<u64>("id").unwrap_err().to_string();
        assert_eq!(error, format!("{path} line 1: `0x10de` is not a number in range"));
        assert!(a.hex::<u8>("id").is_err());
        assert!(a.hex::<u16>("one").is_err());
    }
}

#[test]
fn reads_whole_lines_of_a_head() {
    let (dir, hosts) = hosts();
    let lines = "0123456789\n".repeat(1000);
    std::fs::write(dir.path().join("host/cpuinfo"), lines).unwrap();
    for host in &hosts {
        let head = host.read_head("cpuinfo").unwrap().unwrap();
        assert!(head.len() > 4000 && head.len() < 4096 && head.ends_with("\n0123456789"));
        assert_eq!(host.read_head("none").unwrap(), None);
    }
}

#[test]
fn renames_elsewhere_do_not_disturb() {
    let (dir, hosts) = hosts();
    symlink("../sys/a/../a/../a/one", dir.path().join("host/sys/link")).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["x", "y"] {
            let (from, to) = (dir.path().join(name), dir.path().join(format!("{name}{name}")));
            let done = &done;
            scope.spawn(move || {
                std::fs::write(&from, "").unwrap();
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::rename(&from, &to).unwrap();
                    std::fs::rename(&to, &from).unwrap();
                }
            });
        }
        let read = |_| hosts[0].read("sys/link").map_err(|error| error.to_string());
        let bad =
            (0..20_000).map(read).find(|read| !matches!(read, Ok(Some(text)) if text == "17"));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(bad, None);
    });
}
