#!/bin/bash
# A guest with two GPUs, made, started and deleted by gpuvm: the probe in it sees its devices, and threads, memory and
# drivers of the host are as planned; with pages of 2 MiB, which gpuvm reserves, then of 1 GiB, which are reserved at
# boot. Afterwards everything is as before, including the number of pages.
# The second guest gets the GPUs of the first, and finds their memory cleared. It also has an NVMe drive as a PCI function,
# a partition of another and a virtual function.
. /usr/lib/vdgx/guests
# Devices of the guest besides those of the plan.
disks=()
start_libvirt || exit 1

# verifies NAME: verify finds nothing; then a moved pin, by its name; then nothing again.
verifies() {
  local pin other said
  pin=$(planned "$1" '.vcpu_pins[0]') other=$(planned "$1" .emulator_pin)
  other=${other%%[,-]*}
  phase "verify $1" gpuvm verify "$1" || fail "verify $1"
  virsh vcpupin "$1" 0 "$other" --live >/dev/null
  if said=$(gpuvm verify "$1" 2>&1); then fail "verify $1: a moved pin is not found"; fi
  check "verify $1: a moved pin is named" grep -q "pin of vcpu 0 of what runs: expected $pin, found $other" <<<"$said"
  virsh vcpupin "$1" 0 "$pin" --live >/dev/null
  check "verify $1: it is back" gpuvm verify "$1"
}

# try NAME KIB ARGS...: one guest, from create to delete.
try() {
  local name=$1 kib=$2 before; shift 2
  before=$(pages_of "$kib")
  phase "create $name" create "$name" "$@" || { fail "create $name"; tail -n 20 "/var/log/libvirt/qemu/$name.log"; return; }
  has_drivers "$name"
  has_threads "$name"
  has_memory "$name" "$kib"
  has_devices "$name"
  virsh dumpxml "$name" >"/share/$name.xml"
  phase "check $name" gpuvm check "$name" || fail "check $name"
  verifies "$name"
  phase "delete $name" gpuvm delete "$name" --yes || fail "delete $name"
  equal "$name: pages afterwards, and free ones" "$before" "$(pages_of "$kib")"
}

refused='huge pages are missing' # what gpuvm says of a guest that has not enough of them
if said=$(create too-few --gpus 2 --memory 64M --huge-pages 2M 2>&1); then fail "a guest without its pages is made"; fi
check "the pages that are missing are told" grep -q "$refused" <<<"$said"
try two-mib 2048 --gpus 2 --memory 64M --huge-pages 2M --reserve-pages
# libvirt uses pages only if a hugetlbfs of their size is mounted, which the rig has done.
read -r nic < <(bdfs 0200 8086 0)
net=$(ls "$pci/$nic/net") && was_up=$(($(<"/sys/class/net/$net/flags") & 1))
check "virtual functions" gpuvm nic vfs "$nic" --count 2
mapfile -t nvme < <(bdfs 0108)
drive=/dev/$(gpuvm host show --json | jq -r ".host.drives[] | select(.bdf == \"${nvme[1]}\") | .name")
sgdisk -n 1:0:+100M "$drive" >/dev/null; partprobe "$drive"; udevadm settle
uuid=$(blkid -p -o value -s PART_ENTRY_UUID "${drive}p1")
disks=(--partition "$uuid")
if [[ $huge1g != 0 ]]; then
  try one-gib 1048576 --gpus 2 --memory 1G --huge-pages 1G --nvme "${nvme[0]}" --vf 1
  # has_devices saw that its BARs read 0 before it writes; so the reset in between cleared the first guest's data.
  equal "the GPUs of the guest before" "$(planned two-mib ".devices[]")" \
    "$(planned one-gib ".devices[]" | grep -Fx "$(planned two-mib ".devices[]")")"
  has "the partition is a disk of the guest" /share/one-gib.xml "<source dev='/dev/disk/by-partuuid/$uuid'"
fi
sgdisk -Z "$drive" >/dev/null; partprobe "$drive"; udevadm settle
check "no virtual functions any more" gpuvm nic vfs "$nic" --count 0 --yes
[[ $was_up == 1 ]] || ip link set "$net" down
finish
