//! Usage of running guests, from two samples of their counters, and faults. Knows neither files nor
//! a clock: samples carry their own.

mod counters;
mod judge;
mod neighbours;
mod plan;
mod rates;
mod report;
mod rules;
mod sample;

pub use judge::{is_waiting, judge, judge_host};
pub use neighbours::{Neighbour, neighbours};
pub use rates::{
    ByteRate, DeviceLoad, GuestLoad, MemoryLoad, NamedRate, QuotaLoad, ThreadLoad, guest_load,
};
pub use report::{FreePages, HostLoad, LoadOrder, LoadReport, Pressure};
pub use rules::{LoadFinding, OWN_RULES, OfLoad, THROTTLED, VERIFY_RULES, WAITS, rules};
pub use sample::{
    AerCounts, ByteCounts, DeviceSample, GuestPlan, GuestSample, KvmCounts, NodeMemory, QuotaGroup,
    TaskSample, TaskScan, ThreadKind, ThreadSample, Throttling, TimedBytes,
};

#[cfg(test)]
mod tests;
