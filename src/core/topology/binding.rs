//! The driver that a PCI function is bound to.

use serde::{Deserialize, Serialize};

/// The driver that hands functions to guests.
pub const VFIO: &str = "vfio-pci";

/// The driver of a function, and the driver that it is reserved for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// Driver; `None` if not bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// `driver_override`: the only driver that may bind it; `None` for any that knows its ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_override: Option<String>,
}

impl Binding {
    /// Bound to vfio-pci and reserved for it.
    pub fn vfio() -> Binding {
        Binding::to(VFIO)
    }

    /// Bound to this driver and reserved for it.
    pub fn to(driver: &str) -> Binding {
        Binding { driver: Some(driver.into()), driver_override: Some(driver.into()) }
    }

    /// Returns the driver as text.
    pub fn driver_text(&self) -> &str {
        self.driver.as_deref().unwrap_or("no driver")
    }
}

/// Whether a driver lets the other functions of its device's IOMMU group go to a guest: one that
/// hands functions to guests, or pci-stub, which does no DMA (the kernel's
/// drivers/vfio/vfio_main.c and drivers/pci/pci-stub.c).
pub fn leaves_group(driver: &str) -> bool {
    is_vfio(driver) || driver == "pci-stub"
}

/// Whether a driver hands functions to guests: vfio-pci, or a variant of it
/// (`nvgrace_gpu_vfio_pci`, `mlx5_vfio_pci`).
pub fn is_vfio(driver: &str) -> bool {
    driver == VFIO || driver.ends_with("-vfio-pci") || driver.ends_with("_vfio_pci")
}
