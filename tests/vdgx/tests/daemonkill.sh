#!/bin/bash
# libvirtd is killed at each record of a create and of a delete, and during the start by its own hook; it returns at once, or
# when gpuvm has ended. A running guest keeps its disk, its GPU and its pages, and no recover ends it; recover and delete leave
# nothing behind.
# `daemonkill.sh create|hook|delete` does only that one.
. /usr/lib/vdgx/halts
start_libvirt || exit 1
mapfile -t g < <(bdfs 0302 10de)
gpu=${g[0]}
# pages: prints the number of 2 MiB pages of each node.
pages() { cat $node/node*/hugepages/hugepages-2048kB/nr_hugepages | paste -sd' '; }
kill_daemon() { kill -KILL $(pidof libvirtd) 2>/dev/null; rm -f /run/libvirt/libvirt-sock /run/libvirt/libvirt-sock-ro /run/libvirtd.pid; }
start_daemon() { pidof libvirtd >/dev/null || { libvirtd -d && wait_for 120 virsh -q uri; }; }
/share/vdgx/state >/tmp/before

# kept TITLE: a running guest has everything that it started with.
kept() {
  local qemu
  runs a || { echo "$1: a does not run"; return 1; }
  read -r qemu </run/libvirt/qemu/a.pid
  equal "$1: its disk is a file" "$(ls /tmp/a*.raw 2>&1)" \
    "$(find "/proc/$qemu/fd" -printf '%l\n' | grep -a '^/tmp/a.*raw' | sort -u)"
  equal "$1: its GPU is on" vfio-pci "$(driver_of "$gpu")"
  equal "$1: its pages are there" "16 16" "$(pages)"
  equal "$1: nobody waits in the kernel" "" "$(hangs)"
}
# whole TITLE: the change is recovered and deleted, and everything is as before.
whole() {
  local id n
  start_daemon || { fail "$1: libvirtd does not start"; return; }
  if kept "$1"; then
    id=$(virsh domid a)
    gpuvm recover </dev/null >/tmp/out 2>&1; echo "recover: status $?"; said
    equal "$1: recover leaves it running" "$id" "$(virsh domid a 2>&1)"
    kept "$1, recover"
    virsh -q destroy a 2>/dev/null
  fi
  [[ -z $(unfinished) ]] || { gpuvm recover </dev/null >/tmp/out 2>&1; equal "$1: recover ends with" 0 $?; said; }
  ! virsh -q dominfo a >/dev/null 2>&1 || quietly gpuvm delete a --yes
  no_journal "$1"
  check "$1: all is as before" diff /tmp/before <(/share/vdgx/state)
  # Remains would spoil the next one.
  rm -rf $journals/*.jsonl
  [[ -z $(ls /tmp/a*.raw 2>/dev/null) ]] || rm -f /tmp/a*.raw
  [[ $(pages) == "$were" ]] || for n in $node/node*/hugepages/hugepages-2048kB/nr_hugepages; do echo 0 >"$n"; done
  [[ $(driver_of "$gpu") == - ]] || gpuvm device release "$gpu" >/dev/null 2>&1
}
were=$(pages)
nothing() { true; }
there() { virsh -q dominfo a >/dev/null 2>&1 || quietly "${how[@]}"; }
# at_each NAME FIRST PREPARE CMD...: at each record from FIRST on, alternating between a daemon that is away and one that has
# returned when gpuvm continues.
at_each() {
  local name=$1 n=$2 prepare=$3 title back=; shift 3
  for (( ; n < 80; n++)); do
    $prepare || return
    halted "$n" "$@" || { equal "$name: $((n - 1)) records, it ends with" 0 "$status"; whole "$name: whole"; return; }
    if [[ -n $back ]]; then back=; else back=", back at once"; fi
    title="$name at $record"; title=${title:0:60}$back
    say "$title"
    kill_daemon
    [[ -z $back ]] || start_daemon
    go_on; equal "$title: it ends by itself" 0 $((status == 124))
    echo "status $status"; said
    whole "$title"
    [[ $fails -lt 60 ]] || { fail "too much fails"; return; }
  done
  fail "$name: never comes to its end"
}
# in_hook OPERATION BACK: libvirtd is killed by its hook in this operation of the guest's start.
in_hook() {
  local title="hook $1${2:+, back at once}"
  say "$title"
  mkdir -p /etc/libvirt/hooks
  cat >/etc/libvirt/hooks/qemu <<X
#!/bin/bash
[[ \$1 == a && \$2 == $1 && ! -e /tmp/hooked ]] || exit 0
touch /tmp/hooked
kill -KILL \$(pidof libvirtd)
rm -f /run/libvirt/libvirt-sock /run/libvirt/libvirt-sock-ro /run/libvirtd.pid
[[ -z "$2" ]] || setsid libvirtd -d >/dev/null 2>&1 </dev/null
X
  chmod +x /etc/libvirt/hooks/qemu; rm -f /tmp/hooked
  # libvirtd looks for hooks when it starts.
  kill_daemon; start_daemon
  halted 999 "${how[@]}"
  echo "status $status"; said
  check "$title: it was killed" test -e /tmp/hooked
  rm -r /etc/libvirt/hooks/qemu
  kill_daemon
  whole "$title"
}

made a --gpu 0 --huge-pages 2M --reserve-pages
for what in ${1:-create hook delete}; do
  case $what in
    create) at_each create 3 nothing "${how[@]}" ;;
    hook) for op in prepare started; do in_hook $op ""; in_hook $op 1; done ;;
    delete) at_each delete 3 there gpuvm delete a --yes ;;
  esac
done
finish
