#!/usr/bin/env bash
# Drives and block devices with content or users, on a real kernel: how they are reported, that a guest gets none of them
# unasked, whatever name is used for the device, and that an unused drive is erased.
#   tests/uml/run --disk 16M --disk 16M --disk 16M --disk 16M tests/uml/drives.sh GPUVM
# Writes to every drive: only for a machine that is thrown away afterwards.
set -uo pipefail
[[ $(uname -v) && -b /dev/ubdd && ! -b /dev/ubde ]] || { echo "drives: not on user-mode Linux with four drives" >&2; exit 125; }
gpuvm=$1
mkdir -p /share/vdgx && : >/share/vdgx/machine
. "$(dirname "$0")/../vdgx/l1/env"
cd /
ln -sfn /proc/self/fd /dev/fd
echo '<node/>' >/tmp/node.xml # libvirt's test driver, without a domain
gpuvm() { "$gpuvm" -c test:///tmp/node.xml "$@"; }
# No loop device beforehand: udev would examine eight of them at each query.
modprobe loop max_loop=0 && modprobe -a md-mod raid1 raid0 dm-mod || exit 125
mkdir -p /run/udev/rules.d /mnt/a /mnt/b /etc/mdadm
echo 'AUTO -all' >/etc/mdadm/mdadm.conf # what is stopped stays stopped
cat >/run/udev/rules.d/61-uml.rules <<'X'
SUBSYSTEM=="block", KERNEL=="ubd?", ATTR{serial}=="?*", SYMLINK+="disk/by-id/uml-$attr{serial}"
X
/usr/lib/systemd/systemd-udevd --daemon 2>/dev/null
settle() { udevadm trigger --subsystem-match=block --action=change; udevadm settle --timeout=60; }
settle
rm -rf /var/lib/gpuvm
a=/dev/ubda b=/dev/ubdb c=/dev/ubdc id=/dev/disk/by-id/uml-UML
boots=(create --name r --vcpus 1 --memory 64M --pins none --no-start)
create=("${boots[@]}" --image none --os-size 1M)
# listed NAME ROLE TEXT: the report of `drive list` about a drive.
listed() { settle; gpuvm drive list >/tmp/list; has "listed: $1 $2 $3" /tmp/list "^ *$1 .* $2 .*$3"; }
# refused WHAT PATTERN ARGS...: a guest does not get it, also with data loss accepted.
refused() {
  local what=$1 pattern=$2; shift 2
  local verb=("${create[@]}")
  [[ $1 != --disk ]] || verb=("${boots[@]}")
  gpuvm "${verb[@]}" --accept-data-loss --dry-run "$@" >/tmp/out 2>&1; equal "$what: refused" 1 $?
  has "$what: why" /tmp/out "$pattern" || cat /tmp/out
}
blank() { umount "$1" 2>/dev/null; wipefs -qa "$1"; dd if=/dev/zero of="$1" bs=1M count=16 status=none; settle; }

say "what lies on a drive that nobody uses"
listed ubda free ''
# marked TEXT COMMAND...: a drive on which the command writes a signature.
marked() {
  local text=$1; shift
  "$@" >/tmp/made 2>&1 || { fail "$text: made"; cat /tmp/made; }
  settle
  listed ubda data "$text"
  gpuvm "${create[@]}" --drive "${id}0" </dev/null >/tmp/out 2>&1; equal "$text: not given unasked" 2 $?
  has "$text: it is named" /tmp/out "$text"
  has "$text: the option" /tmp/out 'accept-data-loss'
  blank $a
}
put() { printf "$1" | dd of=$a bs=1 seek="$2" conv=notrunc status=none; }
marked 'ext4' mkfs.ext4 -q -F -L theirs $a
marked 'swap space' mkswap $a
marked 'MBR partition table' sh -c "echo ',,' | sfdisk -q --no-reread $a"
marked 'LUKS encrypted data' put 'LUKS\xba\xbe\0\1' 0
marked 'hibernation image' put 'S1SUSPEND' 4086
marked 'Ceph BlueStore' put 'bluestore block device\n' 0
marked 'unknown kind' put 'a database of its own' 4096
[[ ! -x /usr/sbin/pvcreate ]] || marked 'LVM' pvcreate -qy $a

say "who uses it"
mkfs.ext4 -q -F $a; settle
loop=$(losetup -f --show $a); mount "$loop" /mnt/a
listed ubda host 'loop.* \(loop device\), which is mounted at /mnt/a'
refused "a loop over it" 'loop device.*mounted at /mnt/a' --drive "${id}0"
refused "by --disk" 'mounted at /mnt/a' --disk $a
refused "the loop itself" 'mounted at /mnt/a' --disk "$loop"
mknod /tmp/other b $(stat -c '0x%t 0x%T' $a)
refused "a node of another name" 'mounted at /mnt/a' --disk /tmp/other
ln -s /tmp/other /tmp/link; refused "a link to it" 'mounted at /mnt/a' --disk /tmp/link
gpuvm drive wipe uml-UML0 --yes >/tmp/out 2>&1; equal "not erased while it is used" 1 $?
has "who uses it" /tmp/out 'mounted at /mnt/a'
umount /mnt/a
refused "the loop alone" 'loop device' --disk $a
losetup -d "$loop"; sleep 0.2
# Drives that came into use after the plan.
exec 5>&1
dmsetup create lin --table "0 $(blockdev --getsz $b) linear $b 0"; mkfs.ext4 -q -F /dev/mapper/lin; mount /dev/mapper/lin /mnt/b; settle
for path in $b /dev/mapper/lin /dev/dm-0 "${id}1"; do refused "$path" 'mounted at /mnt/b' --disk "$path"; done
umount /mnt/b
refused "a mapped drive" 'dm-0' --disk $b
dmsetup remove lin; blank $b
mdadm -q --create /dev/md7 --run --level=1 --metadata=1.2 --assume-clean --raid-devices=2 $b $c 2>/dev/null; mkswap -q /dev/md7 >/dev/null
swapon /dev/md7 && refused "an array with swap" 'swap' --disk /dev/md7
refused "a member of it" 'md7 \(md raid1\)' --disk $c
gpuvm drive wipe uml-UML2 --yes >/tmp/out 2>&1; equal "a member is not erased" 1 $?
swapoff /dev/md7
settle; mdadm -q --stop /dev/md7; settle
refused "an array that does not run" 'md array that does not run' --drive "${id}1"

say "held, although only marked"
# A ZFS pool holds its drives, but the kernel does not report it: only the label of a member shows it.
perl -e 'use Fcntl; sysopen(F, $ARGV[0], O_RDONLY | O_EXCL) or die; open(G, ">/tmp/holds"); sleep 600' $b & holder=$!
wait_for 20 test -e /tmp/holds
gpuvm drive wipe uml-UML1 --yes >/tmp/out 2>&1; equal "held: not erased" 1 $?
has "held: why" /tmp/out 'ubdb .*kernel'
listed ubdb host 'kernel'
kill $holder; wait $holder 2>/dev/null
equal "held: its mark is still there" linux_raid_member "$(blkid -p -o value -s TYPE $b)"

say "a killed erasing"
# The journal of a run that was killed early: the drive erased later is the same, with the same content.
killed() { # STEP: the journal has this step as begun
  printf '#!/bin/sh\nkill -KILL $PPID; exec blkdiscard.real "$@"\n' >/tmp/blkdiscard; chmod +x /tmp/blkdiscard
  mv /usr/sbin/blkdiscard /usr/sbin/blkdiscard.real && mv /tmp/blkdiscard /usr/sbin/blkdiscard
  gpuvm drive wipe uml-UML2 --yes >/tmp/out 2>&1; equal "$1: killed" 137 $?
  mv /usr/sbin/blkdiscard.real /usr/sbin/blkdiscard
  wait_for 20 sh -c '! pgrep blkdiscard >/dev/null'
}
erased() { equal "$1" 16777216 "$(tr -d '\0' <$c | wc -c | awk '{print 16777216 - $1}')"; }
theirs() { blank $c; mkfs.ext4 -q -F -L "$1" $c; settle; }
theirs before; killed "the same drive"
gpuvm recover >/tmp/out 2>&1; equal "the same drive: recover" 0 $? || cat /tmp/out
erased "the same drive is erased"
theirs before; killed "another file system"
theirs after
gpuvm recover >/tmp/out 2>&1; equal "another file system: recover" 0 $? || cat /tmp/out
has "another file system: it is told" /tmp/out 'not what was on it then.*left as it is'
equal "another file system stays" after "$(blkid -p -o value -s LABEL $c)"
theirs before; killed "mounted since"
mount $c /mnt/a
gpuvm recover >/tmp/out 2>&1; equal "mounted since: recover" 0 $? || cat /tmp/out
has "mounted since: it is told" /tmp/out 'mounted at /mnt/a.*left as it is'
umount /mnt/a; equal "mounted since: stays" before "$(blkid -p -o value -s LABEL $c)"
killed "another drive"
ln -sfn ../../ubdd ${id}2; mkfs.ext4 -q -F -L before /dev/ubdd
gpuvm recover >/tmp/out 2>&1; equal "another drive of this path: recover" 0 $? || cat /tmp/out
has "another drive of this path: it is told" /tmp/out 'serial=UML3, not .*UML2.*left as it is'
equal "another drive of this path stays" before "$(blkid -p -o value -s LABEL /dev/ubdd)"
wipefs -qa /dev/ubdd; settle
equal "no change is left" "" "$(ls /var/lib/gpuvm/journal 2>/dev/null)"

say "accepted, given, erased"
blank $a; mkfs.ext4 -q -F -L theirs $a; settle
gpuvm "${create[@]}" --drive "${id}0" --dry-run >/tmp/out 2>&1; has "a dry run tells" /tmp/out 'ubda holds ext4 .theirs.'
gpuvm drive wipe uml-UML0 --dry-run >/tmp/out 2>&1; equal "dry run" 0 $?
has "what is on it" /tmp/out "erase all 16777216 bytes of drive ${id}0 .*ext4 .theirs."
equal "nothing was erased" ext4 "$(blkid -p -o value -s TYPE $a)"
gpuvm drive wipe uml-UML0 </dev/null >/tmp/out 2>&1; equal "not unasked" 2 $?
gpuvm drive wipe ubda1 --yes >/tmp/out 2>&1; equal "no such drive" 1 $?
gpuvm drive wipe uml-UML0 --yes --json >/tmp/out 2>/tmp/err; equal "erased" 0 $? || cat /tmp/err
has "as JSON" /tmp/out '"path": "/dev/disk/by-id/uml-UML0"'
equal "nothing is left" 16777216 "$(tr -d '\0' <$a | wc -c | awk '{print 16777216 - $1}')"
listed ubda free ''
equal "no journal is left" "" "$(find /var/lib/gpuvm -name '*.journal' 2>/dev/null)"
gpuvm drive wipe uml-UML1 --yes >/tmp/out 2>&1; equal "a stale member is erased" 0 $? || cat /tmp/out
listed ubdb free ''

say "what a guest leaves"
# A guest of libvirt's test driver that has a drive: its deletion reports the kept data, and the offered command works.
cat >/tmp/guest.xml <<X
<domain type='test'><name>t</name><memory>65536</memory><os><type>hvm</type></os><devices><disk type='block' device='disk'>
<source dev='${id}1'/><target dev='vda' bus='virtio'/></disk></devices></domain>
X
echo "<node><domain file='/tmp/guest.xml'/></node>" >/tmp/guests.xml
mkfs.ext4 -q -F -L tenant $b; settle
"$gpuvm" -c test:///tmp/guests.xml delete t --yes >/tmp/out 2>&1; equal "deleted" 0 $? || cat /tmp/out
has "its drive keeps its data" /tmp/out "drive ${id}1 keeps the guest's data; .gpuvm drive wipe .*${id}1. erases it" || cat /tmp/out
equal "it is there" tenant "$(blkid -p -o value -s LABEL $b)"
gpuvm drive wipe ${id}1 --dry-run >/tmp/out 2>&1; equal "the offered command is known" 0 $? || cat /tmp/out
has "and about this drive" /tmp/out "drive ${id}1 .*tenant"

say "between question and wipe"
# halted N ARGS...: gpuvm, stopped at the Nth record of its journal.
halted() {
  local n=$1; shift
  : >/tmp/strace
  strace -f -qq -o /tmp/strace -e trace=fdatasync -e inject=fdatasync:signal=STOP:when="$n" \
    "$gpuvm" -c test:///tmp/node.xml "$@" >/tmp/out 2>&1 & tracer=$!
  wait_for 60 grep -q 'stopped by SIGSTOP' /tmp/strace
  halted=$(awk '/stopped by SIGSTOP/ { print $1; exit }' /tmp/strace)
}
goes_on() { kill -CONT "$halted"; wait $tracer; }
blank $c; mkfs.ext4 -q -F -L theirs $c; settle
halted 2 drive wipe uml-UML2 --yes; mount $c /mnt/a
goes_on; equal "mounted since the question: not erased" 1 $?
has "mounted since the question: why" /tmp/out 'mounted at /mnt/a' || cat /tmp/out
umount /mnt/a; equal "mounted since the question: stays" theirs "$(blkid -p -o value -s LABEL $c)"
halted 2 drive wipe uml-UML2 --yes
rm -f /tmp/holds
perl -e 'use Fcntl; sysopen(F, $ARGV[0], O_RDONLY | O_EXCL) or die; open(G, ">/tmp/holds"); sleep 600' $c & holder=$!
wait_for 20 test -e /tmp/holds
goes_on; equal "held since the question: not erased" 1 $?
has "held since the question: why" /tmp/out 'in use|busy' || cat /tmp/out
kill $holder; wait $holder 2>/dev/null
equal "held since the question: stays" theirs "$(blkid -p -o value -s LABEL $c)"
# While it is erased no guest gets it.
mv /usr/sbin/blkdiscard /usr/sbin/blkdiscard.real
cat >/usr/sbin/blkdiscard <<X
#!/bin/bash
[[ \$1 == --help ]] || { mount $c /mnt/a 2>/dev/null; echo \$? >/tmp/mounted; }
exec /usr/sbin/blkdiscard.real "\$@"
X
chmod +x /usr/sbin/blkdiscard
gpuvm drive wipe uml-UML2 --yes >/tmp/out 2>&1; equal "it is erased" 0 $? || cat /tmp/out
check "and was mounted by nobody meanwhile" test "$(cat /tmp/mounted)" -gt 0
mv /usr/sbin/blkdiscard.real /usr/sbin/blkdiscard
equal "no change is left" "" "$(ls /var/lib/gpuvm/journal 2>/dev/null)"

say "another array of this name"
# The array is stopped, and another one gets its name, after gpuvm has unmounted its file systems.
blank $b; blank $c; wipefs -qa /dev/ubdd
mdadm -q --create /dev/md7 --run --level=1 --metadata=1.2 --assume-clean --raid-devices=2 $b $c 2>/dev/null
mkfs.ext4 -q -F -L ours /dev/md7; settle; mount /dev/md7 /mnt/b
umount=$(readlink -f "$(command -v umount)"); mv "$umount" "$umount.real"
cat >"$umount" <<X
#!/bin/bash
"$umount.real" "\$@" || exit
mv "$umount.real" "$umount"
mdadm -q --stop /dev/md7
mdadm -q --create /dev/md7 --run --level=1 --metadata=1.2 --assume-clean --raid-devices=2 /dev/ubdd missing 2>/dev/null </dev/null
X
chmod +x "$umount"
gpuvm drive release-array /dev/md7 --unmount --yes >/tmp/out 2>&1; equal "it is not stopped" 1 $? || cat /tmp/out
has "why" /tmp/out 'md7 is now a different array: its UUID is' || cat /tmp/out
check "it runs" grep -q '^md7 : active.*ubdd' /proc/mdstat
[[ ! -e $umount.real ]] || mv "$umount.real" "$umount"
rm -rf /var/lib/gpuvm/journal /var/lib/gpuvm/arrays
mdadm -q --stop /dev/md7; for d in $b $c /dev/ubdd; do mdadm -q --zero-superblock $d 2>/dev/null; blank $d; done

say "an EFI system partition"
printf 'label: gpt\n,6M,U\n,6M,L\n' | sfdisk -q $a >/tmp/out 2>&1; settle
listed ubda data 'GPT partition table'
uuid=$(blkid -p -o value -s PART_ENTRY_UUID ${a}1)
if [[ -n $uuid ]]; then
  refused "by PARTUUID" 'EFI system partition' --partition "$uuid"
  refused "by --disk" 'EFI system partition' --disk ${a}1
  # The boot drive is known by the partition's type and by the entries that name it.
  mkfs.ext4 -q -F -L 'THE ESP' ${a}1; settle
  fs=$(blkid -p -o value -s UUID ${a}1)
  cp /etc/fstab /tmp/fstab 2>/dev/null || : >/tmp/fstab
  for named in "PARTUUID=${uuid^^}" "UUID=$fs" 'LABEL=THE\040ESP' "${a}1"; do
    echo "$named /boot/efi vfat umask=0077,noauto 0 1" >/etc/fstab
    refused "fstab's $named" 'EFI system partition' --drive "${id}0"
    gpuvm drive wipe uml-UML0 --yes >/tmp/out 2>&1; equal "fstab's $named: not erased" 1 $?
  done
  echo "# UUID=$fs /boot/efi vfat" >/etc/fstab
  listed ubda data 'GPT partition table'
  cp /tmp/fstab /etc/fstab
  # entry UUID: an entry of the firmware that starts from this partition.
  entry() {
    perl -e '$u = $ARGV[0] =~ tr/-//dr; print pack("V", 7), "Hard", pack("Vvv", map { hex } $u =~ /^(.{8})(.{4})(.{4})/), pack("H*", substr($u, 16))' \
      "$1" >/sys/firmware/efi/efivars/Boot0001-8be4df61-93ca-11d2-aa0d-00e098032b8c
  }
  if mount -t tmpfs tmpfs /sys/firmware && mkdir -p /sys/firmware/efi/efivars; then
    entry "$uuid"; refused "the firmware's entry" 'EFI system partition' --drive "${id}0"
    entry 01234567-89ab-cdef-0123-456789abcdef; listed ubda data 'GPT partition table'
    umount /sys/firmware
  else
    fail "no place for the firmware's entries"
  fi
fi
[[ $fails != 0 ]] || echo "drives: no failures"
finish
