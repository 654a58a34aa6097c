#!/bin/bash
# Another guest starts with the GPU between each pair of steps of a create, a start and a delete, as recorded in the journal:
# before a step is checked, and between its check and the step. That guest keeps running with its GPU, which is neither reset
# nor rebound; the change is refused, or leaves the GPU and undoes or completes everything else. If the other guest can no
# longer start, because the change was first, the change completes.
# `midway.sh create|start|delete` does only that one; without argument all three.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
disk='' managed=yes foreign b "$gpu"
# taken TITLE: b starts with the GPU, is unharmed when the change has ended, and ends. Fails if b is too late.
taken() {
  local before
  if ! virsh -q create /tmp/b.xml >/tmp/late 2>&1; then go_on; return 1; fi
  before=$(resets "$gpu")
  go_on
  check "$1: it ends by itself" test "$status" != 124
  said
  unharmed "$1" b "$gpu" "$before"
  # If something cannot be proven it may be left to recover, which leaves b alone, too.
  if [[ -n $(unfinished) ]]; then
    gpuvm recover </dev/null >/tmp/out 2>&1; equal "$1: recover ends with" 0 $?
    said
    unharmed "$1, recover" b "$gpu" "$before"
  fi
  virsh -q destroy b 2>/dev/null
}
# whole TITLE: nothing is unfinished, and everything is as in /tmp/before.
whole() {
  let_go "$gpu"
  no_journal "$1"
  check "$1: all is as before" diff /tmp/before <(/share/vdgx/state)
}
# during NAME WAY PREPARE CMD...: CMD is stopped at each of its records; `WAY 0`: another guest has the GPU then, `WAY 1`: none.
during() {
  local name=$1 way=$2 prepare=$3 n title; shift 3
  say "during $name"
  for ((n = 2; n < 60; n++)); do
    $prepare || return
    halted $n "$@" || { equal "$name: $((n - 1)) records, it ends with" 0 "$status"; $way 1; whole "$name: whole"; return; }
    title="$name at $record"; title=${title:0:60}
    say "$title"
    if taken "$title"; then $way 0; else equal "$title: it was first" 0 "$status"; $way 1; fi
    whole "$title"
    [[ $fails -lt 60 ]] || { fail "too much fails"; return; }
  done
  fail "$name: never comes to its end"
}

nothing() { rm -rf $journals/*.jsonl; }
after_create() {
  if [[ $1 == 0 ]]; then
    check "$title: it is refused" test "$status" == 1
    equal "$title: no a" "" "$(virsh -q list --all --name | grep -x a)$(ls /tmp/a*.raw 2>/dev/null)"
  else
    check "$title: a runs" runs a
  fi
  ! virsh -q dominfo a >/dev/null 2>&1 || quietly gpuvm delete a --yes
}
defined() { nothing; virsh -q dominfo a >/dev/null 2>&1 || quietly make a --gpu 0 --no-start; }
after_start() {
  if [[ $1 == 0 ]]; then
    check "$title: it is refused" test "$status" == 1
    check "$title: a is there, with its disk" test -n "$(virsh -q list --all --name | grep -x a)" -a -n "$(ls /tmp/a*.raw)"
  else
    check "$title: a runs" runs a
  fi
  quietly gpuvm delete a --yes
}
# Bound, as after a start, so that delete has something to release.
ready() { defined && { [[ $(driver_of "$gpu") == vfio-pci ]] || quietly gpuvm device bind "$gpu"; }; }
after_delete() {
  # Refused as a whole, or complete except for the GPU.
  ! virsh -q dominfo a >/dev/null 2>&1 || quietly gpuvm delete a --yes
  equal "$title: no a" "" "$(virsh -q list --all --name | grep -x a)$(ls /tmp/a*.raw 2>/dev/null)"
}

/share/vdgx/state >/tmp/before
for what in ${1:-create start delete}; do
  case $what in
    create) made a --gpu 0; during create after_create nothing "${how[@]}" ;;
    start) during start after_start defined gpuvm start a ;;
    delete) during delete after_delete ready gpuvm delete a --yes ;;
  esac
done
finish
