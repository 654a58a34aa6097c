//! The changes of gpuvm. Each is one file with one function that reads the [`World`](world::World)
//! and plans a [`Change`](change::Change); [`Session::run`](session::Session::run) carries it out.
//! This is the interface for a service, an Ansible module or a web page: nothing here prints,
//! prompts at a terminal or knows a command line. The caller provides a
//! [`Reporter`](reporter::Reporter), which receives messages and answers questions.
//!
//! This example creates a guest on libvirt's test driver, which has no QEMU, and stops it again:
//!
//! ```
//! use gpuvm_core::domain::guest::VirtType;
//! use gpuvm_core::memsize::MemSize;
//! use gpuvm_core::request::{DomainName, PinPolicy, Request};
//! use gpuvm_ops::create::{self, CreateRequest, Waits};
//! use gpuvm_ops::guest::{GuestRequest, NameRequest};
//! use gpuvm_ops::reporter::{Answer, Asked, Reporter};
//! use gpuvm_ops::session::{Confirm, Manner, Of, Session};
//! use gpuvm_ops::stop::{Down, stop};
//! use gpuvm_ops::storage::{DataRequest, SeedRequest, StorageRequest};
//! use gpuvm_ops::taken::Taken;
//! use gpuvm_ops::world::{Settings, World};
//! use std::{io, sync::Arc, time::Duration};
//!
//! /// Has no terminal to ask at, and prints messages on standard output.
//! struct Plain;
//! impl Reporter for Plain {
//!     fn progress(&self, text: &str) {
//!         println!("{text}");
//!     }
//!     fn warning(&self, text: &str) {
//!         println!("warning: {text}");
//!     }
//!     fn preview(&self, steps: &[gpuvm_host::apply::Step]) -> io::Result<()> {
//!         steps.iter().for_each(|step| println!("{step}"));
//!         Ok(())
//!     }
//!     fn ask(&self, _: Asked<'_>) -> io::Result<Answer> {
//!         Ok(Answer::Nobody)
//!     }
//! }
//!
//! let dir = tempfile::tempdir()?;
//! let disk = dir.path().join("disk.raw");
//! std::fs::write(&disk, [0; 4096])?;
//! let settings = Settings {
//!     connect: "test:///default".into(),
//!     state: Some(dir.path().join("state")),
//!     ..Settings::default()
//! };
//! let world = World::new(settings, Arc::new(Plain));
//! let request = Request {
//!     vcpus: Some(1),
//!     memory_kib: Some(MemSize::from_kib(64 << 10)),
//!     pins: PinPolicy::None,
//!     ..Request::for_gpus(0)
//! };
//! let wanted = CreateRequest {
//!     guest: GuestRequest {
//!         request,
//!         name: NameRequest::Exact(DomainName::new("example")?),
//!         template: None,
//!         virt: VirtType::Qemu,
//!         networks: Vec::new(),
//!         taken: Taken::default(),
//!         place: None,
//!     },
//!     storage: StorageRequest {
//!         disk: vec![disk],
//!         data: DataRequest::None,
//!         ..StorageRequest::default()
//!     },
//!     seed: SeedRequest::default(),
//!     uuid: Some("5a4d6a3e-6d0f-4c0f-9d5c-3f1c1b0a2e11".into()),
//!     private_net: false,
//!     without_nics: false,
//!     reserve_pages: false,
//!     accept_shared_fabric: false,
//!     starts: true,
//!     applied: None,
//!     job: None,
//! };
//! let lock_wait = Duration::from_secs(60);
//! let manner = Manner { confirm: Confirm::Given, dry_run: false, lock_wait, of: Of::Guests };
//! let mut session = Session::begin(&world, manner)?;
//! let made = create::run(&mut session, &world, &wanted, Waits { address_s: 0, seed_s: None })?;
//! assert_eq!((made.name.as_str(), made.started), ("example", true));
//! let ended = session.run(|world| stop(world, "example", Down { force: true, wait_s: 0 }))?;
//! assert!(ended.made);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How to add a verb:
//! 1. Its input becomes a struct of plain values (`Delete`), which the command fills from its
//!    arguments.
//! 2. Its plan becomes `fn delete(world: &World, wanted: &Delete) -> Result<Change<T>>`: parts
//!    with the steps, warnings, the question asked beforehand, how long the lock is held; `T` is
//!    the data for the answer. The plan changes nothing, since it is made twice; a
//!    `world.warning` in it is reported once.
//! 3. The command: `let mut session = Session::begin(world, manner)?;` and
//!    `let done = session.run(|world| delete(world, &wanted))?;`, then its answer. `manner` has
//!    --yes, --dry-run and --lock-wait. `--diff` uses [`Session::look`](session::Session::look).
//! 4. What follows the steps and belongs to the change, such as waiting for an address, goes to
//!    [`Session::run_and`](session::Session::run_and). Errors are [`error::Error`]: `hinted`,
//!    `classed`, `usage`.

// Tests make the files that operations are to find.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

use gpuvm_core::{
    bdf, cpuset, domain, health, hostnet, image, memsize, network, placement, request, seed, shell,
    topology, words,
};
use gpuvm_host::{
    apply, blockdev, command, discover, fetch, fsroot, function_users, history, hypervisor,
    identity, input, pinned_dir, signature, trace,
};

pub mod address;
pub mod agent;
pub mod autostart;
mod availability;
pub mod backing;
pub mod bind;
pub mod bundle;
pub mod by_ssh;
pub mod capacity;
pub mod capture;
pub mod cards;
pub mod change;
pub mod check;
pub mod claim;
pub mod clone;
pub mod compare;
pub mod console;
pub mod copied;
pub mod create;
pub mod current_users;
pub mod delete;
pub mod described;
pub mod devices;
pub mod disks;
pub mod doctor;
pub mod domain_history;
pub mod domains;
pub mod drives;
pub mod drop_seed;
pub mod error;
pub mod exclude;
pub mod exec;
pub mod export;
pub mod fabric;
pub mod fabric_desk;
pub mod files;
pub mod fleet;
mod formats;
pub mod gone;
pub mod gpu_health;
pub mod gpu_states;
pub mod gpu_test;
pub mod guest;
pub mod guest_disks;
pub mod guest_shell;
pub mod host;
pub mod host_bridge;
pub mod host_files;
pub mod host_pages;
pub mod host_settings;
pub mod host_show;
pub mod images;
pub mod import;
pub mod initramfs;
pub mod later;
pub mod links;
pub mod login;
pub mod logs;
pub mod lookup;
pub mod made;
pub mod make_room;
pub mod measure;
pub mod modules;
pub(crate) mod moved;
pub mod nccl;
pub mod networks;
mod nic_sources;
pub mod nics;
pub(crate) mod nvram;
pub(crate) mod obstacles;
pub mod p2p;
pub mod pages;
pub mod partition;
pub mod paths;
pub mod pause;
pub mod plan;
pub mod planned;
pub mod pools;
pub mod recognise;
pub mod recover;
pub mod remote;
pub mod rename;
pub mod reporter;
pub mod restart;
pub mod session;
pub mod set;
pub mod slurm;
pub mod snapshot;
pub mod source;
pub mod sriov;
#[cfg(test)]
pub(crate) mod stage;
pub mod start;
pub mod startable;
pub mod stop;
pub mod storage;
pub mod taken;
pub mod top;
pub mod trust;
pub mod tune;
pub mod undo;
pub mod unfinished;
pub mod usage;
pub mod verify;
pub mod vfs;
pub mod vgpu;
pub mod watch;
mod withheld;
pub mod world;

#[cfg(test)]
#[allow(dead_code, clippy::print_stderr)]
#[path = "../../tests/support/skip.rs"]
mod skip;
