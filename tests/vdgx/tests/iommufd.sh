#!/bin/bash
# Guests that have their GPUs by iommufd, on a kernel with it (run --kernel iommufd, VDGX_RELEASE=trixie): what the host
# shows, what the guest sees, what verify compares; who keeps a GPU from being reset and taken: a guest, also without
# libvirt, a process that has opened or bound its device, and one that is not seen; a guest with both ways; a create that is killed at
# each of its records. On iommufd-alone, a kernel without VFIO groups, gpuvm binds the device, and libvirt passes none through.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
/share/vdgx/state >/tmp/before
# node_of BDF: sets `node`, the function's own device.
node_of() {
  local dir
  node=
  for dir in "$pci/$1"/vfio-dev/*; do [[ ! -e $dir/dev ]] || node=/dev/vfio/devices/${dir##*/}; done
}
kill_daemon() { pkill -KILL -x libvirtd; rm -f /run/libvirt/libvirt-sock /run/libvirt/libvirt-sock-ro /run/libvirtd.pid; }
# refused TITLE PATTERN...: the GPU is not reset and released, for these reasons.
refused() {
  local title=$1 before pattern; shift
  before=$(resets "$gpu")
  gpuvm device release "$gpu" >/tmp/out 2>&1; equal "$title: release is refused" 1 $?
  said
  for pattern; do has "$title: it names" /tmp/out "$pattern"; done
  equal "$title: the GPU is not reset" "$before" "$(resets "$gpu")"
  equal "$title: and stays on" vfio-pci "$(driver_of "$gpu")"
  equal "$title: nobody waits in the kernel" "" "$(hangs)"
}

say "what the host shows"
check "the kernel has it" test -c /dev/iommu
equal "its record says so" true "$(gpuvm host show --json | jq .host.machine.iommufd.node)"
quietly gpuvm device bind "$gpu"
node_of "$gpu"
check "the GPU has a device of its own" test -c "$node"
group=$(basename "$(readlink "$pci/$gpu/iommu_group")")
if [[ $kernel == iommufd ]]; then
  check "and a group" test -c "/dev/vfio/$group"
else
  check "no group has a device" test ! -e "/dev/vfio/$group" -a ! -e /sys/class/vfio
fi
virsh domcapabilities --virttype qemu --machine q35 >/tmp/capabilities
offers() { grep -qz "<enum name='iommufd'>[^/]*<value>yes" /tmp/capabilities; }
if [[ $kernel == iommufd ]]; then
  check "libvirt offers it" offers
else
  # Not even by iommufd: "VFIO PCI device assignment is not supported by the host" (12.9).
  offers && fail "libvirt offers it without groups"
  equal "its record has no groups" false "$(gpuvm host show --json | jq .host.machine.iommufd.groups)"
fi

say "a process has the device"
for way in open bind; do
  before=$(resets "$gpu")
  /usr/lib/vdgx/cdev $way "$node" >/tmp/held & holder=$!
  check "$way" wait_for 10 grep -q held /tmp/held
  # Opening is harmless; binding resets the function, as each guest's start does.
  case $way in
    open) equal "open: no reset" "$before" "$(resets "$gpu")" ;;
    bind) check "bind: a reset" test "$(resets "$gpu")" -gt "$before" ;;
  esac
  refused "$way" "process $holder \(cdev\)" "$node"
  make x --gpu 0 && fail "$way: a guest gets the GPU"
  said
  if [[ $kernel == iommufd ]]; then
    has "$way: the refused guest's message names it" /tmp/out "$gpu.*process $holder"
  fi
  if [[ $way == bind ]]; then
    # Another file system in the place of its directory hides the process from gpuvm.
    before=$(resets "$gpu")
    unshare --mount sh -c "mount -t tmpfs none /proc/$holder && gpuvm device release $gpu" >/tmp/out 2>&1
    equal "not seen: release is refused" 1 $?
    said
    has "not seen: it is found by the kernel" /tmp/out "not seen here"
    equal "not seen: the GPU is not reset" "$before" "$(resets "$gpu")"
    /usr/lib/vdgx/cdev bind "$node" >/tmp/second && fail "bind: twice"
    has "bind: only once" /tmp/second "^bind: Invalid argument"
    if [[ $kernel == iommufd ]]; then
      if (exec 9<>"/dev/vfio/$group") 2>/tmp/second; then fail "bind: the group opens"; fi
      has "bind: the group does not open" /tmp/second "busy"
    fi
  fi
  kill $holder; wait $holder 2>/dev/null
done
if [[ $kernel == iommufd ]]; then
  exec 9<>"/dev/vfio/$group"
  /usr/lib/vdgx/cdev bind "$node" >/tmp/second && fail "group: the device is bound"
  has "group: while it is open the device is not bound" /tmp/second "^bind: Device or resource busy"
  exec 9>&-
fi
check "nobody has it: it is released" gpuvm device release "$gpu"
check "all is as before" diff /tmp/before <(/share/vdgx/state)

if [[ $kernel != iommufd ]]; then
  say "no guest without groups"
  make x --gpu 0 && fail "a guest gets the GPU"
  said
  has "the reason" /tmp/out "CONFIG_VFIO_GROUP"
  gpuvm plan --gpu 0 --iommufd off >/tmp/out 2>&1; equal "plan by groups is refused, too" 1 $?
  has "by groups: the reason" /tmp/out "CONFIG_VFIO_GROUP"
  gpuvm capacity >/tmp/out 2>&1; equal "capacity is refused, too" 1 $?
  has "capacity: the reason" /tmp/out "CONFIG_VFIO_GROUP"
  foreign b "$gpu"
  virsh -q create /tmp/b.xml >/tmp/late 2>&1 && fail "libvirt starts a guest without groups"
  has "libvirt says no" /tmp/late "VFIO PCI device assignment is not supported"
  quietly gpuvm device release "$gpu"
  check "all is as before" diff /tmp/before <(/share/vdgx/state)
  finish
fi

say "a guest with two GPUs"
phase "create a" create a --gpu "${g[0]}" --gpu "${g[1]}" --iommufd on || { fail "create a"; finish; }
has_devices a
has_drivers a
virsh dumpxml a >/tmp/a.xml
has "its definition says so" /tmp/a.xml "<iommufd enabled='yes'"
qemu=$(</run/libvirt/qemu/a.pid)
find "/proc/$qemu/fd" -printf '%l\n' | sort -u >/tmp/open
has "QEMU has /dev/iommu open" /tmp/open '^/dev/iommu$'
for d in "${g[0]}" "${g[1]}"; do
  node_of "$d"
  has "QEMU has the device of $d open" /tmp/open "^$node\$"
done
equal "and no group" "" "$(grep -E '^/dev/vfio/([0-9]+|vfio)$' /tmp/open)"
grep -aiE 'iommu|peer-to-peer|map' /var/log/libvirt/qemu/a.log | grep -av ' -object' >/tmp/complaints
equal "QEMU maps the GPUs' BARs to each other" "" "$(grep -aE 'IOMMU_IOAS_MAP|peer-to-peer' /tmp/complaints)"
phase "verify a" gpuvm verify a >/tmp/out 2>&1; equal "verify finds nothing" 0 $?
said
node_of "$gpu"
refused "a guest" 'domain `a`'
say "without libvirt"
kill_daemon
refused "no libvirt" "process $qemu \(qemu-system" "$node"
start_libvirt || fail "libvirtd comes back"
check "a runs" runs a

say "another guest"
foreign b "$gpu"
virsh -q create /tmp/b.xml >/tmp/late 2>&1 && fail "libvirt gives the GPU twice"
make x --gpu 0 && fail "gpuvm gives the GPU twice"
said
has "it names the guest" /tmp/out '`a`'
unharmed "another guest" a "$gpu" "$(resets "$gpu")"
phase "delete a" quietly gpuvm delete a --yes
for d in "${g[0]}" "${g[1]}"; do [[ $(driver_of "$d") == - ]] || let_go "$d"; done
rm -f /tmp/a*.raw
check "all is as before" diff /tmp/before <(/share/vdgx/state)

if [[ $kernel == iommufd ]]; then
  say "a guest with both ways"
  quietly gpuvm device bind "${g[0]}" "${g[1]}"
  foreign m "${g[0]}"
  second=$(sed -n '/<hostdev/,/<\/hostdev>/p' /tmp/m.xml)
  bus=${g[1]:5:2}
  second=$(sed "s/bus='0x${g[0]:5:2}'/bus='0x$bus'/; s,<source>,<driver iommufd='no'/><source>," <<<"$second")
  awk -v more="$second" '{ print } /<\/hostdev>/ { print more }' /tmp/m.xml >/tmp/mixed.xml
  gpuvm check /tmp/mixed.xml >/tmp/out 2>&1
  has "check warns" /tmp/out "iommufd-mixed"
  # QEMU 11.1.3 ends when the group's comes second.
  if ! virsh -q create /tmp/mixed.xml >/tmp/late 2>&1; then
    has "it does not start, by QEMU's own fault" /tmp/late "VFIO_IOMMU_LEGACY.*is not an instance"
  else
    find "/proc/$(</run/libvirt/qemu/m.pid)/fd" -printf '%l\n' | sort -u >/tmp/open
    node_of "${g[0]}"
    has "one by its device" /tmp/open "^$node\$"
    has "one by its group" /tmp/open "^/dev/vfio/$(basename "$(readlink "$pci/${g[1]}/iommu_group")")\$"
    virsh -q destroy m
  fi
  quietly gpuvm device release "${g[0]}" "${g[1]}"
fi

say "create is killed at each record"
made k --gpu 0
for ((n = 1; n < 60; n++)); do
  killed $n "${how[@]}" || { equal "create: $((n - 1)) records, it ends with" 0 "$status"; break; }
  title="killed at $record"; title=${title:0:60}
  if runs k; then
    gpuvm recover </dev/null >/tmp/out 2>&1
    check "$title: recover leaves a guest that runs" runs k
    virsh -q destroy k
  fi
  gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
  no_journal "$title"
  if virsh -q dominfo k >/dev/null 2>&1; then
    quietly gpuvm delete k --yes
  fi
  let_go "$gpu"
  check "$title: all is as before" diff /tmp/before <(/share/vdgx/state)
  [[ $fails -lt 20 ]] || break
done
! virsh -q dominfo k >/dev/null 2>&1 || quietly gpuvm delete k --yes
let_go "$gpu"
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
