#!/bin/bash
# vGPUs over a real reboot under systemd (run --systemd --vgpus 1): the unit of --at-boot makes the virtual functions again, whose
# types are lost, and gpuvm start sets the guest's.
. /usr/lib/vdgx/halts
card=$(for b in $(bdfs 0302 10de); do [[ -e $pci/$b/physfn ]] || echo "$b"; done)
. /share/vdgx/vgpu
extra=/usr/lib/modules/$(uname -r)/extra loads=/etc/modules-load.d/nvidia.conf
type_now() { cat "$pci/$card/virtfn0/nvidia/current_vgpu_type"; }
case $boot in
  1)
    mkdir -p "$extra" && cp /share/vdgx/ko/nvidia.ko "$extra/" && depmod
    echo nvidia >$loads
    vgpu_driver
    check "libvirt is enabled" systemctl -q enable --now libvirtd.service
    start_libvirt || exit 1
    check "virtual functions, at boot as well" gpuvm vgpu vfs "$card" --on --at-boot
    disk_dir=/var/lib/libvirt/images
    phase "create r" make r --vgpu STANDIN-2C || { fail "create r"; said; }
    equal "its type" 2 "$(type_now)"
    reboot_host
    ;;
  2)
    equal "systemd is what runs" systemd "$(</proc/1/comm)"
    start_libvirt || exit 1
    equal "the unit has made the functions" 8 "$(<"$pci/$card/sriov_numvfs")"
    check "before libvirt" systemctl is-active --quiet gpuvm-vgpu.service
    equal "the type is lost" 0 "$(type_now)"
    quietly gpuvm start r
    equal "start sets it" 2 "$(type_now)"
    check "r runs" runs r
    gpuvm verify r >/tmp/out 2>&1; equal "verify r finds nothing" 0 $?
    quietly gpuvm delete r --yes
    equal "delete clears it" 0 "$(type_now)"
    quietly gpuvm vgpu vfs "$card" --off --at-boot
    check "no unit is left" test ! -e /etc/systemd/system/gpuvm-vgpu.service
    systemctl -q disable --now libvirtd.service 2>/dev/null
    vgpu_driver_off
    rm -rf "$loads" "$extra" /run/gpuvm/vgpu-types
    depmod
    finish
    ;;
esac
