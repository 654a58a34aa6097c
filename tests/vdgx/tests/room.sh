#!/bin/bash
# `make-room` on a DGX-2 with running guests of one GPU on both halves: eight GPUs do not fit, one guest moves to the other
# half, and they fit. Killed at each record of its journal: after `recover` the guest runs once, on the GPU of its definition,
# and no other guest has that GPU.
#   room.sh [STEP]     only every STEP-th record
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
step=${1:-1}
# The probe does not react to the power button: the script does.
virsh qemu-monitor-event --loop --event POWERDOWN >/tmp/pressed 2>&1 &
listener=$!
(tail -n +1 -F /tmp/pressed 2>/dev/null | while read -r line; do
  [[ $line == *POWERDOWN* ]] || continue
  for name in a b c; do [[ $line != *"domain '$name'"* && $line != *"domain $name"* ]] || virsh -q destroy "$name"; done
done) &
hearer=$!
# guest NAME GPU [ARGS...]: makes a running one.
guest() {
  local name=$1 gpu=$2; shift 2
  template "$name" hold
  quietly gpuvm create --name "$name" --virt-type qemu --template "/tmp/$name.template" --gpu "$gpu" --vcpus 1 --memory 64M \
    --disk-dir /tmp --os-size 1M --data-size none --no-seed --no-wait --accept-shared-fabric "$@"
}
# gpu_of NAME [--inactive]: the GPU that it has, or that its definition has.
gpu_of() {
  virsh -q dumpxml "$@" | sed -n '/<hostdev/,/<\/source>/s/.*bus=.\(0x..\). slot=.\(0x..\). .*/\1 \2/p' | head -n 1
}
room=(gpuvm make-room --gpus 8 --vcpus 2 --memory 64M --accept-shared-fabric --wait 30 --yes)
# sound TITLE: every guest runs, with the GPU of its definition, which no other guest has; nothing is unfinished.
sound() {
  local name
  for name in a b c; do
    check "$1: $name runs" runs "$name"
    equal "$1: $name has the GPU of its definition" "$(gpu_of "$name" --inactive)" "$(gpu_of "$name")"
  done
  equal "$1: three GPUs" 3 "$(for name in a b c; do gpu_of "$name"; done | sort -u | grep -c .)"
  no_journal "$1"
}

guest a 2 --movable && guest b 8 && guest c 12 || finish
before=$(gpu_of a) uuid=$(virsh -q domuuid a)
gpuvm plan --gpus 8 --vcpus 2 --memory 64M >/tmp/out 2>&1; equal "eight GPUs have no place" 1 $?
has "what makes room is offered" /tmp/out "gpuvm make-room --gpus 8 --vcpus 2 --memory 64M"
"${room[@]}" --dry-run >/tmp/out 2>&1; equal "a preview ends with" 0 $?
has "it says what stops" /tmp/out 'stop `a`, move it from GPU 2 to GPU'
sound "preview"
moved=0 undone=0
for ((n = 2; n < 80; n += step)); do
  if ! killed $n "${room[@]}"; then equal "record $n: it ends with" 0 "$status"; break; fi
  said
  gpuvm recover --yes </dev/null >/tmp/out 2>&1; equal "record $n ($record): recover ends with" 0 $?
  said
  sound "record $n"
  [[ $(gpu_of a) == "$before" ]] && { undone=$((undone + 1)); continue; }
  moved=$((moved + 1))
  quietly gpuvm delete a --yes && guest a 2 --movable || break
  uuid=$(virsh -q domuuid a)
done
say "$undone undone, $moved finished"
check "some were undone" test $undone -gt 2
[[ $(gpu_of a) != "$before" ]] || quietly "${room[@]}"
sound "moved"
check "it has another GPU" test "$(gpu_of a)" != "$before"
equal "its UUID" "$uuid" "$(virsh -q domuuid a)"
"${room[@]}" >/tmp/out 2>&1; has "again it does nothing" /tmp/out "nothing to move"
template new hold
quietly gpuvm create --name new --virt-type qemu --template /tmp/new.template --gpus 8 --vcpus 2 --memory 64M --disk-dir /tmp \
  --os-size 1M --data-size none --no-seed --no-wait --accept-shared-fabric
check "the new guest runs" runs new
for name in new a b c; do quietly gpuvm delete "$name" --yes; done
kill $listener $hearer 2>/dev/null
pkill -P $hearer 2>/dev/null
finish
