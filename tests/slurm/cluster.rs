//! A cluster of Slurm on this machine: munge, a controller, and nodes that are recorded hosts, each
//! with a libvirtd of its own. It has a network of its own, and ends with the test.

use crate::support::daemon::{Daemon, namespaces};
use crate::support::{gpuvm, host_tree, project, run, skip};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs as the first process of its namespaces. glibc resolves no address where an interface has
/// only that of the loopback.
const INIT: &str = r#"
dir=$1
export SLURM_CONF=$dir/slurm.conf
ip link set lo up && ip addr add 192.0.2.1/24 dev lo || exit 1
. "$dir/munge.sh" && slurmctld -c || exit 1
echo up >"$dir/up"
cat >/dev/null
"#;

/// Starts munge.
const MUNGE: &str = r#"
munged --force --key-file="$dir/key" --socket="$dir/munge.sock" --pid-file="$dir/munge.pid" \
  --log-file="$dir/munge.log" --seed-file="$dir/munge.seed"
"#;

/// How long something may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "not so in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A node.
pub struct Node {
    /// Its name.
    pub name: &'static str,
    /// Its libvirtd.
    pub daemon: Daemon,
    /// Its slurmd.
    slurmd: Option<Child>,
}

/// The cluster.
pub struct Cluster {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Its files.
    dir: tempfile::TempDir,
    /// The process that holds its namespaces.
    holder: Child,
    /// Keeps it alive.
    _alive: ChildStdin,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for file in ["slurmctld.log", "slurmd-dgx01.log", "slurmd-dgx02.log", "errors", "said"]
            {
                let text = std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("== {file}\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
        for node in &mut self.nodes {
            if let Some(slurmd) = &mut node.slurmd {
                let _ = slurmd.kill();
                let _ = slurmd.wait();
            }
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Cluster {
    /// A cluster of two DGX-2; none, with the reason reported, where this machine cannot have it.
    pub fn new() -> Option<Cluster> {
        for program in ["slurmctld", "slurmd", "munged", "sbatch", "scontrol", "squeue"] {
            let known = Command::new("which").arg(program).output();
            if !known.is_ok_and(|out| out.status.success()) {
                return skip(format!("{program} is not installed"));
            }
        }
        if !namespaces() {
            return skip("namespaces need root");
        }
        let host = host_tree("dgx-2");
        let daemons = [Daemon::own(Some(&host))?, Daemon::own(Some(&host))?];
        let dir = tempfile::Builder::new().prefix("gpuvm-slurm-").tempdir().unwrap();
        let path = dir.path();
        open(path, 0o755);
        let names = ["dgx01", "dgx02"];
        configure(path, names);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["--propagation", "private", "bash", "-c", INIT, "init"]).arg(path);
        let log = std::fs::File::create(path.join("said")).unwrap();
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut holder = command.spawn().unwrap();
        let alive = holder.stdin.take().unwrap();
        let nodes = names.into_iter().zip(daemons);
        let nodes = nodes.map(|(name, daemon)| Node { name, daemon, slurmd: None }).collect();
        let mut cluster = Cluster { nodes, dir, holder, _alive: alive };
        until("the controller starts", || cluster.path("up").exists());
        for number in 0..2 {
            cluster.start_node(number);
        }
        cluster.until_idle();
        Some(cluster)
    }

    /// One of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The first process of its namespaces.
    fn first(&self) -> String {
        let holder = self.holder.id();
        let children = std::fs::read_to_string(format!("/proc/{holder}/task/{holder}/children"));
        children.unwrap().split_whitespace().next().expect("it runs").to_owned()
    }

    /// A program where the controller is.
    pub fn within(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--net", "--pid", "--target", &self.first(), program]);
        command.env("SLURM_CONF", self.path("slurm.conf")).env("LC_ALL", "C").current_dir("/");
        command
    }

    /// Runs a program of Slurm. Returns its exit code and output.
    pub fn run(&self, words: &[&str]) -> (i32, String) {
        let (code, out, err) = run(self.within(words[0]).args(&words[1..]));
        (code, out + &err)
    }

    /// Runs one, which has to succeed.
    pub fn done(&self, words: &[&str]) -> String {
        let (code, said) = self.run(words);
        assert_eq!(code, 0, "{words:?}: {said}");
        said
    }

    /// Submits a job that goes on until it is cancelled. Returns its number.
    pub fn submit(&self, words: &[&str]) -> u32 {
        self.submit_script(words, "exec tail -f /dev/null")
    }

    /// Submits a job.
    pub fn submit_script(&self, words: &[&str], script: &str) -> u32 {
        let first = ["sbatch", "--parsable", "--output=/dev/null", "--wrap", script];
        let said = self.done(&[&first[..], words].concat());
        said.trim().parse().unwrap_or_else(|_| panic!("{said}"))
    }

    /// A field of a job, as `scontrol` prints it.
    pub fn field(&self, job: u32, field: &str) -> String {
        let (_, said) = self.run(&["scontrol", "show", "job", &job.to_string()]);
        let lines = said.lines().map(str::trim);
        // Values of people may have blanks, and stand alone in their line.
        let whole = lines.clone().find_map(|line| line.strip_prefix(&format!("{field}=")));
        let word = whole.map(str::to_owned).or_else(|| {
            let mut words = said.split_whitespace();
            words.find_map(|word| word.strip_prefix(&format!("{field}="))).map(str::to_owned)
        });
        let value = word.unwrap_or_default();
        if field == "AdminComment" {
            value
        } else {
            value.split_whitespace().next().unwrap_or_default().to_owned()
        }
    }

    /// Waits until a job is in a state.
    pub fn until_job(&self, job: u32, state: &str) {
        until(&format!("job {job} is {state}"), || self.field(job, "JobState") == state);
    }

    /// The states of the nodes.
    pub fn states(&self) -> Vec<String> {
        let said = self.done(&["sinfo", "--noheader", "--Node", "--format", "%T"]);
        said.lines().map(str::to_owned).collect()
    }

    /// Waits until no job is left and all nodes wait for some.
    pub fn until_idle(&self) {
        until("all nodes are idle", || {
            let jobs = self.done(&["squeue", "--noheader"]);
            jobs.trim().is_empty() && self.states() == ["idle", "idle"]
        });
    }

    /// Cancels every job and waits until all have ended.
    pub fn end_all(&self) {
        self.done(&["scancel", "--user=root"]);
        self.done(&["scancel", "--user=nobody"]);
        self.until_idle();
    }

    /// A program on a node, as slurmd runs its own.
    pub fn on_node(&self, number: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.first()));
        let enter = self.nodes[number].daemon.enter(&["--mount", "--pid", "--uts"], program);
        command.arg(enter.get_program()).args(enter.get_args());
        command.env("SLURM_CONF", self.path("slurm.conf")).env("LC_ALL", "C").current_dir("/");
        command.env_remove("LIBVIRT_DEFAULT_URI");
        command
    }

    /// Starts slurmd of a node.
    pub fn start_node(&mut self, number: usize) {
        let name = self.nodes[number].name;
        let mut command = self.on_node(number, "slurmd");
        command.args(["-D", "-N", name]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.nodes[number].slurmd = Some(command.spawn().unwrap());
    }

    /// Kills slurmd of a node; its prolog goes on, if there is one.
    pub fn kill_node(&mut self, number: usize) {
        let pid = self.path(&format!("slurmd-{}.pid", self.nodes[number].name));
        let pid = std::fs::read_to_string(pid).unwrap();
        let (code, _, err) = run(self.on_node(number, "kill").args(["-9", pid.trim()]));
        assert_eq!(code, 0, "{err}");
        let mut slurmd = self.nodes[number].slurmd.take().expect("it runs");
        slurmd.wait().unwrap();
    }

    /// Kills the controller, and returns when it is gone.
    pub fn kill_controller(&self) {
        let pid = std::fs::read_to_string(self.path("slurmctld.pid")).unwrap();
        self.done(&["kill", "-9", pid.trim()]);
        until("the controller is gone", || self.run(&["kill", "-0", pid.trim()]).0 != 0);
    }

    /// Starts the controller again, with its jobs.
    pub fn start_controller(&self) {
        self.done(&["slurmctld"]);
    }

    /// Kills munge.
    pub fn kill_munge(&self) {
        let pid = std::fs::read_to_string(self.path("munge.pid")).unwrap();
        self.done(&["kill", "-9", pid.trim()]);
    }

    /// Starts munge again.
    pub fn start_munge(&self) {
        let dir = self.path("");
        self.done(&["bash", "-c", &format!("dir={}\n{MUNGE}", dir.display())]);
    }

    /// Runs the program on a node. Returns its exit code and output.
    pub fn gpuvm(&self, number: usize, args: &[&str]) -> (i32, String) {
        let (code, out, err) = run(self.on_node(number, env!("CARGO_BIN_EXE_gpuvm")).args(args));
        (code, out + &err)
    }

    /// Runs an epilog by hand.
    pub fn epilog(&self, number: usize, job: u32) -> (i32, String) {
        let mut command = self.on_node(number, env!("CARGO_BIN_EXE_gpuvm"));
        command.args(["slurm", "epilog"]).env("SLURM_JOB_ID", job.to_string());
        command.env("SLURM_CLUSTER_NAME", "gpuvm").env("SLURM_JOB_UID", "0");
        let (code, out, err) = run(command.env("SLURMD_NODENAME", self.nodes[number].name));
        (code, out + &err)
    }

    /// The domains of a node.
    pub fn domains(&self, number: usize) -> Vec<String> {
        let (done, said) = self.nodes[number].daemon.virsh(&["list", "--all", "--name"]);
        assert!(done, "{said}");
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// Whether a job has its guest on a node.
    pub fn has_guest(&self, number: usize, job: u32) -> bool {
        self.domains(number).contains(&format!("slurm-{job}"))
    }

    /// The name of the next job's guest.
    pub fn next_name(&self) -> String {
        let said = self.done(&["scontrol", "show", "config"]);
        let next = said.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "NEXT_JOB_ID").then(|| value.trim().to_owned())
        });
        format!("slurm-{}", next.expect("it is there"))
    }
}

/// Sets the mode of a file.
fn open(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Writes the shipped files, with this program, and the options of guests that cannot start here.
fn ship(dir: &Path, name: &str) {
    let shipped = project().join("src/packaging/slurm").join(name);
    let text = std::fs::read_to_string(shipped).unwrap();
    let text = text.replace("/usr/bin/gpuvm", env!("CARGO_BIN_EXE_gpuvm"));
    let text = text.replace("/var/log/gpuvm-slurm.log", &format!("{}/errors", dir.display()));
    let disks = format!("--disk-dir {}/disks-$SLURMD_NODENAME --data-size none", dir.display());
    let options = format!("--no-start --accept-shared-fabric --os-size 1G {disks}");
    let text = text.replace("-- --no-wait", &format!("-- --no-wait {options}"));
    let times = format!("{}/times", dir.display());
    // How long it takes, as the kernel counts.
    let text = text.replace(
        "exec ",
        &format!("read -r begun _ </proc/uptime\ntrap 'read -r now _ </proc/uptime; echo {name} $SLURM_JOB_ID $begun $now >>{times}' EXIT\n"),
    );
    std::fs::write(dir.join(name), text).unwrap();
    open(&dir.join(name), 0o755);
}

/// Writes the configuration: the lines that the program prints, and those of the test.
fn configure(dir: &Path, names: [&str; 2]) {
    let shown = dir.display();
    for name in ["prolog", "epilog", "reconcile"] {
        ship(dir, name);
    }
    std::fs::write(dir.join("munge.sh"), MUNGE).unwrap();
    let mut key = vec![0; 128];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut key).unwrap();
    std::fs::write(dir.join("key"), key).unwrap();
    open(&dir.join("key"), 0o400);
    std::fs::create_dir(dir.join("state")).unwrap();
    let mut text = format!(
        "ClusterName=gpuvm\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/munge\n\
         AuthInfo=socket={shown}/munge.sock\nSlurmUser=root\nStateSaveLocation={shown}/state\n\
         SlurmdSpoolDir={shown}/spool-%n\nSlurmctldPidFile={shown}/slurmctld.pid\n\
         SlurmdPidFile={shown}/slurmd-%n.pid\nSlurmctldLogFile={shown}/slurmctld.log\n\
         SlurmdLogFile={shown}/slurmd-%n.log\nProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\nReturnToService=2\n\
         SlurmdTimeout=30\nKillWait=2\nSchedulerParameters=sched_min_interval=1000000\n\
         SlurmdParameters=config_overrides\nPartitionName=all Nodes=ALL Default=YES State=UP\n"
    );
    let mut gres = String::new();
    for (number, name) in names.into_iter().enumerate() {
        let args =
            ["slurm", "conf", "--host", "topologies/dgx-2.json", "--node-name", name, "--json"];
        let (code, out, err) = run(gpuvm(&args).current_dir(project()));
        assert_eq!(code, 0, "{err}");
        let conf: Value = serde_json::from_str(&out).unwrap();
        let lines = |key: &str| -> Vec<String> {
            let lines = conf[key].as_array().unwrap().iter();
            lines.map(|line| line.as_str().unwrap().to_owned()).collect()
        };
        gres += &(lines("gres_conf").join("\n") + "\n");
        let line = conf["node_line"].as_str().unwrap();
        let port = 7001 + number;
        text += &format!("{line} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port}\n");
        if number == 0 {
            // The health check is run by tests.
            let is_wanted = |line: &&String| !line.starts_with("HealthCheck");
            for line in lines("settings").iter().filter(is_wanted) {
                let line = line.replace("/etc/slurm/prolog.d/gpuvm", &format!("{shown}/prolog"));
                text += &line.replace("/etc/slurm/epilog.d/gpuvm", &format!("{shown}/epilog"));
                text.push('\n');
            }
        }
    }
    std::fs::write(dir.join("slurm.conf"), text).unwrap();
    std::fs::write(dir.join("gres.conf"), gres).unwrap();
    // Recorded hosts have no control groups, and this plugin does not look for them.
    std::fs::write(dir.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
    for name in names {
        for what in ["spool", "disks"] {
            std::fs::create_dir(dir.join(format!("{what}-{name}"))).unwrap();
        }
    }
}
