#!/bin/bash
# Direct transfers below a PCIe switch over a real reboot under systemd (run --systemd): libvirt starts the guest by itself, and the
# unit of `host p2p restore --at-boot` sets the port that it needs.
. /usr/lib/vdgx/halts
mapfile -t g < <(bdfs 0302 10de 0); mapfile -t n < <(bdfs 0200 15b3)
port=$(basename "$(dirname "$(readlink -f "$pci/${n[0]}")")")
unit=/etc/systemd/system/gpuvm-p2p.service
control() { setpci -s "$port" ECAP_ACS+6.w; }
groups() { find /sys/kernel/iommu_groups -path '*/devices/*' | sort; }
# since UNIT PROPERTY: prints that time, in microseconds since power-on.
since() { systemctl show -P "$2TimestampMonotonic" "$1"; }
equal "systemd is what runs" systemd "$(</proc/1/comm)"
equal "no unit failed" "" "$(systemctl --failed --no-legend --plain)"
case $boot in
  1)
    groups >/share/groups
    equal "as Linux sets it" 001d "$(control)"
    check "libvirt is enabled" systemctl -q enable --now libvirtd.service
    start_libvirt || exit 1
    disk_dir=/var/lib/libvirt/images
    phase "create a" make a --gpu "${g[0]}" --nic "${n[0]}" --p2p auto || { fail "create a"; said; }
    equal "the port is set" 005d "$(control)"
    check "a starts with the host" virsh -q autostart a
    gpuvm host p2p restore --at-boot >/tmp/out 2>&1; equal "restore --at-boot ends with" 0 $?
    said
    has "it prints the kernel's argument" /tmp/out "pci=config_acs=1x111x1@0000:20:00.0/00.0/07.0"
    has "the unit restores ports" $unit "^ExecStart=.* host p2p restore"
    reboot_host
    ;;
  2)
    start_libvirt || exit 1
    check "a runs" wait_for 240 runs a
    equal "the unit did it" "success active exited" \
      "$(systemctl show -P Result -P ActiveState -P SubState gpuvm-p2p.service | paste -sd' ')"
    check "after libvirt" test "$(since gpuvm-p2p ExecMainStart)" -gt "$(since libvirtd ExecMainStart)"
    equal "the port is set" 005d "$(control)"
    equal "for a" "$(virsh domuuid a)" "$(jq -r '.guests[]' "/run/gpuvm/p2p/$port.json")"
    check "groups are what they were" diff /share/groups <(groups)
    gpuvm verify a >/tmp/out 2>&1; equal "verify a finds nothing" 0 $?
    quietly gpuvm delete a --yes
    equal "delete clears it" 001d "$(control)"
    quietly gpuvm host p2p restore --at-boot --remove
    equal "nothing of ours is left" "" "$(find /etc -name '*gpuvm*' ! -path '/etc/gpuvm*')"
    rm -r /var/lib/gpuvm/history/host # what undo would take
    systemctl -q disable libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket virtlogd.socket virtlogd-admin.socket
    finish
    ;;
esac
