#!/usr/bin/env bash
# md arrays of every level on a real kernel: released, restored, a drive of one overwritten; gpuvm is killed before and after
# each command that it runs, and `recover` repairs it. Drives of multipath and of ZFS are reported and not given away.
#   tests/uml/run --disk 64M --disk 64M --disk 64M --disk 64M tests/uml/arrays.sh GPUVM [all|short]
# short: one level, and nothing is killed.
# Writes to /etc and to every drive: only for a machine that is thrown away afterwards.
set -uo pipefail
[[ $(uname -v) && -b /dev/ubdd && ! -b /dev/ubde ]] || { echo "arrays: not on user-mode Linux with four drives" >&2; exit 125; }
gpuvm=$1 set=${2:-all}
[[ $set == all || $set == short ]] || { echo "arrays: no set \`$set\`: all or short" >&2; exit 2; }
mkdir -p /share/vdgx && : >/share/vdgx/machine # the rig of the virtual DGX says here what it is
. "$(dirname "$0")/../vdgx/l1/env"
cd /
ln -sfn /proc/self/fd /dev/fd
echo '<node/>' >/tmp/node.xml # libvirt's test driver, without a domain
gpuvm() { "$gpuvm" -c test:///tmp/node.xml "$@"; }

modprobe -a md-mod raid0 raid1 raid10 raid456 dm-mod dm-multipath dm-round-robin || exit 125
# Drives have a serial number, which Debian's rules do not turn into a name.
mkdir -p /run/udev/rules.d
cat >/run/udev/rules.d/61-uml.rules <<'X'
SUBSYSTEM=="block", KERNEL=="ubd?", ATTR{serial}=="?*", SYMLINK+="disk/by-id/uml-$attr{serial}"
X
/usr/lib/systemd/systemd-udevd --daemon 2>/dev/null
settle() { udevadm trigger --subsystem-match=block --action=change; udevadm settle --timeout=60; }
settle
drives=(/dev/disk/by-id/uml-*)
equal "drives" 4 ${#drives[@]}
mkdir -p /raid /etc/mdadm
rm -rf /var/lib/gpuvm /etc/mdadm.conf

# state: the state that a release and a restore, or a run that was killed and recovered, must leave unchanged.
state() {
  grep -A1 '^md' /proc/mdstat | tr -s ' ' '\n' | sort | paste -sd' '
  awk '$2 ~ "^/raid" { print "mount", $1, $2, $3, $4 }' /proc/mounts
  cksum /etc/fstab /etc/mdadm/mdadm.conf
  find /var/lib/gpuvm /run/gpuvm -type f ! -name '*lock' 2>/dev/null | sort
  [[ ! -e /raid/file ]] || md5sum /raid/file
}
# make LEVEL COUNT: an array with a file system that is mounted, and the lines of the host's files.
make() {
  local level=$1 count=$2 fs
  for d in "${drives[@]}"; do wipefs -qa "$d"; done
  mdadm -q --create /dev/md1 --run --level="$level" --metadata=1.2 --homehost=dgx --name=raid --assume-clean \
    --raid-devices="$count" "${drives[@]:0:count}" 2>/dev/null || return
  mkfs.ext4 -q -F -L raid /dev/md1; settle
  fs=$(blkid -p -o value -s UUID /dev/md1)
  printf '%s\n' '# the table' "UUID=$fs"$'\t/raid\text4 defaults,nofail 0 2' '/dev/vda / ext4 defaults 0 1' >/etc/fstab
  { echo 'HOMEHOST <system>'; mdadm --detail --scan; printf 'MAILADDR root'; } >/etc/mdadm/mdadm.conf
  mount /raid && head -c 300000 /dev/urandom >/raid/file
}
# is_full: whether the kernel has filled every drive of the array.
is_full() { [[ $(</sys/class/block/md1/md/sync_action) == idle && $(</sys/class/block/md1/md/degraded) == 0 ]]; }
# held: the arrays that hold a drive.
held() { ls -d /sys/class/block/ubd?/holders/* 2>/dev/null; }
# gone: removes the array for good.
gone() {
  umount /raid; mdadm -q --stop /dev/md1
  for d in "${drives[@]}"; do
    mdadm -q --zero-superblock "$d" 2>/dev/null; wipefs -qa "$d"
    [[ $set == short ]] || blkdiscard --zeroout "$d"
  done
  settle
}
release=(drive release-array /dev/md1 --unmount --yes) restore=(drive restore-array md1 --yes --trust-content)

# overwritten: released, and then a guest overwrote one of its drives.
overwritten() {
  gpuvm "${release[@]}" >/tmp/out 2>&1
  dd if=/dev/urandom of="${drives[1]}" bs=1M count=4 conv=fsync status=none; settle
}

# became: drives of a released array that were reused are named, and not overwritten unasked; data that a guest may have
# written is mounted safely.
became() {
  local anew=("${restore[@]}" --create --mkfs)
  wait_for 60 is_full
  gpuvm "${release[@]}" >/tmp/out 2>&1
  gpuvm drive restore-array md1 --yes >/tmp/out 2>&1; equal "restored, not trusted" 0 $?
  has "mounted so" /proc/mounts ' /raid ext4 [^ ]*nosuid,nodev'
  has "in fstab too" /etc/fstab '/raid.ext4 defaults,nofail,nodev,nosuid 0 2'
  has "that is told" /tmp/out 'remount,dev,suid /raid'
  gpuvm "${release[@]}" >/tmp/out 2>&1
  mkfs.ext4 -q -F -L theirs "${drives[1]}"; settle
  gpuvm "${anew[@]}" >/tmp/out 2>&1; equal "a file system is not overwritten" 1 $?
  has "it is named" /tmp/out "${drives[1]} holds ext4 .theirs."
  gpuvm "${restore[@]}" --rebuild >/tmp/out 2>&1; equal "nor by filling it" 1 $?
  gpuvm "${anew[@]}" --accept-data-loss >/tmp/out 2>&1; equal "accepted" 0 $?
  wait_for 60 is_full
  gpuvm "${release[@]}" >/tmp/out 2>&1
  ln -s /dev/null /run/udev/rules.d/64-md-raid-assembly.rules; udevadm control --reload # it would be assembled again
  mdadm -q --create /dev/md8 --run --level=1 --metadata=1.2 --raid-devices=2 "${drives[1]}" missing 2>/dev/null </dev/null
  settle; mdadm -q --stop /dev/md8; settle # udev has it open for a moment
  gpuvm "${anew[@]}" --accept-data-loss >/tmp/out 2>&1; equal "a member of another array" 1 $?
  has "is named" /tmp/out "${drives[1]} holds a member of an md array"
  has "and its way" /tmp/out 'gpuvm drive wipe'
  gpuvm drive wipe "$(basename "${drives[1]}")" --yes >/tmp/out 2>&1; equal "it is erased" 0 $? || cat /tmp/out
  gpuvm "${anew[@]}" >/tmp/out 2>&1; equal "made anew then" 0 $? || cat /tmp/out
  rm /run/udev/rules.d/64-md-raid-assembly.rules; udevadm control --reload
}

say "every level"
shapes=(5:3)
[[ $set == short ]] || shapes=(0:3 1:2 5:3 6:4 10:4)
for shape in "${shapes[@]}"; do
  level=${shape%:*} count=${shape#*:}
  make "$level" "$count" || { fail "raid$level: made"; continue; }
  state >/tmp/before
  gpuvm "${release[@]}" >/tmp/out 2>&1; equal "raid$level: released" 0 $?
  equal "raid$level: its drives are held by nothing" "" "$(held)"
  check "raid$level: it is gone" test ! -e /sys/class/block/md1/md/level
  gpuvm drive list >/tmp/list; equal "raid$level: drives to give away" 4 "$(grep -c ' free ' /tmp/list)"
  gpuvm "${restore[@]}" >/tmp/out 2>&1; equal "raid$level: restored" 0 $?
  check "raid$level: all is as before" diff /tmp/before <(state)
  overwritten
  gpuvm "${restore[@]}" >/tmp/out 2>&1; equal "raid$level: not restored over what a guest wrote" 1 $?
  has "raid$level: the drive is named" /tmp/out "^  ${drives[1]}$"
  if [[ $level == 0 ]]; then
    check "raid$level: nothing is left of what was on it" bash -c "! grep -q -- --rebuild /tmp/out"
    gpuvm "${restore[@]}" --rebuild >/tmp/out 2>&1; equal "raid$level: not rebuilt of the others" 1 $?
  else
    has "raid$level: what is on it can be kept" /tmp/out "gpuvm drive restore-array .*md1 --rebuild"
    gpuvm "${restore[@]}" --rebuild >/tmp/out 2>&1; equal "raid$level: rebuilt" 0 $?
    check "raid$level: by the kernel" wait_for 60 is_full
    check "raid$level: all is as before it" diff <(tail -n +2 /tmp/before) <(state | tail -n +2)
    # Another program has assembled it from the others.
    overwritten
    mdadm -q --assemble --run /dev/md1 "${drives[0]}" "${drives[@]:2:count - 2}"; settle
    gpuvm "${restore[@]}" >/tmp/out 2>&1; equal "raid$level: it runs, without a drive: refused" 1 $?
    has "raid$level: what lacks" /tmp/out "runs as /dev/md1 without ${drives[1]}$"
    has "raid$level: the way" /tmp/out "gpuvm drive restore-array .*md1 --rebuild. adds them"
    gpuvm "${restore[@]}" --create --mkfs >/tmp/out 2>&1; equal "raid$level: it runs: not made anew" 2 $?
    has "raid$level: without --create" /tmp/out "without --create, which recreates"
    gpuvm "${restore[@]}" --rebuild >/tmp/out 2>&1; equal "raid$level: what lacks is added" 0 $?
    check "raid$level: and filled" wait_for 60 is_full
    check "raid$level: all is as before that" diff <(tail -n +2 /tmp/before) <(state | tail -n +2)
    overwritten
  fi
  gpuvm "${restore[@]}" --create --mkfs >/tmp/out 2>&1; equal "raid$level: made anew" 0 $?
  equal "raid$level: as it was" "raid$level $count" "$(</sys/class/block/md1/md/level) $(</sys/class/block/md1/md/raid_disks)"
  check "raid$level: files of the host are as before" diff <(grep -E '^[0-9]+ [0-9]+ ' /tmp/before) <(state | grep -E '^[0-9]+ [0-9]+ ')
  check "raid$level: it is mounted" mountpoint -q /raid
  [[ $level != 5 ]] || became
  gone
done

if [[ $set != short ]]; then
say "killed"
mkdir -p /tmp/kill/real
: >/tmp/kill/at
for program in mdadm umount mount mkfs.ext4 wipefs udevadm; do
  # gpuvm looks only in the system's directories, so the wrapper takes the program's own place (in this Linux's memory).
  place=$(command -v $program) real=/tmp/kill/real/$program
  cp -L --preserve=mode "$place" $real
  rm "$place"
  cat >"$place" <<X
#!/bin/bash
[[ -s /tmp/kill/at ]] || exec $real "\$@"
n=\$((\$(</tmp/kill/n) + 1)); echo \$n >/tmp/kill/n
[[ \$n.before != "\$(</tmp/kill/at)" ]] || { kill -KILL \$PPID; exit 1; }
$real "\$@"; status=\$?
[[ \$n.after != "\$(</tmp/kill/at)" ]] || kill -KILL \$PPID
exit \$status
X
  chmod +x "$place"
done
# killed AT ARGS...: runs gpuvm until its command AT (`3.before`); succeeds when it was killed.
killed() {
  echo 0 >/tmp/kill/n; echo "$1" >/tmp/kill/at; shift
  gpuvm "$@" >/tmp/out 2>&1
  local status=$?
  : >/tmp/kill/at
  [[ $status == 137 ]]
}
# each NAME LEAST ENDS ARGS...: kills it at each of its commands. `prepare` sets up its requirements, `recovered` checks the
# result of `recover`; ENDS is run when nothing killed it.
each() {
  local name=$1 least=$2 ends=$3 at when; shift 3
  for ((at = 1; at < 60; at++)); do
    for when in before after; do
      $prepare || { fail "$name: prepare"; return; }
      state >/tmp/prepared
      if ! killed $at.$when "$@"; then
        check "$name: $((at - 1)) commands, at least $least" test $((at - 1)) -ge "$least"
        $ends
        return
      fi
      gpuvm recover >/tmp/said 2>&1 || { fail "$name $at.$when: recover"; cat /tmp/said; }
      $recovered "$name $at.$when"
    done
  done
  fail "$name: never comes to its end"
}
# back NAME: everything is as before, or, if only the last check was killed, as after the change.
back() {
  state >/tmp/now
  check "$1: as before, or done" bash -c 'cmp -s /tmp/prepared /tmp/now || cmp /tmp/done /tmp/now'
}
record=/var/lib/gpuvm/arrays/md1.json recovered=back
is_done() { check "at last it is done" diff /tmp/done <(state); }
restored() { [[ ! -e $record ]] || gpuvm "${restore[@]}" >/tmp/said 2>&1; }
released() { [[ -e $record ]] || gpuvm "${release[@]}" >/tmp/said 2>&1; }
make 5 3
state >/tmp/before
released && state >/tmp/done
prepare=restored
each release 4 is_done "${release[@]}"
cp /tmp/before /tmp/done
prepare=released
each restore 4 is_done "${restore[@]}"

# Destructive commands cannot be undone; an interrupted one is completed by `recover` or by running it again.
lose() {
  wait_for 60 is_full
  released || return
  dd if=/dev/urandom of="${drives[1]}" bs=1M count=4 conv=fsync status=none; settle
}
whole() {
  local again=("${restore[@]}")
  [[ ! -e $record ]] || gpuvm "${again[@]}" --rebuild >/tmp/said 2>&1 ||
    gpuvm "${again[@]}" --create --mkfs >/tmp/said 2>&1 || gpuvm "${again[@]}" --mkfs >/tmp/said 2>&1
  equal "$1: whole in the end" "0 raid5 3" "$? $(</sys/class/block/md1/md/level) $(</sys/class/block/md1/md/raid_disks)" || cat /tmp/said
  check "$1: mounted in the end" mountpoint -q /raid
  check "$1: files of the host" diff <(grep -E '^[0-9]+ [0-9]+ ' /tmp/before) <(state | grep -E '^[0-9]+ [0-9]+ ')
}
prepare=lose
same_content() { whole "$1"; equal "$1: what was on it" "$(tail -n 1 /tmp/before)" "$(md5sum /raid/file)"; }
recovered=same_content
each "rebuilt" 6 "same_content at-last" "${restore[@]}" --rebuild
recovered=whole
each "made anew" 6 "whole at-last" "${restore[@]}" --create --mkfs
wait_for 60 is_full
gone
fi

say "what is not given away"
create=(create --name r --image none --vcpus 1 --memory 64M --pins none --os-size 1M --dry-run)
dmsetup create mpatha -u mpath-UML0 --table "0 $(blockdev --getsz "${drives[0]}") multipath 0 0 1 1 round-robin 0 1 1 ${drives[0]} 1"
settle
gpuvm drive list >/tmp/list; has "multipath: told" /tmp/list 'ubda .*dm-0 \(multipath mpatha\)'
gpuvm "${create[@]}" --drive "${drives[0]}" >/tmp/out 2>&1; equal "multipath: refused" 1 $?
has "multipath: the holder is named" /tmp/out 'ubda is part of dm-0 \(multipath mpatha\)'
dmsetup remove mpatha
# The marks of a member of a ZFS pool: uberblocks, by which libblkid knew it until 2.39, and the list of names and values.
python3 - "${drives[1]}" <<'END'
import struct, sys

def value(name, kind, data):
    data = struct.pack(">I", len(name)) + name.ljust(-len(name) // 4 * -4, b"\0") + struct.pack(">II", kind, 1) + data
    return struct.pack(">II", len(data) + 8, len(data) + 8) + data

def number(name, data):
    return value(name, 8, struct.pack(">Q", data))

pool = value(b"name", 9, struct.pack(">I", 4) + b"tank")
numbers = number(b"state", 0) + number(b"txg", 4) + number(b"pool_guid", 0x123456789) + number(b"guid", 0x987654321)
with open(sys.argv[1], "r+b") as drive:
    end = drive.seek(0, 2) // 262144 * 262144
    for label in (0, 262144, end - 524288, end - 262144):
        drive.seek(label + 16384)
        drive.write(b"\1\1\0\0" + struct.pack(">II", 0, 1) + number(b"version", 5000) + pool + numbers + bytes(8))
        for block in range(16):
            drive.seek(label + 131072 + 1024 * block)
            drive.write(struct.pack("<Q", 0xbab10c))
END
settle
gpuvm drive list >/tmp/list; has "ZFS: told" /tmp/list 'ubdb .*ZFS'
gpuvm "${create[@]}" --drive "${drives[1]}" >/tmp/out 2>&1; equal "ZFS: refused" 1 $?
has "ZFS: the pool is named" /tmp/out 'ubdb is a member of a ZFS pool `tank`'
[[ $fails != 0 ]] || echo "arrays: no failures"
finish
