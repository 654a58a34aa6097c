//! JSON Schemas of everything that `--json` prints, made from the printed types. A test finds
//! printed documents that are not listed here.

use super::apply;
use super::diff;
use super::export;
use super::failure;
use super::fleet;
use super::guests;
use super::host;
use super::make_room;
use super::network;
use super::output::VERSION;
use super::plan;
use super::seed;
use super::start;
use super::tuned;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// A schema's name, which is the `format` of its documents, and its generator. Arrays have no
/// `format`; they are named after the verb that prints them.
type Listed = (&'static str, fn(&str) -> Schema);

const ALL: [Listed; 90] = [
    ("gpuvm-address", document::<gpuvm_ops::address::NicAddress>),
    ("gpuvm-addresses", rows::<gpuvm_ops::address::NicAddress>),
    ("gpuvm-apply", document::<apply::Applied<'static>>),
    ("gpuvm-capacity", document::<crate::placement::Capacity>),
    ("gpuvm-check", document::<gpuvm_ops::check::Checked>),
    ("gpuvm-created", document::<gpuvm_ops::create::Created>),
    ("gpuvm-device-list", rows::<gpuvm_ops::devices::ListedDevice>),
    ("gpuvm-diff", document::<diff::Diff>),
    ("gpuvm-diffs", rows::<diff::Diff>),
    ("gpuvm-disk-changed", document::<gpuvm_ops::guest_disks::add::ChangedDisk>),
    ("gpuvm-disk-list", rows::<gpuvm_ops::guest_disks::list::ListedDisk>),
    ("gpuvm-disk-resized", document::<gpuvm_ops::guest_disks::resize::ResizedDisk>),
    ("gpuvm-domain", document::<gpuvm_ops::domains::ShownDomain>),
    ("gpuvm-domains", rows::<gpuvm_ops::domains::ShownDomain>),
    ("gpuvm-drive-list", rows::<gpuvm_ops::drives::list::ListedDrive>),
    ("gpuvm-dropped-seed", document::<seed::Dropped>),
    ("gpuvm-error", document::<failure::Failure>),
    ("gpuvm-exclusions", document::<gpuvm_ops::exclude::Excluded>),
    ("gpuvm-export", document::<export::Exported<'static>>),
    ("gpuvm-export-kubevirt", document::<gpuvm_core::export::kubevirt::KubeVirtExport>),
    ("gpuvm-export-nova", document::<gpuvm_core::export::nova::NovaExport>),
    ("gpuvm-fabric-ensure", document::<gpuvm_ops::fabric::EnsuredPartitions>),
    ("gpuvm-fabric-file", document::<gpuvm_ops::fabric::FabricFile>),
    ("gpuvm-fabric-restore", document::<gpuvm_ops::fabric::Restored>),
    ("gpuvm-fabric-show", document::<gpuvm_ops::fabric::ShownFabric>),
    ("gpuvm-fleet-capacity", document::<fleet::FleetCapacity>),
    ("gpuvm-fleet-captured", document::<fleet::Hosts<fleet::RecordedHost>>),
    ("gpuvm-fleet-list", document::<fleet::Hosts<gpuvm_core::fleet::HostCapacity>>),
    ("gpuvm-fleet-plan", document::<fleet::FleetPlan>),
    ("gpuvm-gpu-list", rows::<gpuvm_ops::devices::ListedGpu>),
    ("gpuvm-gpu-test", rows::<gpuvm_ops::gpu_test::TestedGpu>),
    ("gpuvm-guests", guests_file),
    ("gpuvm-history", rows::<crate::history::Entry>),
    ("gpuvm-host", host_file),
    ("gpuvm-host-bridge-list", rows::<gpuvm_ops::host_bridge::facts::HostBridgeRow>),
    ("gpuvm-host-bridge-preview", document::<network::bridge::create::Preview<'static>>),
    ("gpuvm-host-doctor", document::<gpuvm_ops::doctor::Diagnosed>),
    ("gpuvm-host-files", document::<gpuvm_ops::host_files::OpenFiles>),
    ("gpuvm-host-modules", rows::<gpuvm_ops::modules::ModuleOfGpu>),
    ("gpuvm-host-pages", rows::<gpuvm_ops::host_pages::NodePool>),
    ("gpuvm-host-p2p", document::<gpuvm_core::topology::pairs::Pairs>),
    ("gpuvm-host-show", document::<gpuvm_ops::host_show::ShownHost<'static>>),
    ("gpuvm-host-trust", document::<host::trust::Answer>),
    ("gpuvm-host-tuning", rows::<gpuvm_ops::host_settings::Setting>),
    ("gpuvm-image-added", document::<gpuvm_ops::images::add::Added>),
    ("gpuvm-image-known", rows::<gpuvm_ops::images::fetch::KnownImage>),
    ("gpuvm-image-list", rows::<gpuvm_ops::images::list::UsedImage>),
    ("gpuvm-list", rows::<gpuvm_ops::domains::ListedDomain>),
    ("gpuvm-log", document::<gpuvm_ops::logs::GuestLog>),
    ("gpuvm-make-room", document::<make_room::RoomAnswer<'static>>),
    ("gpuvm-matrix", document::<crate::topology::Matrix>),
    ("gpuvm-nccl", document::<gpuvm_ops::nccl::Nccl>),
    ("gpuvm-nccl-installed", document::<gpuvm_ops::nccl::install::Installed>),
    ("gpuvm-nccl-uninstalled", document::<gpuvm_ops::nccl::uninstall::Uninstalled>),
    ("gpuvm-network", document::<gpuvm_ops::networks::facts::NetworkShown>),
    ("gpuvm-network-created", document::<network::create::Created>),
    ("gpuvm-network-doctor", document::<gpuvm_ops::networks::doctor::Diagnoses>),
    ("gpuvm-login", document::<super::login::LoginCommand>),
    ("gpuvm-network-list", rows::<gpuvm_ops::networks::facts::NetworkRow>),
    ("gpuvm-network-preview", document::<network::create::Preview<'static>>),
    ("gpuvm-nic-list", rows::<gpuvm_ops::nics::NetworkCard>),
    ("gpuvm-plan", document::<plan::Answer<'static>>),
    ("gpuvm-recover", rows::<gpuvm_ops::recover::Killed>),
    ("gpuvm-executed", document::<gpuvm_ops::exec::Executed>),
    ("gpuvm-exported", document::<gpuvm_ops::bundle::ExportedGuest>),
    ("gpuvm-imported", document::<gpuvm_ops::import::ImportedGuest>),
    ("gpuvm-cloned", document::<gpuvm_ops::clone::ClonedGuest>),
    ("gpuvm-renamed", document::<gpuvm_ops::rename::RenamedDomain>),
    ("gpuvm-schema-list", rows::<String>),
    ("gpuvm-set", document::<tuned::WithSteps<'static>>),
    ("gpuvm-slurm-conf", document::<gpuvm_core::slurm::Conf>),
    ("gpuvm-slurm-epilog", document::<gpuvm_ops::slurm::Epilog>),
    ("gpuvm-slurm-prolog", document::<gpuvm_ops::slurm::Prolog>),
    ("gpuvm-slurm-reconcile", document::<gpuvm_ops::slurm::Reconciled>),
    ("gpuvm-snapshot-changed", document::<gpuvm_ops::snapshot::ChangedSnapshot>),
    ("gpuvm-snapshot-list", rows::<gpuvm_ops::snapshot::ListedSnapshot>),
    ("gpuvm-autostart", document::<gpuvm_ops::autostart::Autostarted>),
    ("gpuvm-started", document::<start::Started<'static>>),
    ("gpuvm-steps", rows::<crate::apply::Step>),
    ("gpuvm-measure", document::<gpuvm_core::measure::MeasureReport>),
    ("gpuvm-measure-history", rows::<gpuvm_ops::measure::Usual>),
    ("gpuvm-top", document::<gpuvm_core::load::LoadReport>),
    ("gpuvm-tune", document::<tuned::WithSteps<'static>>),
    ("gpuvm-tuned-domain", document::<gpuvm_ops::tune::answer::TunedDomain>),
    ("gpuvm-undone", document::<gpuvm_ops::undo::Undone>),
    ("gpuvm-verify", document::<gpuvm_ops::verify::Verified>),
    ("gpuvm-verify-all", rows::<gpuvm_ops::verify::Verified>),
    ("gpuvm-verify-change", document::<gpuvm_ops::verify::watch::Changed>),
    ("gpuvm-vgpu-list", rows::<gpuvm_ops::vgpu::list::VgpuCard>),
    ("gpuvm-wiped-drive", document::<gpuvm_ops::drives::wipe::Wiped>),
];

/// The names of all schemas.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The schema of this name; `None` if there is none.
pub fn find(name: &str) -> Option<Schema> {
    let (name, make) = ALL.iter().find(|(listed, _)| *listed == name)?;
    let mut schema: Value = make(name).into();
    in_terms_of_json(&mut schema);
    Schema::try_from(schema).ok()
}

/// Replaces `None`, a word of the comments that descriptions are made from.
fn in_terms_of_json(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => {
                        *text = text.replace("`None`", "null");
                    }
                    value => in_terms_of_json(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(in_terms_of_json),
        _ => {}
    }
}

/// Returns a generator of schemas for serialized values.
fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_serialize().into_generator()
}

/// The schema of an answer that is an object.
fn document<T: JsonSchema>(name: &str) -> Schema {
    let mut schema = generator().into_root_schema_for::<T>();
    schema.insert("title".into(), name.into());
    let kind = [("format", json!({ "const": name })), ("version", json!({ "const": VERSION }))];
    let own = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let kind = kind.into_iter().map(|(field, value)| (field.to_owned(), value));
    let properties: Map<String, Value> = kind.chain(own).collect();
    schema.insert("properties".into(), properties.into());
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let required = ["format", "version"].map(Value::from).into_iter().chain(required);
    schema.insert("required".into(), required.collect::<Vec<_>>().into());
    schema
}

/// The schema of an answer that is an array of these.
fn rows<T: JsonSchema>(name: &str) -> Schema {
    let mut schema = generator().into_root_schema_for::<Vec<T>>();
    schema.insert("title".into(), name.into());
    schema
}

/// The schema of a file of guests, which is made from the options of `create`.
fn guests_file(_: &str) -> Schema {
    Schema::try_from(guests::schema()).expect("it is an object")
}

/// The schema of a recorded host, which has a version of its own.
fn host_file(name: &str) -> Schema {
    let mut schema = crate::topology::file::schema(generator());
    schema.insert("title".into(), name.into());
    schema
}
