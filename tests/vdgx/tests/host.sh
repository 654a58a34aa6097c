#!/bin/bash
# gpuvm's report of the host equals the rig's configuration and the kernel's view: devices, nodes, switches, IOMMU groups,
# drives; and the matrix, the list of GPUs, the capacity and a plan follow from it.
. /usr/lib/vdgx/env
start_libvirt || exit 1
for verb in "host show" "host matrix" "gpu list" "capacity" "plan --gpus 2"; do
  # shellcheck disable=SC2086 # the words are the arguments
  gpuvm $verb --json >"/tmp/${verb// /-}.json" || fail "gpuvm $verb"
done
show=/tmp/host-show.json matrix=/tmp/host-matrix.json plan=/tmp/plan---gpus-2.json
pci=/sys/bus/pci/devices node=/sys/devices/system/node

# same NAME: the wanted and the found facts are the same.
same() {
  sort -o /tmp/wanted /tmp/wanted; sort -o /tmp/found /tmp/found
  if [[ -s /tmp/wanted ]] && diff /tmp/wanted /tmp/found; then ok "$1: $(wc -l </tmp/found) facts"; else fail "$1"; fi
}

# Counts, as configured for the rig.
printf '%s\n' "product $product" "gpu $gpus" "nvswitch $nvswitches" "nvme $nvmes" "nic $nics" \
  "cores $((sockets * cores))" "nodes $sockets" "gpus $gpus" >/tmp/wanted
jq -r '.host as $h | "product " + ($h.machine.product | sub("^NVIDIA "; "")), "cores \($h.cores | length)",
  "nodes \($h.nodes | length)", "gpus \(.gpus | length)",
  ([.kinds[] | select(IN("gpu", "nvswitch", "nvme", "nic"))] | group_by(.)[] | "\(.[0]) \(length)")' $show >/tmp/found
for kind in nvswitch nvme nic; do
  count=${kind}es; [[ $kind == nvswitch ]] || count=${kind}s
  [[ ${!count} != 0 ]] || echo "$kind 0" >>/tmp/found
done
same "counts"

# Nodes, cores and pages, as the kernel shows them.
{
  sort -u /sys/devices/system/cpu/cpu*/topology/thread_siblings_list | sed 's/^/core /'
  for n in $node/node*; do
    echo "${n##*/} pcpus $(<"$n/cpulist")"; echo "${n##*/} distances $(<"$n/distance")"
  done
  awk '/MemTotal/ { print "node" $2 " memory_kib " $4 }' $node/node*/meminfo
  grep -H '' $node/node*/hugepages/*/free_hugepages | sed 's,.*/\(node.*\)/hugepages/hugepages-\(.*\)kB/.*:,\1 pages_\2 ,'
} >/tmp/wanted
jq -r '.host | (.cores[] | "core \(.pcpus)"), (.nodes[] | "node\(.os_index) " + ("pcpus \(.pcpus)",
  "distances \(.distances | join(" "))", "memory_kib \(.memory_kib)",
  (.huge_pages[] | "pages_\(.page_kib) \(.free)")))' $show >/tmp/found
same "nodes, cores, pages"

# Every PCI function with its place, driver, group and reset methods.
{
  find $pci -type l -printf '%f %l\n' | awk -F'[ /]' '$(NF-1) !~ /^pci/ { print $1, "parent", $(NF-1) }'
  find $pci/*/ -maxdepth 1 \( -name driver -o -name iommu_group \) -printf '%h %f %l\n' |
    sed 's,.*/\([^/ ]*\) \([a-z_]*\) .*/,\1 \2 ,'
  grep -H '' $pci/*/{numa_node,class,vendor,device,reset_method} |
    sed -e 's,.*/\([^/]*\)/\([^/:]*\):,\1 \2 ,' -e '/numa_node -1$/d' -e 's/ $//'
} >/tmp/wanted
jq -r '.host.devices[] | .bdf + " " + ((.parent // empty | "parent " + .), (.driver // empty | "driver " + .),
  (.iommu_group | select(. != null) | "iommu_group \(.)"), (.node | select(. != null) | "numa_node \(.)"),
  "class " + .class, "vendor " + .vendor, "device " + .device,
  (.reset_methods // [] | select(. != []) | "reset_method " + join(" ")))' $show >/tmp/found
same "PCI functions"

# With native multipath the controller holds nvme0c0n1 and the drive is nvme0n1.
for p in $pci/*/nvme/nvme*/nvme*n*; do
  name=${p##*/} bdf=${p#"$pci/"}
  [[ $name =~ ^(nvme[0-9]+)c[0-9]+(n[0-9]+)$ ]] && name=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
  echo "$name ${bdf%%/*} $(($(<"/sys/block/$name/size") * 512))"
done >/tmp/wanted
jq -r '.host.drives[] | select(.name | startswith("nvme")) | "\(.name) \(.bdf) \(.bytes)"' $show >/tmp/found
[[ $nvmes == 0 ]] || same "drives"

# The tables about GPUs agree with each other and with sysfs.
for b in $(bdfs 0302 10de); do echo "$b $(<"$pci/$b/numa_node") free"; done >/tmp/wanted
jq -r '.[] | select(.index != null) | "\(.bdf) \(.node) \(.state)"' /tmp/gpu-list.json >/tmp/found
same "gpu list"
jq -r '.devices[] | select(.kind == "gpu") | "\(.bdf) \(.numa_affinity) free"' $matrix >/tmp/found
same "host matrix"

# GPUs and cores limit the number of guests: a guest takes one core for each of its GPUs, at least two.
for size in 1 2 4 8 16; do
  [[ $size -le $gpus ]] || continue
  by_gpus=$((gpus / size)) need=$((cores * sockets * size / gpus))
  [[ $need -ge 2 ]] || need=2
  by_cores=$((cores * sockets / need))
  equal "guests of $size GPUs" $((by_gpus < by_cores ? by_gpus : by_cores)) \
    "$(jq ".sizes[] | select(.gpus == $size) | .now // 0" /tmp/capacity.json)"
done

# A plan of two GPUs stays on one node, with whole cores, each pcpu once, and lists the devices not yet on vfio-pci.
jq -r '.placement | (.devices[] | "device " + .), (.cells[] | "memory \(.host_nodes)"),
  ((.vcpu_pins + [.emulator_pin])[] | split(",")[] | "pcpu " + .)' $plan >/tmp/plan
devices=$(sed -n 's/^device //p' /tmp/plan)
on=$(<"$pci/${devices%%$'\n'*}/numa_node")
for d in $devices; do echo "$(<"$pci/$d/class") $(<"$pci/$d/numa_node")"; done >/tmp/found
equal "two GPUs" 2 "$(grep -c "^0x0302.. $on$" /tmp/found)"
equal "devices of one node" "" "$(grep -v " $on$" /tmp/found)"
equal "memory on that node" "memory $on" "$(grep ^memory /tmp/plan)"
equal "each pcpu once" "" "$(grep ^pcpu /tmp/plan | sort | uniq -d)"
for pcpu in $(sed -n 's/^pcpu //p' /tmp/plan); do
  [[ -e /sys/devices/system/cpu/cpu$pcpu/node$on ]] || fail "pcpu $pcpu is not on node $on"
done
gpuvm plan --gpus 2 --explain >/tmp/explain || fail "plan --explain"
has "the plan names the devices to bind" /tmp/explain "${devices%%$'\n'*}.*(vfio-pci|managed)"
finish
