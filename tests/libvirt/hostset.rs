//! `host files`, `host tuning` and `host undo` on a private machine of the test, with its own /etc
//! and kernel settings.

use super::place::Place;
use crate::support::lawful::NO_THP;
use crate::support::{run, skip, tamper};

/// Begins a script: private directories of /etc, a configuration that an admin has edited, `$0` the
/// program.
const BEGIN: &str = r#"
set -e
for dir in /etc/libvirt /etc/sysctl.d /etc/tmpfiles.d; do mkdir -p $dir; mount -t tmpfs tmpfs $dir || exit 9; done
conf=/etc/libvirt/qemu.conf before=/etc/libvirt/before
printf '# max\tfiles\n#max_processes = 0\n#max_files = 0\n\nvnc_password = "x"\n# no end' >$conf
chmod 640 $conf; cp -p $conf $before
fails() { if "$@" 2>&1; then echo "it was done: $*"; exit 8; fi; }
"#;

/// The output of a script, which must succeed.
fn script(place: &Place, text: &str) -> String {
    let mut shell = place.daemon.within("bash");
    shell.args(["-c", &format!("{BEGIN}{text}"), env!("CARGO_BIN_EXE_gpuvm")]);
    let (code, out, err) = run(&mut shell);
    assert_eq!(code, 0, "{out}{err}");
    out + &err
}

#[test]
fn one_line_of_qemu_conf_comes_and_goes() {
    let Some(place) = Place::new() else { return };
    let said = script(
        &place,
        r#"
        "$0" host files --count 4096 --dry-run; cmp $conf $before
        "$0" host files --count 4096; stat -c 'mode %a' $conf; diff $before $conf || true
        "$0" host files --count 4096; "$0" host files --count 1024
        "$0" host files; fails "$0" host undo </dev/null; "$0" host undo --dry-run
        "$0" host undo --yes; cmp $conf $before; echo undone
        fails "$0" host undo --yes
        # What is edited beside it stays, and an edit of the line itself is not lost.
        "$0" host files --count 4096 -q; sed -i 's/"x"/"y"/' $conf; "$0" host undo --yes -q
        diff $before $conf || true; cp -p $before $conf
        "$0" host files --count 4096 -q; sed -i 's/4096/8192/' $conf; fails "$0" host undo --yes
        grep '^max_files' $conf; cp -p $before $conf
        "$0" host undo --discard --yes; cmp $conf $before; test ! -e /var/lib/gpuvm/history/host
        fails "$0" host files --count 99999999999
        fails "$0" host files --count 4096 --connect qemu+ssh://dgx/system
        printf '\nmax_files = 1\nmax_files = 2\n' >>$conf; fails "$0" host files --count 4096"#,
    );
    for words in [
        "let guests have 4096 files open: max_files = 4096 (/etc/libvirt/qemu.conf)",
        "mode 640\n3a4\n> max_files = 4096\n",
        "already set; nothing to do\n",
        "`systemctl restart libvirtd`; running guests keep their limit until they are restarted",
        "take back: let guests have 4096 files open",
        "undone\n",
        "the host has no change to undo",
        "< vnc_password = \"x\"\n---\n> vnc_password = \"y\"",
        "was edited since change 1 of the host (host files, ",
        "max_files = 8192\n",
        "change 1 of the host (host files, ",
        "is forgotten; the host stays as it is",
        "99999999999 open files: the kernel allows a process",
        "qemu+ssh://dgx/system is of machine `dgx`",
        "sets max_files in lines",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // A guest of another test, which is seen too, makes the column wider.
    let shown = ["max_files", "of", "/etc/libvirt/qemu.conf", "4096"];
    assert!(said.lines().any(|line| line.split_whitespace().eq(shown)), "{said}");
}

#[test]
fn a_host_change_killed_at_any_record_is_undone() {
    let Some(place) = Place::new() else { return };
    let tampered = tamper::variables("signal=KILL:when=$n", None).join(" ");
    let said = script(
        &place,
        &r#"
        for n in $(seq 1 40); do
          code=0
          env $TAMPERED "$0" host files --count 4096 -q || code=$?
          if [ $code = 0 ]; then cmp -s $conf $before && exit 7; "$0" host undo --yes -q; cmp $conf $before; exit; fi
          "$0" recover -q
          if ! cmp -s $conf $before; then echo late; "$0" host undo --yes -q; fi
          cmp $conf $before; echo whole $n
        done; exit 6"#
        .replace("$TAMPERED", &tampered),
    );
    let whole = said.matches("whole").count() - said.matches("late").count();
    assert!(whole > 3, "{whole} records were seen: the test proves nothing\n{said}");
    assert_eq!(place.journal(), "");
}

#[test]
fn settings_of_the_kernel_are_set_now_and_at_boot_and_taken_back() {
    let Some(place) = Place::new() else { return };
    let said = script(
        &place,
        r#"
        thp=/sys/kernel/mm/transparent_hugepage/enabled fake=/etc/libvirt/thp
        test -e $thp || { echo none; exit; }
        echo 'always madvise [never]' >$fake; mount --bind $fake $thp
        "$0" host tuning; "$0" host tuning --transparent-huge-pages madvise --at-boot --dry-run
        grep -q '\[never' $thp; test -z "$(ls /etc/tmpfiles.d)"
        "$0" host tuning --transparent-huge-pages madvise --at-boot; cat $thp /etc/tmpfiles.d/gpuvm-tuning.conf
        "$0" host undo --yes; echo "now $(cat $thp)"; test -z "$(ls /etc/tmpfiles.d)"
        echo 'always madvise [never]' >$fake
        "$0" host tuning --transparent-huge-pages madvise; echo always >$fake; "$0" host undo --yes; echo "others $(cat $thp)"
        fails "$0" host tuning --governor nosuch"#,
    );
    if said.starts_with("none") {
        return skip(NO_THP);
    }
    for words in [
        "--transparent-huge-pages",
        "set transparent huge pages to madvise, from never\nwrite \
         /etc/tmpfiles.d/gpuvm-tuning.conf\n",
        "w! /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n",
        "now never",
        "others always",
        "--governor",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
