//! The hypervisor behind libvirt; the only file that knows the binding.
