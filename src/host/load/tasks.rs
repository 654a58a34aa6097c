//! All tasks of the host, to find those that run on a pcpu.

use super::stat::Stat;
use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::cpuset::PcpuId;
use gpuvm_core::load::{TaskSample, TaskScan};

/// Reads the tasks of the host: about 3 us each. One that ends meanwhile is left out.
pub fn scan(root: &FsRoot, at_ns: u64) -> Result<TaskScan, FsError> {
    let mut scan = TaskScan { at_ns, ..TaskScan::default() };
    for process in root.names("proc")? {
        let Ok(pid) = process.parse() else { continue };
        let tasks = format!("proc/{process}/task");
        let Ok(Some(dir)) = root.dir(&tasks) else { continue };
        for task in dir.names().unwrap_or_default() {
            let Ok(tid) = task.parse() else { continue };
            let text = root.read(&format!("{tasks}/{task}/stat")).ok().flatten();
            let Some(stat) = text.as_deref().and_then(Stat::parse) else { continue };
            let Stat { name, run_ns, pcpu, .. } = stat;
            scan.tasks.insert(tid, TaskSample { pid, name, pcpu, run_ns });
        }
    }
    Ok(scan)
}

/// The pcpu that a thread ran on last; `None` if it has ended.
pub fn last_pcpu(root: &FsRoot, pid: u32, tid: u32) -> Option<PcpuId> {
    let text = root.read(&format!("proc/{pid}/task/{tid}/stat")).ok().flatten()?;
    Some(Stat::parse(&text)?.pcpu)
}
