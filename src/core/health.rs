//! Health of GPUs: the values read of a GPU, and those over the limits, for which it is not offered
//! to new guests. Reads nothing.
//!
//! The limits are NVIDIA's flags wherever there is one, and counters only where there is none;
//! gpuvm-hardware(7), HEALTH OF GPUS, has the source of each, and marks inferences.

use crate::words::{are, count};
use crate::xid::{XidAction, XidKind};
use serde::{Deserialize, Serialize};

/// Retired pages from which the GPU is over the limit, as DCGM and the field diagnostic have it.
pub const MOST_RETIRED_PAGES: u32 = 63;

/// NVML's report about one GPU; none if it or its driver does not report this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReading {
    /// Whether it has fallen off the bus (`NVML_ERROR_GPU_IS_LOST`).
    pub lost: bool,
    /// Whether it works only after a reset (`NVML_ERROR_RESET_REQUIRED`).
    pub reset_required: bool,
    /// The recovery that the driver asks for (`nvmlDeviceGpuRecoveryAction_t`); 0: none.
    pub recovery: Option<u32>,
    /// Whether a row could not be remapped.
    pub remap_failed: Option<bool>,
    /// Whether a row is remapped at the next reset.
    pub remap_pending: Option<bool>,
    /// Whether a page is retired at the next reset.
    pub pages_pending: Option<bool>,
    /// Number of retired pages.
    pub retired_pages: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded, or the last reset.
    pub uncorrected: Option<u64>,
    /// Whether errors of its SRAM are over the threshold of the field diagnostic.
    pub sram_exceeded: Option<bool>,
    /// Its NVLinks that exist.
    pub links: Vec<LinkReading>,
    /// Its MIG mode, now and after the next reset.
    pub mig: Option<(bool, bool)>,
}

/// NVML's report about an NVLink; counters since the last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReading {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    pub up: bool,
    /// Replayed packets.
    pub replays: u64,
    /// Recoveries of the link.
    pub recoveries: u64,
    /// Checksum errors, of data and of flits.
    pub crc_errors: u64,
}

/// The finding; the names never change.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::VariantNames,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum HealthCode {
    /// It has fallen off the bus.
    GpuLost,
    /// It must be reset.
    ResetRequired,
    /// The host must be restarted.
    RebootRequired,
    /// Programs that use it over NVLink must end, and it may need a reset.
    DrainRequired,
    /// A row of its memory could not be remapped.
    RemapFailed,
    /// As many pages of its memory are retired as may be.
    PagesRetired,
    /// Errors of its SRAM are over the threshold.
    SramThreshold,
    /// Uncorrected memory errors, and no word of the driver that it can be used.
    UncorrectedEcc,
    /// An Xid message of this boot that only a restart or the vendor settles.
    XidFatal,
    /// A row is remapped at the next reset.
    RemapPending,
    /// A page is retired at the next reset.
    PagesPending,
    /// Uncorrected memory errors from which it recovered.
    EccRecovered,
    /// Errors of NVLinks.
    NvlinkErrors,
    /// Some NVLinks are down.
    NvlinkDown,
    /// Another Xid message of this boot about hardware.
    Xid,
}

impl HealthCode {
    /// Whether a GPU with it is over the limits.
    pub fn is_over(self) -> bool {
        self <= HealthCode::XidFatal
    }

    /// Whether it lasts over a restart of the host: it is kept in the GPU itself.
    pub fn lasts(self) -> bool {
        matches!(self, Self::RemapFailed | Self::PagesRetired | Self::SramThreshold)
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HealthFinding {
    /// The code of the finding.
    pub code: HealthCode,
    /// The same in words, with numbers.
    pub text: String,
}

/// Where the health of a GPU is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HealthSource {
    /// NVML, now.
    Nvml,
    /// NVML, earlier in this boot.
    Remembered,
    /// NVML, in an earlier boot.
    EarlierBoot,
    /// The kernel's log alone.
    KernelLog,
}

/// The health of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Where it is known from.
    pub source: HealthSource,
    /// The findings; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<HealthFinding>,
    /// The override of an admin: the finding keeps no guest from getting the GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<HealthCode>,
}

impl Health {
    /// The findings that keep guests from getting the GPU.
    pub fn over(&self) -> impl Iterator<Item = &HealthFinding> {
        let over = |finding: &&HealthFinding| {
            finding.code.is_over() && !self.accepted.contains(&finding.code)
        };
        self.findings.iter().filter(over)
    }

    /// Whether no new guest gets the GPU.
    pub fn is_over(&self) -> bool {
        self.over().next().is_some()
    }

    /// The findings that keep guests from getting the GPU, in words; empty if there are none.
    pub fn why(&self) -> String {
        joined(self.over())
    }

    /// Everything found, in words: `ok` if nothing.
    pub fn words(&self) -> String {
        if self.findings.is_empty() {
            return match self.source {
                HealthSource::Nvml | HealthSource::KernelLog => "ok".into(),
                HealthSource::Remembered => "ok when the driver last had it".into(),
                HealthSource::EarlierBoot => "ok in an earlier boot".into(),
            };
        }
        let accepted = self.findings.iter().any(|finding| self.accepted.contains(&finding.code));
        joined(self.findings.iter()) + if accepted { " (accepted)" } else { "" }
    }
}

fn joined<'f>(findings: impl Iterator<Item = &'f HealthFinding>) -> String {
    findings.map(|finding| finding.text.as_str()).collect::<Vec<_>>().join("; ")
}

/// How often an Xid message came in this boot.
#[derive(Debug, Clone, Copy)]
pub struct XidCount {
    /// The message.
    pub kind: &'static XidKind,
    /// How often.
    pub times: usize,
}

/// Judges NVML's report and the Xid messages of this boot, by number with their count.
pub fn judge(reading: Option<&HealthReading>, xids: &[XidCount]) -> Vec<HealthFinding> {
    let mut found = Vec::new();
    let mut add = |code, text: String| found.push(HealthFinding { code, text });
    let ready = reading.and_then(|reading| reading.recovery) == Some(0);
    if let Some(reading) = reading {
        of_access(reading, &mut add);
        of_memory(reading, ready, &mut add);
        of_links(&reading.links, &mut add);
    }
    for XidCount { kind, times } in xids {
        let times = if *times == 1 { String::new() } else { format!(", {times} times") };
        let text = format!("Xid {} ({}){times} in this boot", kind.number, kind.name);
        match (kind.action, kind.number) {
            (XidAction::RestartHost, _) | (_, REMAP_FAILURE) => add(HealthCode::XidFatal, text),
            (XidAction::ResetGpu, _) | (_, SBE_RATE) => add(HealthCode::Xid, text),
            _ => {}
        }
    }
    found.sort_by_key(|finding| finding.code);
    found
}

/// Xid of a row that could not be remapped, or a page that could not be retired.
const REMAP_FAILURE: u32 = 64;
/// Xid of a high rate of corrected errors.
const SBE_RATE: u32 = 92;

/// Judges whether it answers, and the recovery that the driver asks for.
fn of_access(reading: &HealthReading, add: &mut impl FnMut(HealthCode, String)) {
    if reading.lost {
        add(HealthCode::GpuLost, "it has fallen off the bus".into());
    }
    let asks = |what: &str| format!("the driver asks for {what}");
    match reading.recovery {
        Some(1) => add(HealthCode::ResetRequired, asks("a reset of the GPU")),
        Some(2) => add(HealthCode::RebootRequired, asks("a restart of the host")),
        Some(3) => add(HealthCode::DrainRequired, asks("an end of its peer-to-peer traffic")),
        Some(4) => add(HealthCode::DrainRequired, asks("an end of what uses it, and a reset")),
        _ if reading.reset_required => {
            add(HealthCode::ResetRequired, "it works only after a reset".into());
        }
        _ => {}
    }
}

/// Judges its memory; `ready`: the driver says that it needs no recovery.
fn of_memory(reading: &HealthReading, ready: bool, add: &mut impl FnMut(HealthCode, String)) {
    if reading.remap_failed == Some(true) {
        add(HealthCode::RemapFailed, "remapping a row of its memory failed".into());
    }
    if reading.remap_pending == Some(true) {
        add(HealthCode::RemapPending, "a row is remapped at the next reset".into());
    }
    if reading.pages_pending == Some(true) {
        add(HealthCode::PagesPending, "a page is retired at the next reset".into());
    }
    if let Some(pages @ MOST_RETIRED_PAGES..) = reading.retired_pages {
        let text = format!("{} retired, limit {MOST_RETIRED_PAGES}", count(pages as usize, "page"));
        add(HealthCode::PagesRetired, text);
    }
    if reading.sram_exceeded == Some(true) {
        add(HealthCode::SramThreshold, "SRAM errors over the threshold".into());
    }
    if let Some(errors @ 1..) = reading.uncorrected {
        let code = if ready { HealthCode::EccRecovered } else { HealthCode::UncorrectedEcc };
        let errors = usize::try_from(errors).unwrap_or(usize::MAX);
        add(code, count(errors, "uncorrected memory error"));
    }
}

/// Judges its NVLinks. Where all are down there are none in use: no bridge, or no Fabric Manager.
fn of_links(links: &[LinkReading], add: &mut impl FnMut(HealthCode, String)) {
    let sum = |of: fn(&LinkReading) -> u64| links.iter().map(of).fold(0, u64::saturating_add);
    let counts = [
        (sum(|link| link.recoveries), "recovered"),
        (sum(|link| link.replays), "replayed"),
        (sum(|link| link.crc_errors), "CRC"),
    ];
    let words: Vec<String> = counts
        .iter()
        .filter(|(errors, _)| *errors > 0)
        .map(|(errors, what)| format!("{errors} {what}"))
        .collect();
    if !words.is_empty() {
        add(HealthCode::NvlinkErrors, format!("NVLink errors: {}", words.join(", ")));
    }
    let down = links.iter().filter(|link| !link.up).count();
    if down > 0 && down < links.len() {
        add(
            HealthCode::NvlinkDown,
            format!("{down} of {} {} down", count(links.len(), "NVLink"), are(down)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xid::KINDS;

    fn codes(reading: &HealthReading) -> Vec<HealthCode> {
        judge(Some(reading), &[]).into_iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn each_limit_is_where_it_says() {
        use HealthCode as Code;
        let none = HealthReading::default;
        let link = |link, up| LinkReading { link, up, ..LinkReading::default() };
        let links = |links: &[LinkReading]| HealthReading { links: links.to_vec(), ..none() };
        let ecc = |uncorrected, recovery| HealthReading { uncorrected, recovery, ..none() };
        let recovery = |action| HealthReading { recovery: Some(action), ..none() };
        let pages = |pages| HealthReading { retired_pages: Some(pages), ..none() };
        for (reading, expected) in [
            (none(), &[][..]),
            (HealthReading { lost: true, ..none() }, &[Code::GpuLost]),
            (HealthReading { reset_required: true, ..none() }, &[Code::ResetRequired]),
            (recovery(0), &[]),
            (recovery(1), &[Code::ResetRequired]),
            (recovery(2), &[Code::RebootRequired]),
            (recovery(3), &[Code::DrainRequired]),
            (recovery(4), &[Code::DrainRequired]),
            (recovery(5), &[]),
            (HealthReading { remap_failed: Some(true), ..none() }, &[Code::RemapFailed]),
            (HealthReading { remap_failed: Some(false), ..none() }, &[]),
            (HealthReading { remap_pending: Some(true), ..none() }, &[Code::RemapPending]),
            (HealthReading { pages_pending: Some(true), ..none() }, &[Code::PagesPending]),
            (pages(62), &[]),
            (pages(63), &[Code::PagesRetired]),
            (HealthReading { sram_exceeded: Some(true), ..none() }, &[Code::SramThreshold]),
            (ecc(Some(0), None), &[]),
            (ecc(Some(1), None), &[Code::UncorrectedEcc]),
            (ecc(Some(1), Some(0)), &[Code::EccRecovered]),
            (ecc(Some(1), Some(1)), &[Code::ResetRequired, Code::UncorrectedEcc]),
            (links(&[link(0, true), link(1, true)]), &[]),
            (links(&[link(0, false), link(1, false)]), &[]),
            (links(&[link(0, true), link(1, false)]), &[Code::NvlinkDown]),
            (links(&[LinkReading { recoveries: 1, ..link(0, true) }]), &[Code::NvlinkErrors]),
            (
                links(
                    &[LinkReading { crc_errors: u64::MAX, replays: u64::MAX, ..link(0, true) }; 2],
                ),
                &[Code::NvlinkErrors],
            ),
        ] {
            assert_eq!(codes(&reading), expected, "{reading:?}");
        }
    }

    #[test]
    fn an_xid_is_over_the_limit_if_only_a_restart_or_the_vendor_settles_it() {
        let over: Vec<u32> = KINDS
            .iter()
            .filter(|kind| {
                judge(None, &[XidCount { kind, times: 1 }]).iter().any(|found| found.code.is_over())
            })
            .map(|kind| kind.number)
            .collect();
        assert_eq!(over, [64, 79]);
        let silent =
            KINDS.iter().filter(|kind| judge(None, &[XidCount { kind, times: 1 }]).is_empty());
        assert_eq!(silent.map(|kind| kind.number).collect::<Vec<_>>(), [63, 94]);
        let found = judge(None, &[XidCount { kind: &KINDS[0], times: 3 }]);
        assert_eq!(found[0].text, "Xid 48 (uncorrectable memory error), 3 times in this boot");
    }

    #[test]
    fn accepted_findings_are_allowed_and_later_ones_refused() {
        let reading = HealthReading { remap_failed: Some(true), ..HealthReading::default() };
        let mut health = Health {
            source: HealthSource::Nvml,
            findings: judge(Some(&reading), &[]),
            accepted: Vec::new(),
        };
        assert!(health.is_over());
        assert_eq!(health.why(), "remapping a row of its memory failed");
        health.accepted.push(HealthCode::RemapFailed);
        assert!(!health.is_over());
        assert_eq!(health.words(), "remapping a row of its memory failed (accepted)");
        let worse = HealthReading { sram_exceeded: Some(true), ..reading };
        health.findings = judge(Some(&worse), &[]);
        assert_eq!(health.why(), "SRAM errors over the threshold");
    }
}
