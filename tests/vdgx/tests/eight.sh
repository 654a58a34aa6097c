#!/bin/bash
# As many guests of two GPUs as the host has pairs, all at once, then one guest of all GPUs (with all NVSwitches if the
# board has them): each probe sees its devices, no device or pcpu is assigned twice, and everything is as before afterwards.
#   eight.sh [PAIRS]     only that many pairs
. /usr/lib/vdgx/guests
start_libvirt || exit 1
names=() pairs=${1:-$((gpus / 2))}
for ((i = 0; i < pairs; i++)); do
  names+=("pair-$i")
  phase "create pair-$i" create "pair-$i" --gpus 2 --memory 16M || { fail "create pair-$i"; break; }
done
equal "guests that run" "$pairs" "$(virsh -q list --name | grep -c .)"
if [[ $pairs == $((gpus / 2)) ]]; then
  gpuvm plan --gpus 1 --vcpus 1 --memory 16M >/tmp/out 2>&1; equal "nothing is left for another" 1 $?
  has "nothing is left for another: why" /tmp/out "GPU"
fi
for name in "${names[@]}"; do has_devices "$name"; has_drivers "$name"; done
equal "no device twice" "" "$(for name in "${names[@]}"; do planned "$name" '.devices[]'; done | sort | uniq -d)"
equal "no pcpu twice" "" "$(for name in "${names[@]}"; do
  planned "$name" '(.vcpu_pins + [.emulator_pin])[]' | tr , '\n' | sort -u
done | sort | uniq -d)"
for name in "${names[@]}"; do phase "delete $name" gpuvm delete "$name" --yes || fail "delete $name"; done

# A cell for each node, each with its own expander bus.
phase "create all" create all --gpus "$gpus" --memory 64M || { fail "create all"; tail -n 20 /var/log/libvirt/qemu/all.log; }
equal "all: GPUs and NVSwitches" "$((gpus + nvswitches))" "$(planned all '.devices[]' | wc -l)"
has_devices all
has_drivers all
has_threads all
phase "delete all" gpuvm delete all --yes || fail "delete all"
finish
