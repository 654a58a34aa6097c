#!/bin/bash
# Devices that may never be taken from the host are refused with their holder and stay untouched, also with --force; a driver
# that does not release a device is given up. An IOMMU group of two devices and a bridge needs, of `run`:
#   --qemu-arg -device --qemu-arg pcie-pci-bridge,id=shared,bus=pcie.0 --qemu-arg -device \
#   --qemu-arg pci-testdev,bus=shared,addr=1 --qemu-arg -device --qemu-arg pci-testdev,bus=shared,addr=2
. /usr/lib/vdgx/env
start_libvirt || exit 1
dev=/sys/bus/pci/devices
mapfile -t g < <(bdfs 0302 10de); mapfile -t n < <(bdfs 0108); mapfile -t nic < <(bdfs 0200 8086)
mapfile -t shared < <(bdfs 00ff 1b36)
# is BDF: its driver and override.
is() { echo "$(driver_of "$1") $(<"$dev/$1/driver_override")"; }
row() { gpuvm device list --all --json | jq -r ".[] | select(.bdf == \"$1\") | $2"; }
# block BDF: the name of its drive.
block() { gpuvm host show --json | jq -r ".host.drives[] | select(.bdf == \"$1\") | .name"; }
# refused NAME PATTERN ARGS...: exits with 1 and this reason, also with --force unless FORCE=1, and touches nothing.
refused() {
  local name=$1 pattern=$2 force; shift 2
  /share/vdgx/state >/tmp/untouched
  for force in '' --force; do
    [[ -z $force || -z $FORCE ]] || continue
    gpuvm device "$@" $force >/tmp/out 2>&1; equal "$name${force:+, forced}: exit code" 1 $?
    has "$name${force:+, forced}: holder" /tmp/out "$pattern"
  done
  check "$name: nothing is touched" diff /tmp/untouched <(/share/vdgx/state)
}
# own_driver BDF: binds it to pci-stub, as a driver of the host.
own_driver() { echo pci-stub >"$dev/$1/driver_override"; echo "$1" >/sys/bus/pci/drivers_probe; }
drop_driver() { echo "$1" >/sys/bus/pci/drivers/pci-stub/unbind; echo >"$dev/$1/driver_override"; }
modprobe pci-stub

/share/vdgx/state >/tmp/before
say "what may never be taken"
if=$(ls "$dev/${nic[0]}/net")
ip link set "$if" up; ip addr add 10.9.9.2/24 dev "$if"
FORCE=1 refused "NIC with an address" "$if is up and has an address" bind "${nic[0]}" --yes
ip route add default via 10.9.9.1 dev "$if"
refused "NIC with the default route" "default route" bind "${nic[0]}" --yes
ip route del default; ip addr flush dev "$if"
ip link add br9 type bridge; ip link set "$if" master br9
refused "NIC in a bridge" "member of bridge br9" bind "${nic[0]}" --yes
ip link set "$if" nomaster; ip link del br9; ip link set "$if" down
echo 2 >"$dev/${nic[1]}/sriov_numvfs"; udevadm settle
refused "NIC with VFs" "its 2 virtual functions" bind "${nic[1]}" --yes
echo 0 >"$dev/${nic[1]}/sriov_numvfs"
b=$(block "${n[3]}")
mkfs.ext4 -q "/dev/$b"; mkdir -p /mnt/taken; mount "/dev/$b" /mnt/taken
refused "mounted drive" "$b mounted at /mnt/taken" bind "${n[3]}" --yes
umount /mnt/taken; rmdir /mnt/taken
mkswap "/dev/$b" >/dev/null; swapon "/dev/$b"
refused "swap" "swaps to $b" bind "${n[3]}" --yes
swapoff "/dev/$b"; wipefs -qa "/dev/$b"
c=$(block "${n[2]}"); modprobe raid0
mdadm --create /dev/md9 --run --level=0 --raid-devices=2 "/dev/$b" "/dev/$c" >/dev/null 2>&1
refused "member of an array" "md9( \(.*\))?, of which $b is a part" bind "${n[3]}" --yes
mdadm --stop /dev/md9 >/dev/null 2>&1; mdadm --zero-superblock "/dev/$b" "/dev/$c"
mknod /tmp/other-name b "$((0x$(stat -c %t "/dev/$b")))" "$((0x$(stat -c %T "/dev/$b")))"
sleep 1000 9</tmp/other-name & holder=$!
FORCE=1 refused "drive that a process has open by another name" "process $holder \(sleep\), which has /dev/$b open" \
  bind "${n[3]}" --yes
kill $holder; wait $holder 2>/dev/null; rm /tmp/other-name
check "bind a GPU" gpuvm device bind "${g[0]}"
group=$(basename "$(readlink "$dev/${g[0]}/iommu_group")")
sleep 1000 9<>"/dev/vfio/$group" & holder=$!
FORCE=1 refused "GPU that a process has open" "process $holder \(sleep\), which has /dev/vfio/$group open" \
  release "${g[0]}"
kill $holder; wait $holder 2>/dev/null
check "release it" gpuvm device release "${g[0]}"
if [[ ${#shared[@]} == 2 ]]; then
  own_driver "${shared[1]}"
  refused "shared group" "shares IOMMU group .* with ${shared[1]}, which driver pci-stub has" bind "${shared[0]}"
  check "both of a group" gpuvm device bind "${shared[@]}" --yes
  equal "both are bound" "vfio-pci vfio-pci vfio-pci vfio-pci" "$(is "${shared[0]}") $(is "${shared[1]}")"
  check "release both" gpuvm device release "${shared[@]}"
  check "bind one whose neighbour nobody has" gpuvm device bind "${shared[0]}"
  equal "the neighbour came along" "vfio-pci vfio-pci" "$(is "${shared[1]}")"
  check "release both" gpuvm device release "${shared[@]}"
else
  say "no shared group in this machine: not tested"
fi
check "all is as before" diff /tmp/before <(/share/vdgx/state)

say "a driver that does not let go"
check "bind" gpuvm device bind "${g[0]}"
qemu-system-x86_64 -nodefaults -display none -S -m 64 -device "vfio-pci,host=${g[0]}" & holder=$!
open() { gpuvm device list --json | grep -q "process $holder (qemu-system"; }
check "QEMU has it open" wait_for 60 open
phase "release --force" gpuvm device release "${g[0]}" --force >/tmp/out 2>&1; equal "it gives up" 1 $?
has "it names driver and holder" /tmp/out "driver vfio-pci did not release ${g[0]} within 60 s; it is held by process $holder"
kill $holder; wait $holder 2>/dev/null
free() { [[ $(driver_of "${g[0]}") == - ]]; }
check "the kernel goes on when the holder ends" wait_for 60 free
check "nothing is left to recover" test -z "$(gpuvm recover)"
check "all is as before" diff /tmp/before <(/share/vdgx/state)

finish
