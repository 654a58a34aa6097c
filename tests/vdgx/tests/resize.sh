#!/bin/bash
# A stopped guest gets one more GPU, which it sees when it runs, and releases one, which returns to its driver; undo reverts
# both. On a host without NVSwitches, where any two GPUs are a set and libvirt binds them.
. /usr/lib/vdgx/env
start_libvirt || exit 1
dev=/sys/bus/pci/devices
# is BDF: its driver and override.
is() { echo "$(driver_of "$1") $(<"$dev/$1/driver_override")"; }
# has_gpus: the functions of the definition, by address.
has_gpus() {
  local at='domain=.0x\(....\). bus=.0x\(..\). slot=.0x\(..\). function=.0x\(.\).'
  virsh dumpxml --inactive a | sed -n "/<source>/,/<.source>/s/.*$at.*/\1:\2:\3.\4/p" | sort | xargs
}
/share/vdgx/state >/tmp/before
cat >/tmp/l2.xml <<'X'
<domain type='qemu'><name>l2</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/var/lib/libvirt/images/l2-probe</kernel>
<cmdline>hold</cmdline></os><features><acpi/></features>
<cpu mode='custom' match='exact' check='none'><model>qemu64</model></cpu><on_poweroff>destroy</on_poweroff>
<devices><controller type='usb' index='0' model='none'/><memballoon model='none'/><serial type='file'><source path='/tmp/a.log'/></serial></devices></domain>
X
phase "create" gpuvm create --gpus 1 --name a --template /tmp/l2.xml --virt-type qemu --vcpus 1 --memory 64M \
  --pins none --disk-dir /tmp --os-size 1M --no-wait || fail "create"
gpuvm set a --gpus 2 --accept-shared-fabric --yes >/tmp/out 2>&1; equal "not while it runs" 1 $?
has "it says what to do" /tmp/out "gpuvm stop a"
check "stop" gpuvm stop a --force
first=$(has_gpus)
/share/vdgx/state >/tmp/one
check "a GPU more" gpuvm set a --gpus 2 --accept-shared-fabric --yes
mapfile -t both < <(has_gpus | tr ' ' '\n')
equal "it has two" 2 ${#both[@]}
has "its own is one of them" <(printf '%s\n' "${both[@]}") "$first"
: >/tmp/a.log
phase "start" gpuvm start a || fail "start"
for bdf in "${both[@]}"; do equal "$bdf is the guest's" vfio-pci "$(driver_of "$bdf")"; done
check "the guest sees both" wait_for 240 bash -c "[[ \$(grep -a -c 10de:1db8 /tmp/a.log) -ge 2 ]]"
check "verify finds nothing of its plan" bash -c "! gpuvm verify a --json | grep -q '\"plan-'"
check "stop again" gpuvm stop a --force
check "one less" gpuvm set a --gpus 1 --yes
left=$(has_gpus)
for bdf in "${both[@]}"; do
  [[ $bdf == "$left" ]] || equal "$bdf is with its driver again" "- (null)" "$(is "$bdf")"
done
check "undo" gpuvm undo a --yes
equal "it has both again" "${both[*]}" "$(has_gpus)"
check "undo of the first" gpuvm undo a --yes
check "all is as with one" diff /tmp/one <(/share/vdgx/state)
# A NIC, which libvirt binds at each start; then one for the running guest, whose kernel has no hotplug.
check "a NIC" gpuvm set a --nic 1 --yes
nic=$(has_gpus | tr ' ' '\n' | grep -vxF "$first")
own=$(driver_of "$nic")
equal "one NIC comes" 1 "$(wc -w <<<"$nic")"
phase "start with it" gpuvm start a || fail "start with it"
equal "the NIC is the guest's" vfio-pci "$(driver_of "$nic")"
gpuvm set a --no-nic --live --yes >/tmp/out 2>&1; equal "the guest keeps it" 1 $?
has "it says so" /tmp/out "is not removed from running domain"
equal "so does its definition" "$first $nic" "$(has_gpus | tr ' ' '\n' | grep -xF -e "$first" -e "$nic" | xargs)"
check "stop with it" gpuvm stop a --force
equal "the NIC is with its driver" "$own" "$(driver_of "$nic")"
check "without it" gpuvm set a --no-nic --yes
phase "start without it" gpuvm start a || fail "start without it"
gpuvm set a --nic 1 --yes >/tmp/out 2>&1; equal "not at its next start" 1 $?
has "it says how" /tmp/out "gpuvm set a --nic 1 --live"
check "it comes at once" gpuvm set a --nic 1 --live --yes
equal "it is the guest's at once" vfio-pci "$(driver_of "$nic")"
equal "its port is on the root bus" 1 "$(virsh dumpxml a | grep -c "alias name='ua-pci0'")"
check "check finds nothing of it" bash -c "! gpuvm check a | grep -q '$nic'"
check "tune moves nothing" bash -c "! gpuvm tune a --diff | grep -q \"^-.*<address type='pci'\""
gpuvm set a --nic 2 --live --yes >/tmp/out 2>&1; equal "there is no second port" 1 $?
has "it says what to do" /tmp/out "gpuvm stop a"
check "stop the last time" gpuvm stop a --force
equal "it is with its driver at last" "$own" "$(driver_of "$nic")"
check "undo of the NIC" gpuvm undo a --yes
for _ in 1 2; do check "undo of the others" gpuvm undo a --yes; done
check "it is as with one GPU" diff /tmp/one <(/share/vdgx/state)
phase "delete" gpuvm delete a --yes || fail "delete"
check "all is as before" diff /tmp/before <(/share/vdgx/state)

finish
