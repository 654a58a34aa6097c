#!/bin/bash
# NVLink partitions if Fabric Manager manages the NVSwitches: a guest of two GPUs gets its partition after the resets and
# before it runs, loses it when it is off, and a killed run leaves nothing active. Fabric Manager is the fake of its library
# (tests/fake-nvfm), which records its requests in /tmp/fm/calls.
. /usr/lib/vdgx/halts
lib=/usr/lib/x86_64-linux-gnu/libnvfm.so.1 config=/usr/share/nvidia/nvswitch
mkdir -p $config /tmp/fm
cp /share/libnvfm.so.1 $lib
echo FABRIC_MODE=1 >$config/fabricmanager.cfg
export GPUVM_FAKE_NVIDIA=/tmp/fm/fake
# fm [SETTING...]: the state of Fabric Manager from here on; its memory stays.
fm() { printf '%s\n' "board h100" "state /tmp/fm/state" "calls /tmp/fm/calls" "$@" >/tmp/fm/fake; }
# asked: the changes requested since the last time.
asked() {
  sed -n 's/^[0-9]* fm\(Activate\|Deactivate\)FabricPartition */\1 /p' /tmp/fm/calls | paste -sd' ' | sed 's/  */ /g'
  : >/tmp/fm/calls
}
# active: the active partitions.
active() { sed -n 's/^active \([0-9]*\).*/\1/p' /tmp/fm/state | sort -n | paste -sd' '; }
# remembered: partitions of the file.
remembered() { jq -r '[.partitions[].id] | join(" ")' /var/lib/gpuvm/fabric.json; }
# is TITLE PARTITIONS: these are active, by Fabric Manager and by the file.
is() { equal "$1: active" "$2" "$(active)"; equal "$1: remembered" "$2" "$(remembered)"; }
fm; : >/tmp/fm/calls; : >/tmp/fm/state
start_libvirt || exit 1
/share/vdgx/state >/tmp/before

plan=$(gpuvm plan --gpus 2 --vcpus 1 --memory 64M --pins none --json)
id=$(jq -r .placement.partition <<<"$plan")
mapfile -t g < <(jq -r '.placement.devices[]' <<<"$plan")
equal "GPUs" 2 ${#g[@]}
phase "make a" make a --gpus 2 || { fail "make a"; said; finish; }
equal "create asks for" "Activate $id" "$(asked)"
is "create" "$id"
check "fabric show finds all well" gpuvm fabric show
gpuvm fabric show --json | jq -r ".partitions[] | select(.id == $id) | .holder.name + \" \" + .verdict" >/tmp/out
equal "its holder" "a ok" "$(</tmp/out)"
before=$(resets "${g[0]}")
phase "stop a" quietly gpuvm stop a --force
equal "stop asks for" "Deactivate $id" "$(asked)"
is "stop" ""
check "stop resets the GPUs" test "$(resets "${g[0]}")" -gt "$before"
quietly gpuvm start a
is "start" "$id"; asked >/dev/null
quietly gpuvm restart a --force
equal "restart asks for" "Deactivate $id Activate $id" "$(asked)"
is "restart" "$id"

# Fabric Manager is away: the guest still stops, nothing starts, and remains are reported and removed later.
fm "address elsewhere"
quietly gpuvm stop a --force
has "stop tells what stays" /tmp/out "stays active until Fabric Manager is asked again"
gpuvm start a >/tmp/out 2>&1; equal "start without Fabric Manager ends with" 1 $?
has "and says so" /tmp/out "cannot be activated for domain"
gpuvm fabric show >/tmp/out 2>&1; equal "fabric show ends with" 3 $?
fm; asked >/dev/null
quietly gpuvm start a
equal "it is active for this guest still" "" "$(asked)"
# One GPU less while it is off: the active partition still ends with it, and its start activates that of its present GPUs.
fm "address elsewhere"
quietly gpuvm stop a --force
fm; asked >/dev/null
phase "set a" quietly gpuvm set a --gpus 1 --accept-shared-fabric --yes || said
equal "set asks for" "Deactivate $id" "$(asked)"
is "set" ""
quietly gpuvm start a
one=$(active)
check "the start activates another" test -n "$one" -a "$one" != "$id"
equal "start after set asks for" "Activate $one" "$(asked)"
quietly gpuvm stop a --force
quietly gpuvm undo a --yes
quietly gpuvm start a
is "undo of set" "$id"
asked >/dev/null
quietly gpuvm delete a --yes
equal "delete asks for" "Deactivate $id" "$(asked)"
is "delete" ""

# A library that fails at the activation: everything is undone. A library that hangs is given up after a minute.
failures=("fail fmActivateFabricPartition -10")
[[ ${1:-} == some ]] ||
  failures+=("fail fmActivateFabricPartition -7" "fail fmActivateFabricPartition -17" "hang fmActivateFabricPartition")
made a --gpus 2
for failure in "${failures[@]}"; do
  fm "$failure"
  "${how[@]}" >/tmp/out 2>&1; equal "$failure: create ends with" 1 $?
  fm
  is "$failure" ""
  equal "$failure: domains" "" "$(virsh -q list --all --name | paste -sd' ')"
  no_journal "$failure"
done

# Sixteen creates at once: as many as fit get a partition each, no GPU is assigned twice, and no request is wasted.
if [[ ${1:-} != some ]]; then
  asked >/dev/null
  for n in {1..16}; do
    ( made "p$n" --gpus 1; "${how[@]}" --lock-wait 1200 >"/tmp/said.$n" 2>&1; echo $? >"/tmp/ended.$n" ) &
  done
  wait
  made=$(grep -lx 0 /tmp/ended.* | wc -l)
  equal "sixteen at once: made" 8 "$made"
  equal "sixteen at once: refused" 8 "$(grep -l 'no GPU is free' /tmp/said.* | wc -l)"
  asked | grep -o 'Activate [0-9]*' >/tmp/held
  equal "sixteen at once: asked for, each once" "8 8" "$(wc -l </tmp/held) $(sort -u /tmp/held | wc -l)"
  mapfile -t names < <(virsh -q list --name | sed '/^$/d')
  for name in "${names[@]}"; do virsh -q dumpxml "$name" | grep -A3 '<hostdev' | grep '<address domain'; done >/tmp/held
  equal "sixteen at once: GPUs, each once" "8 8" "$(wc -l </tmp/held) $(sort -u /tmp/held | wc -l)"
  for name in "${names[@]}"; do quietly gpuvm delete "$name" --yes; done
  is "sixteen at once" ""
  rm -f /tmp/said.* /tmp/ended.* /tmp/held
fi

# A guest started by other tools: libvirt calls the hook, which does not call libvirt, since libvirt waits for it. Of the
# fake's settings it knows only the place beside the library.
restart_libvirt() {
  kill "$(pidof libvirtd)"
  wait_for 60 eval '! pidof libvirtd >/dev/null'
  rm -f /run/libvirt/libvirt-sock /run/libvirt/libvirt-sock-ro /run/libvirtd.pid
  start_libvirt
}
if [[ ${1:-} != some ]]; then
  ln -s /tmp/fm/fake ${lib%/*}/fake
  quietly gpuvm fabric hook --install
  restart_libvirt
  asked >/dev/null
  quietly make h --gpus 2
  # Both would activate it, and one request is made.
  equal "create with the hook asks for" "Activate $id" "$(asked)"
  quietly gpuvm stop h --force
  equal "stop with the hook asks for" "Deactivate $id" "$(asked)"
  is "stop with the hook" ""
  phase "virsh start" quietly virsh -q start h
  equal "virsh start asks for" "Activate $id" "$(asked)"
  is "virsh start" "$id"
  check "fabric show finds the guest of virsh well" gpuvm fabric show
  phase "virsh destroy" quietly virsh -q destroy h
  equal "virsh destroy asks for" "Deactivate $id" "$(asked)"
  is "virsh destroy" ""
  fm "address elsewhere"
  virsh -q start h >/tmp/out 2>&1; equal "virsh start without Fabric Manager ends with" 1 $?
  has "and says why" /tmp/out "CONNECTION_NOT_VALID"
  equal "and nothing runs" "" "$(virsh -q list --name | paste -sd' ')"
  fm
  quietly gpuvm delete h --yes
  quietly gpuvm fabric hook --remove
  rmdir /etc/libvirt/hooks/qemu.d 2>/dev/null
  restart_libvirt
  rm -f ${lib%/*}/fake
  is "without the hook" ""
fi

# Fabric Manager starts again in its restart mode beside two running guests and one that is off: it gets the partitions of the
# two once, from libvirt or, at boot, from the guests' processes; then it accepts changes as before. If it starts plainly, both
# are activated again, and their guests must be power cycled.
if [[ ${1:-} != some ]]; then
  for name in a b c; do quietly make $name --gpus 2; done
  third=$(gpuvm fabric show --json | jq -r '.partitions[] | select(.holder.name == "c") | .id')
  quietly gpuvm stop c --force
  two=$(active)
  equal "two guests run, with a partition each" 2 "$(wc -w <<<"$two")"
  told() { sed -n 's/^[0-9]* fmSetActivatedFabricPartitions */told /p' /tmp/fm/calls | paste -sd' '; }
  for at in "" --boot; do
    : >/tmp/fm/state; : >/tmp/fm/calls
    fm "restart_mode 600000"
    # shellcheck disable=SC2086 # no word, or one
    quietly gpuvm fabric restore $at
    equal "restart mode${at:+, $at}: told" "told ${two// /,}" "$(told)"
    equal "restart mode${at:+, $at}: nothing else asked for" "" "$(asked)"
    is "restart mode${at:+, $at}" "$two"
    check "restart mode${at:+, $at}: fabric show finds all well" gpuvm fabric show
    quietly gpuvm fabric restore
    equal "restart mode${at:+, $at}: told no second time" "" "$(told)"
    check "restart mode${at:+, $at}: both run" eval 'runs a && runs b'
  done
  quietly gpuvm start c
  equal "a start after it asks for" "Activate $third" "$(asked)"
  quietly gpuvm stop c --force
  equal "a stop after it asks for" "Deactivate $third" "$(asked)"
  : >/tmp/fm/state
  fm
  gpuvm fabric restore >/tmp/out 2>&1; equal "restore after a plain start ends with" 3 $?
  has "and says what is lost" /tmp/out "power cycle it"
  equal "it asks for" "Activate ${two/ / Activate }" "$(asked)"
  is "restore after a plain start" "$two"
  for name in a b c; do quietly gpuvm delete $name --yes; done
  asked >/dev/null
  is "restarts" ""
fi

# Killed around the activation, and once the guest is off; with `some` at one moment of each.
step=$("${how[@]}" --dry-run 2>/dev/null | grep -n '^activate NVLink partition' | cut -d: -f1)
check "a dry run names the activation" test -n "$step"
at=$((step - 1))
records=("{\"made\":[$at,") ends=('{"done":0')
[[ ${1:-} == some ]] || records+=("{\"begin\":[$at," "{\"done\":$at" "{\"done\":$((at + 1))") ends+=('{"begin":[1,' '{"done":1')
for record in "${records[@]}"; do
  killed "$record" "${how[@]}" || { fail "no record $record"; said; continue; }
  phase "recover after $record" quietly gpuvm recover --yes
  is "create killed at $record" ""
  equal "create killed at $record: domains" "" "$(virsh -q list --all --name | paste -sd' ')"
  no_journal "create killed at $record"
done
# Killed once the guest runs and the change is complete: it keeps its partition, which is not mistaken for a stale one.
if [[ ${1:-} != some ]]; then
  made a --gpus 2
  killed '"complete"' "${how[@]}" || { fail "no record of the end"; said; }
  phase "recover after the start" quietly gpuvm recover --yes
  check "create killed after the start: the guest runs" runs a
  is "create killed after the start" "$id"
  check "create killed after the start: fabric show finds all well" gpuvm fabric show
  no_journal "create killed after the start"
  quietly gpuvm delete a --yes
  is "its delete" ""
fi
for verb in stop delete; do
  # Its first step ends the guest, its second one deactivates.
  for record in "${ends[@]}"; do
    if [[ -z $(virsh -q list --all --name) ]]; then quietly make a --gpus 2 || break; fi
    runs a || quietly gpuvm start a || break
    how=(gpuvm $verb a); [[ $verb == delete ]] && how+=(--yes) || how+=(--force)
    killed "$record" "${how[@]}" || { fail "$verb: no record $record"; said; continue; }
    phase "recover $verb after $record" quietly gpuvm recover --yes
    is "$verb killed at $record" ""
    no_journal "$verb killed at $record"
  done
done
[[ -z $(virsh -q list --all --name) ]] || quietly gpuvm delete a --yes
is "at the end" ""
for bdf in "${g[@]}"; do let_go "$bdf"; done
rm -f /var/lib/gpuvm/fabric.json /var/lib/gpuvm/history/host/*.json
check "all is as before" diff /tmp/before <(/share/vdgx/state)
rm -rf /tmp/fm $lib $config/fabricmanager.cfg
finish
