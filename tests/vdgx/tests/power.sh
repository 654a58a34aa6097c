#!/bin/bash
# Five resets of the machine during a change, or right after one, under systemd (run --systemd): nothing is written any more,
# not even data that the kernel still holds. After each, recover completes or undoes the change: state that does not outlive a
# boot, such as pages and drivers, is not undone then, whoever has it; and an ended guest stays off.
. /usr/lib/vdgx/halts
disk_dir=/var/lib/libvirt/images
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]} pages=$node/node0/hugepages/hugepages-2048kB/nr_hugepages
for nic in $(bdfs 0200 8086); do [[ ! -e $pci/$nic/sriov_numvfs ]] || break; done
# power_cut: the machine is reset immediately; the script continues after the boot.
power_cut() {
  say "power cut"
  echo "$((boot + 1)) $fails" >"$test/boot"
  echo b >/proc/sysrq-trigger
  sleep 60
}
# at RECORD CMD...: the power is cut when gpuvm is about to make that record durable.
at() {
  sync
  if halted "$@"; then echo "at $record"; power_cut; fi
  fail "${*:2}: it ended with $status before record $1"; said
}
# recovered TITLE: recover ends well and leaves nothing to recover.
recovered() {
  ls -l $journals
  phase "recover" gpuvm recover </dev/null >/tmp/out 2>&1; equal "$1: recover ends with" 0 $?
  said
  no_journal "$1"
}
say "boot $boot"
start_libvirt || exit 1
case $boot in
  1)
    # The image's file system has no journal, and would not survive a reset; it has one from the next mount on.
    tune2fs -j /dev/vda >/tmp/out 2>&1 || { fail "tune2fs"; said; finish; }
    sync
    power_cut
    ;;
  2)
    say "a create, when its guest is defined and about to start"
    made a --gpu 0 --huge-pages 2M --reserve-pages
    at '{"plan":[{"step":"start-domain"' "${how[@]}"
    ;;
  3)
    say "somebody has pages since, as many"
    echo 32 >"$pages"
    recovered "a create"
    equal "they are there" 32 "$(<"$pages")"
    echo 0 >"$pages"
    equal "the GPU has no driver" - "$(driver_of "$gpu")"
    equal "no a and no disk of it" "" "$(virsh -q list --all --name | grep -x a)$(ls $disk_dir/a*.raw 2>/dev/null)"
    say "a create that has ended, whose journal is still there"
    made c --gpu 0
    VDGX_KEEP=1 LD_PRELOAD=/usr/lib/vdgx/halt.so "${how[@]}" >/tmp/out 2>&1; equal "it ends with" 0 $?
    VDGX_KEEP=1 LD_PRELOAD=/usr/lib/vdgx/halt.so gpuvm device bind "${g[1]}" >/tmp/out 2>&1; equal "bind ends with" 0 $?
    said
    sync
    power_cut
    ;;
  4)
    recovered "ended changes"
    check "c is there, with its disk" test -n "$(virsh -q list --all --name | grep -x c)" -a -n "$(ls $disk_dir/c*.raw)"
    equal "no driver for the other GPU" - "$(driver_of "${g[1]}")"
    say "a delete, after c was undefined"
    at '{"done":0' gpuvm delete c --yes
    ;;
  5)
    recovered "a delete"
    c=$(virsh -q list --all --name | grep -cx c) d=$(ls $disk_dir/c*.raw 2>/dev/null | wc -l)
    check "c is there with its disk, or gone with it (domains $c, disks $d)" test "$c" == "$d"
    [[ $c == 0 ]] || quietly gpuvm delete c --yes
    rm -f $disk_dir/c*.raw
    say "a bind at boot, in the middle"
    at '{"done":1' gpuvm device bind "$gpu" --at-boot
    ;;
  6)
    recovered "a bind"
    equal "no file of it is left" "" "$(find /etc -name '*gpuvm*' ! -path '/etc/gpuvm*')"
    equal "the GPU has no driver" - "$(driver_of "$gpu")"
    say "virtual functions at boot, in the middle"
    at '{"done":1' gpuvm nic vfs "$nic" --count 2 --at-boot
    ;;
  7)
    recovered "virtual functions"
    equal "no file of it is left" "" "$(find /etc -name '*gpuvm*' ! -path '/etc/gpuvm*')"
    equal "no virtual functions" 0 "$(<"$pci/$nic/sriov_numvfs")"
    finish
    ;;
esac
