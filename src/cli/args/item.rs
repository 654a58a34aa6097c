//! Values of the things that `tune` switches: `on`, `off`, `keep`, or a value of its own kind.

use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::guest::DiskFormat;
use crate::domain::rate::Rate;
use crate::memsize::MemSize;
use crate::placement::{GuestCache, GuestTopology};
use crate::request::PageSize;
use crate::tune::Item;
use crate::tune::items::{Never, PinOrder, Virtio};
use gpuvm_ops::tune::convert::Convert;

/// Reads the words that every setting takes, and its own values with `value`; `kinds` describes
/// these.
fn item<T>(
    text: &str,
    kinds: &str,
    value: impl FnOnce(&str) -> Option<T>,
) -> Result<Item<T>, String> {
    match text {
        "on" => Ok(Item::On),
        "off" => Ok(Item::Off),
        "keep" => Ok(Item::Keep),
        _ => value(text).map(Item::To).ok_or_else(|| format!("it takes on, off, keep{kinds}")),
    }
}

/// Reads the value of a thing that is only switched.
pub fn switch(text: &str) -> Result<Item<Never>, String> {
    item(text, "", |_| None)
}

/// Reads the value of a setting that is left to gpuvm, or off.
pub fn auto(text: &str) -> Result<Item<Never>, String> {
    match text {
        "auto" => Ok(Item::On),
        "off" => Ok(Item::Off),
        _ => Err("it takes auto, off".to_owned()),
    }
}

/// Reads an order of pins.
pub fn pins(text: &str) -> Result<Item<PinOrder>, String> {
    item(text, ", auto, core, thread", |text| match text {
        "auto" => Some(PinOrder::Auto),
        "core" => Some(PinOrder::Core),
        "thread" => Some(PinOrder::Thread),
        _ => None,
    })
}

/// Reads sockets, dies where there are several, cores and threads.
pub fn topology(text: &str) -> Result<Item<GuestTopology>, String> {
    item(
        text,
        " and sockets x cores x threads, such as 2x23x2, or sockets x dies x cores x threads",
        |text| {
            let parts: Option<Vec<u32>> = text.split('x').map(|part| part.parse().ok()).collect();
            let (sockets, dies, cores, threads) = match parts?[..] {
                [sockets, cores, threads] => (sockets, 1, cores, threads),
                [sockets, dies, cores, threads] => (sockets, dies, cores, threads),
                _ => return None,
            };
            let all = [sockets, dies, cores, threads];
            all.iter().all(|part| *part > 0).then_some(GuestTopology {
                sockets,
                dies,
                cores,
                threads,
            })
        },
    )
}

/// Reads where cache leaves come from.
pub fn cpu_cache(text: &str) -> Result<Item<GuestCache>, String> {
    item(text, ", passthrough, emulate", |text| {
        [GuestCache::Passthrough, GuestCache::Emulate]
            .into_iter()
            .find(|cache| cache.as_str() == text)
    })
}

/// Reads a set of pcpus.
pub fn pcpus(text: &str) -> Result<Item<CpuSet>, String> {
    let set = |text: &str| text.parse().ok().filter(|set: &CpuSet| !set.is_empty());
    item(text, " and pcpus such as 23,71", set)
}

/// Reads a set of nodes.
pub fn nodes(text: &str) -> Result<Item<NodeSet>, String> {
    let set = |text: &str| text.parse().ok().filter(|set: &NodeSet| !set.is_empty());
    item(text, " and nodes such as 0-1", set)
}

/// Reads a number.
pub fn number(text: &str) -> Result<Item<u32>, String> {
    item(text, " and a number from 1", |text| text.parse().ok().filter(|number| *number > 0))
}

/// Reads a number of address bits.
pub fn bits(text: &str) -> Result<Item<u8>, String> {
    item(text, " and a number from 32 to 64", |text| {
        text.parse().ok().filter(|bits| (32..=64).contains(bits))
    })
}

/// Reads a page size.
pub fn pages(text: &str) -> Result<Item<PageSize>, String> {
    item(text, ", 2M, 1G", |text| match text {
        "2M" => Some(PageSize::TwoMib),
        "1G" => Some(PageSize::OneGib),
        _ => None,
    })
}

/// Reads an amount of memory.
pub fn size(text: &str) -> Result<Item<MemSize>, String> {
    item(text, " and a size such as 2T", |text| {
        text.parse().ok().filter(|size: &MemSize| !size.is_zero())
    })
}

fn word(text: &str, words: &[&str]) -> Result<Item<String>, String> {
    let kinds = format!(", {}", words.join(", "));
    item(text, &kinds, |text| words.contains(&text).then(|| text.to_owned()))
}

/// Reads libvirt's word for a disk's cache.
pub fn cache(text: &str) -> Result<Item<String>, String> {
    word(text, &["none", "writeback", "writethrough", "directsync", "unsafe"])
}

/// Reads libvirt's word for a disk's I/O.
pub fn io(text: &str) -> Result<Item<String>, String> {
    word(text, &["native", "io_uring", "threads"])
}

/// Reads the format of a disk, or of all.
pub fn convert(text: &str) -> Result<Convert, String> {
    let (disk, format) = match text.split_once('=') {
        None => (None, text),
        Some((disk, format)) => (Some(disk.to_owned()).filter(|disk| !disk.is_empty()), format),
    };
    let known = [DiskFormat::Raw, DiskFormat::Qcow2].into_iter();
    let format = known.into_iter().find(|known| known.as_str() == format);
    match format.filter(|_| disk.is_some() == text.contains('=')) {
        Some(format) => Ok(Convert { disk, format }),
        None => Err("it takes raw or qcow2, of one disk as in vda=raw".into()),
    }
}

/// Reads the balloon's value.
pub fn balloon(text: &str) -> Result<Item<Virtio>, String> {
    item(text, ", virtio", |text| (text == "virtio").then_some(Virtio))
}

/// Reads rates: mean, highest, burst.
pub fn rate(text: &str) -> Result<Item<Rate>, String> {
    item(text, " and a rate such as 100MB/s, 1Gbit/s or 1Gbit/s,2Gbit/s,4M", |text| {
        Rate::read(text, ',')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thing_takes_the_same_words_and_its_own() {
        for (text, read) in [("on", Item::On), ("off", Item::Off), ("keep", Item::Keep)] {
            assert_eq!(switch(text), Ok(read));
            assert_eq!(number(text).unwrap().is_on(), text == "on");
        }
        assert_eq!(pins("thread"), Ok(Item::To(PinOrder::Thread)));
        let shape = GuestTopology { sockets: 2, dies: 1, cores: 23, threads: 2 };
        assert_eq!(topology("2x23x2"), Ok(Item::To(shape)));
        let shape = GuestTopology { sockets: 1, dies: 2, cores: 3, threads: 4 };
        assert_eq!(topology("1x2x3x4"), Ok(Item::To(shape)));
        for text in ["", "2x23", "2x23x0", "1x2x3x4x5", "axbxc", "4294967296x1x1"] {
            assert!(topology(text).is_err(), "{text}");
        }
        assert!(switch("yes").is_err() && number("0").is_err() && number("-1").is_err());
        assert!(pcpus("").is_err() && nodes("a").is_err() && bits("31").is_err());
        assert!(cache("fast").unwrap_err().contains("directsync"));
    }

    #[test]
    fn a_format_is_of_one_disk_or_of_all() {
        let of = |disk: Option<&str>, format| Ok(Convert { disk: disk.map(str::to_owned), format });
        assert_eq!(convert("raw"), of(None, DiskFormat::Raw));
        assert_eq!(convert("vda=qcow2"), of(Some("vda"), DiskFormat::Qcow2));
        for text in
            ["", "=", "=raw", "vda=", "vda", "vda=vmdk", "on", "off", "raw=vda", "vda=raw=raw"]
        {
            assert!(convert(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_say_their_unit() {
        let of = |text: &str| match rate(text) {
            Ok(Item::To(rate)) => Some((rate.average_kb_s, rate.peak_kb_s, rate.burst_kib)),
            _ => None,
        };
        assert_eq!(of("1Gbit/s"), Some((125_000, None, None)));
        assert_eq!(of("100MB/s,200MB/s,4M"), Some((100_000, Some(200_000), Some(4096))));
        for text in [
            "100",
            "100M",
            "1kbit/s",
            "1Gbit/s,",
            "1Gbit/s,2Gbit/s,4M,5",
            "-1MB/s",
            "18446744073709551615GB/s",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
