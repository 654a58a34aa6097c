//! A guest's agent in memory: its files are below a directory, and its programs run there.

use super::failed;
use crate::agent::BASE64;
use crate::hypervisor::{HypervisorError, HypervisorErrorKind};
use base64::Engine as _;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An agent.
pub struct FakeAgent {
    /// The guest's files.
    pub root: tempfile::TempDir,
    /// Commands that it refuses, as some distributions do.
    pub forbidden: RefCell<Vec<&'static str>>,
    /// A file and the text that another process writes into it after the agent's next write.
    pub rival: RefCell<Option<(String, String)>>,
    /// The number of commands that changed something.
    pub changes: Cell<usize>,
    /// Open files by handle: the rest to be read, or the path written to.
    open: RefCell<BTreeMap<i64, (PathBuf, Vec<u8>)>>,
    /// The exit code of the last program, and its output.
    ended: RefCell<(i32, String)>,
}

impl FakeAgent {
    /// The agent of a guest that runs Linux with systemd.
    pub fn new() -> FakeAgent {
        let agent = FakeAgent {
            root: tempfile::tempdir().unwrap(),
            forbidden: RefCell::default(),
            rival: RefCell::default(),
            changes: Cell::default(),
            open: RefCell::default(),
            ended: RefCell::default(),
        };
        agent.put("/proc/sys/kernel/ostype", "Linux\n");
        agent.put("/proc/1/comm", "systemd\n");
        agent.put("/etc/tmpfiles.d/other.conf", "");
        agent
    }

    /// A path of the guest on this machine.
    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file.
    pub fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Creates a link between two paths of the guest.
    pub fn link(&self, path: &str, to: &str) {
        std::os::unix::fs::symlink(self.path(to), self.path(path)).unwrap();
    }

    /// The target of a link in the guest; `None` if it is no link.
    pub fn link_to(&self, path: &str) -> Option<String> {
        let to = std::fs::read_link(self.path(path)).ok()?;
        Some(format!("/{}", to.strip_prefix(self.root.path()).unwrap().display()))
    }

    /// All files: each path with its link target or its text.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut files, mut left) = (BTreeMap::new(), vec![self.root.path().to_owned()]);
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let what = match std::fs::read_link(&path) {
                    Ok(to) => to.display().to_string().into_bytes(),
                    Err(_) if path.is_dir() => {
                        left.push(path.clone());
                        Vec::new()
                    }
                    Err(_) => std::fs::read(&path).unwrap(),
                };
                files.insert(path, what);
            }
        }
        files
    }

    /// A file of the guest.
    pub fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok()
    }

    /// Answers a command.
    pub fn answer(&self, command: &str) -> Result<String, HypervisorError> {
        let command: Value = serde_json::from_str(command).unwrap();
        let (name, given) = (command["execute"].as_str().unwrap(), &command["arguments"]);
        if self.forbidden.borrow().contains(&name) {
            return Err(refused(&format!(
                "The command {name} has been disabled for this instance"
            )));
        }
        let answer = match name {
            "guest-file-open" => self.opened(given)?,
            "guest-file-read" => self.read(given),
            "guest-file-write" => self.written(given),
            "guest-file-close" => {
                let (path, bytes) = self.open.borrow_mut().remove(&handle(given)).unwrap();
                if !bytes.is_empty() && path.is_absolute() {
                    std::fs::write(path, bytes).unwrap();
                    if let Some((path, text)) = self.rival.take() {
                        self.put(&path, &text);
                    }
                }
                json!({})
            }
            "guest-exec" => {
                let before = self.files();
                let ended = self.run(given);
                *self.ended.borrow_mut() = ended;
                if self.files() != before {
                    self.changes.set(self.changes.get() + 1);
                }
                json!({ "pid": 7 })
            }
            "guest-exec-status" => {
                let (code, text) = &*self.ended.borrow();
                // Paths are those of the guest.
                let text = text.replace(&self.root.path().display().to_string(), "");
                let printed = BASE64.encode(text.as_bytes());
                json!({ "exited": true, "exitcode": code, "out-data": printed })
            }
            _ => json!({}),
        };
        Ok(json!({ "return": answer }).to_string())
    }

    fn opened(&self, given: &Value) -> Result<Value, HypervisorError> {
        let name = given["path"].as_str().unwrap();
        let path = self.path(name);
        let entry = if given["mode"] == "w" {
            self.changes.set(self.changes.get() + 1);
            (path, Vec::new())
        } else {
            let absent =
                || refused(&format!("failed to open file '{name}': No such file or directory"));
            (PathBuf::new(), std::fs::read(path).map_err(|_| absent())?)
        };
        let mut open = self.open.borrow_mut();
        let handle = open.keys().last().map_or(1000, |last| last + 1);
        open.insert(handle, entry);
        Ok(json!(handle))
    }

    fn read(&self, given: &Value) -> Value {
        let mut open = self.open.borrow_mut();
        let bytes = std::mem::take(&mut open.get_mut(&handle(given)).unwrap().1);
        json!({ "buf-b64": BASE64.encode(&bytes), "count": bytes.len(), "eof": true })
    }

    fn written(&self, given: &Value) -> Value {
        let bytes = BASE64.decode(given["buf-b64"].as_str().unwrap()).unwrap();
        self.open.borrow_mut().get_mut(&handle(given)).unwrap().1.extend(&bytes);
        json!({ "count": bytes.len(), "eof": false })
    }

    /// Runs a program with its paths below the root; systemd-tmpfiles creates the link of the only
    /// line present.
    fn run(&self, given: &Value) -> (i32, String) {
        let words = given["arg"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        let words: Vec<&str> = words.collect();
        if words[0] == "systemd-tmpfiles" {
            let conf = self.file("/etc/tmpfiles.d/nccl-topo.conf").unwrap();
            for line in conf.lines().filter(|line| line.starts_with("L+ ")) {
                let parts: Vec<&str> = line.split(' ').collect();
                let (link, target) = (self.path(parts[1]), self.path(parts[6]));
                std::fs::create_dir_all(link.parent().unwrap()).unwrap();
                let _ = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(target, link).unwrap();
            }
            return (0, String::new());
        }
        let place = |word: &str| {
            if word.starts_with('/') {
                self.path(word).display().to_string()
            } else {
                word.to_owned()
            }
        };
        let mut command = Command::new(Path::new(given["path"].as_str().unwrap()));
        let done = command.args(words.into_iter().map(place)).output().unwrap();
        (done.status.code().unwrap_or(-1), String::from_utf8(done.stdout).unwrap())
    }
}

/// The handle that a command names.
fn handle(given: &Value) -> i64 {
    given["handle"].as_i64().unwrap()
}

/// libvirt's error for an agent's refusal.
pub(super) fn refused(message: &str) -> HypervisorError {
    let message = format!("unable to execute QEMU agent command: {message}");
    HypervisorError { message, ..failed("ask the agent", HypervisorErrorKind::Other) }
}
