#!/bin/bash
# Binding of devices on a real kernel: listed, bound, released, also from a driver of the host; the files of --at-boot.
. /usr/lib/vdgx/env
start_libvirt || exit 1
dev=/sys/bus/pci/devices
mapfile -t g < <(bdfs 0302 10de); mapfile -t n < <(bdfs 0108)
# is BDF: its driver and override.
is() { echo "$(driver_of "$1") $(<"$dev/$1/driver_override")"; }
row() { gpuvm device list --all --json | jq -r ".[] | select(.bdf == \"$1\") | $2"; }
/share/vdgx/state >/tmp/before
say "list"
phase "device list" gpuvm device list || fail "device list"
equal "IOMMU group of a GPU" "$(basename "$(readlink "$dev/${g[0]}/iommu_group")")" "$(row "${g[0]}" .iommu_group)"
equal "reset methods of a GPU" "$(<"$dev/${g[0]}/reset_method")" "$(row "${g[0]}" '.reset_methods | join(" ")')"
equal "a free GPU" true "$(row "${g[0]}" .passable)"

say "bind and release"
check "dry run" gpuvm device bind "${g[0]}" --dry-run
check "dry run changes nothing" diff /tmp/before <(/share/vdgx/state)
check "bind a GPU that no driver has" gpuvm device bind "${g[0]}"
equal "it is bound" "vfio-pci vfio-pci" "$(is "${g[0]}")"
gpuvm device bind "${g[0]}" >/tmp/out 2>&1; equal "again: exit code" 0 $?
has "again: already set" /tmp/out "already set"
check "release it" gpuvm device release "${g[0]}"
check "all is as before" diff /tmp/before <(/share/vdgx/state)
gpuvm device bind "${n[3]}" </dev/null >/tmp/out 2>&1; equal "without --yes: exit code" 2 $?
has "without --yes: names the driver" /tmp/out "bind ${n[3]} to vfio-pci, from nvme"
equal "without --yes: untouched" "nvme (null)" "$(is "${n[3]}")"
check "bind a drive" gpuvm device bind "${n[3]}" --yes
equal "it is bound" "vfio-pci vfio-pci" "$(is "${n[3]}")"
check "release it to its driver" gpuvm device release "${n[3]}"
udevadm settle; equal "it is back" "nvme (null)" "$(is "${n[3]}")"
gpuvm device bind 0000:ff:1f.7 >/tmp/out 2>&1; equal "a device that is not there" 1 $?

say "at boot"
unit=/etc/systemd/system/gpuvm-vfio.service options=/etc/modprobe.d/gpuvm-vfio.conf
check "one GPU at boot" gpuvm device bind "${g[0]}" --at-boot
has "by the unit" $unit "^ExecStart=.*gpuvm device bind --early ${g[0]}=10de:1db8$"
check "not by id" test ! -e $options
equal "list tells" true "$(row "${g[0]}" .at_boot)"
check "release it now" gpuvm device release "${g[0]}"
# shellcheck disable=SC2046 # the words are the arguments
check "what the unit does" $(sed -n 's/^ExecStart=//p' $unit)
equal "binds it" "vfio-pci vfio-pci" "$(is "${g[0]}")"
gpuvm device bind --early "${n[3]}=10de:1db8" >/tmp/out 2>&1; equal "another device at the address" 1 $?
equal "is left alone" "nvme (null)" "$(is "${n[3]}")"
check "all GPUs at boot" gpuvm device bind "${g[@]}" --at-boot
has "by their id" $options "^options vfio-pci ids=10de:1db8$"
check "without a unit" test ! -e $unit
check "release all" gpuvm device release "${g[@]}" --at-boot
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
