//! `set --nic`, `--vf` and `--nvme` on a real libvirtd, on a machine that has none to give: what is
//! refused changes nothing, and what a guest does not have is not taken from it. Guests with such
//! functions are those of tests/vdgx.

use super::place::{Place, same};
use serde_json::Value;

/// Name of the guest.
const NAME: &str = "functions-f";

#[test]
fn functions_that_the_host_does_not_have_are_refused() {
    let Some(place) = Place::new() else { return };
    let disks = place.disks.to_str().unwrap().to_owned();
    let shape = ["--no-start", "--os-size", "16M", "--disk-dir", &disks];
    place.done(&place.create(NAME, &shape));
    let before = place.state();
    for (args, code, ended) in [
        (&["--nic", "64"][..], "plan-impossible", 1),
        (&["--nvme", "ff:1f.7"], "plan-impossible", 1),
        (&["--vf", "64,vlan=5"], "plan-impossible", 1),
        (&["--nic", "1", "--live"], "set-not-running", 1),
        (&["--nic", "1", "--nic", "2"], "usage", 2),
        (&["--nic", "ff:1f.7", "--nvme", "ff:1f.7"], "usage", 2),
    ] {
        let (is, out, err) = place.gpuvm(&[&["set", NAME, "--yes", "--json"], args].concat());
        let said: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        assert_eq!((is, said["code"].as_str()), (ended, Some(code)), "{args:?}: {said}");
        assert!(said["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{args:?}: {said}");
        same(&before, &place.state(), "a refusal changed something");
    }
    let none = ["set", NAME, "--no-nic", "--no-vf", "--no-nvme", "--yes"];
    assert!(place.done(&none).contains("nothing to do"));
    same(&before, &place.state(), "nothing was to do");
    let (code, _, err) = place.gpuvm(&["set", NAME, "--nvme-near", "node", "--yes"]);
    assert!(code == 2 && err.contains("--nvme"), "{err}");
    place.done(&["delete", NAME, "--yes"]);
}
