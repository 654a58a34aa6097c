//! Runs a test again on user-mode Linux (`tests/uml/run`) if this machine's kernel lacks the tested
//! feature.

use super::{project, run, skip};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

/// Creates a bond, and rate limits in the way libvirt does, on network devices that end with the
/// shell.
const PROBE: &str = "
ip link add probe0 type veth peer name probe1
ip link add probe2 type bond
tc qdisc add dev probe0 root handle 1: htb default 1
tc class add dev probe0 parent 1: classid 1:1 htb rate 1000kbps
tc qdisc add dev probe0 parent 1:1 handle 2: sfq perturb 10
tc qdisc add dev probe0 ingress
tc filter add dev probe0 parent ffff: protocol all u32 match u32 0 0 police rate 1000kbps burst 64kb mtu 64kb drop flowid :1
";

/// The first command for bonds and bandwidth limits that this machine's kernel refuses; `None` if
/// it supports them.
pub fn refused() -> Option<String> {
    let (code, _, err) = run(Command::new("unshare").args(["--net", "bash", "-exc", PROBE]));
    // Each command precedes its output.
    let last = err.lines().rev().find_map(|line| line.strip_prefix("+ "));
    (code != 0).then(|| last.unwrap_or(&err).to_owned())
}

/// Runs a test of this binary, by its module and name, on user-mode Linux with one more environment
/// variable, shows its output, and fails if it fails; reports if this machine cannot run user-mode
/// Linux.
pub fn passes(module: &str, test: &str, variable: (&str, &str)) {
    let path = module.split_once("::").map_or(test.to_owned(), |(_, m)| format!("{m}::{test}"));
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let words = [program, "--exact", &path, "--nocapture", "--test-threads=1"];
    // A run without a matching test would pass as well.
    succeeds(&[], &words, &[variable], "test result: ok. 1 passed");
}

/// Runs a command on user-mode Linux, after options of `tests/uml/run` and with more environment
/// variables, shows its output, and fails if it fails or prints no line that begins with `last`;
/// reports if this machine cannot run user-mode Linux.
pub fn succeeds(options: &[&str], words: &[&str], variables: &[(&str, &str)], last: &str) {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(project().join("tests/uml/run")).args(options);
    // Both outputs in one stream, so that their order is kept.
    command.args(["sh", "-c", "exec \"$@\" 2>&1", "sh"]).args(words);
    command.envs(variables.iter().copied()).current_dir(project());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut begun, mut passed) = (false, false);
    for line in BufReader::new(child.stdout.take().unwrap()).split(b'\n') {
        let line = String::from_utf8_lossy(&line.unwrap()).into_owned();
        eprintln!("uml: {line}");
        begun = true;
        passed |= line.starts_with(last);
    }
    let rest = child.wait_with_output().unwrap();
    let (status, why) = (rest.status, String::from_utf8_lossy(&rest.stderr));
    if status.code() == Some(125) && !begun {
        return skip(why.trim());
    }
    assert!(status.success() && passed, "on user-mode Linux: {status}: {why}");
}
