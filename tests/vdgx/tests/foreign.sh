#!/bin/bash
# Objects that recover finds under the name of a killed run but that it did not make: a guest defined by another user, one of
# its own that has been started since, a definition that an admin has edited, a file that replaced a disk. Each stays and is
# named.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
/share/vdgx/state >/tmp/before
# wholly TITLE: recover has nothing more to do, and everything is as before.
wholly() {
  no_journal "$1"
  rm -rf $journals/*.jsonl
  check "$1: all is as before" diff /tmp/before <(/share/vdgx/state)
}
# recovered: runs recover without answering its questions.
recovered() { phase "recover" gpuvm recover </dev/null >/tmp/out 2>&1; echo "recover: status $?"; said; }

disk=/tmp/a.raw
say "a foreign guest of the name"
made a --gpu 0
check "killed before the start" killed '{"plan":[{"step":"start-domain"' "${how[@]}"
virsh -q undefine a
disk='' managed=yes foreign a "$gpu"
check "a foreign a starts with the GPU" virsh -q create /tmp/a.xml
uuid=$(virsh domuuid a) id=$(virsh domid a) before=$(resets "$gpu")
recovered
equal "it is the same guest that runs" "$id $uuid" "$(virsh domid a 2>&1) $(virsh domuuid a 2>&1)"
unharmed "a foreign guest" a "$gpu" "$before"
check "the disk of the killed run is gone" test ! -e "$disk"
virsh -q destroy a 2>/dev/null
quietly gpuvm recover
let_go "$gpu"
wholly "a foreign guest"

say "a guest of its own that has been running since"
made a --gpu 0
check "killed after the start" killed '{"done":5' "${how[@]}"
echo "killed at $record"
check "it runs" runs a
id=$(virsh domid a) before=$(resets "$gpu")
recovered
equal "it still runs" "$id" "$(virsh domid a 2>&1)"
unharmed "its own" a "$gpu" "$before"
check "it has its disk" test -e "$disk"
if virsh -q dominfo a >/dev/null 2>&1; then
  virsh -q destroy a
  gpuvm recover </dev/null >/tmp/out 2>&1; said
  ! virsh -q dominfo a >/dev/null 2>&1 || quietly gpuvm delete a --yes
fi
wholly "its own"

say "an admin's edit of what was defined"
quietly make a --gpu 0 --no-start
check "tune is killed after the definition" killed '{"done":1' gpuvm tune a --emulator 2 --yes
echo "killed at $record"; said
check "it is defined so" bash -c "virsh dumpxml --inactive a | grep -q \"<emulatorpin cpuset='2'\""
virsh -q dumpxml --inactive a >/tmp/edited.xml
sed -i 's,<vcpu,<description>of the admin</description><vcpu,' /tmp/edited.xml
virsh -q define /tmp/edited.xml
recovered
has "and is named" /tmp/out '`a`'
check "the edit is there" bash -c "virsh dumpxml --inactive a | grep -q 'of the admin'"
quietly gpuvm delete a --yes
wholly "an edit"

say "another file in the place of its disk"
made a --gpu 0
check "killed before the definition" killed '{"done":0' "${how[@]}"
echo "killed at $record"
rm -f "$disk"; echo precious >"$disk"
recovered
equal "the file is there" precious "$(cat "$disk" 2>&1)"
has "and is named" /tmp/out "$disk"
rm -f "$disk"
gpuvm recover </dev/null >/tmp/out 2>&1
wholly "another file"
finish
