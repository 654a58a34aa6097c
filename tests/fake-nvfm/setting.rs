//! What the fake libraries are told to be: a text file of one setting per line, named by GPUVM_FAKE_NVIDIA.
//!
//! `board NAME`          h100, b200, a100, a100x2, hgx2: the list of partitions
//! `address TEXT`        where Fabric Manager listens; without it everywhere
//! `gpu ADDRESS MODULE`  a GPU that the NVIDIA driver has; Fabric Manager tells its address on a100 and hgx2
//! `active PARTITION`    a partition that is active
//! `links MODULE COUNT`  a GPU with fewer NVLinks that work
//! `nvlink A B COUNT`    NVLinks between the GPUs at two addresses; those to switches follow from the board
//! `gone MODULE`         a GPU that failed: its partitions are not listed
//! `fail CALL CODE`      what a function returns
//! `hang CALL`, `crash CALL`
//! `old`                 Fabric Manager knows connection parameters of version 1 only
//! `count NUMBER`        the count of partitions that is told, whatever there is
//! `journal FILE`        gets the name of each function that is called

use std::io::Write;
use std::time::Duration;

/// Is the file's settings, as words.
pub struct Setting(Vec<Vec<String>>);

impl Setting {
    /// Reads the file.
    pub fn read() -> Setting {
        let file = std::env::var_os("GPUVM_FAKE_NVIDIA").expect("the test names the file");
        let text = std::fs::read_to_string(file).expect("the test wrote the file");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        Setting(text.lines().map(words).collect())
    }

    /// Arguments of every line of a setting.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &[String]> {
        self.0
            .iter()
            .filter(move |words| words.first().is_some_and(|word| word == name))
            .map(|words| &words[1..])
    }

    /// The first argument of a setting.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.all(name).next()?.first().map(String::as_str)
    }

    /// Whether a setting names a key.
    pub fn has(&self, name: &str, key: &str) -> bool {
        self.all(name).any(|words| words[0] == key)
    }

    /// Notes a call, and fails, hangs or crashes in it as told; a code to return at once, or none.
    pub fn enter(&self, call: &str) -> Option<i32> {
        // What a real library would write to the terminal.
        println!("fake: {call}");
        if let Some(file) = self.one("journal") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
            // In one go: two libraries in two processes write the same file.
            let line = format!("{call}\n");
            let _ = file.expect("the journal can be written").write_all(line.as_bytes());
        }
        if self.has("hang", call) {
            std::thread::sleep(Duration::from_secs(600));
        }
        if self.has("crash", call) {
            std::process::abort();
        }
        let failed = self.all("fail").find(|words| words[0] == call)?;
        Some(failed[1].parse().expect("a code"))
    }
}
