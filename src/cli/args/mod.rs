//! The command line, as types. Man pages and completions are made from these; help text is written
//! here only.
// Brackets in help are parts that may be left out, not links.
#![allow(rustdoc::broken_intra_doc_links)]

mod apply;
mod bridge;
mod capacity;
mod clone;
mod device;
mod disk;
mod drive;
mod fabric;
mod fleet;
mod gpu;
mod guest;
mod heading;
mod help;
mod host;
mod image;
mod item;
mod late;
mod life;
mod login;
mod logs;
mod make;
mod measure;
mod meta;
mod nccl;
mod network;
mod nic;
mod program;
mod request;
mod room;
mod seed;
mod set;
mod slurm;
mod snapshot;
mod storage;
mod top;
mod tune;
mod undo;
mod values;
mod verify;
mod vgpu;
mod view;

pub use apply::{ApplyArgs, GetArgs, GuestsFormat};
pub use bridge::{
    ConfirmWithinArgs, HostBridgeConfirmArgs, HostBridgeCreateArgs, HostBridgeDeleteArgs,
    HostBridgeShowArgs, HostBridgeVerb, ManagerArg,
};
pub use capacity::CapacityArgs;
pub use clone::{CloneArgs, ImportArgs};
pub use device::{BindArgs, DeviceListArgs, DeviceVerb, Early, ReleaseArgs};
pub use disk::{DiskAddArgs, DiskRemoveArgs, DiskResizeArgs, DiskVerb};
pub use drive::{DriveChangeArgs, DriveVerb, ReleaseArrayArgs, RestoreArrayArgs, WipeArgs};
pub use fabric::{
    FabricHookArgs, FabricReleaseArgs, FabricRestoreArgs, FabricUnitArgs, FabricVerb,
};
pub use fleet::{FleetPlanArgs, FleetVerb, HostsArgs};
pub use gpu::{ExcludeArgs, GpuVerb, IncludeArgs, TestArgs};
pub use guest::{GpuArgs, GuestArgs, HeldArgs, ShapeArgs, TakenArgs};
pub use help::{GROUPS, command, exit_status, fitted};
pub use host::{
    CaptureArgs, HostDoctorArgs, HostFilesArgs, HostPagesArgs, HostShowArgs, HostTrustArgs,
    HostTuningArgs, HostUndoArgs, HostVerb, MatrixArgs, ModulesArgs, P2pAction, P2pArgs, TrustArg,
};
pub use image::{ImageAddArgs, ImageListArgs, ImageRemoveArgs, ImageVerb, KnownArgs};
pub use late::{Late, whole};
pub use life::{
    AutostartArgs, ChangeArgs, ConsoleArgs, DownArgs, IpArgs, LockArgs, OnlyArgs, PauseArgs,
    RenameArgs, StartArgs, StopArgs,
};
pub use login::{CpArgs, ExecArgs, LoginArgs, ShellArgs, SshArgs};
pub use logs::LogsArgs;
pub use make::{CreateArgs, ExportArgs, ExportFormat, PlanArgs};
pub use measure::{MeasureArgs, SuiteArg, ToolArg};
pub use meta::{CompletionsArgs, ManArgs, SchemaArgs};
pub use nccl::NcclArgs;
pub use network::{
    NetworkCreateArgs, NetworkDeleteArgs, NetworkDoctorArgs, NetworkShowArgs, NetworkUndoArgs,
    NetworkVerb,
};
pub use nic::{NicListArgs, NicVerb, VfsArgs};
pub use program::called_as_vendor;
pub use request::request;
pub use room::RoomArgs;
pub use seed::{SeedArgs, SeedDropArgs, SeedVerb};
pub use set::SetArgs;
pub use slurm::{
    SlurmArgs, SlurmConfArgs, SlurmEpilogArgs, SlurmPrologArgs, SlurmReconcileArgs, SlurmVerb,
};
pub use snapshot::{SnapshotChangeArgs, SnapshotCreateArgs, SnapshotVerb};
pub use storage::{DataSize, ImageArg, OsDiskArg, PreallocateArg, StorageArgs};
pub use top::{SortArg, TopArgs};
pub use tune::{ItemArgs, TuneArgs};
pub use undo::{HistoryArgs, UndoArgs};
pub use verify::{CheckArgs, VerifyArgs};
pub use vgpu::{VgpuVerb, VgpuVfsArgs};
pub use view::ViewArgs;

use super::colour::ColorArg;
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueHint};
use heading::{BEHAVIOUR, GLOBAL, GUEST, PLACEMENT};
use std::path::PathBuf;

/// Examples at the end of a verb's help.
mod examples {
    /// Of `capacity`.
    pub const CAPACITY: &str = "Examples:
  gpuvm capacity
  gpuvm capacity --gpus 8
  gpuvm capacity --nic 1 --nic-near switch
  gpuvm capacity --host topologies/dgx-2.json --vcpus 12 --memory 64G";
    /// Of `list`.
    pub const LIST: &str = "Examples:
  gpuvm list
  gpuvm list --json
  gpuvm list --host dgx.json --domain-xml domains/";
    /// Of `show`.
    pub const SHOW: &str = "Examples:
  gpuvm show train-a
  gpuvm show train-a train-b
  gpuvm show train-a --xml
  gpuvm show train-a --json";
    /// Of `start`.
    pub const START: &str = "Examples:
  gpuvm start train-a
  gpuvm start train-a train-b
  gpuvm start train-a --reserve-pages";
    /// Of `delete`.
    pub const DELETE: &str = "Examples:
  gpuvm delete train-a --dry-run
  gpuvm delete train-a
  gpuvm delete train-a --keep-data --yes";
    /// Of `recover`.
    pub const RECOVER: &str = "Examples:
  gpuvm recover --dry-run
  gpuvm recover";
    /// Of `completions`.
    pub const COMPLETIONS: &str = "Examples:
  gpuvm completions bash >~/.local/share/bash-completion/completions/gpuvm";
    /// Of `schema`.
    pub const SCHEMA: &str = "Examples:
  gpuvm schema
  gpuvm schema gpuvm-plan >plan.schema.json";
    /// Of `man`.
    pub const MAN: &str = "Examples:
  gpuvm man create | man -l -
  gpuvm man --dir pages";
}

/// The name of a group of no arguments.
const ABOUT_RECORDS: &str = "about-records";

/// Marks a verb that answers about a recorded host, so that an offer of it carries `--host`; all
/// others are for the machine itself. `host capture` takes a record, too, and is only offered to
/// record a machine again.
fn about_records() -> ArgGroup {
    ArgGroup::new(ABOUT_RECORDS)
}

/// Whether a verb answers about a recorded host.
pub fn is_about_records(verb: &clap::Command) -> bool {
    verb.get_groups().any(|group| group.get_id() == ABOUT_RECORDS)
}

/// Plan, create, tune, verify and undo GPU virtual machines on libvirt
///
/// Reads the host's NUMA, SMT, PCIe and NVLink layout, plans where a GPU guest goes, writes the
/// libvirt domain, and creates and deletes it. Commands that read only the host, and `create
/// --dry-run`, also run on a recorded host (--host FILE).
#[derive(Debug, Parser)]
#[command(name = "gpuvm", version, propagate_version = true)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Cli {
    /// The options of every verb.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The options of every verb.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Use a recorded host instead of this machine
    ///
    /// A file written by `gpuvm host capture`, an lstopo XML file (format 2), or a directory with
    /// the sys/ and proc/ of a host. With --connect to another machine, the record of that machine.
    /// Refused by verbs that need the machine itself.
    #[arg(long, global = true, display_order = 100, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    #[arg(help_heading = GLOBAL)]
    pub host: Option<PathBuf>,
    /// libvirt connection URI
    ///
    /// Default: $LIBVIRT_DEFAULT_URI, else qemu:///system. Another machine:
    /// qemu+ssh://USER@HOST/system.
    #[arg(
        short,
        long,
        global = true,
        display_order = 101,
        value_name = "URI",
        env = "LIBVIRT_DEFAULT_URI"
    )]
    #[arg(default_value = "qemu:///system", hide_default_value = true, hide_env = true)]
    #[arg(help_heading = GLOBAL)]
    pub connect: String,
    /// Whether the connection was named on the command line.
    #[arg(skip)]
    pub connect_is_given: bool,
    /// Print JSON instead of text
    #[arg(long, global = true, display_order = 102, help_heading = GLOBAL)]
    pub json: bool,
    /// Suppress progress and warnings
    #[arg(short, long, global = true, display_order = 103, help_heading = GLOBAL)]
    pub quiet: bool,
    /// Log each step to stderr (-vv: everything)
    ///
    /// Each line begins with the seconds since the start. Once: programs that run, files written,
    /// and libvirt calls that change something or take longer than 1 s, each with its duration.
    /// Twice: also every file read and every libvirt call. The content of files and definitions is
    /// never printed; passwords and tokens in arguments and URLs are replaced with `***`.
    #[arg(short, long, global = true, display_order = 104, help_heading = GLOBAL)]
    #[arg(action = ArgAction::Count)]
    pub verbose: u8,
    /// When to use colors
    #[arg(
        long,
        global = true,
        display_order = 105,
        help_heading = GLOBAL,
        value_name = "WHEN",
        hide_short_help = true,
        default_value = "auto"
    )]
    pub color: ColorArg,
    /// Print help (-h: summary, --help: all)
    #[arg(short, long, global = true, display_order = 110, action = ArgAction::Help)]
    #[arg(help_heading = GLOBAL)]
    pub help: Option<bool>,
    /// Print version
    #[arg(short = 'V', long, global = true, display_order = 111, action = ArgAction::Version)]
    #[arg(help_heading = GLOBAL)]
    pub version: Option<bool>,
}

/// The verb, in the order of [`GROUPS`].
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Plan, define and start a guest
    ///
    /// Plans as `plan` does, checks the domain as `check` does, makes its disk, defines it, starts
    /// it and waits for its address. If a step fails, the previous ones are undone. Exits with 3 if
    /// the guest runs, but had no address in time. --dry-run and --diff accept --host.
    ///
    /// Accepts the options of nvidia-vm as well: --domain, --gpu-count, --gpu-index, --volGB,
    /// --privateIP.
    #[command(after_long_help = make::CREATE)]
    Create(Late<CreateArgs>),
    /// Create, change and delete guests to match a file
    ///
    /// Missing guests are planned together, so that all of them fit and none takes what another
    /// needs more, and are created as `create` does. Guests that differ in vCPUs, memory, huge
    /// pages or autostart are changed as `set` and `autostart` do. A running guest is restarted
    /// only if its entry says `restart: allowed`, or with --restart. A guest that differs in
    /// anything else is refused before anything changes. Options that only matter to `create`
    /// (image, users, sizes of new disks, placement preferences) are compared with the file from
    /// which the guest was created. The order is: deletions, changes, creations. Each guest is a
    /// separate change: `gpuvm recover` finishes an interrupted one, and applying the file again
    /// does the rest. Exits with 3 if a change is pending, and with --dry-run if anything differs.
    #[command(after_long_help = apply::APPLY)]
    Apply(Late<ApplyArgs>),
    /// Move guests to make room for a new one
    ///
    /// Finds the guests whose move to other GPUs, cores and memory costs the least and leaves a
    /// place for a guest of these options, asks, and moves them one after the other. A running
    /// guest is shut down, as `stop` does, defined at its new place and started again; it keeps its
    /// name, UUID, disks and MAC addresses. If it cannot start there it starts where it was. A stop
    /// costs 1000, a GiB of memory to fill and a vCPU to pin 1 each. Only guests created with
    /// --movable are moved, and those that --allow-stop names; none that runs with other devices,
    /// pins, memory, disks or NICs than it is defined with. Each move is a separate change: `gpuvm
    /// recover` undoes or finishes an interrupted one, and the same command does the rest. It
    /// reserves nothing: the printed `create` takes the place.
    #[command(after_long_help = room::EXAMPLES)]
    #[command(group = about_records())]
    MakeRoom(Late<RoomArgs>),
    /// Print guests as a file that `apply` accepts
    ///
    /// Prints the requested options of a guest with its current size, disks and NICs; `gpuvm apply`
    /// of the output changes nothing.
    #[command(after_long_help = apply::GET)]
    Get(Late<GetArgs>),
    /// List domains and the devices they hold
    ///
    /// All domains of libvirt, also those that gpuvm did not create; on a recorded host (--host),
    /// those of --domain-xml. Also as `gpuvm ls`.
    #[command(after_long_help = examples::LIST)]
    #[command(alias = "ls")]
    #[command(group = about_records())]
    List(Late<ListArgs>),
    /// Show a domain: its devices, addresses, use and plan
    ///
    /// Sizes of disks and use of CPU and memory are those of the host; memory and file systems of
    /// the guest are as its agent reports them. The request has the options of `create` for size
    /// and devices; `gpuvm get` also has those of disks, networks and the first boot. Also as
    /// `gpuvm info`.
    #[command(after_long_help = examples::SHOW)]
    #[command(alias = "info")]
    Show(Late<ShowArgs>),
    /// Start a domain
    ///
    /// Refused before anything changes if a device is missing (with the command that brings it
    /// back), or if the host, a process or another guest uses it. gpuvm checks each device again
    /// right before it resets it, takes it from its driver or configures it. A device that others
    /// took meanwhile is left alone, also when the start is undone.
    #[command(after_long_help = examples::START)]
    Start(Late<StartArgs>),
    /// Shut a guest down
    ///
    /// Asks the guest agent if it is connected, else presses the power button. If the guest does
    /// not shut down in time, asks before powering off; --force powers off immediately. Without a
    /// terminal the guest keeps running.
    #[command(after_long_help = life::STOP)]
    Stop(Late<StopArgs>),
    /// Shut a guest down and start it again
    ///
    /// Starts the guest from its definition, so that changes to it take effect. A guest that does
    /// not shut down in time keeps running. A stopped domain is started.
    #[command(after_long_help = life::RESTART)]
    Restart(Late<StopArgs>),
    /// Stop the vCPUs of a running guest
    ///
    /// The guest keeps its memory, its devices and its disks, and its clock stands still. `resume`
    /// lets it go on.
    #[command(after_long_help = life::PAUSE)]
    Pause(Late<PauseArgs>),
    /// Let a paused guest go on
    #[command(after_long_help = life::RESUME)]
    Resume(Late<PauseArgs>),
    /// Start a guest when the host boots
    ///
    /// libvirt starts the guest at boot, after everything it needs. Its GPUs and NVSwitches are
    /// bound to vfio-pci, its virtual functions exist, and its huge pages are reserved together
    /// with those of other guests with autostart. libvirt's daemons start after these and Fabric
    /// Manager. A guest with GPUs of a board with shared NVSwitches needs `gpuvm fabric hook
    /// --install`. gpuvm-recover.service finishes or reverts changes that a power cut interrupted.
    /// `off` affects only this guest, and removes that service with the last one; `gpuvm undo NAME`
    /// reverts `on`.
    #[command(after_long_help = life::AUTOSTART)]
    Autostart(Late<AutostartArgs>),
    /// Print the IP address of a running guest
    ///
    /// Asks for DHCP leases of libvirt's networks, then the guest agent, then the host's ARP table.
    /// Prints the first address of the first NIC that has one, IPv4 before IPv6, and its source.
    /// With --wait it also listens to the guest's ARP packets, as root and on the guest's own host:
    /// on a bridge or macvtap that may be the only source. Ignores leases and ARP entries that are
    /// older than the guest's start; of a lease that never ends the guest is asked by ARP. Exits
    /// with 1 if there is no address.
    #[command(after_long_help = life::IP)]
    Ip(Late<IpArgs>),
    /// Attach to the serial console of a running guest
    ///
    /// Ctrl-] detaches. If standard input is not a terminal, it is copied to the guest, and the
    /// guest's output to standard output, until the input or the guest ends.
    #[command(after_long_help = life::CONSOLE)]
    Console(Late<ConsoleArgs>),
    /// Print a guest's serial log or QEMU's log
    ///
    /// `create` logs the serial console to a file, which is emptied at each start: boot messages
    /// from before the network was up, and the last ones before the guest ended. `gpuvm tune NAME
    /// --serial-log on` does the same for other guests. --qemu prints QEMU's log instead.
    #[command(after_long_help = logs::LOGS)]
    Logs(Late<LogsArgs>),
    /// Log in to a running guest by ssh
    ///
    /// Runs `ssh` with the guest's address, waiting for it and for the guest's ssh server if the
    /// guest has just started. If the guest accepts no key of yours, says which it accepts. Host
    /// keys are stored by the guest's UUID and accepted without a question at the first login, so
    /// that a new guest at a reused address causes no warning. StrictHostKeyChecking yes in the ssh
    /// configuration is respected. A guest on another machine (--connect) is reached through that
    /// machine. Under sudo, `ssh` runs as the calling user, with that user's keys. Exits with the
    /// status of `ssh`.
    #[command(after_long_help = login::SSH)]
    Ssh(Late<SshArgs>),
    /// Copy files to and from a running guest
    ///
    /// Runs `scp` as `gpuvm ssh` runs `ssh`. NAME:PATH is a path in the guest; the last path is the
    /// destination.
    #[command(after_long_help = login::CP)]
    Cp(Late<CpArgs>),
    /// Run a command in a running guest by its agent
    ///
    /// Needs no address, key or network: qemu-guest-agent, which `create` installs with the seed,
    /// runs the command as root. Passes on its output, at most 1 MiB of each stream, and its exit
    /// status; 127 if there is no such command. Errors of gpuvm itself exit with 1.
    #[command(after_long_help = login::EXEC)]
    Exec(Late<ExecArgs>),
    /// Open a root shell in a running guest by its agent
    ///
    /// Needs no address, key or network. Ctrl-] leaves and ends the shell. For terminals; `exec`
    /// runs single commands. Slower than `ssh`, for guests that ssh does not reach.
    #[command(after_long_help = login::SHELL)]
    Shell(Late<ShellArgs>),
    /// Change the vCPUs, memory, GPUs, NICs and drives of a domain
    ///
    /// The domain is planned again with the parts that it keeps: devices, disks, NICs, UUID and
    /// name; everything else in its definition stays byte for byte. Pins, NUMA cells, queues and
    /// threads are adjusted if the domain has them; values set by hand are kept. Works on any
    /// libvirt domain, also one that gpuvm did not create.
    ///
    /// A running guest gets its new size at its next start. If the new size does not fit, the
    /// nearest sizes that do are listed.
    #[command(after_long_help = set::EXAMPLES)]
    #[command(group = about_records())]
    Set(Late<SetArgs>),
    /// Rename a domain that is off
    ///
    /// Works on any libvirt domain. UUID, disks, addresses, autostart, record and history are kept.
    /// The files of firmware settings and of the serial console log are renamed, disks and the
    /// guest's own host name are not. Refused while the domain runs, and with a saved state or
    /// snapshots. `gpuvm rename NEW NAME` reverts it.
    #[command(after_long_help = life::RENAME)]
    Rename(Late<RenameArgs>),
    /// Clone a guest that is off
    ///
    /// The clone gets its own name, UUID, MAC addresses, firmware settings and full copies of the
    /// disks, or overlays; its cores, memory and GPUs are planned for it. A new cloud-init seed
    /// sets its host name and SSH host keys. It is not started; deleting either guest leaves the
    /// other intact, and `gpuvm undo NEW` deletes the clone.
    ///
    /// Only for guests that gpuvm created. Refused while NAME runs, with a saved state or
    /// snapshots, and with drives, partitions or devices other than GPUs. If too few GPUs are free,
    /// the number that fits is shown.
    #[command(after_long_help = clone::EXAMPLES)]
    Clone(Late<CloneArgs>),
    /// Create a guest from a bundle exported by another host
    ///
    /// Checks the whole bundle first, and refuses one that is incomplete, damaged or not written by
    /// gpuvm. The guest is planned for this host: cores, memory, huge pages, GPUs and their
    /// partition. It keeps its UUID, MAC addresses, firmware settings and seed, unless a guest here
    /// has them; with --copy it becomes a different guest. It is neither started nor set to
    /// autostart; `gpuvm undo NAME` deletes it with its disks.
    ///
    /// The source host keeps its guest until it is deleted there. Never run both: switches and DHCP
    /// servers identify a guest by its MAC addresses. Checksums detect damage, not tampering:
    /// import only bundles of your own hosts.
    #[command(after_long_help = clone::IMPORT)]
    Import(Late<ImportArgs>),
    /// Delete a domain and the objects created for it
    ///
    /// Lists everything that will be deleted, then asks for the domain's name, or takes --yes.
    /// Deletes a disk only if `create` made it for this very domain, the domain still has it, and
    /// no other domain, running or defined, uses it or an image on top of it under any name. A base
    /// image with overlays of other guests, as `clone --overlay` makes, stays until the last of
    /// them is deleted; `gpuvm disk list NAME` shows the users of each disk. Everything else stays
    /// and is listed with the command that removes it, such as the disks of a copy (virt-clone,
    /// `virsh define` of an edited definition). A GPU or virtual function that another running
    /// guest has since taken, or that a process has open, is left alone as well. It is not reset,
    /// not rebound to another driver and not reconfigured. Also as `gpuvm rm`.
    #[command(after_long_help = examples::DELETE)]
    #[command(alias = "rm")]
    Delete(Late<DeleteArgs>),
    /// List, add, resize and remove disks of guests
    #[command(subcommand)]
    Disk(DiskVerb),
    /// Create, list, revert to and delete snapshots of guests
    #[command(subcommand)]
    Snapshot(SnapshotVerb),
    /// Remove cloud-init seeds of guests
    #[command(subcommand)]
    Seed(SeedVerb),
    /// Show where a guest would be placed
    ///
    /// Changes nothing. Takes into account what every domain of libvirt holds, also those that
    /// gpuvm did not create; on a recorded host (--host) nothing is taken.
    #[command(after_long_help = make::PLAN)]
    #[command(group = about_records())]
    Plan(Late<PlanArgs>),
    /// Show which guests still fit, and what blocks larger ones
    ///
    /// Changes nothing. Counts, for each number of GPUs, how many guests of that size still fit one
    /// after the other: now, and on the empty host. For the first size that does not fit, says what
    /// blocks it and how to free it with the fewest GPUs restarted. A stopped domain costs nothing,
    /// a running one is moved if it fits elsewhere, and ended only if it does not. Options that
    /// describe a guest count guests like that.
    #[command(after_long_help = examples::CAPACITY)]
    #[command(group = about_records())]
    Capacity(Late<CapacityArgs>),
    /// Print the XML of a planned guest, or export a guest as a bundle
    ///
    /// Changes nothing: the XML is what `create` would define, for review or for `virsh define`.
    ///
    /// --format kubevirt and nova print the plan's shape for platforms that place guests by
    /// themselves, and what of the plan these cannot carry.
    ///
    /// --bundle DIR copies the guest NAME, which must be off, to a new directory from which `gpuvm
    /// import` creates it on another host: its definition, gpuvm's record of it, its disks and its
    /// firmware settings. The guest itself stays. manifest.json lists the content, and `sha256sum
    /// -c SHA256SUMS` checks it; `tar -cSf` packs it. Refused: saved states, snapshots, emulated
    /// TPMs, devices other than GPUs, and, unless left out with --without, disks that are drives,
    /// shared, or overlays of another image.
    #[command(after_long_help = make::EXPORT)]
    #[command(group = about_records())]
    Export(Late<ExportArgs>),
    /// List many hosts, what fits on them, and the best one for a guest
    #[command(subcommand)]
    Fleet(FleetVerb),
    /// Tune a domain for performance, after showing the changes
    ///
    /// Works on any libvirt domain, also one that gpuvm did not create, or on a file of domain XML,
    /// and prints the tuned XML of a file. Tunes every setting by default, to what `create` would
    /// plan for a guest with these devices, vCPUs and this memory. The guest stays on its cores if
    /// these are as good. Naming settings tunes only those; with --all-settings, named settings
    /// override the defaults.
    ///
    /// Settings are the options that take on or off: on as `create` would set it, off for libvirt's
    /// default (balloon: none), keep for no change. Everything else stays byte for byte. Running
    /// guests get the changes at their next start, unless --live is given.
    #[command(after_long_help = tune::EXAMPLES)]
    #[command(group = about_records())]
    Tune(Box<TuneArgs>),
    /// Find mistakes in a domain that libvirt accepts
    ///
    /// Pins to absent pcpus, two vCPUs on one pcpu, memory on another node than the vCPUs, devices
    /// that are missing or belong to another domain, disks that another domain has (`disk-held`) or
    /// the host uses (`disk-of-host`), guest PCIe trees that cannot work, and more; each with its
    /// place in the XML. Exits with 3 if it finds something.
    #[command(after_long_help = verify::CHECK)]
    #[command(group = about_records())]
    Check(Late<CheckArgs>),
    /// Compare a guest with its plan, definition and host
    ///
    /// Works on any libvirt domain, also without a plan. Compares a running guest (threads, memory,
    /// open devices and disks, the host's settings and, if its agent answers, its own view) with
    /// its live XML, the live XML with the definition that the next start uses, the definition with
    /// the request if gpuvm created it, and all of it with the rules of `check`. Each difference
    /// names the expected and the found value, its place, and the remedy.
    ///
    /// Changes nothing. Exits with 3 if something differs, and with 1 if the comparison failed,
    /// with --all for any domain.
    #[command(after_long_help = verify::VERIFY)]
    Verify(Late<VerifyArgs>),
    /// Show what running guests use, and what slows them down
    ///
    /// Works on any libvirt domain that runs on this machine. Shows for each guest the CPU use of
    /// its vCPUs, the time they wait for a pcpu (the guest sees it as steal), the emulator, memory
    /// on its planned nodes, storage and network. For a pinned vCPU that waits, names the tasks on
    /// its pcpu. Also finds CPU quotas that held a guest back, PCIe links with too few lanes, PCIe
    /// errors, memory pressure on the host, and threads and memory outside of their pins, as
    /// `verify` does.
    ///
    /// At a terminal it refreshes until `q`. Elsewhere, and with --once, it prints one sample, and
    /// exits with 3 if it found a warning or an error. CPU% of one pcpu is 100. WAIT% is the share
    /// of their runnable time that vCPUs spent waiting for a pcpu. A value that cannot be read is
    /// `-`; as another user than root, some cannot.
    ///
    /// Keys: arrows select a guest, s changes the order, n reads memory by node again, Enter runs
    /// `verify` of the selected guest, q quits.
    #[command(after_long_help = top::TOP)]
    Top(Late<TopArgs>),
    /// Measure how fast a guest is with the programs that it has
    ///
    /// Runs those of these programs that the guest has, by its agent or by ssh: nvbandwidth,
    /// all_reduce_perf of nccl-tests, dcgmi, ib_write_bw and ib_read_bw of perftest, fio, stream,
    /// mlc and cyclictest. Each value is compared with the PCIe path and the NVLinks that the host
    /// gives the guest, with the line rate of its NICs, with published numbers of its board
    /// (gpuvm-hardware(7), REFERENCE SPEEDS), and with the median of its own last runs. If a value
    /// is too low, the findings of `verify` and `host doctor` that can explain it are printed.
    ///
    /// perftest runs between the guest's own NICs, or to another guest (--peer), with memory of the
    /// guest and with memory of GPUs. stream runs in each cell if the guest has numactl.
    ///
    /// Installs nothing. fio makes a file of 1 GiB in /var/tmp of the guest and removes it. The
    /// values are remembered, 50 runs of each suite, until the guest is deleted; `verify --metrics`
    /// writes the last ones.
    ///
    /// Exits with 3 if a value is low or has regressed, a result is wrong or a test failed, and
    /// with 1 if nothing could be measured.
    #[command(after_long_help = measure::MEASURE)]
    Measure(Late<MeasureArgs>),
    /// Print the topology file that NCCL of a guest needs
    ///
    /// NCCL reads PCIe distances from the guest, which sees each device below a root port of its
    /// own, so that NCCL takes GPUs and NICs of one PCIe switch for distant and keeps GPUDirect
    /// RDMA off. The file (NCCL_TOPO_FILE) puts the switches of the host back, with their link
    /// speeds, and names each GPU and NIC by its address in the guest. gpuvm-hardware(7), NCCL
    /// TOPOLOGY, explains it and says where the guest needs it; --install puts it there.
    ///
    /// Changes nothing unless --install or --uninstall is given. Works on any libvirt domain, also
    /// one that gpuvm did not create, or on a file of domain XML. Refuses what NCCL would read as
    /// something else. The file holds until the guest's devices or their addresses change.
    #[command(after_long_help = nccl::NCCL)]
    #[command(group = about_records())]
    Nccl(Late<NcclArgs>),
    /// List the changes of a domain
    ///
    /// Before each change by `tune`, or by `start` that reserves pages, gpuvm saves the whole
    /// definition in /var/lib/gpuvm/history, which only root can read. `undo` reverts the last
    /// change.
    #[command(after_long_help = undo::HISTORY)]
    History(Late<HistoryArgs>),
    /// Revert the last change of a domain
    ///
    /// Restores the definition to the byte, and the host's settings changed for it. A running guest
    /// gets its pins and bandwidths back if the change was made live; everything else takes effect
    /// at its next start. Run again, it reverts the change before. Use `delete` to remove objects
    /// made by `create`.
    #[command(after_long_help = undo::UNDO)]
    Undo(Late<UndoArgs>),
    /// Finish or revert an interrupted change
    ///
    /// Every change keeps a journal while it runs. If it is killed, or the machine loses power, the
    /// next change on the same libvirt is refused until this command has run. It removes a partly
    /// created guest and completes an interrupted deletion. It can be repeated if it fails.
    #[command(after_long_help = examples::RECOVER)]
    Recover(Late<RecoverArgs>),
    /// Show, compare, record and configure hosts
    #[command(subcommand)]
    Host(HostVerb),
    /// List GPUs and their state; exclude and include them
    #[command(subcommand)]
    Gpu(GpuVerb),
    /// List vGPUs; enable the virtual functions of GPUs
    #[command(subcommand)]
    Vgpu(VgpuVerb),
    /// Show, release and restore NVLink partitions of Fabric Manager
    #[command(subcommand)]
    Fabric(FabricVerb),
    /// List PCI devices; bind them to vfio-pci and release them
    #[command(subcommand)]
    Device(DeviceVerb),
    /// List NICs; create virtual functions
    #[command(subcommand)]
    Nic(NicVerb),
    /// List drives; release and restore arrays, erase drives
    #[command(subcommand)]
    Drive(DriveVerb),
    /// Manage libvirt networks and host bridges
    #[command(subcommand)]
    Network(NetworkVerb),
    /// Manage the images that guests are created from
    #[command(subcommand)]
    Image(ImageVerb),
    /// Configure Slurm; create and delete the guests of its jobs
    #[command(subcommand)]
    Slurm(SlurmVerb),
    /// Print a shell completion script
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions(Late<CompletionsArgs>),
    /// Print a man page, or write all of them to a directory
    #[command(after_long_help = examples::MAN)]
    Man(Late<ManArgs>),
    /// Print the JSON Schema of a document that --json prints
    ///
    /// Draft 2020-12, made from the program's own types. Lists, which are arrays without `format`,
    /// have schemas named after their command: `gpuvm-device-list`. `make install` puts all of them
    /// below share/gpuvm/schemas.
    #[command(after_long_help = examples::SCHEMA)]
    Schema(Late<SchemaArgs>),
}

/// Domains by name.
#[derive(Debug, Args)]
pub struct NamesArgs {
    /// Domain names
    ///
    /// Of several, one that is refused does not prevent the others. With --json each is answered by
    /// a document of its own; `show` prints an array.
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    #[arg(id = "name")]
    pub names: Vec<String>,
    /// All domains
    ///
    /// Also those that gpuvm did not create. `start` takes those that are off; `stop` and `restart`
    /// take those that run, and ask first.
    #[arg(long, help_heading = GUEST)]
    pub all: bool,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Which.
    #[command(flatten)]
    pub names: NamesArgs,
    /// Print the definition and change nothing
    ///
    /// That of the next start, without secrets. It cannot be combined with --json.
    #[arg(long, conflicts_with = "json", help_heading = BEHAVIOUR)]
    pub xml: bool,
}

/// A domain's name.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Also print uptime and what `verify` finds
    ///
    /// Addresses come from guest agents and ARP as well, not only from DHCP leases.
    #[arg(short, long, conflicts_with = "domain_xml")]
    pub long: bool,
    /// Domain XML of the recorded host; repeatable
    ///
    /// Requires --host. A file as `virsh dumpxml` prints it, or a directory of such files. Domains
    /// that were running when they were printed count as running.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    #[arg(help_heading = PLACEMENT, hide_short_help = true)]
    pub domain_xml: Vec<PathBuf>,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Domain names
    #[arg(value_name = "NAME", required_unless_present = "domain", conflicts_with = "domain")]
    #[arg(id = "name")]
    pub names: Vec<String>,
    /// Domain name, as in nvidia-vm
    #[arg(long, value_name = "NAME", help_heading = GUEST, hide_short_help = true)]
    pub domain: Option<String>,
    /// Which.
    #[command(flatten)]
    pub only: OnlyArgs,
    /// Keep the data disk
    #[arg(long, help_heading = BEHAVIOUR)]
    pub keep_data: bool,
    /// Do not ask for confirmation
    #[arg(short, long, visible_alias = "force", help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// How it is made or shown.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Print the steps and change nothing
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// Forget the change and leave its effects
    ///
    /// Lists the remains.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub discard: bool,
    /// Power this guest off if its change requires it
    ///
    /// A running guest is powered off only by this option, or after its name is typed: when the
    /// change that created or started it is reverted, or the one that was to stop it is finished.
    /// Repeatable.
    #[arg(long, value_name = "NAME")]
    pub end: Vec<String>,
    /// Release resources reserved for undefined guests
    ///
    /// Huge pages, settings of virtual functions, and the history of guests that were undefined by
    /// other means.
    #[arg(long, conflicts_with = "discard")]
    pub gone: bool,
    /// Do not ask for confirmation
    ///
    /// With --discard. Stops no guest.
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
