//! `host trust`: guests that are not isolated on NVLink need no option on each command line if the
//! admin has stated that they trust each other, and none is created if the admin has stated that
//! they do not. Every verb uses the same sentence.

use super::on_dgx2;
use crate::support::daemon::namespaces;
use crate::support::{host_tree, known, run, skip};
use std::path::Path;

/// Begins a script: /etc/gpuvm and the program's state are private.
const BEGIN: &str = "for dir in /etc/gpuvm /var/lib/gpuvm; do mkdir -p $dir; mount -t tmpfs tmpfs $dir; done
export LIBVIRT_DEFAULT_URI=test:///default
fails() { if \"$@\" 2>&1; then echo \"it was done: $*\"; exit 8; fi; }
make() { $GPUVM create --gpus 2 --name a --dry-run --no-seed --disk-dir /tmp --data-size none \"$@\"; }
";

/// The answer of a script on a DGX-2.
fn says(script: &str) -> Option<String> {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let (code, out, err) = run(&mut on_dgx2(&format!("{BEGIN}exec 2>&1\n{script}")));
    assert_eq!(code, 0, "{out}{err}");
    Some(out)
}

#[test]
fn a_declared_trust_counts_in_every_verb_and_is_revoked() {
    let advice = "if all guests of this host trust each other, run `gpuvm host trust one-tenant` \
                  once; `--accept-shared-fabric` accepts it for one guest";
    let Some(unsaid) = says(
        "export COLUMNS=1000
         fails make; $GPUVM plan --gpus 2; $GPUVM capacity; $GPUVM host trust
         make --accept-shared-fabric >/dev/null",
    ) else {
        return;
    };
    assert_eq!(unsaid.matches(advice).count(), 3, "{unsaid}");
    assert!(unsaid.contains("not set: guests share NVLink only with --accept-shared-fabric"));
    assert!(
        unsaid.contains("not isolated on NVLink: guests with 2, 4 GPUs; if all guests"),
        "{unsaid}"
    );

    let said = says(
        "export COLUMNS=1000
         $GPUVM host trust one-tenant --dry-run; test ! -e /etc/gpuvm/trust.json
         $GPUVM host trust one-tenant; stat -c 'mode %a' /etc/gpuvm/trust.json; $GPUVM host trust one-tenant
         make; $GPUVM plan --gpus 2; $GPUVM capacity; $GPUVM host trust; $GPUVM host show
         $GPUVM host undo --yes; test ! -e /etc/gpuvm/trust.json; fails make",
    )
    .unwrap();
    for words in [
        "write /etc/gpuvm/trust.json",
        "mode 644",
        "already set; nothing to do",
        "define domain `a`",
        "all guests of this host trust each other, by `gpuvm host trust`",
        "one-tenant: guests may share NVLink",
        "Guests    of one tenant: they may share NVLink",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("! isolation"), "{said}");
    assert_eq!(said.matches(advice).count(), 1, "{said}");

    let strangers = says(
        "export COLUMNS=1000
         $GPUVM host trust strangers; fails make --accept-shared-fabric; $GPUVM capacity
         $GPUVM create --gpus 8 --name b --dry-run --no-seed --disk-dir /tmp --data-size none
         $GPUVM host trust --unset; test ! -e /etc/gpuvm/trust.json",
    )
    .unwrap();
    assert!(strangers.contains("guests of this host belong to strangers"), "{strangers}");
    // Only `create` leads to capacity.
    assert_eq!(strangers.matches("`gpuvm capacity` counts").count(), 1, "{strangers}");
    assert!(
        strangers.contains("2, 4 GPUs; guests of this host belong to strangers"),
        "{strangers}"
    );
    let counts = |gpus: &str| {
        let row = strangers.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        row.filter(|row| row.first() == Some(&gpus)).map(|row| row[1].to_owned()).next().unwrap()
    };
    assert_eq!([counts("2"), counts("4"), counts("8")], ["0", "0", "2"], "{strangers}");
    assert!(strangers.contains("define domain `b`"), "{strangers}");
}

#[test]
fn files_writable_by_others_are_not_believed_and_a_record_has_its_own_trust() {
    let tree = host_tree("dgx-2").display().to_string();
    let Some(said) = says(&format!(
        "export COLUMNS=1000
         $GPUVM host trust one-tenant -q; chmod 666 /etc/gpuvm/trust.json; fails make; $GPUVM host show
         fails $GPUVM host trust strangers; fails $GPUVM host trust --unset
         chmod 644 /etc/gpuvm/trust.json; chown 12345 /etc/gpuvm/trust.json; fails make; $GPUVM host show
         chown 0 /etc/gpuvm/trust.json; echo '{{' >/etc/gpuvm/trust.json; fails make; $GPUVM host show
         rm /etc/gpuvm/trust.json; mkfifo /etc/gpuvm/trust.json; fails make; timeout 20 $GPUVM host show
         rm /etc/gpuvm/trust.json; $GPUVM host trust one-tenant -q
         fails $GPUVM --host {tree} create --gpus 2 --name a --dry-run
         $GPUVM host capture /tmp/gpuvm-trust.json -q; $GPUVM host trust --unset -q
         $GPUVM --host /tmp/gpuvm-trust.json host trust; rm /tmp/gpuvm-trust.json
         fails $GPUVM --host {tree} host trust one-tenant"
    )) else {
        return;
    };
    let others = "trust.json line 1: others than root may have written it: it is of user";
    assert_eq!(said.matches(others).count(), 6, "{said}");
    assert_eq!(said.matches("/etc/gpuvm/trust.json.old` puts it away").count(), 2, "{said}");
    // By `create` and by `host show`.
    assert_eq!(said.matches("guests are treated as strangers").count(), 8, "{said}");
    assert_eq!(said.matches("guests of this host belong to strangers").count(), 0, "{said}");
    assert!(
        said.contains("trust.json line 2") || said.contains("trust.json line 1: EOF"),
        "{said}"
    );
    assert!(said.contains("not isolated on NVLink"), "{said}");
    assert!(said.contains("one-tenant: guests may share NVLink"), "{said}");
}

#[test]
fn a_guest_beside_strangers_is_found_by_check_and_verify_and_is_not_started() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    if !Path::new("/usr/bin/qemu-system-x86_64").exists() {
        return skip("qemu-system-x86_64 is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/etc")).unwrap();
    std::fs::create_dir(dir.path().join("disks")).unwrap();
    let conf = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\nremember_owner = 0\n";
    std::fs::write(dir.path().join("root/etc/qemu.conf"), conf).unwrap();
    let script = format!(
        "{BEGIN}export LIBVIRT_DEFAULT_URI=$URI COLUMNS=1000; exec 2>&1
         $GPUVM host trust one-tenant -q
         for name in a b; do
           $GPUVM create --name $name --gpus 2 --no-start --no-seed --data-size none --disk-dir $DISKS -q
         done
         for line in check verify 'start --dry-run'; do echo \"trusted $line\"; $GPUVM $line a || true; done
         $GPUVM host trust strangers -q
         for line in check verify start 'start --dry-run'; do
           echo \"strange $line\"; status=0; $GPUVM $line a || status=$?; echo \"status $status\"
         done
         for line in 'autostart a on --dry-run' 'autostart a on' 'autostart a off'; do
           echo \"strange $line\"; status=0; $GPUVM $line || status=$?; echo \"status $status\"
         done
         $GPUVM list --long; for name in a b; do $GPUVM delete $name --yes -q; done"
    );
    known::give(&dir.path().join("root").join(known::EMBEDDED), &host_tree("dgx-2"));
    let mut command = on_dgx2(&script);
    let uri = format!("qemu:///embed?root={}", dir.path().join("root").display());
    command.env("URI", uri).env("DISKS", dir.path().join("disks"));
    let (code, out, err) = run(&mut command);
    assert_eq!(code, 0, "{out}{err}");
    let part = |begin: &str| {
        let at = out.find(&format!("{begin}\n")).unwrap_or_else(|| panic!("{begin}: {out}"));
        let rest = &out[at + begin.len()..];
        let end =
            ["trusted ", "strange "].iter().filter_map(|word| rest.find(&format!("\n{word}")));
        rest[..end.min().unwrap_or(rest.len())].to_owned()
    };
    for line in ["check", "verify"] {
        let trusted = part(&format!("trusted {line}"));
        assert!(!trusted.contains("nvlinks-of-strangers"), "{trusted}");
        let strange = part(&format!("strange {line}"));
        assert!(strange.contains("nvlinks-of-strangers"), "{line}: {strange}");
        assert!(
            strange.contains("`start` refuses it: ") && strange.contains("status 3"),
            "{strange}"
        );
    }
    assert!(!part("trusted start --dry-run").contains("error"), "{out}");
    for line in ["start", "start --dry-run", "autostart a on --dry-run", "autostart a on"] {
        let strange = part(&format!("strange {line}"));
        assert!(strange.contains("status 1") && strange.contains("to strangers"), "{strange}");
    }
    let off = part("strange autostart a off");
    assert!(off.contains("status 0") && !off.contains("with host"), "{off}");
}
