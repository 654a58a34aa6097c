#!/bin/bash
# Virtual functions, by gpuvm alone: their number is raised and lowered, with refusals; a run is killed in the middle; the unit
# of the next boot; a guest with one that is configured on its card, and one from a pool network of libvirt. The guest sends by
# each, and the host's other port, a third card, answers; for a function in a VLAN, only in this VLAN.
. /usr/lib/vdgx/guests
start_libvirt || exit 1
mapfile -t pfs < <(bdfs 0200 8086 0)
pf=${pfs[0]} dev=$pci/$pf
[[ -n ${pfs[1]:-} ]] || { echo "nic.sh needs three cards (run --nics 3)"; exit 1; }
port=$(ls "$pci/${pfs[1]}/net") port_was_up=$(($(<"/sys/class/net/$port/flags") & 1))
net=$(ls "$dev/net") was_up=$(($(<"/sys/class/net/$net/flags") & 1))
other=$(ls "$pci/$(bdfs 0200 8086 1)/net") other_was_up=$(($(<"/sys/class/net/$other/flags") & 1))
number() { cat "$dev/sriov_numvfs"; }
vfs() { gpuvm nic vfs "$@"; }
# refused NAME CODE PATTERN ARGS...: `nic vfs` exits with this status and message, and the number stays.
refused() {
  local name=$1 code=$2 pattern=$3 before; shift 3
  before=$(number)
  vfs "$@" >/tmp/out 2>&1; equal "$name: exit code" "$code" $?
  has "$name: reason" /tmp/out "$pattern"
  equal "$name: nothing is changed" "$before" "$(number)"
}
# of_vf0 PATTERN NAME: the card's settings of its first virtual function.
of_vf0() { ip -d link show "$net" | grep -m 1 'vf 0 ' >/tmp/vf0; has "$2" /tmp/vf0 "$1"; }

# told NAME PATTERN: the guest reports this within some time.
told() { check "$1" wait_for 240 grep -qaE "$2" /share/own.log; }
unanswered() { grep -ac 'arp 10.100.0.9: no answer' /share/own.log; }
# traffic: by both functions of the guest, found in this order: the pool's, untagged, then the one in VLAN 5. The three cards
# alone are on one LAN; the host answers on the port only, since that has the addresses. (A card with functions is no good port
# for a VLAN: QEMU gives it no frame of one, as Linux gives its own pool no entry of VLVF.)
traffic() {
  local answer so_far
  say "traffic"
  answer="is at $(<"/sys/class/net/$port/address") \(DMA\)"
  echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
  ip link set "$port" up
  ip address add 10.101.0.9/24 dev "$port"; ip address add 10.100.0.9/24 dev "$port"
  told "the port answers the pool's" "L2 vf .* arp 10.101.0.9 $answer"
  told "and sends back what the guest sends" "L2 vf .* echo of 1400 bytes from 10.101.0.9"
  told "the guest has the MAC address from the card" "L2 vf .* mac $mac asks 10.100.0.9"
  so_far=$(unanswered)
  seen() { [[ $(unanswered) -ge $((so_far + 3)) ]]; }
  check "it asks in its VLAN" wait_for 120 seen
  check "and nobody answers outside" bash -c '! grep -qa "arp 10.100.0.9 is at" /share/own.log'
  ip address del 10.100.0.9/24 dev "$port"
  ip link add link "$port" name port5 type vlan id 5; ip address add 10.100.0.9/24 dev port5; ip link set port5 up
  told "the port answers in the VLAN" "L2 vf .* arp 10.100.0.9 $answer"
  told "and sends back what the guest sends" "L2 vf .* echo of 1400 bytes from 10.100.0.9"
  equal "the guest sees both" 2 "$(grep -ac 'L2 pci .* 8086:10ca' /share/own.log)"
  ip link del port5; ip address del 10.101.0.9/24 dev "$port"
  [[ $port_was_up == 1 ]] || ip link set "$port" down
  echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore
}

phase "make 2" vfs "$net" --count 2 || fail "make 2"
equal "there are 2" "2 2" "$(number) $(ls -d "$dev"/virtfn* | wc -l)"
vf0=$(basename "$(readlink "$dev/virtfn0")")
equal "no driver of the host has one" - "$(driver_of "$vf0")"
equal "the card is up" 1 $(($(<"/sys/class/net/$net/flags") & 1))
vfs "$pf" --count 2 >/tmp/out 2>&1; equal "the same again" 0 $?
has "the same again: already set" /tmp/out "already set"
refused "more without asking" 2 "was not confirmed" "$pf" --count 4
refused "too many" 1 "can have 7 virtual functions, not 8" "$pf" --count 8
phase "make 4 of 2" vfs "$pf" --count 4 --yes || fail "make 4"
equal "there are 4" "4 4" "$(number) $(ls -d "$dev"/virtfn* | wc -l)"

say "killed in the middle"
mv /usr/bin/tee /usr/bin/tee.real # gpuvm asks no PATH for it
printf '#!/bin/bash\ntee.real "$@"; kill -KILL $PPID\n' >/usr/bin/tee
chmod +x /usr/bin/tee
gpuvm nic vfs "$pf" --count 3 --yes >/tmp/out 2>&1; equal "it is killed" 137 $?
mv /usr/bin/tee.real /usr/bin/tee
equal "after the old ones went" 0 "$(number)"
refused "others wait for recover" 1 "was interrupted" "$pf" --count 1 --yes
check "recover" gpuvm recover
equal "the number before is back" 4 "$(number)"

say "the next boot"
check "at boot" vfs "$pf" --count 2 --at-boot --yes
unit=/etc/systemd/system/gpuvm-vfs.service
has "the unit names it" $unit "^# Functions: $pf=8086:10c9(:.*)?=2$"
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
asks=10.101.0.9,10.100.0.9
phase "create own" create own --vf "1,vlan=5,trust=on,spoof=off" --network pool --vcpus 1 --memory 64M --pins none ||
  { fail "create own"; tail -n 20 /var/log/libvirt/qemu/own.log; }
virsh dumpxml --inactive own >/tmp/own.xml
mac=$(grep -A1 "<interface type='hostdev'" /tmp/own.xml | sed -n "s/.*<mac address='\(.*\)'.*/\1/p")
traffic
of_vf0 "$mac.*vlan 5.*spoof checking off.*trust on" "MAC address, VLAN, spoof check and trust are on the card"
has "the pool's is no device of virtio's" /tmp/own.xml "<source network='pool'/>"
check "it has neither model nor queues" bash -c "! grep -q '<model type=.virtio\|queues=' /tmp/own.xml"
check "check finds nothing wrong" bash -c "gpuvm check own >/tmp/found; [[ \$? != 1 ]] && ! grep -i ^error /tmp/found"
refused "held by a guest" 1 "$vf0 is used by domain \`own\`, which runs" "$pf" --count 0 --yes
refused "out of the pool" 1 "is used by domain \`own\`, which runs" "$other" --count 0 --yes
gpuvm create --name third --network pool --vcpus 1 --memory 64M --pins none --template /tmp/own.template --virt-type qemu \
  --disk-dir /tmp --os-size 1M --data-size none --no-seed --dry-run >/tmp/out 2>&1
equal "no more than the pool has" 1 $?
has "no more than the pool has: numbers" /tmp/out "requested 1 virtual function of network .pool., only 0 of 1 are left"
phase "delete own" gpuvm delete own --yes || fail "delete own"
check "delete the network" gpuvm network delete pool --yes
check "it is kept for undo" grep -q '"name": "pool"' /var/lib/gpuvm/networks/*.json
rm -r /var/lib/gpuvm/networks
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
