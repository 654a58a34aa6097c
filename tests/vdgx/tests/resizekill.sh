#!/bin/bash
# `gpuvm set --gpus` killed at each record of its journal, from FEW GPUs to one more and back: after `recover` the guest has
# either number, and everything matches it: drivers, overrides, definition and journals.
# `resizekill.sh FEW`: 1 on a host whose GPUs libvirt binds, 0 on one whose GPUs gpuvm binds.
. /usr/lib/vdgx/halts
few=${1:-1} more=$((${1:-1} + 1))
start_libvirt || exit 1
/share/vdgx/state >/tmp/before
# now: the state without the history, which has one more entry for each completed change.
now() { /share/vdgx/state | grep -v /var/lib/gpuvm/history/; }
# has_gpus: the number of functions that its definition passes through.
has_gpus() { virsh -q dumpxml --inactive a | grep -c '<hostdev mode'; }
made a --gpus "$few"
phase "create" quietly "${how[@]}" --no-start || { said; finish; }
now >"/tmp/with.$few"
quietly gpuvm set a --gpus "$more" --accept-shared-fabric --yes || { said; finish; }
equal "it has one more" "$more" "$(has_gpus)"
now >"/tmp/with.$more"
quietly gpuvm undo a --yes
check "undo" diff "/tmp/with.$few" <(now)
# each FROM TO: killed at each record on the way.
each() {
  local n found
  for ((n = 1; n < 60; n++)); do
    if ! killed $n gpuvm set a --gpus "$2" --accept-shared-fabric --yes; then
      equal "$1 to $2: $((n - 1)) records, it ends with" 0 "$status"
      check "$1 to $2: more than three records" test "$n" -gt 4
      check "$1 to $2: all is as with $2" diff "/tmp/with.$2" <(now)
      return
    fi
    quietly gpuvm recover --yes || said
    no_journal "$1 to $2, $record"
    found=$(has_gpus)
    check "$1 to $2, $record: all is as with $found" diff "/tmp/with.$found" <(now)
    [[ $found == "$1" ]] || quietly gpuvm set a --gpus "$1" --accept-shared-fabric --yes || return
  done
  fail "$1 to $2: never comes to its end"
}
each "$few" "$more"
each "$more" "$few"
phase "delete" quietly gpuvm delete a --yes
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
