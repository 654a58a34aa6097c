//! The peers' planners, re-implemented from spec/field.md 5 and spec/nvidia-vm.md 2.
