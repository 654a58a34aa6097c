#!/bin/bash
# A stopped guest's GPU belongs to another guest when the stopped one is deleted: the other keeps running with its GPU, which
# is neither reset nor rebound, and is named; everything else of the deleted guest is removed. The same holds for a transient
# guest of libvirt, and for a process that libvirt does not know.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
group=$(basename "$(readlink "$pci/$gpu/iommu_group")")
/share/vdgx/state >/tmp/before

# goes NAME PATTERN: `delete a` leaves the GPU alone, names its holder, and removes everything else.
goes() {
  local before
  before=$(resets "$gpu")
  phase "$1: delete" gpuvm delete a --yes >/tmp/out 2>&1; equal "$1: delete ends with" 0 $?
  said
  has "$1: it names the holder" /tmp/out "$2"
  has "$1: and the GPU" /tmp/out "$gpu"
  equal "$1: the GPU is on" vfio-pci "$(driver_of "$gpu")"
  equal "$1: which was not reset" "$before" "$(resets "$gpu")"
  equal "$1: nobody waits in the kernel" "" "$(hangs)"
  check "$1: a and its disk are gone" test -z "$(virsh -q list --all --name | grep -x a)" -a -z "$(ls /tmp/a*.raw 2>/dev/null)"
  no_journal "$1"
}
# back: the GPU, which stayed on vfio-pci, is returned by the command for it.
back() { let_go "$gpu"; check "$1: all is as before" diff /tmp/before <(/share/vdgx/state); }

phase "make a" make a --gpu 0 || { fail "make a"; said; finish; }
quietly gpuvm stop a --force
foreign b "$gpu"
check "b starts with the GPU" virsh -q create /tmp/b.xml
goes "a guest of libvirt" '`b`'
check "a guest of libvirt: b runs" runs b
virsh -q destroy b 2>/dev/null
back "a guest of libvirt"

quietly make a --gpu 0 --no-start
quietly gpuvm device bind "$gpu"
sleep 1000 9<>"/dev/vfio/$group" & holder=$!
goes "a process" "process $holder"
kill $holder; wait $holder 2>/dev/null
back "a process"
finish
