#!/bin/bash
# A network of virtual functions, made by gpuvm alone: a Linux guest gets one of them, an address over it from the LAN that
# both cards are on, and packets pass both ways between it and the host's other card.
. /usr/lib/vdgx/guests
start_libvirt || exit 1
images=/var/lib/libvirt/images
pf=$(bdfs 0200 8086 0) net=$(ls "$pci/$pf/net") other=$(ls "$pci/$(bdfs 0200 8086 1)/net")
was_up=$(($(<"/sys/class/net/$net/flags") & 1)) other_was_up=$(($(<"/sys/class/net/$other/flags") & 1))

gpuvm network create iovnet0 --nic "$net" --vfs 8 >/tmp/out 2>&1; equal "more functions than the card has: exit code" 1 $?
has "more functions than the card has" /tmp/out "7.*not 8|8.*7"
equal "no function is made" 0 "$(<"$pci/$pf/sriov_numvfs")"
phase "network create" gpuvm network create iovnet0 --nic "$net" --vfs 2 || fail "network create"
equal "its functions are made" 2 "$(<"$pci/$pf/sriov_numvfs")"
gpuvm network list >/tmp/out; has "it is listed" /tmp/out "iovnet0 +sriov"
gpuvm network show iovnet0 --json >/tmp/out; equal "it is up" true "$(jq .active /tmp/out)"

cat >/tmp/lan.template <<T
<domain type='qemu'>
  <name>lan</name><memory unit='KiB'>262144</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type><kernel>$images/l2-vmlinuz</kernel><initrd>$images/l2-initrd.gz</initrd>
  <cmdline>console=ttyS0 quiet hold</cmdline></os>
  <features><acpi/></features>
  <devices>
    <controller type='usb' index='0' model='none'/>
    <serial type='file'><source path='/share/lan.log'/></serial><memballoon model='none'/>
  </devices>
</domain>
T
phase "create lan" gpuvm create --name lan --network iovnet0,mac=52:54:00:aa:01:01 --vcpus 1 --memory 256M --pins none \
  --virt-type qemu --template /tmp/lan.template --disk-dir /tmp --os-size 1M --data-size none --no-seed --no-wait ||
  { fail "create lan"; tail -n 20 /var/log/libvirt/qemu/lan.log; }
ip link show "$net" >/tmp/out; has "its MAC address is on the card" /tmp/out "52:54:00:aa:01:01"
ip link set "$other" up; ip addr add 10.100.0.9/24 dev "$other"
phase "Linux guest" wait_for 600 grep -qa L2-END /share/lan.log
tr -d '\r' </share/lan.log | grep -a '^L2' >/tmp/lan.seen; cat /tmp/lan.seen
has "the guest has the function" /tmp/lan.seen "^L2 net .* 52:54:00:aa:01:01 .* driver igbvf"
address=$(sed -n 's/^L2 dhcp .* lease of //p' /tmp/lan.seen)
check "an address over it" test -n "$address"
has "the guest reaches the host's other card" /tmp/lan.seen "^L2 ping 10.100.0.9 ok"
check "the host's other card reaches the guest" busybox ping -c 3 -W 20 -I "$other" "$address"
check "large packets too" busybox ping -c 3 -W 20 -s 1400 -I "$other" "$address"
ip neigh show dev "$other" >/tmp/out; has "over the function" /tmp/out "$address .*52:54:00:aa:01:01"
phase "delete lan" gpuvm delete lan --yes || fail "delete lan"
ip addr del 10.100.0.9/24 dev "$other"; ip neigh flush dev "$other"
phase "network delete" gpuvm network delete iovnet0 --yes || fail "network delete"
gpuvm nic vfs "$net" --count 0 --yes >/dev/null 2>&1
equal "there are none" 0 "$(<"$pci/$pf/sriov_numvfs")"
[[ $other_was_up == 1 ]] || ip link set "$other" down
[[ $was_up == 1 ]] || ip link set "$net" down
finish
