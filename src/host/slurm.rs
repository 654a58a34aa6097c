//! Slurm's own programs: queries about jobs, and commands for them. Run without a shell. Only a
//! job's comment is its owner's text; it is queried alone, so that it cannot look like another
//! answer.

use crate::child::Question;
use crate::command::{CommandError, output};
use crate::input;
use gpuvm_core::seed::SshKey;
use gpuvm_core::slurm::{Resources, reason};
use nix::unistd::{Uid, User, setgid, setgroups, setuid};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of one of its programs, in seconds; they retry for some time themselves.
const LIMIT_S: u64 = 60;
/// Time for which a controller that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for the keys in a home directory, which may be on a network.
const KEYS: Duration = Duration::from_secs(10);
/// The largest file of a public key that is read, in bytes.
const KEY_BYTES: u64 = 64 << 10;

/// An error in an answer of Slurm.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "slurm-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum SlurmError {
    /// It does not answer.
    #[error("Slurm does not answer: {source}")]
    Unanswered { source: CommandError },
    /// Its output does not answer the query.
    #[error("`{program}` printed {line:?}, which is not an answer")]
    Answer { program: &'static str, line: String },
}

/// A job on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeJob {
    /// The job, that of an array's task.
    pub id: u32,
    /// Its state, in Slurm's word.
    pub state: String,
    /// When it was submitted or requeued, in seconds since 1970.
    pub submitted_s: u64,
    /// The GRES that it requests on each node, in Slurm's words.
    pub gres: String,
}

impl NodeJob {
    /// Whether it has the node: not one that has ended and is being cleaned up.
    pub fn is_running(&self) -> bool {
        matches!(self.state.as_str(), "RUNNING" | "CONFIGURING" | "SUSPENDED" | "STOPPED")
    }

    /// Whether its guest may still be needed, or is about to be deleted by its epilog.
    pub fn is_known(&self) -> bool {
        self.state != "PENDING"
    }
}

/// Slurm, as its programs on this machine reach it.
#[derive(Debug, Clone, Default)]
pub struct Slurm {
    /// Directory of its programs; `None` for those of the system.
    pub programs: Option<PathBuf>,
    /// Its configuration; `None` for the usual one.
    pub conf: Option<OsString>,
}

impl Slurm {
    /// The words that run one of its programs.
    fn argv(&self, program: &str, args: &[&str]) -> Vec<String> {
        // Times as seconds since 1970, whatever the time zone is.
        let mut argv = vec!["env".to_owned(), "SLURM_TIME_FORMAT=%s".to_owned()];
        argv.extend(self.conf.iter().map(|conf| format!("SLURM_CONF={}", conf.to_string_lossy())));
        let program = Path::new(program);
        let path = self.programs.as_ref().map_or(program.to_owned(), |dir| dir.join(program));
        argv.push(path.to_string_lossy().into_owned());
        argv.extend(args.iter().map(|arg| (*arg).to_owned()));
        argv
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String, SlurmError> {
        let argv = self.argv(program, args);
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        output(&argv, LIMIT_S).map_err(|source| SlurmError::Unanswered { source })
    }

    /// The same, again while the controller does not answer: it may be restarting.
    fn ask(&self, program: &str, args: &[&str], patience: Duration) -> Result<String, SlurmError> {
        let until = Instant::now() + patience;
        loop {
            match self.run(program, args) {
                Err(SlurmError::Unanswered { source: CommandError::Failed { .. } })
                    if Instant::now() < until =>
                {
                    sleep(Duration::from_secs(1));
                }
                answer => return answer,
            }
        }
    }

    /// The jobs of a node. `patient`: a controller that does not answer is asked again.
    pub fn jobs(&self, node: &str, patient: bool) -> Result<Vec<NodeJob>, SlurmError> {
        let patience = if patient { PATIENCE } else { Duration::ZERO };
        let format = "%A|%T|%V|%b";
        let args = ["--noheader", "--all", "--nodelist", node, "--array", "--format", format];
        let said = self.ask("squeue", &args, patience)?;
        let lines = said.lines().filter(|line| !line.is_empty());
        lines.map(|line| read(line).ok_or_else(|| wrong("squeue", line))).collect()
    }

    /// The name of a job in commands: for a task of an array that is not its number, since the last
    /// one has that of the array. `None` if it is over.
    fn named(&self, id: u32) -> Result<Option<String>, SlurmError> {
        let number = id.to_string();
        let args = ["--noheader", "--all", "--states=all", "--array", "--jobs", &number];
        let args = [&args[..], &["--format", "%A|%F|%K"]].concat();
        let said = self.ask("squeue", &args, PATIENCE)?;
        Ok(said.lines().find_map(|line| named(line, &number)))
    }

    /// The comment of a job; `None` if it has none.
    pub fn comment(&self, id: u32) -> Result<Option<String>, SlurmError> {
        let Some(named) = self.named(id)? else { return Ok(None) };
        let args = ["--noheader", "--all", "--states=all", "--jobs", &named, "--format", "%k"];
        let said = self.ask("squeue", &args, PATIENCE)?;
        let said = said.trim();
        Ok(Some(said.to_owned()).filter(|said| !said.is_empty() && said != "(null)"))
    }

    /// The resources that Slurm allotted to a job on each of its nodes, at least.
    pub fn allotted(&self, id: u32) -> Result<Resources, SlurmError> {
        let Some(named) = self.named(id)? else { return Ok(Resources::default()) };
        let said = self.ask("scontrol", &["--details", "show", "job", &named], PATIENCE)?;
        Ok(Resources::read(&said))
    }

    /// The cluster's name.
    pub fn cluster(&self) -> Result<String, SlurmError> {
        let said = self.run("scontrol", &["show", "config"])?;
        let name = said.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "ClusterName").then(|| value.trim().to_owned())
        });
        name.filter(|name| !name.is_empty()).ok_or_else(|| wrong("scontrol show config", ""))
    }

    /// Cancels a job. The reason becomes its AdminComment, which `scontrol show job` prints and
    /// accounting keeps.
    pub fn cancel(&self, id: u32, why: &str) -> Result<(), SlurmError> {
        let why = format!("AdminComment=gpuvm: {}", reason(why));
        let Some(named) = self.named(id)? else { return Ok(()) };
        // A job that has ended meanwhile takes none; that it is cancelled counts.
        let _ = self.run("scontrol", &["update", &format!("JobId={named}"), &why]);
        self.ask("scancel", &[&named], PATIENCE)?;
        Ok(())
    }
}

/// The name in commands of the job of this number, if a line is about it.
fn named(line: &str, number: &str) -> Option<String> {
    let mut words = line.split('|').map(str::trim);
    words.next().filter(|first| *first == number)?;
    let (array, task) = (words.next()?, words.next()?);
    let is_task = !task.is_empty() && task.chars().all(|digit| digit.is_ascii_digit());
    Some(if is_task { format!("{array}_{task}") } else { number.to_owned() })
}

/// The error of an answer that is none.
fn wrong(program: &'static str, line: &str) -> SlurmError {
    SlurmError::Answer { program, line: line.chars().take(200).collect() }
}

/// Reads a line of `squeue`.
fn read(line: &str) -> Option<NodeJob> {
    let mut words = line.trim().splitn(4, '|');
    Some(NodeJob {
        id: words.next()?.parse().ok()?,
        state: words.next()?.to_owned(),
        submitted_s: words.next()?.parse().ok()?,
        gres: words.next()?.to_owned(),
    })
}

/// The SSH public keys in the home directory of a user (~/.ssh/id_*.pub), read with that user's
/// rights in a child process: the files may be links to what only root may read, and the directory
/// may be on a server that trusts no root. Files that are no keys are skipped.
pub fn keys_of(uid: u32) -> Vec<String> {
    let Some(user) = User::from_uid(Uid::from_raw(uid)).ok().flatten() else { return Vec::new() };
    let read = move || -> Vec<String> {
        let is_user =
            setgroups(&[user.gid]).is_ok() && setgid(user.gid).is_ok() && setuid(user.uid).is_ok();
        if is_user { keys_in(&user.dir.join(".ssh")) } else { Vec::new() }
    };
    Question::ask(KEYS, read).answer().unwrap_or_default()
}

/// The lines of keys in a directory.
fn keys_in(dir: &Path) -> Vec<String> {
    let mut paths = input::list(dir).unwrap_or_default();
    paths.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("id_") && name.ends_with(".pub")
    });
    let mut keys = Vec::new();
    for text in paths.iter().filter_map(|path| input::text(path, KEY_BYTES).ok()) {
        let is_key = |line: &&str| SshKey::read_all(line).is_ok_and(|keys| !keys.is_empty());
        keys.extend(text.lines().filter(is_key).map(str::to_owned));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_an_array_has_a_name_of_its_own() {
        // The last task has the number of the array.
        assert_eq!(named("100|100|3", "100").as_deref(), Some("100_3"));
        assert_eq!(named("101|100|0 ", "101").as_deref(), Some("100_0"));
        assert_eq!(named("7|7|N/A", "7").as_deref(), Some("7"));
        assert_eq!(named("101|100|0", "100"), None);
    }

    #[test]
    fn a_line_of_squeue_is_a_job() {
        let job = read("7|COMPLETING|1795778102|gres:gpuvm:v100:2").unwrap();
        assert_eq!(
            (job.id, job.submitted_s, job.gres.as_str()),
            (7, 1795778102, "gres:gpuvm:v100:2")
        );
        assert!(!job.is_running() && job.is_known());
        assert!(!read("7|PENDING|5|N/A").unwrap().is_known());
        assert!(read("7|RUNNING|5|N/A").unwrap().is_running());
        for bad in ["", "7", "x|RUNNING|5|N/A", "7|RUNNING|yesterday|N/A", "7|RUNNING|5"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn keys_are_read_where_files_are_keys() {
        let dir = tempfile::tempdir().unwrap();
        let key =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8gY0wMRXQUBRQP7Wx3hC3e1Ui8hAcmSUK2sqwxHt5Z me";
        std::fs::write(dir.path().join("id_a.pub"), format!("{key}\nno key\n")).unwrap();
        std::fs::write(dir.path().join("id_b.pub"), "root:$6$x:1::::::\n").unwrap();
        std::fs::write(dir.path().join("id_a"), key).unwrap();
        assert_eq!(keys_in(dir.path()), [key]);
        assert!(keys_in(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn programs_are_run_with_their_configuration() {
        let slurm =
            Slurm { programs: Some("/opt/slurm/bin".into()), conf: Some("/x/s.conf".into()) };
        let argv = slurm.argv("squeue", &["-h"]).join(" ");
        let wanted = "env SLURM_TIME_FORMAT=%s SLURM_CONF=/x/s.conf /opt/slurm/bin/squeue -h";
        assert_eq!(argv, wanted);
    }
}
