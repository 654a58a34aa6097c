//! Filled by the area's owner.
