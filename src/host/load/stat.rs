//! The line in `/proc/PID/stat` of a process or thread (proc_pid_stat(5)).

use gpuvm_core::cpuset::PcpuId;

/// Time of a clock tick in ns: 1/100 s on every architecture (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// Fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// Name, at most 15 bytes (64 for workers of the kernel).
    pub(super) name: String,
    /// Time on a pcpu in ns, to 10 ms.
    pub(super) run_ns: u64,
    /// Number of threads of the process.
    pub(super) threads: usize,
    /// Start in ticks since boot.
    pub(super) started: u64,
    /// The pcpu that it ran on last.
    pub(super) pcpu: PcpuId,
}

impl Stat {
    /// Reads the line; `None` if it is not one.
    pub(super) fn parse(text: &str) -> Option<Stat> {
        let (head, rest) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        // The third field of the line is the first one here.
        let mut fields = rest.split_ascii_whitespace();
        let user: u64 = fields.nth(14 - 3)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let threads = fields.nth(20 - 16)?.parse().ok()?;
        let started = fields.nth(22 - 21)?.parse().ok()?;
        let pcpu = fields.nth(39 - 23)?.parse().ok()?;
        let run_ns = user.saturating_add(system).saturating_mul(TICK_NS);
        // A task names itself, and a name is shown in one line.
        let name = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Some(Stat { name, run_ns, threads, started, pcpu: PcpuId(pcpu) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let mut fields: Vec<String> = (1..=52).map(|number| number.to_string()).collect();
        for name in ["CPU 0/KVM", "a) (b", ""] {
            fields[1] = format!("({name})");
            let stat = Stat::parse(&fields.join(" ")).unwrap();
            let (run_ns, pcpu) = ((14 + 15) * TICK_NS, PcpuId(39));
            let expected = Stat { name: name.to_owned(), run_ns, threads: 20, started: 22, pcpu };
            assert_eq!(stat, expected);
        }
        for text in ["", "1 (a) S 1", "1 a S 1"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }
}
