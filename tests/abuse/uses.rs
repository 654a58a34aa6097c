//! Disks, volumes and NVRAM that others need, and metadata that lies.
