//! The most that the comment of a job may request: the resources that Slurm allotted to the job on
//! the node, or those of its guest without a comment.

use super::JobError;
use crate::memsize::MemSize;
use crate::topology::Topology;

/// CPUs and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    /// How many vCPUs, or threads of the host.
    pub cpus: u32,
    /// Memory; `None` if unknown, or not counted.
    pub memory: Option<MemSize>,
}

impl Resources {
    /// Reads what Slurm allotted to a job on a node, as `scontrol --details show job` prints it:
    /// `Nodes=n1 CPU_IDs=0-3 Mem=8192 GRES=gpuvm:2`, a line for each kind of node. The least of all
    /// lines counts: a job's name and comment may contain such lines, too, and can only lower it.
    pub fn read(text: &str) -> Resources {
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with("Nodes="));
        let all = lines.filter(|line| line.contains(" CPU_IDs=")).map(|line| {
            let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
            let memory = value("Mem=").and_then(|mib| mib.parse::<u64>().ok()).unwrap_or(0);
            (value("CPU_IDs=").and_then(count).unwrap_or(0), memory)
        });
        let (cpus, mib) =
            all.reduce(|least, one| (least.0.min(one.0), least.1.min(one.1))).unwrap_or_default();
        let memory = mib.checked_mul(1024).filter(|kib| *kib > 0).map(MemSize::from_kib);
        Resources { cpus, memory }
    }

    /// Returns the share of a host that belongs to this many of its GPUs.
    pub fn share(topology: &Topology, gpus: u32) -> Resources {
        let all = u64::try_from(topology.gpus().count()).unwrap_or(u64::MAX).max(1);
        let gpus = u64::from(gpus).min(all);
        let threads = u64::try_from(topology.pcpus().iter().count()).unwrap_or(u64::MAX);
        let cpus = u32::try_from(threads.saturating_mul(gpus) / all).unwrap_or(u32::MAX);
        let memory: MemSize = topology.nodes().iter().map(|node| node.memory_kib).sum();
        let memory = MemSize::from_kib(memory.kib() / all * gpus);
        Resources { cpus, memory: Some(memory) }
    }
}

/// Counts the numbers of a list such as `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let mut sum = 0_u32;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

/// The limits of a job's comment.
#[derive(Debug, Clone, Copy)]
pub struct JobLimits {
    /// The guest's resources without a comment: those of the admin's options, or its GPUs' share of
    /// the host.
    pub usual: Resources,
    /// The resources allotted by Slurm.
    pub allotted: Resources,
    /// The most vCPUs of any job; `None` if no further limit.
    pub most_vcpus: Option<u32>,
    /// The most memory of any job; `None` if no further limit.
    pub most_memory: Option<MemSize>,
}

impl JobLimits {
    /// Refuses vCPUs above the limit.
    pub fn refuse_vcpus(&self, wanted: u32) -> Result<(), JobError> {
        let own = self.usual.cpus.max(self.allotted.cpus);
        let most = own.min(self.most_vcpus.unwrap_or(own));
        if wanted <= most {
            return Ok(());
        }
        let (key, wanted, most) = ("vcpus", wanted.to_string(), format!("{most} vCPUs"));
        Err(JobError::TooMuch { key, wanted, most })
    }

    /// Refuses memory above the limit.
    pub fn refuse_memory(&self, wanted: MemSize) -> Result<(), JobError> {
        let of = |resources: Resources| resources.memory.map_or(0, MemSize::kib);
        let own = of(self.usual).max(of(self.allotted));
        let most = own.min(self.most_memory.map_or(own, MemSize::kib));
        if wanted.kib() <= most {
            return Ok(());
        }
        let most = MemSize::from_kib(most).to_string();
        Err(JobError::TooMuch { key: "memory", wanted: wanted.to_string(), most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed details of a job.
    fn read(text: &str) -> (u32, Option<u64>) {
        let found = Resources::read(text);
        (found.cpus, found.memory.map(MemSize::kib))
    }

    #[test]
    fn the_allotment_is_the_least_of_all_lines() {
        let one =
            "JobId=7 JobName=x\n   TRES=cpu=4,node=1\n     Nodes=n1 CPU_IDs=0-3,8 Mem=512 GRES=\n";
        assert_eq!(read(one), (5, Some(512 << 10)));
        assert_eq!(read("     Nodes=n1 CPU_IDs=2 Mem=0 GRES=gpuvm:2\n"), (1, None));
        assert_eq!(read(""), (0, None));
        // Lines in the name or the comment of a job only lower it.
        let name = "JobId=7 JobName=x\n     Nodes=n1 CPU_IDs=0-999 Mem=999999 GRES=";
        assert_eq!(read(&format!("{name}\n{one}")), (5, Some(512 << 10)));
        for bad in ["x", "3-1", "0-4294967295", "0-3,", ""] {
            let comment = format!("{one}   Comment=\n     Nodes=n1 CPU_IDs={bad} Mem=9999999\n");
            assert_eq!(read(&comment).0, 0, "{bad}");
        }
        // Several kinds of nodes.
        let two = format!("{one}     Nodes=n[2-3] CPU_IDs=0-1 Mem=256 GRES=\n");
        assert_eq!(read(&two), (2, Some(256 << 10)));
        // The node list of the job itself is no such line.
        assert_eq!(read("   NodeList=n1\n   Nodes=n1\n"), (0, None));
    }

    #[test]
    fn a_job_gets_its_allotment_or_the_default_and_no_more() {
        let gib = |gib| Some(MemSize::from_gib(gib));
        let usual = Resources { cpus: 4, memory: gib(8) };
        let allotted = Resources { cpus: 6, memory: None };
        let limits = JobLimits { usual, allotted, most_vcpus: None, most_memory: None };
        assert!(limits.refuse_vcpus(6).is_ok() && limits.refuse_vcpus(7).is_err());
        let memory = |gib| limits.refuse_memory(MemSize::from_gib(gib));
        assert!(memory(8).is_ok() && memory(9).is_err());
        assert_eq!(
            limits.refuse_vcpus(44).unwrap_err().to_string(),
            "comment of the job: vcpus=44 exceeds the 6 vCPUs that this job may request"
        );
        let lower = JobLimits { most_vcpus: Some(2), most_memory: gib(1), ..limits };
        assert!(lower.refuse_vcpus(2).is_ok() && lower.refuse_vcpus(3).is_err());
        assert!(lower.refuse_memory(MemSize::from_gib(2)).is_err());
        let higher = JobLimits { most_vcpus: Some(99), most_memory: gib(99), ..limits };
        assert!(
            higher.refuse_vcpus(7).is_err() && higher.refuse_memory(MemSize::from_gib(9)).is_err()
        );
    }

    #[test]
    fn the_share_of_gpus_is_their_part_of_the_host() {
        let host = include_str!("../../../topologies/dgx-2.json");
        let host = crate::topology::file::from_json(host).unwrap();
        let (one, all) = (Resources::share(&host, 1), Resources::share(&host, 16));
        assert_eq!(all.cpus as usize, host.pcpus().iter().count());
        assert_eq!(one.cpus, all.cpus / 16);
        assert_eq!(Resources::share(&host, 99), all, "more than there are");
    }
}
