#!/bin/bash
# Virtual functions, by gpuvm alone: their number up and down with what is refused, a run that is killed in the middle,
# the unit of the next boot, a guest with one that is set up on its card, and one out of a pool network of libvirt.
. /usr/lib/vdgx/guests
start_libvirt || exit 1
pf=$(bdfs 0200 8086 0) dev=$pci/$pf
net=$(ls "$dev/net") was_up=$(($(<"/sys/class/net/$net/flags") & 1))
other=$(ls "$pci/$(bdfs 0200 8086 1)/net") other_was_up=$(($(<"/sys/class/net/$other/flags") & 1))
number() { cat "$dev/sriov_numvfs"; }
vfs() { gpuvm nic vfs "$@"; }
# refused NAME CODE PATTERN ARGS...: `nic vfs` ends so and says so, and the number stays.
refused() {
  local name=$1 code=$2 pattern=$3 before; shift 3
  before=$(number)
  vfs "$@" >/tmp/out 2>&1; equal "$name: exit code" "$code" $?
  has "$name: reason" /tmp/out "$pattern"
  equal "$name: nothing is changed" "$before" "$(number)"
}
# of_vf0 PATTERN NAME: what the card says of its first virtual function.
of_vf0() { ip -d link show "$net" | grep -m 1 'vf 0 ' >/tmp/vf0; has "$2" /tmp/vf0 "$1"; }

phase "make 2" vfs "$net" --count 2 || fail "make 2"
equal "there are 2" "2 2" "$(number) $(ls -d "$dev"/virtfn* | wc -l)"
vf0=$(basename "$(readlink "$dev/virtfn0")")
equal "no driver of the host has one" - "$(driver_of "$vf0")"
equal "the card is up" 1 $(($(<"/sys/class/net/$net/flags") & 1))
vfs "$pf" --count 2 >/tmp/out 2>&1; equal "the same again" 0 $?
has "the same again: so already" /tmp/out "so already"
refused "more without asking" 2 "is not confirmed" "$pf" --count 4
refused "too many" 1 "can have 7 virtual functions, not 8" "$pf" --count 8
phase "make 4 of 2" vfs "$pf" --count 4 --yes || fail "make 4"
equal "there are 4" "4 4" "$(number) $(ls -d "$dev"/virtfn* | wc -l)"

say "killed in the middle"
mkdir -p /tmp/kill
cat >/tmp/kill/tee <<'X'
#!/bin/bash
/usr/bin/tee "$@"; kill -KILL $PPID
X
chmod +x /tmp/kill/tee
PATH=/tmp/kill:$PATH gpuvm nic vfs "$pf" --count 3 --yes >/tmp/out 2>&1; equal "it is killed" 137 $?
equal "after the old ones went" 0 "$(number)"
refused "others wait for recover" 1 "was killed half way" "$pf" --count 1 --yes
check "recover" gpuvm recover
equal "the number before is back" 4 "$(number)"

say "the next boot"
check "at boot" vfs "$pf" --count 2 --at-boot --yes
unit=/etc/systemd/system/gpuvm-vfs.service
has "the unit names it" $unit "^# Functions: $pf=8086:10c9=2$"
echo 0 >"$dev/sriov_numvfs"
check "what the unit runs" bash -c "$(sed -n 's/^ExecStart=//p' $unit)"
equal "makes them again" 2 "$(number)"

say "a guest with one that is set up on its card, and one of the other card out of a pool"
of_vf0 "spoof checking on.*trust off" "as the driver has it"
gpuvm network create pool --kind sriov --nic "$other" --vfs 8 >/tmp/out 2>&1; equal "a network of more than the card has" 1 $?
has "a network of more than the card has: numbers" /tmp/out "8.*7|7.*8"
check "a network of the other card's, with 1" gpuvm network create pool --kind sriov --nic "$other" --vfs 1
has "the unit of the next boot names it" $unit "^# Functions: .*=1$"
gpuvm network list >/tmp/out; has "it is listed" /tmp/out "pool .*sriov"
phase "create own" create own --vf "1,vlan=5,trust=on,spoof=off" --network pool --vcpus 1 --memory 64M --pins none ||
  { fail "create own"; tail -n 20 /var/log/libvirt/qemu/own.log; }
virsh dumpxml --inactive own >/tmp/own.xml
mac=$(grep -A1 "<interface type='hostdev'" /tmp/own.xml | sed -n "s/.*<mac address='\(.*\)'.*/\1/p")
of_vf0 "$mac.*vlan 5.*spoof checking off.*trust on" "MAC address, VLAN, spoof check and trust are on the card"
has "the pool's is no device of virtio's" /tmp/own.xml "<source network='pool'/>"
check "it has neither model nor queues" bash -c "! grep -q '<model type=.virtio\|queues=' /tmp/own.xml"
check "check finds nothing wrong" bash -c "gpuvm check own >/tmp/found; [[ \$? != 1 ]] && ! grep -i ^error /tmp/found"
refused "held by a guest" 1 "$vf0 is used by domain \`own\`, which runs" "$pf" --count 0 --yes
refused "out of the pool" 1 "is used by domain \`own\`, which runs" "$other" --count 0 --yes
gpuvm create --name third --network pool --vcpus 1 --memory 64M --pins none --template /tmp/own.template --virt-type qemu \
  --disk-dir /tmp --os-size 1M --data-size none --no-seed --dry-run >/tmp/out 2>&1
equal "no more than the pool has" 1 $?
has "no more than the pool has: numbers" /tmp/out "1 virtual function of network .pool. asked for, 0 of 1 are left"
check "the guest sees both" wait_for 240 bash -c "[[ \$(grep -ac 8086:10ca /share/own.log) == 2 ]]"
phase "delete own" gpuvm delete own --yes || fail "delete own"
check "delete the network" gpuvm network delete pool --yes
of_vf0 "spoof checking on.*trust off" "as before the guest"
check "its MAC address is taken back" bash -c "! ip -d link show $net | grep -q '$mac\|vlan 5'"
equal "its driver is as before" - "$(driver_of "$vf0")"
phase "take them away" vfs "$pf" --count 0 --at-boot --yes || fail "take them away"
check "and the other's" vfs "$other" --count 0 --at-boot --yes
equal "there are none" 0 "$(number)"
check "nor at boot" test ! -e $unit
[[ $other_was_up == 1 ]] || ip link set "$other" down
[[ $was_up == 1 ]] || ip link set "$net" down
finish
