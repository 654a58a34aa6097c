//! A guest's agent that runs the programs of this machine and opens its files, as `qemu-ga` does.

use crate::agent::BASE64;
use crate::hypervisor::HypervisorError;
use base64::Engine as _;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A running program and the readers of its outputs.
type Program = (Child, [JoinHandle<Vec<u8>>; 2]);

/// An agent.
#[derive(Default)]
pub struct LocalAgent {
    /// The command that it refuses; empty: none.
    forbids: &'static str,
    /// Programs, by the number of their process.
    programs: RefCell<BTreeMap<u64, Program>>,
    files: RefCell<BTreeMap<u64, File>>,
}

impl LocalAgent {
    /// One that refuses a command.
    pub fn that_forbids(command: &'static str) -> LocalAgent {
        LocalAgent { forbids: command, ..LocalAgent::default() }
    }

    /// Answers a command.
    pub fn answer(&self, command: &str) -> Result<String, HypervisorError> {
        let command: Value = serde_json::from_str(command).unwrap();
        let (name, given) = (command["execute"].as_str().unwrap(), &command["arguments"]);
        if name == self.forbids {
            let text = format!("The command {name} has been disabled for this instance");
            return Err(super::agent::refused(&text));
        }
        let answer = match name {
            "guest-exec" => json!({ "pid": self.exec(given) }),
            "guest-exec-status" => self.status(given["pid"].as_u64().unwrap()),
            "guest-file-open" => self.open(given)?,
            "guest-file-read" => self.read(given),
            "guest-file-write" => self.write(given),
            "guest-file-seek" => {
                let mut files = self.files.borrow_mut();
                let file = files.get_mut(&given["handle"].as_u64().unwrap()).unwrap();
                let at = file.seek(SeekFrom::Start(given["offset"].as_u64().unwrap())).unwrap();
                json!({ "position": at, "eof": false })
            }
            "guest-file-flush" => json!({}),
            "guest-file-close" => {
                self.files.borrow_mut().remove(&given["handle"].as_u64().unwrap()).unwrap();
                json!({})
            }
            other => {
                let text = format!("The command {other} has not been found");
                return Err(super::agent::refused(&text));
            }
        };
        Ok(json!({ "return": answer }).to_string())
    }

    fn exec(&self, given: &Value) -> u64 {
        let words = given["arg"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        let mut command = Command::new(given["path"].as_str().unwrap());
        let mut child = command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = BASE64.decode(given["input-data"].as_str().unwrap_or_default()).unwrap();
        std::thread::spawn(move || stdin.write_all(&input));
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let out = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            out.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let err = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            err.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let pid = u64::from(child.id());
        self.programs.borrow_mut().insert(pid, (child, [out, err]));
        pid
    }

    /// How a program is: it has ended once both outputs have, too.
    fn status(&self, pid: u64) -> Value {
        let mut programs = self.programs.borrow_mut();
        let (child, readers) = programs.get_mut(&pid).unwrap();
        let status = child.try_wait().unwrap();
        if status.is_none() || !readers.iter().all(JoinHandle::is_finished) {
            return json!({ "exited": false });
        }
        let (_, readers) = programs.remove(&pid).unwrap();
        let [out, err] = readers.map(|reader| BASE64.encode(reader.join().unwrap()));
        let code = status.unwrap().code();
        json!({ "exited": true, "exitcode": code, "out-data": out, "err-data": err })
    }

    fn open(&self, given: &Value) -> Result<Value, HypervisorError> {
        let path = given["path"].as_str().unwrap();
        let file = match given["mode"].as_str().unwrap_or("r") {
            "w" => std::fs::OpenOptions::new().write(true).open(path),
            _ => File::open(path),
        };
        let file = file.map_err(|error| super::agent::refused(&error.to_string()))?;
        let mut files = self.files.borrow_mut();
        let handle = files.keys().last().map_or(1, |last| last + 1);
        files.insert(handle, file);
        Ok(handle.into())
    }

    fn read(&self, given: &Value) -> Value {
        let mut files = self.files.borrow_mut();
        let file = files.get_mut(&given["handle"].as_u64().unwrap()).unwrap();
        let mut bytes = vec![0; given["count"].as_u64().unwrap() as usize];
        let got = file.read(&mut bytes).unwrap();
        json!({ "count": got, "buf-b64": BASE64.encode(&bytes[..got]), "eof": got == 0 })
    }

    fn write(&self, given: &Value) -> Value {
        let mut files = self.files.borrow_mut();
        let file = files.get_mut(&given["handle"].as_u64().unwrap()).unwrap();
        let bytes = BASE64.decode(given["buf-b64"].as_str().unwrap()).unwrap();
        json!({ "count": file.write(&bytes).unwrap(), "eof": false })
    }
}
