#!/bin/bash
# vGPUs of real libvirt and QEMU (run --vgpus 2 --gpu-type h100 --gpus 1): virtual functions on a VFIO variant driver, our
# stand-in for NVIDIA's (modules/nvidia.c), which VFIO opens only once they have a type; and mediated devices of the kernel's
# mtty. VFs are made by a fake sriov-manage that fails once; a create is killed at each record.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
cards=()
for b in $(bdfs 0302 10de); do [[ $(<"$pci/$b/device") != 0x2335 ]] || cards+=("$b"); done
card=${cards[0]} other=${cards[1]}
/share/vdgx/state >/tmp/before
. /share/vdgx/vgpu
vgpu_driver
# type_of VF: the number of its type.
type_of() { cat "$pci/$1/nvidia/current_vgpu_type"; }
vf() { basename "$(readlink "$pci/$1/virtfn$2")"; }
# types CARD: the number of each type of its functions that have one.
types() { local f; for f in "$pci/$1"/virtfn*/nvidia/current_vgpu_type; do [[ $(<"$f") == 0 ]] || echo -n "$(<"$f") "; done; }
group_of() { basename "$(readlink "$pci/$1/iommu_group")"; }
# booted NAME PATTERN: the probe of a guest saw such a function.
booted() { check "$1: its probe sees $2" wait_for 240 grep -qaE "L2 pci .* $2" "/share/$1.log"; }

say "virtual functions"
touch /tmp/unbind-once
phase "vfs on" gpuvm vgpu vfs "$card" --on >/tmp/out 2>&1; equal "sriov-manage leaves the card unbound: gpuvm tries again" 0 $?
said
equal "one warning" 1 "$(grep -c "without its driver" /tmp/out)"
equal "there are 8, on the vendor's driver" "8 nvidia nvidia" "$(<"$pci/$card/sriov_numvfs") $(driver_of "$card") $(driver_of "$(vf "$card" 0)")"
quietly gpuvm vgpu vfs "$other" --on
gpuvm vgpu list --json >/tmp/list
equal "types and how many fit" "vfio STANDIN-1C 8 vfio STANDIN-1C 8" \
  "$(jq -r '.[] | select(.interface == "vfio") | "\(.interface) \(.types[0].name) \(.types[0].creatable)"' /tmp/list | paste -sd' ')"
gpuvm plan --gpu "$card" >/tmp/out 2>&1; has "the card goes to no guest as a whole" /tmp/out "8 virtual functions enabled"
gpuvm plan --gpu "$(vf "$card" 0)" >/tmp/out 2>&1; has "nor a function without a type" /tmp/out "without a vGPU type"
foreign x "$(vf "$card" 7)"
virsh -q create /tmp/x.xml >/tmp/late 2>&1 && fail "VFIO opens a function without a type"
has "VFIO itself refuses it" /tmp/late "No such device"

say "two guests on one card"
phase "create a" make a --vgpu STANDIN-1C || fail "create a"
said
phase "create b" make b --vgpu STANDIN-1C || { fail "create b"; said; }
equal "their types" "1 1 " "$(types "$card")"
a=$(vf "$card" 0) b=$(vf "$card" 1)
equal "their functions stay on the driver" "nvidia nvidia" "$(driver_of "$a") $(driver_of "$b")"
booted a 10de:10ca
booted b 10de:10ca
qemu=$(</run/libvirt/qemu/a.pid)
find "/proc/$qemu/fd" -printf '%l\n' >/tmp/open
has "QEMU has its group open" /tmp/open "^/dev/vfio/$(group_of "$a")\$"
(echo 0 >"$pci/$a/nvidia/current_vgpu_type") 2>/tmp/late && fail "an open function loses its type"
has "the driver keeps the type of an open function" /tmp/late "not permitted"
for name in a b; do
  gpuvm verify $name >/tmp/out 2>&1; equal "verify $name finds nothing" 0 $?
  gpuvm check $name >/tmp/out 2>&1; check "check $name finds no error" bash -c "! grep -i ^error /tmp/out"
done
gpuvm plan --vgpu "STANDIN-8C,gpu=$card" >/tmp/out 2>&1; equal "another size on that card" 1 $?
has "is refused with the mixed mode" /tmp/out "shm 1 -i $card"
equal "and planned on the other one" "$other" "$(gpuvm plan --vgpu STANDIN-8C --json 2>/dev/null | jq -r '.placement.vgpus[0].card')"
gpuvm vgpu vfs "$card" --off >/tmp/out 2>&1; equal "the functions stay" 1 $?
has "for the guests" /tmp/out 'held by domain `a`'

say "an unknown holder"
f=$(vf "$other" 3)
echo 2 >"$pci/$f/nvidia/current_vgpu_type"
gpuvm vgpu list >/tmp/out 2>&1; has "it is listed" /tmp/out "unknown holder"
gpuvm vgpu vfs "$other" --off >/tmp/out 2>&1; equal "its card keeps the functions" 1 $?
gpuvm plan --vgpu "STANDIN-2C,gpu=$other" --json >/tmp/out 2>/dev/null
check "its function is not planned" bash -c "! grep -q '\"function\": *\"$f\"' /tmp/out"
equal "nothing cleared it" 2 "$(type_of "$f")"
echo 0 >"$pci/$f/nvidia/current_vgpu_type"

say "delete"
virsh -q destroy b
exec 9<>"/dev/vfio/$(group_of "$b")"
gpuvm delete b --yes >/tmp/out 2>&1
said
has "a process has the function: it is named" /tmp/out "process $$"
equal "and the type stays" 1 "$(type_of "$b")"
exec 9>&-
echo 0 >"$pci/$b/nvidia/current_vgpu_type"
! virsh -q dominfo b >/dev/null 2>&1 || quietly gpuvm delete b --yes
quietly gpuvm delete a --yes
equal "no type is left" "" "$(types "$card")"

say "create is killed at each record"
made k --vgpu STANDIN-4C
for ((n = 1; n < 60; n += 2)); do
  killed $n "${how[@]}" || { equal "create: $((n - 1)) records, it ends with" 0 "$status"; break; }
  title="killed at $record"; title=${title:0:60}
  ! runs k || virsh -q destroy k
  gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
  no_journal "$title"
  ! virsh -q dominfo k >/dev/null 2>&1 || quietly gpuvm delete k --yes
  equal "$title: no type is left" "" "$(types "$card")$(types "$other")"
done
! virsh -q dominfo k >/dev/null 2>&1 || quietly gpuvm delete k --yes

say "mediated devices"
insmod /share/vdgx/ko/mtty.ko || fail "insmod mtty.ko"
h100=$(for d in $(bdfs 0302 10de); do [[ $(<"$pci/$d/device") != 0x2330 ]] || echo "$d"; done)
left() { cat "$pci/$h100/mdev_supported_types/nvidia-1/available_instances"; }
equal "mtty has 24" 24 "$(left)"
gpuvm vgpu list >/tmp/out; has "they are listed" /tmp/out "nvidia-1 .*24"
phase "create m" make m --vgpu nvidia-1 || { fail "create m"; said; }
booted m 4348:3253
equal "one is made" 23 "$(left)"
uuid=$(virsh dumpxml m | sed -n "s/.*<address uuid='\(.*\)'.*/\1/p" | head -n 1)
check "by its UUID" test -e "/sys/bus/mdev/devices/$uuid"
gpuvm verify m >/tmp/out 2>&1; equal "verify m finds nothing" 0 $?
for ((n = 0; n < 23; n++)); do
  printf '00000000-0000-4000-8000-%012d' $n >"$pci/$h100/mdev_supported_types/nvidia-1/create"
done
equal "none is left" 0 "$(left)"
for ((n = 0; n < 3; n++)); do
  gpuvm plan --vgpu nvidia-1 >/tmp/out 2>&1; status=$?
  # libvirtd does not answer in time on a busy machine.
  grep -q "has not answered" /tmp/out || break
  wait_for 120 virsh list
done
equal "one more is refused" 1 $status
said
has "with the number" /tmp/out "0 creatable, 24 in use"
quietly gpuvm delete m --yes
check "its device is gone" test ! -e "/sys/bus/mdev/devices/$uuid"
equal "others' devices stay" 1 "$(left)"
for ((n = 0; n < 23; n++)); do echo 1 >"/sys/bus/mdev/devices/00000000-0000-4000-8000-$(printf %012d $n)/remove"; done
rmmod mtty

for c in "$card" "$other"; do quietly gpuvm vgpu vfs "$c" --off; done
equal "no function is left" "0 0" "$(<"$pci/$card/sriov_numvfs") $(<"$pci/$other/sriov_numvfs")"
vgpu_driver_off
rm -f /tmp/*.raw
rm -rf /run/gpuvm/vgpu-types
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
