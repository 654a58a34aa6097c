#!/bin/bash
# Changes outside of gpuvm: virsh undefines a guest with reserved pages; its virtual function goes to another guest, or
# disappears with the card's number of them; its GPU disappears; a journal is unreadable. Remains of a guest are named; devices
# of another guest stay with it; impossible changes are refused before anything is touched.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]} pages=$node/node0/hugepages/hugepages-2048kB/nr_hugepages
/share/vdgx/state >/tmp/before
# as_before TITLE
as_before() { no_journal "$1"; check "$1: all is as before" diff /tmp/before <(/share/vdgx/state); }

say "a guest with pages is undefined by virsh"
were=$(<"$pages")
quietly make a --gpu 0 --huge-pages 2M --reserve-pages
has_pages=$(cat $node/node*/hugepages/hugepages-2048kB/nr_hugepages | paste -sd' ')
virsh -q destroy a; virsh -q undefine a
phase "verify --all" gpuvm verify --all >/tmp/out 2>&1; echo "verify: status $?"; said
has "verify --all names the guest that is gone" /tmp/out '`a`'
has "and its pages" /tmp/out 'pages'
phase "recover" gpuvm recover </dev/null >/tmp/out 2>&1; echo "recover: status $?"; said
has "recover names them or has given them back" /tmp/out 'pages'
echo "pages with the guest: $has_pages, now: $(cat $node/node*/hugepages/hugepages-2048kB/nr_hugepages | paste -sd' ')"
# Its remains are removed by hand.
for n in $node/node*/hugepages/hugepages-2048kB/nr_hugepages; do echo "$were" >"$n"; done
rm -f /tmp/a*.raw; rm -rf /run/gpuvm/*; find /var/lib/gpuvm -type f ! -name '*lock' -delete 2>/dev/null
let_go "$gpu"
as_before "pages"

say "its virtual function is another guest's"
for nic in $(bdfs 0200 8086); do [[ ! -e $pci/$nic/sriov_numvfs ]] || break; done
net=$(ls "$pci/$nic/net") was_up=$(($(<"/sys/class/net/$net/flags") & 1))
quietly gpuvm nic vfs "$nic" --count 2
vf=$(basename "$(readlink "$pci/$nic/virtfn0")")
of_vf() { ip -d link show "$net" | grep -m 1 'vf 0 '; }
quietly make a --gpu 0 --vf "$vf,vlan=5,trust=on,spoof=off"
echo "with a: $(of_vf)"
quietly gpuvm stop a --force
foreign b
sed -i "s,<serial type='file'>,<interface type='hostdev' managed='yes'><mac address='52:54:00:aa:bb:cc'/><source>\
<address type='pci' domain='0x${vf%%:*}' bus='0x${vf:5:2}' slot='0x${vf:8:2}' function='0x${vf:11}'/></source><vlan><tag id='7'/></vlan></interface>&," /tmp/b.xml
check "b starts with it" virsh -q create /tmp/b.xml
ip link set "$net" vf 0 trust on spoofchk off
before=$(of_vf)
phase "delete a" gpuvm delete a --yes >/tmp/out 2>&1; equal "delete ends with" 0 $?
said
equal "the card's settings are those of b" "$before" "$(of_vf)"
has "b is named" /tmp/out '`b`'
check "b runs" runs b
virsh -q destroy b 2>/dev/null
ip link set "$net" vf 0 trust off spoofchk on

say "what a virtual function may do for a guest that is gone"
quietly make a --gpu 0 --vf "$vf,trust=on,spoof=off"
virsh -q destroy a; virsh -q undefine a
echo "without a: $(of_vf)"
gpuvm verify --all >/tmp/out 2>&1
has "verify --all names it" /tmp/out "\`a\`.*$net"
gpuvm recover </dev/null >/tmp/out 2>&1
has "recover names it" /tmp/out "\`a\`.*$net"
quietly gpuvm recover --gone
has "recover --gone sets it back" <(of_vf) 'spoof checking on.*trust off'
rm -f /tmp/a*.raw; let_go "$gpu"

say "the virtual functions are gone"
quietly make a --gpu 0 --vf 1 --no-start
echo 0 >"$pci/$nic/sriov_numvfs"; udevadm settle
before=$(resets "$gpu")
phase "start a" gpuvm start a >/tmp/out 2>&1; equal "start is refused with" 1 $?
said
equal "the GPU was not reset for it" "$before" "$(resets "$gpu")"
equal "nor bound" - "$(driver_of "$gpu")"
has "the virtual function is named" /tmp/out "$vf"
has "and the command that makes it again" /tmp/out "gpuvm nic vfs $nic --count 1|gpuvm nic vfs $net --count 1"
quietly gpuvm nic vfs "$nic" --count 2
quietly gpuvm start a
quietly gpuvm delete a --yes
quietly gpuvm nic vfs "$nic" --count 0 --yes
[[ $was_up == 1 ]] || ip link set "$net" down
as_before "virtual functions"

say "a GPU is gone"
quietly make a --gpu 0 --no-start
foreign b "${g[1]}"
virsh -q dumpxml --inactive a >/tmp/a.xml
sed -i "s,</devices>,$(sed -n '/<hostdev/,/<.hostdev>/p' /tmp/b.xml | tr -d '\n')&," /tmp/a.xml
check "a has another GPU" virsh -q define /tmp/a.xml
echo 1 >"$pci/${g[1]}/remove"
before=$(resets "$gpu")
phase "start a" gpuvm start a >/tmp/out 2>&1; equal "start is refused with" 1 $?
said
equal "the other GPU was not reset for it" "$before" "$(resets "$gpu")"
equal "nor bound" - "$(driver_of "$gpu")"
has "the GPU is named" /tmp/out "${g[1]}"
echo 1 >/sys/bus/pci/rescan; udevadm settle
check "it is back" test -e "$pci/${g[1]}"
quietly gpuvm delete a --yes
as_before "a GPU"

say "a journal that cannot be read"
made a --gpu 0
check "a create is killed" killed '{"done":1' "${how[@]}"
echo "what is this" >$journals/1-0.jsonl
gpuvm recover </dev/null >/tmp/out 2>&1; echo "recover: status $?"; said
has "it is named" /tmp/out "$journals/1-0.jsonl"
check "the other is undone" test ! -e /tmp/a.raw
equal "its GPU, too" - "$(driver_of "$gpu")"
equal "it alone is left" 1-0.jsonl "$(unfinished)"
gpuvm recover --discard --yes >/tmp/out 2>&1; equal "discard ends with" 0 $?
said
rm -f $journals/*.damaged # where it is kept
let_go "$gpu"
as_before "a journal"
rm -f $journals/*.jsonl
finish
