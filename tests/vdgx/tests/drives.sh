#!/bin/bash
# Drives: each drive that the host uses is refused with its holder and not touched; a data array is released, its drives go
# to a guest by PCI, as a whole disk and by partition, and the array is restored: assembled if its superblocks exist,
# recreated only on request. Lines of fstab and mdadm.conf are restored byte for byte.
# Needs 8 NVMe drives. `drives.sh linux` also boots a Linux guest, which takes minutes; `drives.sh short` recreates no array,
# as tests/uml/arrays.sh does that.
. /usr/lib/vdgx/env
start_libvirt || exit 1
# The guest boots the probe, which waits, or with `linux` a Linux, which works as long as it runs.
images=/var/lib/libvirt/images boots="<kernel>$images/l2-probe</kernel><cmdline>hold</cmdline>"
[[ ${1:-} != linux ]] || boots="<kernel>$images/l2-vmlinuz</kernel><initrd>$images/l2-initrd.gz</initrd><cmdline>console=ttyS0 quiet</cmdline>"
modprobe -a raid0 raid1 dm-mod dm-crypt 2>/dev/null
[[ $nvmes -ge 8 ]] || { fail "needs --nvmes 8, has $nvmes"; finish; }
export LIBVIRT_DEFAULT_URI=qemu:///system

# A drive by its serial number: persistent path, kernel's name, address.
id() { local f=(/dev/disk/by-id/nvme-*_VDGX"$1"); echo "${f[0]}"; }
dev() { readlink -f "$(id "$1")"; }
bdf() {
  local n
  for n in /sys/class/nvme/*; do
    [[ $(<"$n/serial") =~ ^VDGX$1\ *$ ]] && basename "$(readlink -f "$n/device")"
  done
}
settle() { udevadm trigger --subsystem-match=block --action=change; udevadm settle --timeout=60; }
uuid_of() { blkid -p -o value -s PART_ENTRY_UUID "$1"; }

# ---- the drives of a host in use ----
say "setting up"
cp -a /etc/fstab /tmp/fstab.orig 2>/dev/null || : >/etc/fstab
mkdir -p /mnt/a /mnt/part /raid /etc/mdadm
# 0: a mounted partition and one in dm-crypt; 1: LVM and swap; 2: a free partition, a mounted one, two of md0; 3: free;
# 4 to 7: md1.
for i in 0 1; do sgdisk -n 1:0:+400M -n 2:0:+400M "$(dev $i)" >/dev/null; done
sgdisk -n 1:0:+200M -n 2:0:+200M -n 3:0:+200M -n 4:0:+200M "$(dev 2)" >/dev/null
settle
zero=$(dev 0)p one=$(dev 1)p part=$(dev 2)p
mkfs.ext4 -q -F "${zero}1" && mount "${zero}1" /mnt/a
echo -n secret | cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 "${zero}2" - &&
  echo -n secret | cryptsetup open --key-file - "${zero}2" safe
pvcreate -q -y "${one}1" >/dev/null && vgcreate -q vg0 "${one}1" >/dev/null && lvcreate -q -y -L 64M -n data vg0 >/dev/null
mkswap "${one}2" >/dev/null && swapon "${one}2"
mkfs.ext4 -q -F "${part}2" && mount "${part}2" /mnt/part
mdadm -q --create /dev/md0 --run --level=1 --metadata=1.2 --homehost=dgx --raid-devices=2 "${part}3" "${part}4" 2>/dev/null
mdadm -q --create /dev/md1 --run --level=0 --chunk=512 --metadata=1.2 --homehost=dgx --name=raid --raid-devices=4 \
  "$(dev 4)" "$(dev 5)" "$(dev 6)" "$(dev 7)" 2>/dev/null
mkfs.ext4 -q -F -L raid /dev/md1
fs=$(blkid -p -o value -s UUID /dev/md1)
printf '%s\n' '# the table' '/dev/vda / ext4 defaults 0 1' "UUID=$fs"$'\t/raid\text4 defaults,nofail 0 2' \
  '/dev/md0 /mnt/md0 ext4 noauto 0 2' >/etc/fstab
{ echo 'HOMEHOST <system>'; echo '# arrays'; mdadm --detail --scan; printf 'MAILADDR root'; } >/etc/mdadm/mdadm.conf
mount /raid && head -c 3000000 /dev/urandom >/raid/file && sum=$(md5sum </raid/file)
settle
wait_for 120 grep -q 'UU' /proc/mdstat; wait_for 120 sh -c '! grep -q resync /proc/mdstat'
cp /etc/fstab /tmp/fstab; cp /etc/mdadm/mdadm.conf /tmp/mdadm.conf
cat /proc/mdstat; cat /etc/mdadm/mdadm.conf; echo
trace() { cat /proc/mdstat /proc/swaps; awk '{ print $1, $2 }' /proc/mounts; dmsetup ls | sort; cat /etc/fstab /etc/mdadm/mdadm.conf
  for i in 0 1 2 3 4 5 6 7; do driver_of "$(bdf $i)"; done; virsh list --all --name; ls /var/lib/gpuvm/arrays 2>/dev/null; }
trace >/tmp/before

phase "drive list" gpuvm drive list | tee /tmp/list
has "the root disk" /tmp/list '^ *vda .* system .*vda is mounted at /'
has "a mounted partition" /tmp/list "$(basename "${zero}1") .*mounted at /mnt/a"
has "dm-crypt" /tmp/list "$(basename "${zero}2") .*\(dm-crypt safe\)"
has "a PV" /tmp/list "$(basename "${one}1") .*\(LVM vg0-data\)"
has "swap" /tmp/list "$(basename "${one}2") .*swap space"
has "a member" /tmp/list "$(basename "$(dev 5)") .*md1 \(md raid0\), which is mounted at /raid"
has "a free drive" /tmp/list "$(basename "$(dev 3)") .* free +pci,disk +nvme-.*VDGX3"
gpuvm drive list --json >/tmp/list.json
free() { jq -r '.[] | select(.role == "free") | .ids[0]' /tmp/list.json | sed 's/.*_VDGX//' | sort | paste -sd' '; }
equal "free drives" 3 "$(free)"

# ---- refusals ----
make=(gpuvm create --vcpus 1 --memory 512M --virt-type qemu --image none --os-size 16M --template /tmp/guest.xml --no-wait)
cat >/tmp/guest.xml <<X
<domain type='qemu'><name>g</name><memory unit='MiB'>512</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type>$boots</os><features><acpi/></features>
<devices><controller type='usb' index='0' model='none'/><memballoon model='none'/><serial type='file'><source path='/var/log/libvirt/g.log'/><target port='0'/></serial></devices></domain>
X
refused() { # NAME PATTERN ARGS...
  local name=$1 pattern=$2; shift 2
  if "${make[@]}" --name r "$@" >/tmp/refused 2>&1; then fail "$name is not refused"; virsh -q undefine --nvram r; return; fi
  has "$name is refused" /tmp/refused "$pattern"
  grep -qE -- "$pattern" /tmp/refused || cat /tmp/refused
}
refused "the root disk" 'vda is mounted at /' --drive vda
has "the root disk is never given away" /tmp/refused 'never given away'
refused "a mounted drive" 'is mounted at /mnt/a' --drive "$(id 0)"
refused "a mounted drive by PCI" 'is mounted at /mnt/a' --nvme "$(bdf 0)"
refused "dm-crypt" '\(dm-crypt safe\)' --drive "$(id 0)"
refused "dm-crypt's partition" '\(dm-crypt safe\)' --partition "$(uuid_of "${zero}2")"
refused "LVM" 'is part of dm-[0-9]+ \(LVM vg0-data\)' --drive "$(id 1)"
refused "LVM by PCI" '\(LVM vg0-data\)' --nvme "$(bdf 1)"
refused "swap" 'is swap space' --drive "$(id 1)"
refused "swap's partition" 'is swap space' --partition "$(uuid_of "${one}2")"
refused "a member" 'md1 \(md raid0\), which is mounted at /raid' --drive "$(id 4)"
refused "a member by PCI" 'md1 \(md raid0\)' --nvme "$(bdf 4)"
refused "a drive of which a part is used" 'is mounted at /mnt/part' --drive "$(id 2)"
refused "a mounted partition" 'is mounted at /mnt/part' --partition "$(uuid_of "${part}2")"
refused "a partition of an array" 'md0 \(md raid1\)' --partition "$(uuid_of "${part}3")"
exec 7<"$(dev 3)"
refused "a drive that a process has open" 'is open by process [0-9]+ \(' --drive "$(id 3)"
exec 7<&-
vgchange -q -an vg0 >/dev/null; settle
pv=$(uuid_of "${one}1")
check "udev names the PV" wait_for 60 test -e "/dev/disk/by-partuuid/$pv"
refused "a PV of a group that is not active" 'an LVM volume group that is not active' --partition "$pv"
# A stale link that udev does not know.
old=/dev/disk/by-partuuid/00000000-0000-4000-8000-000000000000
ln -s "../../$(basename "${one}1")" $old
refused "with an old link to it" 'an LVM volume group that is not active' --partition "$pv"
refused "by the old link" 'no partition' --partition "$(basename $old)"
rm $old
vgchange -q -ay vg0 >/dev/null; settle
trace >/tmp/after
check "nothing was touched" diff /tmp/before /tmp/after

# ---- release ----
release() { gpuvm drive release-array "$@" >/tmp/release 2>&1; local status=$?; cat /tmp/release; return $status; }
release /dev/md1 --yes && fail "a mounted array was released"
has "a mounted array" /tmp/release 'md1 is mounted at /raid'
( cd /raid && exec sleep 1000 ) & sleeper=$!
sleep 1
release /dev/md1 --unmount --yes && fail "an array that a process stands on was released"
has "a process on it" /tmp/release "process $sleeper \(sleep\) has something open on /raid"
kill $sleeper; wait $sleeper 2>/dev/null
truncate -s 1M /raid/vol
virsh -q define <(sed 's/<name>g/<name>other/; s|<devices>|<devices><disk type="file"><driver type="raw"/><source file="/raid/vol"/><target dev="vda"/></disk>|' /tmp/guest.xml)
release /dev/md1 --unmount --yes && fail "an array with a guest's volume was released"
has "a guest's volume on it" /tmp/release 'domain `other` has /raid/vol as a disk'
virsh -q undefine other; rm /raid/vol
release /dev/vda --yes && fail "a disk was released"
has "no array" /tmp/release 'vda is not a running md array'
gpuvm drive release-array /dev/md1 --unmount --dry-run
trace >/tmp/after; check "nothing was touched by refusals and --dry-run" diff /tmp/before /tmp/after
phase release gpuvm drive release-array /dev/md1 --unmount --yes || fail "release"
cat /etc/fstab /etc/mdadm/mdadm.conf; echo
check "the array is gone" test ! -e /sys/block/md1/slaves -o -z "$(ls /sys/block/md1/slaves 2>/dev/null)"
has "the line of fstab is commented" /etc/fstab "^#gpuvm-released:md1# UUID=$fs"
has "the other line stays" /etc/fstab '^/dev/md0 '
has "md0's line stays" /etc/mdadm/mdadm.conf '^ARRAY .*md.*0 '
has "superblocks stay" <(mdadm --examine "$(dev 4)") 'dgx:raid'
for i in 4 5 6 7; do udevadm trigger --action=add "/sys/class/block/$(basename "$(dev $i)")"; done; udevadm settle
for i in 4 5 6 7; do mdadm -q --incremental "$(dev $i)" 2>/dev/null; done
check "udev does not assemble it again" test -z "$(ls /sys/block/md1/slaves 2>/dev/null)"
gpuvm drive list --json >/tmp/list.json
equal "its drives are free" "3 4 5 6 7" "$(free)"

# ---- a guest gets drives in every way ----
four=$(bdf 4) # on vfio-pci it has no serial number
phase create "${make[@]}" --name g --nvme "$four" --drive "$(id 3)" --drive "$(basename "$(dev 5)")" \
  --partition "$(uuid_of "${part}1")" || fail "create"
virsh dumpxml --inactive g >/tmp/g.xml
equal "the guest" running "$(virsh domstate g | head -n1)"
equal "the driver while the guest runs" vfio-pci "$(driver_of "$four")"
for f in "$(dev 3)" "$(dev 5)" "${part}1"; do
  check "QEMU has $f" sh -c "find /proc/[0-9]*/fd -lname '$f' 2>/dev/null | grep -q ."
done
has "the drive by its name that stays" /tmp/g.xml "<source dev='$(id 3)'"
has "the kernel's name is replaced" /tmp/g.xml "<source dev='/dev/disk/by-id/nvme-.*VDGX5"
has "the partition" /tmp/g.xml "<source dev='/dev/disk/by-partuuid/$(uuid_of "${part}1")'"
equal "disks past the page cache" 4 "$(grep -cE "cache='none' io='(native|io_uring)' discard='unmap'" /tmp/g.xml)"
has "the NVMe drive as a PCI function" /tmp/g.xml '<hostdev '
refused "another guest's drive" 'is a disk of domain `g`' --drive "$(id 3)"
refused "another guest's drive by PCI" 'is held by domain `g`' --nvme "$(bdf 3)"
refused "the function that another guest has" 'is held by domain `g`' --nvme "$four"
refused "another guest's partition" 'is a disk of domain `g`' --partition "$(uuid_of "${part}1")"
gpuvm drive restore-array md1 --yes 2>&1 | tee /tmp/restore; [[ ${PIPESTATUS[0]} != 0 ]] || fail "restored while a guest has its drives"
has "restore names the guest" /tmp/restore 'domain `g`'
if [[ ${1:-} == linux ]]; then
  phase "Linux guest" wait_for 500 grep -qa L2-END /var/log/libvirt/g.log
  tr -d '\r' </var/log/libvirt/g.log | grep -a '^L2' >/tmp/g.log; cat /tmp/g.log
  has "the guest has the NVMe drive" /tmp/g.log 'block nvme0n1 1024 MiB'
  has "it is written by DMA" /tmp/g.log 'nvme-readback vdgx-l2-was-here'
  has "the whole drives" /tmp/g.log 'block vdb 1024 MiB'
  has "the partition" /tmp/g.log 'block vdd 200 MiB'
fi
phase delete gpuvm delete g --yes || fail "delete"
settle
equal "the driver is back" nvme "$(driver_of "$four")"

# ---- restore ----
gpuvm drive restore-array md2 --yes >/tmp/restore 2>&1; has "an array that was not released" /tmp/restore 'no array `md2` was released'
gpuvm drive restore-array md1 --yes --create --mkfs 2>&1 | tee /tmp/restore; [[ ${PIPESTATUS[0]} != 0 ]] || fail "made anew without need"
has "--create without need" /tmp/restore 'still carry its superblocks'
gpuvm drive restore-array md1 --dry-run
phase restore gpuvm drive restore-array md1 --yes || fail "restore"
equal "what was on it" "$sum" "$(md5sum </raid/file)"
# A guest may have written it: device files and set-user-ID programs are ignored until it is declared trusted.
has "it is mounted with care" <(grep ' /raid ' /proc/mounts) 'nosuid,nodev|nodev,nosuid'
check "fstab but for that" cmp <(sed 's/,nodev,nosuid//' /etc/fstab) /tmp/fstab
has "fstab with care" /etc/fstab "^UUID=$fs.*defaults,nofail,nodev,nosuid 0 2"
cp /tmp/fstab /etc/fstab; mount -o remount,dev,suid /raid
check "mdadm.conf byte for byte" cmp /etc/mdadm/mdadm.conf /tmp/mdadm.conf
check "nothing is kept" test -z "$(ls /var/lib/gpuvm/arrays)"

# ---- overwritten by a guest ----
if [[ ${1:-} != short ]]; then
  gpuvm drive release-array /dev/md1 --unmount --yes || fail "second release"
  dd if=/dev/urandom of="$(dev 6)" bs=1M count=4 conv=fsync status=none; settle
  gpuvm drive restore-array md1 --yes 2>&1 | tee /tmp/restore; [[ ${PIPESTATUS[0]} != 0 ]] || fail "restored over what a guest wrote"
  has "what was overwritten is named" /tmp/restore "1 of 4 drives .*superblocks no more"
  has "the drive is named" /tmp/restore "$(id 6)"
  phase "restore anew" gpuvm drive restore-array md1 --yes --create --mkfs || fail "restore anew"
  equal "UUID of the file system" "$fs" "$(blkid -p -o value -s UUID /dev/md1)"
  equal "level, chunk, members" "raid0 524288 4" "$(cat /sys/block/md1/md/{level,chunk_size,raid_disks} | paste -sd' ')"
  check "it is mounted" mountpoint -q /raid
  check "mdadm.conf still fits" test "$(mdadm --detail --scan | sort)" = "$(grep ^ARRAY /etc/mdadm/mdadm.conf | sort)"
  check "fstab byte for byte" cmp /etc/fstab /tmp/fstab
  check "mdadm.conf byte for byte" cmp /etc/mdadm/mdadm.conf /tmp/mdadm.conf
fi

# ---- as it was ----
umount /raid /mnt/a /mnt/part; mdadm -q --stop /dev/md1 /dev/md0; swapoff "${one}2"
cryptsetup close safe; vgremove -q -y vg0 >/dev/null; pvremove -q -y "${one}1" >/dev/null
for f in "$zero"[12] "$one"[12] "$part"[1-4]; do wipefs -qa "$f"; done
for i in 0 1 2; do sgdisk -Z "$(dev $i)" >/dev/null; partprobe "$(dev $i)"; done
for i in 3 4 5 6 7; do wipefs -qa "$(dev $i)"; done
rmdir /mnt/a /mnt/part /raid
if [[ -e /tmp/fstab.orig ]]; then mv /tmp/fstab.orig /etc/fstab; else rm /etc/fstab; fi
rm -f /etc/mdadm/mdadm.conf /var/log/libvirt/g.log; udevadm settle
finish
