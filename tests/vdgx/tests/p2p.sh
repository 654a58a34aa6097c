#!/bin/bash
# Direct transfers below a PCIe switch (--p2p auto), by registers of ports that Linux has set and that a reset loses. Below the
# first switch are two GPUs, two NICs with ATS, one without (igb) and one with two functions; below the second one, two GPUs
# with ATS (tests/vdgx/all has the options).
#   p2p.sh         guests that start, stop, share a switch or a port, and are killed; resets; ports that others have set, or
#                  that do not isolate
#   p2p.sh noats   booted with pci=noats: no port is set
#   p2p.sh pt      booted with iommu=pt, where ATS is on only while a guest has the NIC, and with pci=config_acs=, which sets the
#                  first NIC's port
# Which way a transfer takes is not shown: QEMU ignores ACS.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de 0)
mapfile -t peer < <(for b in $(bdfs 0302 10de); do [[ $(<"$pci/$b/device") != 0x20b2 ]] || echo "$b"; done)
mapfile -t n < <(bdfs 0200 15b3); mapfile -t old < <(bdfs 0200 8086)
records=/run/gpuvm/p2p
# register BDF NAME: prints a register of 16 bits; setpci of Debian 12 has no name for ATS.
register() { setpci -s "$1" "$2.w"; }
control() { register "$1" ECAP_ACS+6; }
ats() { register "$1" ECAP000F+6; }
# port_of BDF: prints the port above a function.
port_of() { basename "$(dirname "$(readlink -f "$pci/$1")")"; }
# controls: prints ACS control of each port that has it.
controls() {
  local p
  for p in $(bdfs 0604); do echo "$p $(control "$p" 2>/dev/null)"; done | grep ' .'
}
groups() { find /sys/kernel/iommu_groups -path '*/devices/*' | sort; }
# changed: prints the ports whose control is not as at the beginning, with their value.
changed() { diff /tmp/controls <(controls) | sed -n 's/^> //p' | paste -sd' '; }
owned() { (shopt -s nullglob; cd $records 2>/dev/null && for f in *.json; do echo "${f%.json}"; done) | paste -sd' '; }
# ports TITLE CHANGED OWNED: these ports are not as at the beginning, these have records, and the groups are what they were.
ports() {
  equal "$1: ports" "$2" "$(changed)"
  equal "$1: records" "$3" "$(owned)"
  check "$1: groups" diff /tmp/groups <(groups)
}
# give NAME GPU NIC ARGS...: makes a guest with these two and --p2p auto.
give() { make "$1" --gpu "$2" --nic "$3" --p2p auto "${@:4}"; }
# way A B OP: prints how transfers between the two are routed, and what blocks them, by `host p2p`.
way() {
  gpuvm host p2p --json | jq -r ".pairs[] | select([.a, .b] == [\"$1\", \"$2\"] or [.a, .b] == [\"$2\", \"$1\"]).routes[] |
    select(.from == \"$2\" and .op == \"$3\") | [.way, (.blocked[] | .code + \"@\" + .at)] | join(\" \")"
}
# refused TITLE CODE PATTERN CMD...: ends with 1 and this error.
refused() {
  local title=$1 code=$2 pattern=$3; shift 3
  "$@" --json >/tmp/refused 2>/tmp/out; equal "$title: exit code" 1 $?
  equal "$title: code" "$code" "$(jq -r .code /tmp/refused)"
  jq -r '.. | strings' /tmp/refused >/tmp/reason; sed 's/^/     | /' /tmp/reason
  has "$title: reason" /tmp/reason "$pattern"
}
# findings: keeps doctor's answer; prints its findings of peer-to-peer, with the function that they are of.
findings() {
  gpuvm host doctor --json >/tmp/doctor.json 2>/dev/null
  jq -r '.findings[] | select(.rule | IN("acs-redirect", "acs-off", "p2p-rejected")) |
    "\(.severity) \(.rule) \(.device // "")"' /tmp/doctor.json
}
# verified NAME: prints the exit status of verify, and the rules that it finds with their severity.
verified() {
  local status
  gpuvm verify "$1" --json >/tmp/verify.json 2>/dev/null; status=$?
  echo "$status$(jq -r '.. | objects | select(.rule? and .severity?) | " \(.severity) \(.rule)"' /tmp/verify.json | sort -u)"
}
# stopped TITLE NAME: stops it; its ports are as before.
stopped() {
  quietly gpuvm stop "$2" --force
  ports "$1" "" ""
}
p=$(port_of "${n[0]}") q=$(port_of "${n[1]}") shared=$(port_of "${n[3]}") gp=$(port_of "${g[0]}")
controls >/tmp/controls; groups >/tmp/groups
/share/vdgx/state >/tmp/before
equal "devices" "2 2 4 1" "${#g[@]} ${#peer[@]} ${#n[@]} ${#old[@]}"
equal "the functions of the last one share a port" "$shared" "$(port_of "${n[2]}")"
equal "each has a group of its own" 4 "$(for b in "${n[@]}"; do readlink "$pci/$b/iommu_group"; done | sort -u | wc -l)"

case ${1:-} in
  noats)
    equal "Linux has TB on, too" 001f "$(sed 's/.* //' /tmp/controls | sort -u)"
    equal "ATS is off" 0000 "$(ats "${n[0]}")"
    give a "${g[0]}" "${n[0]}"; equal "create ends with" 0 $?
    said
    has "it says why no port is set" /tmp/out 'pci=noats'
    ports "no port is set" "" ""
    equal "the way" "root ats-off@${n[0]}" "$(way "${g[0]}" "${n[0]}" write | sed 's/ no-dt@.*//')"
    findings >/tmp/findings
    has "a note" /tmp/findings "^note acs-redirect"
    jq -r '.findings[] | select(.rule == "acs-redirect").hint' /tmp/doctor.json >/tmp/hint
    has "with the remedy" /tmp/hint "remove .pci=noats."
    check "no error" bash -c '! grep -E "^error" /tmp/findings'
    quietly gpuvm delete a --yes
    ;;
  pt)
    equal "the kernel has set the port" 005d "$(control "$p")"
    equal "and no other" "$p" "$(grep -v ' 001d$' /tmp/controls | sed 's/ .*//')"
    dmesg >/tmp/dmesg; has "its log says so" /tmp/dmesg "Configured ACS to 0x005d"
    equal "its NIC is alone in its group" "${n[0]}" "$(ls "$pci/${n[0]}/iommu_group/devices")"
    equal "ATS is off without a guest" 0000 "$(ats "${n[0]}")"
    equal "which does not count" "switch" "$(way "${g[0]}" "${n[0]}" write)"
    give a "${g[0]}" "${n[0]}" || { fail "create a"; said; }
    equal "ATS is on while the guest has it" 8000 "$(ats "${n[0]}")"
    ports "the kernel's port is used" "" ""
    equal "verify finds nothing" 0 "$(verified a)"
    stopped "it stays after the stop" a
    equal "ATS is off again" 0000 "$(ats "${n[0]}")"
    give b "${g[1]}" "${n[1]}" || { fail "create b"; said; }
    ports "the other NIC's port is set" "$q 005d" "$q"
    has "the unit's argument" <(gpuvm host p2p restore --at-boot --dry-run 2>&1) \
      "pci=config_acs=1x111x1@0000:20:00.0/00.0/08.0"
    quietly gpuvm delete b --yes
    quietly gpuvm delete a --yes
    ports "at the end" "" ""
    ;;
  *)
    equal "Linux sets SV, RR, CR and UF" 001d "$(sed 's/.* //' /tmp/controls | sort -u)"

    say "a NIC without ATS"
    equal "the way" "root no-ats@${old[0]} no-dt@$(port_of "${old[0]}")" "$(way "${g[0]}" "${old[0]}" write)"
    findings >/tmp/findings
    equal "notes of the NICs, and nothing else" "note acs-redirect" "$(sed 's/ *$//' /tmp/findings | sort -u)"
    jq -r '.findings[] | select(.rule == "acs-redirect") | .message, .found' /tmp/doctor.json >/tmp/notes
    has "that it has no ATS" /tmp/notes "${old[0]} has no ATS"
    give a "${g[0]}" "${old[0]}"; equal "create ends with" 0 $?
    said
    has "it says why no port is set" /tmp/out "${old[0]} of .a. has no ATS"
    ports "no port is set" "" ""
    quietly gpuvm delete a --yes

    say "a NIC with ATS"
    equal "the way" "root no-dt@$p" "$(way "${g[0]}" "${n[0]}" write)"
    give a "${g[0]}" "${n[0]}" || { fail "create a"; said; }
    ports "while it runs" "$p 005d" "$p"
    equal "the record" "29 93 $(virsh domuuid a)" "$(jq -r '"\(.was) \(.set) \(.guests[])"' "$records/$p.json")"
    equal "writes" switch "$(way "${g[0]}" "${n[0]}" write)"
    equal "reads" switch "$(way "${g[0]}" "${n[0]}" read)"
    equal "ATS is on" 8000 "$(ats "${n[0]}")"
    check "the guest sees the NIC" wait_for 240 grep -qa "L2 pci .* 15b3:1021" /share/a.log
    equal "verify finds nothing" 0 "$(verified a)"
    findings >/tmp/findings
    jq -r '.findings[] | select(.rule == "acs-redirect").message' /tmp/doctor.json >/tmp/notes
    check "doctor has no note of its NIC" bash -c "! grep ${n[0]} /tmp/notes"
    stopped "stop" a
    quietly gpuvm start a
    ports "start" "$p 005d" "$p"
    quietly gpuvm restart a --force
    ports "restart" "$p 005d" "$p"
    stopped "stop again" a
    quietly gpuvm start a --p2p off
    ports "start --p2p off" "" ""
    stopped "stop after --p2p off" a

    setpriv --reuid 65534 --regid 65534 --clear-groups gpuvm host p2p --assume-empty --json >/tmp/p2p.json 2>/tmp/out
    equal "who is not root sees no register, and no way" "unknown null" \
      "$(jq -r '[.pairs[].routes[].way, .ports[].ctl] | unique | map(tostring) | sort | reverse | join(" ")' /tmp/p2p.json)"

    say "behind gpuvm's back"
    virsh -q start a || fail "virsh start a"
    equal "virsh start sets nothing: verify" "3 warning p2p-redirected" "$(verified a)"
    quietly gpuvm host p2p restore
    ports "restore sets it" "$p 005d" "$p"
    equal "verify finds nothing then" 0 "$(verified a)"
    gpuvm host p2p restore >/tmp/out 2>&1; equal "restore again ends with" 0 $?
    has "and has nothing to do" /tmp/out "no port to restore"
    virsh -q destroy a || fail "virsh destroy a"
    ports "virsh destroy leaves it" "$p 005d" "$p"
    quietly gpuvm host p2p restore
    ports "restore clears it" "" ""
    quietly gpuvm start a
    virsh -q destroy a || fail "virsh destroy a"
    give b "${g[1]}" "${n[1]}" --no-start || { fail "create b"; said; }
    quietly gpuvm start b
    ports "so does the start of another guest" "$q 005d" "$q"
    stopped "stop b" b

    say "resets while it runs"
    quietly gpuvm start a
    echo 1 >"$pci/${g[0]}/reset" 2>/dev/null
    ports "a reset of the GPU" "$p 005d" "$p"
    root=$(basename "$(dirname "$(dirname "$(dirname "$(readlink -f "$pci/${n[0]}")")")")")
    echo 1 >"$pci/$root/reset_subordinate" || fail "reset_subordinate of $root"
    ports "a reset of all below the root port loses it" "" "$p"
    check "a runs" runs a
    equal "verify" "3 warning p2p-redirected" "$(verified a)"
    quietly gpuvm host p2p restore
    ports "restore mends it" "$p 005d" "$p"
    equal "verify finds nothing" 0 "$(verified a)"
    echo 1 >"$pci/$root/reset_subordinate"
    stopped "lost, then stopped" a

    say "two guests below one switch"
    quietly gpuvm start a
    quietly gpuvm start b
    ports "both run" "$p 005d $q 005d" "$p $q"
    quietly gpuvm stop a --force
    ports "stop a leaves b's" "$q 005d" "$q"
    quietly gpuvm start a
    quietly gpuvm delete b --yes
    ports "delete b leaves a's" "$p 005d" "$p"
    quietly gpuvm delete a --yes
    ports "delete a" "" ""

    say "two functions of one card"
    give c "${g[0]}" "${n[2]}" --no-start || { fail "create c"; said; }
    give d "${g[1]}" "${n[3]}" --no-start || { fail "create d"; said; }
    refused "c" p2p-other-guest "${n[3]} below port $shared belongs to domain .d." gpuvm start c
    refused "d" p2p-other-guest "${n[2]} below port $shared belongs to domain .c." gpuvm start d
    ports "refused" "" ""
    quietly gpuvm host trust one-tenant
    quietly gpuvm start c
    ports "one-tenant: c" "$shared 005d" "$shared"
    quietly gpuvm start d
    ports "one-tenant: d" "$shared 005d" "$shared"
    equal "both are recorded" 2 "$(jq '.guests | length' "$records/$shared.json")"
    quietly gpuvm stop c --force
    ports "d still needs it" "$shared 005d" "$shared"
    stopped "the last one clears it" d
    quietly gpuvm host undo --yes
    quietly gpuvm delete c --yes
    quietly gpuvm delete d --yes

    say "GPUs with ATS"
    make e --gpu "${peer[0]}" --gpu "${peer[1]}" --p2p auto || { fail "create e"; said; }
    mapfile -t both < <(for b in "${peer[@]}"; do port_of "$b"; done)
    ports "both ports are set" "${both[0]} 005d ${both[1]} 005d" "${both[0]} ${both[1]}"
    equal "the way" switch "$(way "${peer[0]}" "${peer[1]}" write)"
    quietly gpuvm delete e --yes
    ports "delete e" "" ""

    say "ports that others have set"
    give a "${g[0]}" "${n[0]}" --no-start || { fail "create a"; said; }
    setpci -s "$p" ECAP_ACS+6.w=40:40
    quietly gpuvm start a
    ports "set before: no record" "$p 005d" ""
    quietly gpuvm stop a --force
    ports "set before: stays" "$p 005d" ""
    setpci -s "$p" ECAP_ACS+6.w=00:40
    quietly gpuvm start a
    setpci -s "$p" ECAP_ACS+6.w=02:02
    equal "TB on: verify" "3 error p2p-rejected" "$(verified a)"
    refused "TB on: restore" p2p-not-restored "rejects translated requests" gpuvm host p2p restore
    quietly gpuvm stop a --force
    has "TB on: stop says what it leaves" /tmp/out "is 0x5f, not 0x5d as set by gpuvm"
    ports "TB on: stop leaves it" "$p 005f" ""
    setpci -s "$p" ECAP_ACS+6.w=1d:7f

    say "a port that does not isolate"
    setpci -s "$gp" ECAP_ACS+6.w=00:7f
    findings >/tmp/findings
    has "doctor" /tmp/findings "^error acs-off $gp"
    gpuvm plan --gpu "${g[1]}" --nic "${n[1]}" --explain >/tmp/plan 2>&1
    has "plan" /tmp/plan "not isolated: port $gp does not redirect"
    template x hold
    strangers=(gpuvm create --name x --virt-type qemu --template /tmp/x.template --vcpus 1 --memory 64M --pins none --disk-dir /tmp
      --os-size 1M --data-size none --no-seed --no-wait --gpu "${g[1]}" --nic "${n[1]}")
    "${strangers[@]}" >/tmp/out 2>&1; equal "create is refused" 1 $?
    said
    has "for the port" /tmp/out "port $gp does not redirect"
    refused "--p2p auto" p2p-open-port "port $gp of the same switch" gpuvm start a
    ports "nothing is changed" "$gp 0000" ""
    bash -c "$(jq -r '[.findings[] | select(.rule == "acs-off")][0].fix[0]' /tmp/doctor.json)"
    ports "the printed command mends it" "" ""
    findings >/tmp/findings
    check "doctor finds no error then" bash -c '! grep ^error /tmp/findings'

    say "killed"
    # killed_at WHEN CMD...: gpuvm is killed before or after its first write to a port, after its record.
    killed_at() {
      local when=$1; shift
      { VDGX_CONFIG=$when VDGX_SIGNAL=9 LD_PRELOAD=/usr/lib/vdgx/halt.so "$@" >/tmp/out 2>&1; } 2>/dev/null
      equal "$title: killed" 137 $?
    }
    for when in before after; do
      title="start, killed $when the write"
      killed_at $when gpuvm start a
      if [[ $when == before ]]; then ports "$title" "" "$p"; else ports "$title" "$p 005d" "$p"; fi
      gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
      ports "$title: recovered" "" ""
      no_journal "$title"
      check "$title: a does not run" bash -c '! virsh -q domstate a | grep running'
      title="stop, killed $when the write"
      quietly gpuvm start a
      killed_at $when gpuvm stop a --force
      gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
      said
      no_journal "$title"
      ports "$title: recovered" "" ""
      ! runs a || stopped "$title: stop" a
      title="restore, killed $when the write"
      virsh -q start a || fail "$title: virsh start a"
      killed_at $when gpuvm host p2p restore
      gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
      no_journal "$title"
      ports "$title: recovered" "" ""
      check "$title: a runs" runs a
      quietly gpuvm host p2p restore
      ports "$title: restore again" "$p 005d" "$p"
      stopped "$title: stop" a
    done
    quietly gpuvm delete a --yes
    for when in before after; do
      title="create, killed $when the write"
      made a --gpu "${g[0]}" --nic "${n[0]}" --p2p auto
      killed_at $when "${how[@]}"
      gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
      ports "$title: recovered" "" ""
      title="delete, killed $when the write"
      give a "${g[0]}" "${n[0]}" || { fail "$title: create a"; said; }
      killed_at $when gpuvm delete a --yes
      gpuvm recover </dev/null >/tmp/out 2>&1; equal "$title: recover ends with" 0 $?
      said
      no_journal "$title"
      ports "$title: recovered" "" ""
      ! virsh -q dominfo a >/dev/null 2>&1 || quietly gpuvm delete a --yes
    done
    ;;
esac
rm -f /tmp/*.raw
check "all is as before" diff /tmp/before <(/share/vdgx/state)
finish
