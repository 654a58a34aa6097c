#!/bin/bash
# A guest's GPUs are bound and reset when it is made, stay bound while it is stopped, and return to their drivers after
# it is deleted.
. /usr/lib/vdgx/env
start_libvirt || exit 1
dev=/sys/bus/pci/devices
mapfile -t g < <(bdfs 0302 10de)
group=$(basename "$(readlink "$dev/${g[0]}/iommu_group")")
# is BDF: its driver and override.
is() { echo "$(driver_of "$1") $(<"$dev/$1/driver_override")"; }
row() { gpuvm device list --all --json | jq -r ".[] | select(.bdf == \"$1\") | $2"; }
# refused NAME PATTERN ARGS...: exits with 1 and this reason, also with --force unless FORCE=1, and touches nothing.
refused() {
  local name=$1 pattern=$2 force; shift 2
  /share/vdgx/state >/tmp/untouched
  for force in '' --force; do
    [[ -z $force || -z $FORCE ]] || continue
    gpuvm device "$@" $force >/tmp/out 2>&1; equal "$name${force:+, forced}: exit code" 1 $?
    has "$name${force:+, forced}: holder" /tmp/out "$pattern"
  done
  check "$name: nothing is touched" diff /tmp/untouched <(/share/vdgx/state)
}
# own_driver BDF: binds it to pci-stub, as a driver of the host.
own_driver() { echo pci-stub >"$dev/$1/driver_override"; echo "$1" >/sys/bus/pci/drivers_probe; }
drop_driver() { echo "$1" >/sys/bus/pci/drivers/pci-stub/unbind; echo >"$dev/$1/driver_override"; }
modprobe pci-stub

/share/vdgx/state >/tmp/before
say "guests"
cat >/tmp/l2.xml <<'X'
<domain type='qemu'><name>l2</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/var/lib/libvirt/images/l2-probe</kernel>
<cmdline>hold</cmdline></os><features><acpi/></features>
<cpu mode='custom' match='exact' check='none'><model>qemu64</model></cpu><on_poweroff>destroy</on_poweroff>
<devices><controller type='usb' index='0' model='none'/><memballoon model='none'/><serial type='file'><source path='/tmp/l2.log'/></serial></devices></domain>
X
own_driver "${g[1]}"
# make INDEX NAME ARGS...: a guest that has this GPU, reports it in /tmp/NAME.log, and keeps running.
make() {
  sed "s,/tmp/l2.log,/tmp/$2.log," /tmp/l2.xml >"/tmp/$2.xml"
  gpuvm create --gpu "$1" --name "$2" --template "/tmp/$2.xml" --virt-type qemu --vcpus 1 --memory 64M \
    --pins none --disk-dir /tmp --os-size 1M --no-wait "${@:3}"
}
bound=$(make 0 a --dry-run | grep -c ' to vfio-pci, from ')
gpuvm device bind "${g[0]}"
sleep 1000 9<>"/dev/vfio/$group" & holder=$!
make 0 a >/tmp/out 2>&1; equal "a guest does not get what a process has open" 1 $?
has "it names the process" /tmp/out "process $holder \(sleep\), which has /dev/vfio/$group open"
kill $holder; wait $holder 2>/dev/null
gpuvm device release "${g[0]}"
check "nothing is left of it" diff <(grep -v "^pci ${g[1]}" /tmp/before) <(/share/vdgx/state | grep -v "^pci ${g[1]}")
phase "create a" make 0 a || fail "create a"
phase "create b" make 1 b || fail "create b"
for i in 0 1; do equal "GPU $i is the guest's" vfio-pci "$(driver_of "${g[$i]}")"; done
for i in a b; do check "guest $i sees its GPU" wait_for 240 grep -qa 10de:1db8 /tmp/$i.log; done
refused "a guest's GPU" "used by domain \`a\`, which runs" release "${g[0]}"
equal "list names the domain" a "$(row "${g[0]}" '.domains | join(" ")')"
check "stop leaves it bound" gpuvm stop a --force
[[ $bound == 0 ]] || equal "it is" "vfio-pci vfio-pci" "$(is "${g[0]}")"
if [[ $bound != 0 ]]; then
  check "released meanwhile" gpuvm device release "${g[0]}"
  check "start binds it again" gpuvm start a
  equal "it is bound" "vfio-pci vfio-pci" "$(is "${g[0]}")"
  mv /usr/bin/tee /usr/bin/tee.real
  printf '#!/bin/bash\n[[ $1 != */reset ]] || { echo "tee: $1: Inappropriate ioctl for device" >&2; exit 1; }\nexec tee.real "$@"\n' >/usr/bin/tee
  chmod +x /usr/bin/tee
  gpuvm delete b --yes >/tmp/out 2>&1; equal "a GPU that does not reset stops delete" 1 $?
  has "it names the GPU" /tmp/out "${g[1]} cannot be reset: Inappropriate ioctl"
  has "it says what to do" /tmp/out "gpuvm gpu exclude ${g[1]}"
  mv /usr/bin/tee.real /usr/bin/tee
fi
for d in a b; do phase "delete $d" gpuvm delete $d --yes || fail "delete $d"; done
equal "GPU 0 is as before" "- (null)" "$(is "${g[0]}")"
equal "GPU 1 is with its driver again" "pci-stub pci-stub" "$(is "${g[1]}")"
drop_driver "${g[1]}"
check "all is as before" diff /tmp/before <(/share/vdgx/state)

finish
