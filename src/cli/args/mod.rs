//! The command line, as types. Man pages and completions are made from these; help text is written here only.

mod bridge;
mod capacity;
mod device;
mod drive;
mod gpu;
mod guest;
mod guestnic;
mod host;
mod image;
mod item;
mod life;
mod make;
mod meta;
mod network;
mod nic;
mod seed;
mod storage;
mod tune;
mod undo;
mod verify;
mod vf;
mod wish;

pub use bridge::{
    ConfirmWithinArgs, HostBridgeConfirmArgs, HostBridgeCreateArgs, HostBridgeDeleteArgs,
    HostBridgeShowArgs, HostBridgeVerb, ManagerArg,
};
pub use capacity::CapacityArgs;
pub use device::{BindArgs, DeviceListArgs, DeviceVerb, Early, ReleaseArgs};
pub use drive::{DriveVerb, ReleaseArrayArgs, RestoreArrayArgs, WipeArgs};
pub use gpu::{Device, ExcludeArgs, GpuVerb, IncludeArgs};
pub use guest::{GpuArgs, GuestArgs, ShapeArgs, TakenArgs, VirtTypeArg};
pub use host::{
    CaptureArgs, HostFilesArgs, HostPagesArgs, HostShowArgs, HostTuningArgs, HostUndoArgs,
    HostVerb, MatrixArgs, ModulesArgs,
};
pub use image::{ImageAddArgs, ImageListArgs, ImageRemoveArgs, ImageVerb};
pub use item::Convert;
pub use life::{ConsoleArgs, DownArgs, IpArgs, LockArgs, StartArgs, StopArgs};
pub use make::{CreateArgs, ExportArgs, PlanArgs};
pub use meta::{CompletionsArgs, ManArgs};
pub use network::{
    DhcpArg, ModeArg, NetworkCreateArgs, NetworkDeleteArgs, NetworkDoctorArgs, NetworkKindArg,
    NetworkShowArgs, NetworkUndoArgs, NetworkVerb, StaticArg, Who,
};
pub use nic::{EarlyVfs, NicListArgs, NicVerb, PfName, VfsArgs};
pub use seed::{SeedArgs, SeedDropArgs, SeedVerb};
pub use storage::{DataSize, ImageArg, OsDiskArg, PreallocateArg, StorageArgs};
pub use tune::{ItemArgs, TuneArgs};
pub use undo::{HistoryArgs, UndoArgs};
pub use verify::{CheckArgs, VerifyArgs};
pub use vf::{VfArg, settings as vf_settings};
pub use wish::{AllowArg, NearArg, PinsArg, Which};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueHint};
use std::path::PathBuf;

/// Examples at the end of a verb's help.
mod examples {
    /// Of `capacity`.
    pub const CAPACITY: &str = "Examples:
  gpuvm capacity
  gpuvm capacity --gpus 8
  gpuvm capacity --nic 1 --nic-near switch
  gpuvm capacity --host topologies/dgx-2.json --vcpus 12 --memory 64G";
}

/// The name of a group of no arguments.
const ABOUT_RECORDS: &str = "about-records";

/// Marks a verb that answers about a recorded host, so that an offer of it carries `--host`; all others are for the machine
/// itself. `host capture` takes a record, too, and is only offered to record a machine anew.
fn about_records() -> ArgGroup {
    ArgGroup::new(ABOUT_RECORDS)
}

/// Whether a verb answers about a recorded host.
pub fn is_about_records(verb: &clap::Command) -> bool {
    verb.get_groups().any(|group| group.get_id() == ABOUT_RECORDS)
}

/// Plan, create, tune, verify and undo GPU virtual machines on libvirt
///
/// Reads the host's NUMA, SMT, PCIe and NVLink layout, plans where a GPU guest goes, writes the libvirt domain, and
/// creates and deletes it. Verbs that change nothing also run on a recorded host (--host FILE).
#[derive(Debug, Parser)]
#[command(name = "gpuvm", version, max_term_width = 100, propagate_version = true)]
#[command(
    after_help = "Exit codes: 0 done or already so, 1 failed, 2 usage, 3 a check found something or a new guest has no \
                  address yet, 70 internal error."
)]
pub struct Cli {
    /// What holds for every verb.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Is what holds for every verb.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every verb")]
pub struct Global {
    /// Use a recorded host instead of this machine: a file of `gpuvm host capture`, an lstopo XML of format 2, or a
    /// directory that holds its sys/ and proc/; with --connect to another machine, the record of that one
    #[arg(long, global = true, display_order = 100, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub host: Option<PathBuf>,
    /// libvirt connection
    #[arg(
        short,
        long,
        global = true,
        display_order = 101,
        value_name = "URI",
        env = "LIBVIRT_DEFAULT_URI"
    )]
    #[arg(default_value = "qemu:///system", hide_env_values = true)]
    pub connect: String,
    /// Whether the connection was named on the command line.
    #[arg(skip)]
    pub connect_is_given: bool,
    /// Print JSON instead of text
    #[arg(long, global = true, display_order = 102)]
    pub json: bool,
    /// Print no progress and no warnings
    #[arg(short, long, global = true, display_order = 103)]
    pub quiet: bool,
}

/// Is the verb.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show, compare or record hosts
    #[command(subcommand)]
    Host(HostVerb),
    /// Show GPUs and their state, take one out of use and back
    #[command(subcommand)]
    Gpu(GpuVerb),
    /// Show who has which PCI device, bind devices to vfio-pci for guests and give them back
    #[command(subcommand)]
    Device(DeviceVerb),
    /// Show network cards, set how many virtual functions they have
    #[command(subcommand)]
    Nic(NicVerb),
    /// Show libvirt's networks, make and delete them: NAT, private, macvtap, bridge, SR-IOV; make bridges of the host
    #[command(subcommand)]
    Network(NetworkVerb),
    /// Show drives and who uses them, release a data array and restore it
    #[command(subcommand)]
    Drive(DriveVerb),
    /// Plan where a guest goes, and print the plan
    ///
    /// Changes nothing. What is taken is read from every domain that libvirt knows, whoever made it; on a recorded
    /// host (--host) nothing is taken.
    #[command(after_help = make::PLAN)]
    #[command(group = about_records())]
    Plan(PlanArgs),
    /// Say what still fits, what is in the way of more, and which guests would free it
    ///
    /// Changes nothing. Counts, for each number of GPUs, how many guests of the size still fit one after the other: now,
    /// and if no domain held anything. For the first size that does not fit it says what is in the way and what would
    /// free it with the fewest GPUs restarted: a stopped domain costs nothing, a running one is moved where it has
    /// another place, and ended only where it has none. Options that describe a guest mean a guest like that one.
    #[command(after_help = examples::CAPACITY)]
    #[command(group = about_records())]
    Capacity(CapacityArgs),
    /// Plan a guest and print its domain XML
    ///
    /// Changes nothing: the XML is what `create` would define, for review or for `virsh define`.
    #[command(after_help = make::EXPORT)]
    #[command(group = about_records())]
    Export(ExportArgs),
    /// Add, list or remove the images that guests are made from
    #[command(subcommand)]
    Image(ImageVerb),
    /// Take the first settings of a guest away
    #[command(subcommand)]
    Seed(SeedVerb),
    /// Plan, define and start a guest
    ///
    /// Plans as `plan` does, checks the domain as `check` does, makes its disk, defines it, starts it and waits for its
    /// address. What fails on the way is undone. Ends with 3 when the guest runs, but had no address in time. The options of nvidia-vm are taken too: --domain, --gpu-count,
    /// --gpu-index, --volGB, --privateIP.
    #[command(after_help = make::CREATE)]
    Create(CreateArgs),
    /// List all domains of the host with what they hold
    ///
    /// Those that libvirt knows, whoever made them; of a recorded host (--host) those whose XML is given (--domain-xml).
    #[command(group = about_records())]
    List(ListArgs),
    /// Show one domain: what it holds, its addresses, how it was planned
    Show(NameArgs),
    /// Start a defined domain
    ///
    /// Refused before anything is done: a device that is not there any more, with the command that brings it back, or that
    /// the host, a process or another guest uses. Whose a device is is looked at again right before it is reset, taken from
    /// its driver or set up; what somebody else took meanwhile stays with him, also when the start is undone.
    Start(StartArgs),
    /// Stop a running domain
    ///
    /// Asks the guest's agent where it is connected, else presses the power button. A guest that does not shut down in
    /// time keeps running, unless its power is cut: at a terminal it is asked, --force does it at once.
    #[command(after_help = life::STOP)]
    Stop(StopArgs),
    /// Stop a domain and start it again
    ///
    /// The guest is started from its definition, so changes of it take effect. A guest that does not shut down in time
    /// keeps running. A domain that is off is started.
    #[command(after_help = life::RESTART)]
    Restart(StopArgs),
    /// Print the address of a running guest
    ///
    /// Asks for DHCP leases of libvirt's networks, then the guest's agent, then the host's ARP table, and prints the
    /// first address of the guest's first NIC that has one, IPv4 before IPv6; who knew it is said beside it. With --wait it
    /// listens meanwhile to what the guest says by ARP, as root and on the guest's own host: on a bridge or macvtap nobody
    /// else may know. A lease or an ARP entry that is older than the guest's start does not count. Ends with 1 when there is
    /// none.
    #[command(after_help = life::IP)]
    Ip(IpArgs),
    /// Attach to the serial console of a running guest
    ///
    /// Ctrl-] leaves. Where standard input is no terminal, it is copied to the guest, and the output to standard output,
    /// until the input or the guest ends.
    #[command(after_help = life::CONSOLE)]
    Console(ConsoleArgs),
    /// Delete a domain and what was made for it
    ///
    /// Names everything that goes, then asks for the domain's name, or takes --yes. Only disks go that `create` made for
    /// this very domain, that it still has, and that nobody else needs: no other domain, running or defined, has the disk
    /// or an image over it, by whatever name. Everything else stays, and is named with the command that removes it; so do
    /// the disks of a copy (virt-clone, `virsh define` of an edited definition). A GPU or virtual function that another
    /// guest runs with by now, or that a process has open, is left, too: it is neither reset nor given to another driver
    /// nor set up otherwise, and is named.
    Delete(DeleteArgs),
    /// Make any domain as good as a fresh plan, and show the difference first
    ///
    /// Takes every domain of libvirt, whoever made it, or a file of domain XML. Without options of things it does all that
    /// `create` would do for a guest with these functions, vCPUs and this memory, where the functions are; it stays on its
    /// cores if these are as good. With options it does only these; --all and options: all, but these as they say. Every
    /// thing takes `on` (as `create` would), `off` (libvirt's default) and `keep`. What is not named in the answer stays
    /// byte for byte. A running guest gets it at its next start. Of a file the tuned XML is printed.
    #[command(after_help = tune::EXAMPLES)]
    #[command(group = about_records())]
    Tune(Box<TuneArgs>),
    /// List what was changed of a domain
    ///
    /// Every change of a definition keeps the definition as it was, whole, beside the domain: in /var/lib/gpuvm/history,
    /// readable by root alone. `undo` takes the last one back.
    #[command(after_help = undo::HISTORY)]
    History(HistoryArgs),
    /// Take the last change of a domain back
    ///
    /// The definition is what it was before the change, to the byte, and so is what was changed on the host for it. A
    /// running guest gets its pins and bandwidths back where the change was made live; all else waits for its next
    /// start. Run again, it takes back the change before. What `create` made goes with `delete`.
    #[command(after_help = undo::UNDO)]
    Undo(UndoArgs),
    /// Finish or undo what a killed run left half done
    ///
    /// Every change writes a journal while it lasts. Where its run was killed, or the machine lost power, the next
    /// change of the same libvirt is refused until this verb was run: a half made guest is undone, a half deleted one
    /// is deleted. It can be run again when it fails.
    Recover(RecoverArgs),
    /// Check a domain for what libvirt accepts although it is wrong
    ///
    /// Pins to absent pcpus, two vCPUs on one pcpu, memory on another node than the vCPUs, devices that are not there
    /// or belong to another domain, disks that another domain has (`disk-held`) or the host uses (`disk-of-host`), guest
    /// PCIe trees that cannot work, and more; each with its place in the XML. Ends with 3 when something is found.
    #[command(after_help = verify::CHECK)]
    #[command(group = about_records())]
    Check(CheckArgs),
    /// Compare a guest with its plan, its definition and what is real
    ///
    /// Needs no plan: any libvirt domain can be compared. A running guest's threads, memory, open devices and disks, the
    /// host's settings and, where its agent answers, the guest's own view are compared with the XML that it runs by; that
    /// with the definition, which the next start takes; that with what was asked for when gpuvm made it; and all of it
    /// with the rules of `check`. Each difference says what was expected, what was found, where, and what to do. Changes
    /// nothing. Ends with 3 when something differs.
    #[command(after_help = verify::VERIFY)]
    Verify(VerifyArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a man page, or write all of them into a directory
    Man(ManArgs),
}

/// Is a domain's name.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Name of the domain
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Is what `list` takes.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// With --host: a domain of that host, as `virsh dumpxml` printed it, or a directory of such files; repeat for
    /// more. What was printed of a running domain counts as running
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub domain_xml: Vec<PathBuf>,
}

/// Is what `delete` takes.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Name of the domain
    #[arg(value_name = "NAME", required_unless_present = "domain", conflicts_with = "domain")]
    pub name: Option<String>,
    /// Name of the domain, as nvidia-vm took it
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Leave the data disk where it is
    #[arg(long)]
    pub keep_data: bool,
    /// Do not ask
    #[arg(short, long, visible_alias = "force")]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the domain XML that would go, as a diff, and change nothing
    #[arg(long, conflicts_with = "dry_run")]
    pub diff: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is what `recover` takes.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Print what would be done and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Forget the changes and leave what they made; names it
    #[arg(long)]
    pub discard: bool,
    /// End this guest where it runs and the change that made or started it is undone, or the one that was to end it is
    /// finished; without, its name is asked for
    #[arg(long, value_name = "NAME")]
    pub end: Vec<String>,
    /// Give back what was reserved for guests that were undefined by other means: huge pages, settings of virtual
    /// functions, and their history
    #[arg(long, conflicts_with = "discard")]
    pub gone: bool,
    /// With --discard: do not ask. It ends no guest
    #[arg(short, long)]
    pub yes: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}
