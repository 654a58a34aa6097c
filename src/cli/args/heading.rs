//! Headings of options in help and man pages: an option that several verbs take stands under the
//! same one in all of them.

/// The guest itself: its name, its template.
pub const GUEST: &str = "Guest";
/// Passed-through functions.
pub const DEVICES: &str = "GPUs and devices";
/// vCPUs, memory, and how they are bound.
pub const CPU: &str = "CPU and memory";
/// Which of the places that fit is taken.
pub const PLACEMENT: &str = "Placement";
/// Disks and images.
pub const DISKS: &str = "Disks";
/// NICs on libvirt's networks.
pub const NETWORK: &str = "Network";
/// Settings for cloud-init.
pub const FIRST_BOOT: &str = "First boot (cloud-init)";
/// Which hosts are asked.
pub const HOSTS: &str = "Hosts";
/// Pages and pictures.
pub const PICTURE: &str = "Picture";
/// How the verb goes about it.
pub const BEHAVIOUR: &str = "Behaviour";
/// The options of every verb.
pub const GLOBAL: &str = "Global options";
