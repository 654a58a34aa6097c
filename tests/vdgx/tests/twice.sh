#!/bin/bash
# Two at once: `virsh start a` during `gpuvm start a`, at each of its records; two gpuvm that start the same guest, or make
# guests of one name or with one GPU. One guest runs with the GPU, and nothing of the other remains; and from the first
# record to the last no other process gets the host's lock.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
/share/vdgx/state >/tmp/before

say "virsh starts the guest, too"
for ((n = 1; n < 40; n++)); do
  virsh -q dominfo a >/dev/null 2>&1 || quietly make a --gpu 0 --no-start || break
  halted $n gpuvm start a || { equal "start: $((n - 1)) records, it ends with" 0 "$status"; break; }
  title="start at $record"; title=${title:0:60}
  say "$title"
  gpuvm device bind "${g[1]}" --lock-wait 0 >/tmp/other 2>&1; equal "$title: another change is refused" 1 $?
  has "$title: because of the lock" /tmp/other "is held by process $pid"
  # Before the GPU is bound, libvirt refuses it.
  if ! virsh -q start a >/tmp/late 2>&1; then
    go_on; equal "$title: virsh was refused, gpuvm ends with" 0 "$status"
    check "$title: a runs" runs a
  else
    id=$(virsh domid a) before=$(resets "$gpu")
    go_on; check "$title: it ends by itself" test "$status" != 124
    said
    equal "$title: the same guest runs" "$id" "$(virsh domid a)"
    unharmed "$title" a "$gpu" "$before"
  fi
  no_journal "$title"
  rm -rf $journals/*.jsonl
  gpuvm stop a --force >/dev/null 2>&1
  gpuvm device release "$gpu" >/dev/null 2>&1
done
quietly gpuvm stop a --force
gpuvm device release "$gpu" >/dev/null 2>&1

# both CMD1 CMD2: runs two commands at once; their outputs are /tmp/1 and /tmp/2, their statuses in $first and $second.
both() {
  local one two
  eval "$1" >/tmp/1 2>&1 & one=$!
  eval "$2" >/tmp/2 2>&1 & two=$!
  wait $one; first=$?
  wait $two; second=$?
  sed 's/^/   1 | /' /tmp/1; sed 's/^/   2 | /' /tmp/2
}
say "two gpuvm start it"
both "gpuvm start a" "gpuvm start a"
equal "both end with" "0 0" "$first $second"
check "a runs" runs a
no_journal "two starts"
say "one deletes it, one starts it"
quietly gpuvm stop a --force
both "gpuvm delete a --yes" "gpuvm start a"
echo "delete $first, start $second"
if virsh -q dominfo a >/dev/null 2>&1; then
  # Started first, so that delete found it running, did not ask because of --yes, and was refused or late.
  check "a runs" runs a
  quietly gpuvm delete a --yes
fi
no_journal "delete and start"
check "delete and start: all is as before" diff /tmp/before <(/share/vdgx/state)

# one_of TITLE NAME...: one of them was made, and nothing remains when the guests are deleted.
one_of() {
  local title=$1 name; shift
  equal "$title: one is made" 1 $(((first == 0) + (second == 0)))
  equal "$title: one guest runs" 1 "$(virsh -q list --name | grep -c .)"
  equal "$title: one is defined" 1 "$(virsh -q list --all --name | grep -c .)"
  for name; do ! virsh -q dominfo "$name" >/dev/null 2>&1 || quietly gpuvm delete "$name" --yes; done
  no_journal "$title"
  check "$title: all is as before" diff /tmp/before <(/share/vdgx/state)
}
say "two with one GPU"
made x --gpu 0; x=${how[*]@Q}
made y --gpu 0; y=${how[*]@Q}
both "$x" "$y"
one_of "one GPU" x y
say "two of one name"
made x --gpu 0; x=${how[*]@Q}
made x --gpu 1; y=${how[*]@Q}
both "$x" "$y"
one_of "one name" x
finish
