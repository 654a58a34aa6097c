#!/bin/bash
# The files of --at-boot, by real reboots under systemd (run --systemd): the host comes up with its GPUs and a drive on vfio-pci
# and its NVSwitches not, with its virtual functions, its huge pages and its setting, and starts the guest that has some of
# them. Then everything is reverted except the GPUs that are bound by their id, and the host comes up with these only.
. /usr/lib/vdgx/guests
mapfile -t gpu < <(bdfs 0302 10de); mapfile -t nvswitch < <(bdfs 0680 10de)
mapfile -t drive < <(bdfs 0108)
nic=() # without their virtual functions
for b in $(bdfs 0200 8086); do [[ ! -e $pci/$b/sriov_numvfs ]] || nic+=("$b"); done
v100=() a100=()
for b in "${gpu[@]}"; do
  case $(<"$pci/$b/device") in 0x1db8) v100+=("$b") ;; 0x20b2) a100+=("$b") ;; esac
done
unit=/etc/systemd/system
# fine: systemd has started everything, and nothing failed.
fine() {
  equal "systemd is what runs" systemd "$(</proc/1/comm)"
  systemctl --failed --no-legend --plain >/tmp/failed
  equal "no unit failed" "" "$(</tmp/failed)"
  [[ ! -s /tmp/failed ]] || systemctl status --no-pager $(awk '{ print $1 }' /tmp/failed)
}
# drivers: prints the driver of each tested device.
drivers() {
  for b in "${gpu[@]}" "${nvswitch[@]}" "${drive[@]}"; do echo "$b $(driver_of "$b")"; done
}
numbers() { cat "$pci/${nic[0]}/sriov_numvfs" "$pci/${nic[1]}/sriov_numvfs" | paste -sd' '; }
pages=$node/node0/hugepages/hugepages-2048kB/nr_hugepages
balancing=/proc/sys/kernel/numa_balancing
# since UNIT PROPERTY: prints that time, in microseconds since power-on.
since() { systemctl show -P "$2TimestampMonotonic" "$1"; }
equal "GPUs that are there" "4 2" "${#v100[@]} ${#a100[@]}"
fine
case $boot in
  1)
    say "what is to be at boot"
    drivers >/share/drivers
    cat $balancing >/share/balancing
    check "libvirt is enabled" systemctl -q enable --now libvirtd.service
    start_libvirt || exit 1
    check "GPUs of an id, all of them" gpuvm device bind "${v100[@]}" --at-boot
    has "by their id" /etc/modprobe.d/gpuvm-vfio.conf "^options vfio-pci ids=10de:1db8$"
    check "a GPU of two of its id, and a drive" gpuvm device bind "${a100[0]}" "${drive[1]}" --at-boot --yes
    has "by the unit" $unit/gpuvm-vfio.service "^ExecStart=.* --early ${a100[0]}=10de:20b2"
    check "virtual functions" gpuvm nic vfs "${nic[0]}" --count 3 --at-boot
    check "a network of some" gpuvm network create pool --kind sriov --nic "$(ls "$pci/${nic[1]}/net")" --vfs 2
    check "huge pages" gpuvm host pages --node 0 --size 2M --count 16 --at-boot
    words=(on off) # what it is not
    check "a setting" gpuvm host tuning --numa-balancing "${words[$(<$balancing)]}" --at-boot
    disk_dir=/var/lib/libvirt/images
    phase "create own" create own --nvme "${drive[1]}" --network pool --vcpus 1 --memory 64M --pins none || fail "create own"
    check "own starts with the host" virsh -q autostart own
    reboot_host
    ;;
  2)
    say "what is at boot"
    expected=$(</share/drivers)
    for b in "${v100[@]}" "${a100[0]}" "${drive[1]}"; do expected=$(sed "s/^$b .*/$b vfio-pci/" <<<"$expected"); done
    equal "GPUs and the drive are on vfio-pci, others and NVSwitches are not" "$expected" "$(drivers)"
    equal "virtual functions" "3 2" "$(numbers)"
    equal "pages" 16 "$(<$pages)"
    equal "the setting" $((1 - $(</share/balancing))) "$(<$balancing)"
    for u in gpuvm-vfio gpuvm-vfs; do
      equal "$u did it" "success active exited" "$(systemctl show -P Result -P ActiveState -P SubState $u | paste -sd' ')"
      check "$u: before libvirt" test "$(since $u ActiveEnter)" -lt "$(since libvirtd ExecMainStart)"
    done
    check "the devices: before udev" test "$(since gpuvm-vfio ActiveEnter)" -lt "$(since systemd-udev-trigger ExecMainStart)"
    equal "list tells" true "$(gpuvm device list --all --json | jq "[.[] | select(.bdf == \"${a100[0]}\" or .bdf == \"${v100[0]}\").at_boot] | all")"
    start_libvirt || exit 1
    check "the guest runs" wait_for 240 bash -c '[[ $(virsh domstate own) == running* ]]'
    check "and has its drive and its function" wait_for 240 bash -c '[[ $(grep -acE "L2 (pci .* 8086:10ca|nvme .* serial VDGX)" /share/own.log) == 2 ]]'
    say "all but the GPUs of an id taken back"
    phase "delete own" gpuvm delete own --yes || fail "delete own"
    check "delete the network" gpuvm network delete pool --yes
    rm -r /var/lib/gpuvm/networks # what undo would take
    for n in "${nic[@]}"; do check "no virtual functions" gpuvm nic vfs "$n" --count 0 --at-boot --yes; done
    check "release the others" gpuvm device release "${a100[0]}" "${drive[1]}" --at-boot
    check "no pages" gpuvm host pages --node 0 --size 2M --count 0 --at-boot --yes
    check "the setting is taken back" gpuvm host undo --yes
    systemctl -q disable libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket virtlogd.socket virtlogd-admin.socket
    reboot_host
    ;;
  3)
    say "GPUs of an id, and nothing else"
    for b in "${v100[@]}"; do sed "s/^$b .*/$b vfio-pci/" -i /share/drivers; done
    check "they are on vfio-pci" diff /share/drivers <(drivers)
    equal "virtual functions" "0 0" "$(numbers)"
    equal "pages" 0 "$(<$pages)"
    equal "the setting" "$(</share/balancing)" "$(<$balancing)"
    check "release them" gpuvm device release "${v100[@]}" --at-boot
    equal "nothing of ours is left" "" "$(find /etc -name '*gpuvm*' ! -path '/etc/gpuvm*')"
    finish
    ;;
esac
