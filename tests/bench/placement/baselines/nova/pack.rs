//! Nova's packing of a guest cell onto the cores of a host cell (`_pack_instance_onto_cores`,
//! gpuvm-placement(7), OTHER PLANNERS).

/// Is `hw:cpu_thread_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadPolicy {
    /// Siblings if available; also the default.
    Prefer,
    /// Siblings or nothing.
    Require,
    /// A core for each vCPU, its other threads kept idle; as on hosts with the old CPU options
    /// (`vcpu_pin_set`).
    Isolate,
}

/// A packed guest cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The thread of each vCPU.
    pub threads: Vec<usize>,
    /// Threads of a core that the guest is shown.
    pub shown: usize,
}

/// Packs vCPUs onto free threads, given core by core in the order in which libvirt lists them;
/// `smt` is the number of threads of the host cell's largest core. `None` if they do not fit.
pub fn pack(free: &[Vec<usize>], smt: usize, vcpus: usize, policy: ThreadPolicy) -> Option<Packed> {
    let with = |least: usize| free.iter().filter(move |core| core.len() >= least);
    let first = |threads: usize| -> Vec<usize> {
        with(threads).flat_map(|core| core[..threads].iter().copied()).take(vcpus).collect()
    };
    if policy == ThreadPolicy::Isolate {
        let whole = free.iter().filter(|core| core.len() >= smt);
        let threads: Vec<usize> = whole.map(|core| core[0]).take(vcpus).collect();
        return (threads.len() == vcpus).then_some(Packed { threads, shown: 1 });
    }
    if policy == ThreadPolicy::Require && smt < 2 {
        return None;
    }
    let least = if policy == ThreadPolicy::Require { 2 } else { 1 };
    let most = free.iter().map(Vec::len).max().unwrap_or(0);
    for number in (least..=most).rev() {
        if number * with(number).count() >= vcpus {
            let shown = gcd(number, vcpus % number);
            return Some(Packed { threads: first(number), shown });
        }
    }
    if policy == ThreadPolicy::Require {
        return None;
    }
    let threads: Vec<usize> = free.iter().flatten().copied().take(vcpus).collect();
    (threads.len() == vcpus).then_some(Packed { threads, shown: 1 })
}

/// The greatest common divisor; of a number and zero, the number.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::ThreadPolicy::{Isolate, Prefer, Require};
    use super::*;

    /// A case: threads by core, threads taken, vCPUs, policy; the thread of each vCPU where Nova's
    /// test says it (empty: it does not), and threads of a core shown (0: refused).
    type Case = (
        &'static [&'static [usize]],
        &'static [usize],
        usize,
        ThreadPolicy,
        &'static [usize],
        usize,
    );

    /// Four cores of two threads, numbered in pairs.
    const PAIRS: &[&[usize]] = &[&[0, 1], &[2, 3], &[4, 5], &[6, 7]];
    /// Four cores of two threads, first threads first.
    const HALVES: &[&[usize]] = &[&[0, 4], &[1, 5], &[2, 6], &[3, 7]];
    const FOURS: &[&[usize]] = &[&[0, 1, 2, 3], &[4, 5, 6, 7]];
    const TWO: &[&[usize]] = &[&[0, 1], &[2, 3]];
    const SINGLES: &[&[usize]] = &[&[0], &[1], &[2], &[3]];

    /// The cases of CPUPinningCellTestCase in Nova's `test_hardware.py`, in its order.
    const CASES: [Case; 25] = [
        (&[&[0], &[1], &[2]], &[], 4, Prefer, &[], 0),
        (SINGLES, &[0], 4, Prefer, &[], 0),
        (&[&[0], &[1], &[2]], &[], 3, Prefer, &[0, 1, 2], 1),
        (SINGLES, &[1], 3, Prefer, &[0, 2, 3], 1),
        (SINGLES, &[], 4, Prefer, &[0, 1, 2, 3], 1),
        (TWO, &[], 4, Prefer, &[0, 1, 2, 3], 2),
        (PAIRS, &[], 8, Prefer, &[0, 1, 2, 3, 4, 5, 6, 7], 2),
        (FOURS, &[1, 2, 5, 6], 4, Prefer, &[0, 3, 4, 7], 2),
        (FOURS, &[], 4, Prefer, &[0, 1, 2, 3], 4),
        (SINGLES, &[], 4, Require, &[], 0),
        (HALVES, &[0, 1, 2], 4, Require, &[], 0),
        (TWO, &[], 4, Require, &[], 2),
        (HALVES, &[0, 1], 4, Require, &[], 2),
        (PAIRS, &[], 5, Prefer, &[], 1),
        (FOURS, &[], 6, Prefer, &[], 2),
        (PAIRS, &[0, 2, 5], 3, Prefer, &[], 1),
        (PAIRS, &[0, 1, 2, 5], 4, Prefer, &[], 1),
        (PAIRS, &[0, 2, 5, 6], 4, Prefer, &[], 1),
        (
            &[&[0, 8], &[1, 9], &[2, 10], &[3, 11], &[4, 12], &[5, 13], &[6, 14], &[7, 15]],
            &[],
            5,
            Prefer,
            // Published: some core has two of them. Which: the first k threads of each set in order
            // (5.1, note a).
            &[0, 8, 1, 9, 2],
            1,
        ),
        (TWO, &[1], 2, Isolate, &[], 0),
        (TWO, &[1, 2], 2, Isolate, &[], 0),
        (SINGLES, &[], 2, Isolate, &[], 1),
        (TWO, &[], 2, Isolate, &[], 1),
        (HALVES, &[0, 1], 2, Isolate, &[], 1),
        // Ours: the core of a broken pair is passed over as long as whole ones are left (5.1, note
        // b).
        (PAIRS, &[0], 2, Prefer, &[2, 3], 2),
    ];

    #[test]
    fn cells_are_packed_as_published() {
        for (cores, taken, vcpus, policy, threads, shown) in CASES {
            let open = |core: &&[usize]| -> Vec<usize> {
                core.iter().copied().filter(|thread| !taken.contains(thread)).collect()
            };
            let free: Vec<Vec<usize>> = cores.iter().map(open).collect();
            let smt = cores.iter().map(|core| core.len()).max().unwrap();
            let got = pack(&free, smt, vcpus, policy);
            let what = format!("{vcpus} on {cores:?} without {taken:?}, {policy:?}");
            assert_eq!(got.as_ref().map_or(0, |packed| packed.shown), shown, "{what}");
            let Some(packed) = got else { continue };
            if !threads.is_empty() {
                assert_eq!(packed.threads, threads, "{what}");
            }
            let mut all = packed.threads.clone();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), vcpus, "{what}");
        }
    }

    /// `isolate` gives one thread of each core, `require` whole pairs.
    #[test]
    fn policies_differ_in_cores() {
        let free: Vec<Vec<usize>> = PAIRS.iter().map(|core| core.to_vec()).collect();
        let threads = |policy| pack(&free, 2, 4, policy).unwrap().threads;
        assert_eq!(threads(Isolate), [0, 2, 4, 6]);
        assert_eq!(threads(Require), [0, 1, 2, 3]);
    }
}
