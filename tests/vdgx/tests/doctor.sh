#!/bin/bash
# gpuvm host doctor on a real kernel.
#   doctor.sh           the IOMMU is on: no error, also with a GPU on vfio-pci, and with one in D3hot; then a driver that
#                       binds first
#   doctor.sh off       booted with intel_iommu=off, which is reported, along with the reasons why bind refuses
#   doctor.sh console   the firmware's picture is in a display's memory, and vesafb has reserved it
# Each is compared with the messages of QEMU and the kernel when a guest gets the device. (virt-host-validate reports nothing
# here: without VMX it does not know whether there may be an IOMMU.)
. /usr/lib/vdgx/env
pci=/sys/bus/pci/devices
# The GPUs; $idle is one with power management (vdgx-idle), which the others lack.
gpu=() idle=
for bdf in $(bdfs 0302 10de); do
  if [[ $(<"$pci/$bdf/device") == 0x1db1 ]]; then idle=$bdf; else gpu+=("$bdf"); fi
done
# doctor [OPTION...]: keeps the answer, prints the exit status; findings about this stand-in machine itself are removed: it is
# emulated, so it has no KVM, and libvirt and firmware are not needed here.
doctor() {
  gpuvm host doctor --json "$@" >/tmp/all.json 2>/tmp/doctor.err
  local status=$?
  jq 'del(.findings[] | select(.rule | IN("no-kvm", "no-libvirt", "no-qemu", "no-firmware")))' /tmp/all.json >/tmp/doctor.json
  [[ $status != 3 ]] || jq -e '[.findings[], .journal[] | select(.severity == "error")] != []' /tmp/doctor.json >/dev/null || status=0
  echo $status
}
# rules SEVERITY: prints the rules with findings of this severity.
rules() { jq -r ".findings[] | select(.severity == \"$1\").rule" /tmp/doctor.json | sort -u | paste -sd' '; }
# of RULE FIELD: prints a field of the first finding of a rule.
of() { jq -r "[.findings[] | select(.rule == \"$1\")][0].$2" /tmp/doctor.json; }
# guest BDF: gives a function to a guest that does not run, and keeps the messages of QEMU and the kernel.
guest() {
  dmesg -C
  timeout 60 qemu-system-x86_64 -nodefaults -display none -S -m 64 -monitor stdio -device "vfio-pci,host=$1" \
    <<<quit >/tmp/qemu 2>&1
  local status=$?
  dmesg >>/tmp/qemu
  echo $status
}
case ${1:-on} in
  off)
    equal "ends with 3" 3 "$(doctor)"
    equal "the error" iommu-off "$(rules error)"
    jq -r '.findings[0].message, .findings[0].fix[]' /tmp/doctor.json >/tmp/said
    has "it says why" /tmp/said 'command line has `intel_iommu=off`'
    gpuvm device bind "${gpu[0]}" --yes >/tmp/bind 2>&1
    equal "bind is refused" 1 $?
    has "by the same rule" /tmp/bind '\(iommu-off\)'
    # Every verb reports it, in the same words.
    why='cannot be passed through: the IOMMU is off, so the host has no IOMMU group'
    gpuvm capacity >/tmp/capacity 2>&1
    has "capacity" /tmp/capacity "$why"
    gpuvm plan --gpus 1 --name a >/tmp/plan 2>&1
    equal "plan is refused" 1 $?
    has "plan" /tmp/plan "$why"
    equal "gpu list" barred "$(gpuvm gpu list --json | jq -r '[.[].state] | unique | join(" ")')"
    equal "and nothing is bound" - "$(driver_of "${gpu[0]}")"
    equal "QEMU does not start" 1 "$(guest "${gpu[0]}")"
    has "for this reason" /tmp/qemu 'no iommu_group found'
    ;;
  console)
    mapfile -t display < <(bdfs 0300 1002)
    equal "the boot display" 1 "$(cat "$pci/${display[0]}/boot_vga")"
    grep -E 'fb|FB' /proc/iomem
    # Debian's kernel: its vfio-pci ends the console of a VGA display when it is bound.
    equal "ends with 0" "0 " "$(doctor) $(rules error)"
    has "the warning" <(rules warning) 'console-holds-gpu'
    equal "of the display" "${display[0]}" "$(of console-holds-gpu device)"
    equal "by the memory that is reserved" /proc/iomem "$(of console-holds-gpu at)"
    # Without root the addresses are hidden, and the boot display decides.
    setpriv --reuid 65534 --regid 65534 --clear-groups gpuvm host doctor --json >/tmp/doctor.json 2>/tmp/doctor.err
    has "without root, too" <(rules warning) 'console-holds-gpu'
    equal "by the boot display" /sys/bus/platform/devices/vesa-framebuffer.0 "$(of console-holds-gpu at)"
    check "bind" gpuvm device bind "${display[0]}" --yes 2>/tmp/bind
    has "it warns by the rule" /tmp/bind '\(console-holds-gpu\)'
    check "the console is gone" bash -c '! grep vesafb /proc/iomem'
    equal "QEMU starts" 0 "$(guest "${display[0]}")"
    check "and the kernel has reserved the memory" bash -c "! grep \"can't reserve\" /tmp/qemu"
    equal "ends with 0 then" "0 " "$(doctor) $(rules error)"
    check "no warning of the console then" bash -c '! grep console-holds-gpu /tmp/doctor.json'
    check "release" gpuvm device release "${display[0]}"
    ;;
  on)
    equal "ends with 0" 0 "$(doctor)"
    equal "no error" "" "$(rules error)"
    check "bind" gpuvm device bind "${gpu[0]}" --yes
    equal "QEMU starts" 0 "$(guest "${gpu[0]}")"
    equal "ends with 0 with a GPU on vfio-pci" 0 "$(doctor)"
    equal "no error with a GPU on vfio-pci" "" "$(rules error)"
    jq -r '.findings[] | "\(.severity) \(.rule) \(.message)"' /tmp/doctor.json
    jq -r '.not_checked[]' /tmp/doctor.json
    equal "nothing but VFIO and libvirt is unknown" "" "$(jq -r '.not_checked[]' /tmp/doctor.json |
      grep -vE '^(governor|snp-tdx|no-|libvirt-|guests of libvirt|the kernel)')"
    check "release" gpuvm device release "${gpu[0]}"
    # It is unused, so vfio-pci puts it to sleep, and a guest wakes it.
    state() { [[ $(<"$pci/$idle/power_state") == "$1" ]]; }
    check "bind the GPU that can sleep" gpuvm device bind "$idle" --yes
    check "it sleeps" wait_for 60 state D3hot
    equal "ends with 0 while it sleeps" "0 " "$(doctor) $(rules error)"
    has "the warning" <(rules warning) 'd3cold'
    equal "of this GPU" "$idle" "$(of d3cold device)"
    check "nobody woke it" state D3hot
    equal "QEMU starts, and wakes it" 0 "$(guest "$idle")"
    check "the kernel has nothing against it" bash -c "! grep -iE 'power state|inaccessible' /tmp/qemu"
    jq -r '.findings[] | select(.rule == "d3cold").fix[0]' /tmp/doctor.json >/tmp/fix
    has "what helps" /tmp/fix "^echo 0 >$pci/$idle/d3cold_allowed\$"
    check "what it prints can be run" bash /tmp/fix
    equal "ends with 0 then" 0 "$(doctor)"
    check "and no warning is left" bash -c "! grep '\"d3cold\"' /tmp/doctor.json"
    check "release" gpuvm device release "$idle"
    # A driver that binds before vfio-pci, with pci-stub in its place.
    modprobe pci-stub
    id=$(printf '%04x:%04x' "$(<"$pci/${gpu[1]}/vendor")" "$(<"$pci/${gpu[1]}/device")")
    mkdir -p /etc/modprobe.d && echo "options vfio-pci ids=$id" >/etc/modprobe.d/vfio.conf
    echo pci-stub >"$pci/${gpu[1]}/driver_override"
    echo "${gpu[1]}" >/sys/bus/pci/drivers_probe
    equal "the driver that is first" pci-stub "$(driver_of "${gpu[1]}")"
    equal "ends with 3" 3 "$(doctor)"
    equal "the error" driver-first "$(rules error)"
    equal "of the GPU" "${gpu[1]}" "$(of driver-first device)"
    jq -r '.findings[] | select(.rule == "driver-first").fix[]' /tmp/doctor.json >/tmp/fix
    has "what helps" /tmp/fix "^gpuvm device bind ${gpu[1]} --at-boot --initramfs\$"
    # The printed commands help.
    check "bind for every boot" gpuvm device bind "${gpu[1]}" --at-boot --yes
    equal "ends with 0 then" "0 " "$(doctor) $(rules error)"
    check "release" gpuvm device release "${gpu[1]}" --at-boot
    rm /etc/modprobe.d/vfio.conf
    ;;
esac
finish
