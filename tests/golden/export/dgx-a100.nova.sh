# lost: pins: vCPUs on pcpus 16-30,48-62,144-158,176-190 of nodes 1,3: Nova
#   chooses the node and its pcpus
# lost: emulator: emulator and I/O threads have one pcpu on the node of cell
#   0, and 4 in the plan; the rest of its core stays free
# lost: io-threads: 1 thread for disks, and the plan has 2
# lost: devices: 0000:07:00.0 0000:0f:00.0 0000:47:00.0 0000:4e:00.0
#   0000:0c:00.0 0000:4b:00.0: Nova takes any that are free, however near they
#   are to each other
# lost: partition: NVLink partition 1, NVSwitches 0000:c4:00.0 0000:c5:00.0
#   0000:c6:00.0: Nova cannot be asked for GPUs of one partition, and
#   activates none
# lost: distances: Nova gives the guest no distances of its cells
# lost: caches: 2 dies, and the host's L3 caches as the guest sees them
# lost: pcie-tree: the guest is flat, without expander buses: give it the file
#   of `gpuvm export --format nccl` by user data
# lost: mmio-window: the firmware computes its own window for 64-bit BARs, by
#   the host's address bits (cpu_mode=host-passthrough)
# lost: link-speeds: speed and width of the guest's PCIe links
# lost: queues: NICs have one queue for each vCPU
# lost: disks: a data disk as the GPUs' share of this host's data file system
openstack flavor create train-a --vcpus 60 --ram 245116 --disk 50 \
  --property hw:cpu_cores=15 \
  --property hw:cpu_policy=dedicated \
  --property hw:cpu_sockets=2 \
  --property hw:cpu_thread_policy=require \
  --property hw:cpu_threads=2 \
  --property hw:emulator_threads_policy=isolate \
  --property hw:mem_page_size=2MB \
  --property hw:numa_cpus.0=0-29 \
  --property hw:numa_cpus.1=30-59 \
  --property hw:numa_mem.0=122564 \
  --property hw:numa_mem.1=122552 \
  --property hw:numa_nodes=2 \
  --property hw:pci_numa_affinity_policy=required \
  --property hw:vif_multiqueue_enabled=true \
  --property pci_passthrough:alias=a100:4,cx6:2
openstack image set \
  --property hw_disk_bus=virtio \
  --property hw_firmware_type=uefi \
  --property hw_machine_type=q35 \
  --property hw_maxphysaddr_mode=passthrough \
  --property hw_qemu_guest_agent=yes \
  --property hw_vif_model=virtio \
  --property os_secure_boot=disabled \
  "$IMAGE"
