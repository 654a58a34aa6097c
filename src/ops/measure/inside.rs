//! A guest in which programs are run: by its agent, or by ssh.

use super::{Ended, why};
use crate::by_ssh::{Background, BySsh, SshWanted};
use crate::error::{Class, Result, classed};
use crate::exec::{ExecWanted, Inside as Agent, exec};
use crate::world::World;
use gpuvm_core::measure::{
    GpuState, RdmaDevice, numactl_paths, read_cells, read_gpus, read_rdma_names, read_rdma_port,
    smi_paths,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How much longer than a program's own limit its end is waited for.
const GRACE: Duration = Duration::from_secs(10);
/// The most seconds of a short command in the guest.
pub(super) const SHORT_S: u64 = 30;
/// Where sysfs has a guest's RDMA devices, and its NUMA nodes.
const RDMA: &str = "/sys/class/infiniband";
const NODES: &str = "/sys/devices/system/node";

/// What nvidia-smi says where its driver has no GPU.
const NONE_FOUND: &str = "No devices were found";

/// The GPUs that nvidia-smi shows in a guest.
pub(super) enum Shown {
    /// These.
    Gpus(Vec<GpuState>),
    /// None, in its words.
    None(String),
    /// It does not say, and why.
    Unknown(String),
    /// The guest does not have it.
    NoProgram,
}

/// How programs of a guest are run.
enum Way {
    Agent,
    Ssh(Box<BySsh>),
}

/// A guest.
pub(super) struct Inside<'a> {
    world: &'a World,
    pub(super) name: &'a str,
    /// Directories in which programs are looked for first.
    directories: &'a [String],
    way: Way,
}

/// A program in the background: one by ssh ends with this value, one by the agent at its limit.
pub(super) struct Started {
    _by_ssh: Option<Background>,
}

impl<'a> Inside<'a> {
    /// Enters a guest.
    pub(super) fn open(
        world: &'a World,
        name: &'a str,
        directories: &'a [String],
        ssh: Option<&SshWanted>,
    ) -> Result<Inside<'a>> {
        let way = match ssh {
            None => Way::Agent,
            Some(wanted) => Way::Ssh(Box::new(BySsh::open(world, name, wanted)?)),
        };
        Ok(Inside { world, name, directories, way })
    }

    /// The address at which ssh enters it; `None` by the agent.
    pub(super) fn address(&self) -> Option<std::net::IpAddr> {
        match &self.way {
            Way::Agent => None,
            Way::Ssh(ssh) => Some(ssh.address()),
        }
    }

    /// Runs a program of the guest; it is ended at its limit.
    pub(super) fn run(&self, program: &str, words: &[String], limit_s: u64) -> Result<Ended> {
        let command = bounded(program, words, limit_s);
        let limit = Duration::from_secs(limit_s) + GRACE;
        let begin = Instant::now();
        let how = match &self.way {
            Way::Agent => {
                let (name, limit) = (self.name.to_owned(), Some(limit));
                exec(self.world, &ExecWanted { name, command, input: None, limit })
            }
            Way::Ssh(ssh) => ssh.run(&command, limit),
        };
        Ok(Ended::of(how?, begin.elapsed(), limit_s))
    }

    /// Starts a program of the guest; it is ended at its limit.
    pub(super) fn begin(&self, program: &str, words: &[String], limit_s: u64) -> Result<Started> {
        let command = bounded(program, words, limit_s);
        let by_ssh = match &self.way {
            Way::Agent => {
                let hypervisor = &*self.world.hypervisor()?;
                Agent::of(hypervisor, self.name)?.begin(&command, None)?;
                None
            }
            Way::Ssh(ssh) => Some(ssh.begin(&command)?),
        };
        Ok(Started { _by_ssh: by_ssh })
    }

    /// The first of these paths at which the guest has a program.
    pub(super) fn first(&self, paths: &[String]) -> Result<Option<String>> {
        let words: Vec<String> =
            ["-1d", "--"].map(str::to_owned).into_iter().chain(paths.iter().cloned()).collect();
        // 2: some are missing.
        let there = self.answer("/bin/ls", &words, 2)?;
        let there: BTreeSet<&str> = there.lines().collect();
        Ok(paths.iter().find(|path| there.contains(path.as_str())).cloned())
    }

    /// The output of a short command. Errors: its status is above `most`, such as 255 of a lost
    /// connection, so that its output says nothing of the guest.
    fn answer(&self, program: &str, words: &[String], most: u8) -> Result<String> {
        let ended = self.run(program, words, SHORT_S)?;
        if ended.status > most {
            let message = format!("`{program}` in guest `{}`: {}", self.name, why(&ended));
            return Err(classed(Class::System, message, "the guest can be asked again"));
        }
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    /// The same for a program of measurements, in the directories of the request first.
    pub(super) fn find(&self, paths: impl Fn(&[String]) -> Vec<String>) -> Result<Option<String>> {
        self.first(&paths(self.directories))
    }

    /// The guest's GPUs.
    pub(super) fn gpus(&self) -> Result<Shown> {
        let Some(smi) = self.find(smi_paths)? else { return Ok(Shown::NoProgram) };
        let words = ["-q", "-x"].map(str::to_owned);
        let ended = self.run(&smi, &words, 60)?;
        let of_smi = |why: String| format!("nvidia-smi: {why}");
        if ended.is_timeout {
            return Ok(Shown::Unknown(of_smi("it took longer than 60 s".to_owned())));
        }
        let output = String::from_utf8_lossy(&ended.stdout);
        let error = match read_gpus(&output).map_err(|error| error.to_string()) {
            Ok(gpus) if ended.status == 0 => return Ok(Shown::Gpus(gpus)),
            Err(error) if ended.status == 0 => error,
            _ => why(&ended),
        };
        // Its status, and where it writes that, differ between versions.
        let errors = String::from_utf8_lossy(&ended.stderr);
        if output.contains(NONE_FOUND) || errors.contains(NONE_FOUND) {
            return Ok(Shown::None(of_smi(NONE_FOUND.to_owned())));
        }
        Ok(Shown::Unknown(of_smi(error)))
    }

    /// Its cells, and the program that binds others to them.
    pub(super) fn cells(&self) -> Result<(Vec<u32>, Option<String>)> {
        let cells = read_cells(&self.list(NODES)?);
        let again = "`ls /sys/devices/system/node` in the guest shows its cells";
        let cells = cells.map_err(|error| classed(Class::System, error.to_string(), again))?;
        let numactl = if cells.len() > 1 { self.find(numactl_paths)? } else { None };
        Ok((cells, numactl))
    }

    /// Its RDMA devices whose first port is active.
    pub(super) fn rdma_devices(&self) -> Result<Vec<RdmaDevice>> {
        let mut found = Vec::new();
        for name in read_rdma_names(&self.list(RDMA)?) {
            let files = ["ports/1/state", "ports/1/rate", "device/uevent"];
            let files = files.map(|file| format!("{RDMA}/{name}/{file}"));
            // 1: some are missing.
            found.extend(read_rdma_port(&name, &self.answer("/bin/cat", &files, 1)?));
        }
        Ok(found)
    }

    /// The names in a directory; none if it is missing.
    fn list(&self, path: &str) -> Result<String> {
        let words = ["-1", "--", path].map(str::to_owned);
        self.answer("/bin/ls", &words, 2)
    }
}

/// A command that is ended after some seconds.
fn bounded(program: &str, words: &[String], limit_s: u64) -> Vec<String> {
    let before = ["/usr/bin/timeout", "-k", "5"].map(str::to_owned).into_iter();
    let command = before.chain([limit_s.to_string(), program.to_owned()]);
    command.chain(words.iter().cloned()).collect()
}

#[cfg(test)]
impl<'a> Inside<'a> {
    /// A guest that is entered so.
    pub(super) fn by_ssh(
        world: &'a World,
        name: &'a str,
        directories: &'a [String],
        ssh: BySsh,
    ) -> Inside<'a> {
        Inside { world, name, directories, way: Way::Ssh(Box::new(ssh)) }
    }
}
