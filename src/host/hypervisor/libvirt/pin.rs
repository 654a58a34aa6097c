//! Pinning of a running guest's threads.
#![allow(unsafe_code)] // one call that the binding lacks

use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

/// Pins a thread of a running domain.
pub(super) fn pin(domain: &Domain, thread: GuestThread, pcpus: &CpuSet) -> Result<(), Error> {
    let map = cpu_map(pcpus);
    let live = sys::VIR_DOMAIN_AFFECT_LIVE;
    match thread {
        GuestThread::Vcpu(number) => domain.pin_vcpu_flags(number, &map, live),
        GuestThread::Emulator => domain.pin_emulator(&map, live),
        GuestThread::Iothread(number) => pin_iothread(domain, number, &map),
    }
}

fn pin_iothread(domain: &Domain, number: u32, map: &[u8]) -> Result<(), Error> {
    let length = i32::try_from(map.len()).unwrap_or(i32::MAX);
    // libvirt only reads the map.
    let bytes = map.as_ptr().cast_mut();
    // SAFETY: the domain lives as long as the borrow, and the map has the given length.
    let answer = unsafe {
        sys::virDomainPinIOThread(
            domain.as_ptr(),
            number,
            bytes,
            length,
            sys::VIR_DOMAIN_AFFECT_LIVE,
        )
    };
    if answer < 0 { Err(Error::last_error()) } else { Ok(()) }
}

/// Converts a cpuset to libvirt's form: bit n of byte m is pcpu 8 m + n.
fn cpu_map(pcpus: &CpuSet) -> Vec<u8> {
    let mut map = vec![0; pcpus.last().map_or(0, |last| last.0 as usize / 8 + 1)];
    for pcpu in pcpus.iter() {
        map[pcpu.0 as usize / 8] |= 1 << (pcpu.0 % 8);
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_lowest_pcpu_in_the_lowest_bit() {
        for (list, map) in [
            ("0", vec![1]),
            ("0,7", vec![0x81]),
            ("8", vec![0, 1]),
            ("1,48-49", vec![2, 0, 0, 0, 0, 0, 3]),
        ] {
            assert_eq!(cpu_map(&list.parse().unwrap()), map, "{list}");
        }
        assert!(cpu_map(&CpuSet::new()).is_empty());
    }
}
