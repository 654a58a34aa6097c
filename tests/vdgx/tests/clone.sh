#!/bin/bash
# A clone of a guest with a GPU gets another GPU and its own disk, runs with them, and is removed by undo; without a free GPU it
# is refused with the number that fits. The file of their serial port, which only one running guest can have, is reported.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
# gpu NAME: the GPU of its definition.
gpu() {
  virsh -q dumpxml --inactive "$1" | grep -A3 '<hostdev mode' |
    sed -n "s/.*domain='0x\(....\)' bus='0x\(..\)' slot='0x\(..\)' function='0x\(.\)'.*/\1:\2:\3.\4/p"
}
/share/vdgx/state >/tmp/before
disk_dir=/var/tmp make a --gpus 1 --no-start || { fail "make a"; said; finish; }
/share/vdgx/state >/tmp/one
phase "clone" quietly gpuvm clone a b || said
has "what both have is said" /tmp/out "both have serial /share/a.log"
one=$(gpu a) two=$(gpu b)
check "it has a GPU" test -n "$two"
check "another one" test "$one" != "$two"
check "its disk is its own" test -e /var/tmp/b.raw
gpuvm clone a c --gpus 99 >/tmp/out 2>&1; equal "too many GPUs" 1 $?
has "it says what fits" /tmp/out "gpuvm clone a c --gpus"
phase "start b" quietly gpuvm start b || said
check "b runs" runs b
equal "its GPU is its own" "vfio-pci -" "$(driver_of "$two") $(driver_of "$one")"
gpuvm undo b --yes >/tmp/out 2>&1; equal "not while it runs" 1 $?
has "it says what to do" /tmp/out "gpuvm stop b"
quietly gpuvm stop b --force
phase "undo" quietly gpuvm undo b --yes || said
check "all is as with the first" diff /tmp/one <(/share/vdgx/state)
phase "delete" quietly gpuvm delete a --yes
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
