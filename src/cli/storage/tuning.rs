//! How QEMU reads and writes the disks of a guest here: what the file system, QEMU and libvirt can do.
