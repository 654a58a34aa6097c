#!/bin/bash
# `gpuvm create a` against a guest `b` of virsh for one GPU, 20 times (or the number of the argument), b a little later each
# time: one of them runs with the GPU, and an `a` that came too late leaves nothing. b is transient, since a is not even planned
# with devices of a defined domain.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
rounds=${1:-20}
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
/share/vdgx/state >/tmp/before
disk='' managed=yes foreign b "$gpu"
hundredths() { local up; read -r up _ </proc/uptime; now=${up/./}; }
made a --gpu 0
"${how[@]}" >/tmp/out 2>&1 || { fail "a create by itself"; said; finish; }
quietly gpuvm delete a --yes
hundredths; from=$now
"${how[@]}" >/tmp/out 2>&1; hundredths; took=$((now - from))
quietly gpuvm delete a --yes
say "a create takes $took hundredths of a second"
first=0 second=0 neither=0
for ((n = 0; n < rounds; n++)); do
  wait_s=$(awk -v t="$took" -v n="$n" -v r="$rounds" 'BEGIN { printf "%.2f", t / 100 * n / r }')
  "${how[@]}" >/tmp/out 2>&1 & one=$!
  sleep "$wait_s"
  virsh -q create /tmp/b.xml >/tmp/late 2>&1; b=$?
  before=$(resets "$gpu")
  wait $one; a=$?
  title="round $n, b after $wait_s s (create $a, b $b)"
  say "$title"
  case $a$b in
    [1-9]*0)
      second=$((second + 1))
      unharmed "$title" b "$gpu" "$before"
      said
      check "$title: no a" test -z "$(virsh -q list --all --name | grep -x a)" -a ! -e /tmp/a.raw
      ;;
    0*)
      first=$((first + 1))
      check "$title: a runs, b does not" bash -c '[[ $(virsh domstate a) == running* && $(virsh domstate b 2>/dev/null) != running* ]]'
      equal "$title: its GPU is on" vfio-pci "$(driver_of "$gpu")"
      ;;
    *)
      neither=$((neither + 1))
      said; cat /tmp/late
      check "$title: no a" test -z "$(virsh -q list --all --name | grep -x a)" -a ! -e /tmp/a.raw
      ;;
  esac
  equal "$title: nobody waits in the kernel" "" "$(hangs)"
  no_journal "$title"
  virsh -q destroy b >/dev/null 2>&1
  ! virsh -q dominfo a >/dev/null 2>&1 || quietly gpuvm delete a --yes
  let_go "$gpu"
  [[ $fails -lt 30 ]] || break
done
say "a came first $first times, b $second times, neither had the GPU $neither times"
equal "one of them has it each time" 0 $neither
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
