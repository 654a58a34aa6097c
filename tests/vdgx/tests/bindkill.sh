#!/bin/bash
# gpuvm is killed before and after each write to the kernel of a `device bind`, a `create` and a `delete`, and `recover`
# repairs it: drivers and overrides are as before, or as after a completed delete. The kill comes from our own `tee` in place
# of the system's, since gpuvm writes through that program and does not search PATH for it. `bindkill.sh some` kills it only
# before the first write and after each: the state before a write equals that after the previous one, with one more line in
# the journal.
. /usr/lib/vdgx/env
kills=${1:-all}
start_libvirt || exit 1
dev=/sys/bus/pci/devices
mapfile -t g < <(bdfs 0302 10de)
mkdir -p /tmp/kill; echo 0 >/tmp/kill/n; echo - >/tmp/kill/at
mv /usr/bin/tee /usr/bin/tee.real
cat >/usr/bin/tee <<'X'
#!/bin/bash
n=$(($(</tmp/kill/n) + 1)); echo $n >/tmp/kill/n
[[ $n.before != "$(</tmp/kill/at)" ]] || { kill -KILL $PPID; exit 1; }
tee.real "$@"; status=$?
[[ $n.after != "$(</tmp/kill/at)" ]] || kill -KILL $PPID
exit $status
X
chmod +x /usr/bin/tee
# killed AT CMD...: runs it until its write AT (`3.before`); succeeds when it was killed.
killed() {
  echo 0 >/tmp/kill/n; echo "$1" >/tmp/kill/at; shift
  "$@" >/tmp/out 2>&1; local status=$?
  echo - >/tmp/kill/at
  [[ $status == 137 ]]
}
cat >/tmp/l2.xml <<'X'
<domain type='qemu'><name>l2</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/var/lib/libvirt/images/l2-probe</kernel></os>
<features><acpi/></features><cpu mode='custom' match='exact' check='none'><model>qemu64</model></cpu>
<devices><controller type='usb' index='0' model='none'/><memballoon model='none'/><serial type='file'><source path='/tmp/l2.log'/></serial></devices></domain>
X
count=1
make() { gpuvm create --gpus $count --name k --template /tmp/l2.xml --virt-type qemu --vcpus 2 --memory 64M --pins none \
  --disk-dir /tmp --os-size 1M --no-wait "$@"; }
export -f make; export count
modprobe pci-stub
echo pci-stub >"$dev/${g[0]}/driver_override"; echo "${g[0]}" >/sys/bus/pci/drivers_probe
/share/vdgx/state >/tmp/before
# each NAME LEAST AFTER CMD...: kills CMD at each of its writes; AFTER is run when CMD completed. `prepare` sets up its
# requirements.
each() {
  local name=$1 least=$2 after=$3 writes=0 when at; shift 3
  for ((at = 1; at < 40; at++)); do
    for when in before after; do
      [[ $kills != some || $when == after || $at == 1 ]] || continue
      prepare || { fail "$name: prepare"; return; }
      if ! killed $at.$when "$@"; then
        check "$name: $writes writes, at least $least" test $writes -ge "$least"
        $after; check "$name: comes to its end as it should" diff /tmp/before <(/share/vdgx/state)
        return
      fi
      writes=$at
      if [[ $at.$when == 1.after ]]; then
        gpuvm device bind "${g[1]}" >/tmp/other 2>&1; equal "$name $at.$when: others wait for recover" 1 $?
        has "$name $at.$when: and are told" /tmp/other "was interrupted"
      fi
      gpuvm recover >/tmp/out 2>&1 || { fail "$name $at.$when: recover"; cat /tmp/out; }
      check "$name $at.$when: as before" diff /tmp/before <(/share/vdgx/state)
    done
  done
  fail "$name: never comes to its end"
}
prepare() { true; }
phase "bind" each bind 2 "gpuvm device release ${g[1]}" gpuvm device bind "${g[1]}"
phase "create" each create 4 "gpuvm delete k --yes" bash -c make
# Defined, and bound as a start would bind it.
prepare() {
  [[ $(gpuvm list --json | jq length) != 0 ]] || make --no-start >/dev/null 2>&1
  gpuvm device bind "${g[@]:0:count}" --yes >/dev/null 2>&1
}
phase "delete" each delete 4 true gpuvm delete k --yes
echo "${g[0]}" >/sys/bus/pci/drivers/pci-stub/unbind; echo >"$dev/${g[0]}/driver_override"
mv /usr/bin/tee.real /usr/bin/tee
finish
