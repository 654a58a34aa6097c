//! Drives, arrays and block devices that the host or others need.
