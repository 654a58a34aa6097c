//! Our own checker: what libvirt accepts although it is plainly wrong (design.md 9).
