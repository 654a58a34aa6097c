//! `host capture`: this machine, as a file that `--host` takes. The file is there whole or not at all.

use super::checked;
use crate::cli::args::CaptureArgs;
use crate::cli::context::Context;
use crate::cli::error::{EXIT_DONE, around, usage};
use crate::discover::topo::{Topo, TopoError};
use crate::discover::{discover, discover_identified};
use crate::fsroot::FsRoot;
use crate::input;
use crate::topology::file::to_json;
use crate::topology::{Parts, Topology};
use gpuvm_ops::files::write;
use std::path::Path;

/// Bytes that a text of `nvidia-smi topo -m` may have; one of 16 GPUs and 32 NICs has some 20 KiB.
const TOPO_BYTES: u64 = 1 << 20;

/// Runs the verb.
pub fn run(args: &CaptureArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let mut topology = read(args, cx)?;
    if let Some(file) = &args.topo {
        topology = with_topo(&topology, file)?;
    }
    let text = to_json(&topology);
    if args.file == Path::new("-") {
        cx.output.json_text(&text)?;
    } else {
        write(&args.file, args.overwrite, text.as_bytes())?;
        let parts = topology.parts();
        let (pcpus, functions) = (topology.pcpus().len(), parts.devices.len());
        let file = args.file.display();
        cx.output.progress(&format!("{file}: {pcpus} pcpus, {functions} PCI functions"));
    }
    for note in &topology.parts().notes {
        cx.output.warning(note);
    }
    Ok(EXIT_DONE)
}

/// The host to record: this machine, or the one of `--host`, which makes a file of a directory or an lstopo XML.
fn read(args: &CaptureArgs, cx: &Context<'_>) -> anyhow::Result<Topology> {
    if cx.global.host.is_none() && cx.global.connect_is_given && !cx.is_here()? {
        // It is recorded there: without what identifies it.
        refuse_identified(args)?;
        return Ok(cx.topology()?);
    }
    match (&cx.global.host, args.identify) {
        (None, false) => Ok(checked(discover(&FsRoot::live()?)?)?),
        (None, true) => Ok(checked(discover_identified(&FsRoot::live()?)?)?),
        (Some(dir), true) if dir.join("sys").is_dir() => {
            Ok(discover_identified(&FsRoot::at(dir)?)?)
        }
        (Some(_), true) => Ok(cx.topology()?),
        (Some(_), false) => Ok(Topology::new(redacted(cx.topology()?.parts().clone()))?),
    }
}

/// The host with the NVLinks of a text of `nvidia-smi topo -m`.
fn with_topo(topology: &Topology, file: &Path) -> anyhow::Result<Topology> {
    let shown = file.display().to_string();
    let text = input::text(file, TOPO_BYTES)?;
    let wrong = |error: TopoError| {
        let hint = match error {
            TopoError::OtherHost { .. } => "give the table of this host",
            _ => "`nvidia-smi topo -m >topo.txt` on the machine writes such a file",
        };
        let message = format!("{shown}: {error}");
        around(error, message, hint)
    };
    Topo::parse(&text).and_then(|topo| topo.lay_over(topology, &shown)).map_err(wrong)
}

/// Refuses to record what identifies another machine, which its gpuvm leaves out.
fn refuse_identified(args: &CaptureArgs) -> anyhow::Result<()> {
    match args.identify {
        false => Ok(()),
        true => Err(usage(
            "--identify records what only the machine itself tells, and the connection is of another",
            "run it there, or without --connect for this machine",
        )),
    }
}

/// Leaves out what identifies a machine, which a recorded host may hold.
fn redacted(mut parts: Parts) -> Parts {
    parts.machine.host_name = None;
    for net in parts.devices.iter_mut().filter_map(|device| device.net.as_mut()) {
        net.macs.clear();
    }
    for drive in &mut parts.drives {
        drive.stable_ids.clear();
        for partition in &mut drive.partitions {
            partition.partuuid = None;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_before_it_writes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("host.json");
        write(&file, false, b"one").unwrap();
        let again = write(&file, false, b"two").unwrap_err();
        assert!(crate::cli::error::report(&again.into()).contains("--overwrite"));
        assert!(write(dir.path(), true, b"two").is_err());
        assert!(write(&dir.path().join("none/host.json"), true, b"two").is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
        write(&file, true, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no scratch file stays");
    }

    #[test]
    fn devices_are_not_replaced() {
        let error = write(Path::new("/dev/full/host.json"), true, b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot write /dev/full/host.json"), "{error}");
        assert!(!error.to_string().contains(".gpuvm-"), "{error}");
        let error = write(Path::new("/dev/full"), true, b"x").unwrap_err();
        assert_eq!(error.to_string(), "/dev/full is not a regular file");
    }
}
