//! The host's own reports of a board with NVSwitches: the model in Fabric Manager's configuration,
//! module ids, and on the live machine Fabric Manager's list of partitions. Only collects them;
//! they are evaluated elsewhere.

use super::Found;
use super::boards::Sets;
use super::links::{self, Begun};
use super::modules::{self, Modules, Source};
use super::nvml;
use crate::fabric::config::{Config, PATH};
use crate::fabric::{Limits, Manager};
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::fabric::Listed;
use gpuvm_core::topology::FabricModel;

/// The host's reports.
#[derive(Debug, Clone, Default)]
pub struct BoardReports {
    /// How NVSwitches serve guests.
    pub model: FabricModel,
    /// The source of the model, as text.
    pub model_source: String,
    /// Whether the mode in Fabric Manager's configuration is one for whole GPUs.
    pub whole_gpus_only: bool,
    /// Module ids.
    pub modules: Modules,
    /// Why NVML has no module ids; `None` if it has, or was not asked.
    pub modules_untold: Option<String>,
    /// NVLinks as read.
    pub links: links::Read,
    /// Fabric Manager's list, by number; none if it was not asked or gave none.
    pub listed: Option<Vec<Listed>>,
    /// Functions of the bridge in front of NVSwitches that are not PCI functions.
    pub bridge: Vec<Bdf>,
    /// Problems and notes for the user.
    pub notes: Vec<String>,
}

/// The module ids to request from NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskNvml {
    /// Those missing in the admin's file: attaching to an unused GPU takes seconds.
    Unknown,
    /// All, to write the file.
    All,
}

impl BoardReports {
    /// Makes an empty report, with the board's default model.
    pub fn nothing(found: &Found<'_>) -> BoardReports {
        let model = match found.board.sets {
            Sets::Switched { usual, .. } => usual,
            _ => FabricModel::None,
        };
        BoardReports {
            model,
            model_source: "model as usual for this board".into(),
            ..BoardReports::default()
        }
    }

    /// Asks a host about its board.
    pub fn of(
        root: &FsRoot,
        found: &Found<'_>,
        ids: AskNvml,
        links: Begun,
    ) -> Result<BoardReports, FsError> {
        let mut reports = BoardReports::nothing(found);
        let Sets::Switched { shared, .. } = found.board.sets else {
            reports.links = links.ask();
            return Ok(reports);
        };
        let config = Config::read(root)?;
        reports.whole_gpus_only = config.is_of_whole_gpus();
        if let Some(mode) = config.mode {
            reports.model = mode.model();
            reports.model_source = format!("model by FABRIC_MODE={} in {PATH}", mode as u8);
        } else {
            reports.model_source.push_str(": no FABRIC_MODE is set");
        }
        reports.notes.extend(config.notes);
        let gpus: Vec<Bdf> = found.layout.slots.iter().copied().flatten().collect();
        let (file, note) = modules::from_file(root, &gpus)?;
        reports.notes.extend(note);
        let is_shared = reports.model == FabricModel::SharedNvswitch;
        let live = root.is_live() && (is_shared || ids == AskNvml::All);
        let bound = |gpu: &Bdf| found.census.driver(*gpu) == Some("nvidia");
        let wanted = |gpu: &Bdf| bound(gpu) && (ids == AskNvml::All || !file.contains_key(gpu));
        let visible: Vec<Bdf> = gpus.iter().copied().filter(|gpu| live && wanted(gpu)).collect();
        // NVML and Fabric Manager work in parallel.
        let asks_modules = !visible.is_empty();
        let asks = asks_modules || !links.unknown.is_empty();
        let nvml = asks.then(|| nvml::begin(visible, links.unknown.clone()));
        let manager = Manager { limits: Limits::LOOK, ..Manager::at(config.address.clone()) };
        let listing = (live && is_shared).then(|| manager.begin_list());
        let answer = nvml.map(nvml::answer);
        match &answer {
            Some(Ok(answer)) => {
                reports.modules.add(Source::Nvml, answer.ids.iter().copied());
                for (gpu, reason) in &answer.silent {
                    reports.notes.push(format!("NVML has no module id of GPU {gpu}: {reason}"));
                }
            }
            Some(Err(reason)) if asks_modules => {
                reports.notes.push(format!("NVML has no module ids: {reason}"));
                reports.modules_untold = Some(reason.clone());
            }
            _ => {}
        }
        reports.links = links.end(answer.as_ref());
        match listing.map(Manager::end_list) {
            Some(Ok(listed)) => {
                // Since H100 its addresses are null; if not, they are unreliable.
                if shared.reset_cuts_links {
                    reports.modules.add(Source::Manager, addresses(&listed, &gpus));
                }
                reports.listed = Some(listed);
            }
            Some(Err(refusal)) => reports.notes.push(refusal.note(&config.address)),
            None => {}
        }
        reports.modules.add(Source::File, file);
        reports.notes.append(&mut reports.modules.notes);
        Ok(reports)
    }
}

/// Module ids of the GPUs whose addresses Fabric Manager knows.
fn addresses(listed: &[Listed], gpus: &[Bdf]) -> Vec<(Bdf, u32)> {
    let all = listed.iter().flat_map(|partition| &partition.gpus);
    let mut ids: Vec<(Bdf, u32)> = all
        .filter_map(|gpu| Some((gpu.bus?, gpu.module)))
        .filter(|(bdf, _)| gpus.contains(bdf))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
