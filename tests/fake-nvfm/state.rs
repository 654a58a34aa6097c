//! The state of the fake Fabric Manager between calls, and between processes if the test names a
//! file for it. Every operation holds the lock of that file, as Fabric Manager handles one request
//! at a time.

use crate::setting::Setting;
use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Fabric Manager cannot be reached.
const CONNECTION_NOT_VALID: c_int = -9;
/// Fabric Manager is still starting.
const NOT_CONFIGURED: c_int = -8;
/// Not in this mode.
const NOT_SUPPORTED: c_int = -3;

unsafe extern "C" {
    /// signal.h.
    fn kill(process: c_int, signal: c_int) -> c_int;
}

/// The state.
#[derive(Default)]
pub struct State {
    /// Operations so far.
    calls: u64,
    /// When the first one came, in milliseconds since 1970.
    since_ms: u64,
    /// Whether it got the list of active partitions after a restart.
    pub is_told: bool,
    /// Active partitions, each with how many resets there were when it was activated.
    active: Vec<(u32, usize)>,
}

/// The file of the state, locked, if there is one.
struct Locked(Option<File>);

/// The time, in milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// Whether Fabric Manager has ended, since it got no list of active partitions after its restart.
pub fn has_ended(setting: &Setting) -> bool {
    let (_, state) = State::open(setting);
    state.refusal("fmSetActivatedFabricPartitions", setting) == Some(CONNECTION_NOT_VALID)
}

/// Does one operation as Fabric Manager would, or fails, hangs or ends in it as told. `open`: what
/// the library answers if its connection is not, else 0: then Fabric Manager is not asked.
pub fn operation(
    name: &str,
    given: &str,
    open: c_int,
    effect: impl FnOnce(&Setting, &mut State) -> c_int,
) -> c_int {
    let setting = Setting::read();
    setting.append("calls", format!("{} {name} {given}", now_ms()).trim_end());
    if let Some(code) = setting.enter(name) {
        return code;
    }
    if open != 0 {
        return open;
    }
    let (mut file, mut state) = State::open(&setting);
    state.calls += 1;
    state.save(&mut file);
    let number = state.calls.to_string();
    if setting.has("hang", &number) {
        drop(file);
        std::thread::sleep(Duration::from_secs(600));
        return CONNECTION_NOT_VALID;
    }
    ends(&setting, &number, "before");
    let failed = setting.of("fail_nth", &number);
    let is_done = failed.is_none_or(|words| words.get(1).is_some_and(|word| word == "done"));
    let mut code = state.refusal(name, &setting).unwrap_or(0);
    if code == 0 && is_done {
        code = effect(&setting, &mut state);
        state.save(&mut file);
    }
    ends(&setting, &number, "after");
    failed.map_or(code, |words| words[0].parse().expect("a code"))
}

/// Ends this process, or the one that waits for it, if the settings say so for an operation.
fn ends(setting: &Setting, number: &str, when: &str) {
    let is_meant = |name: &str| setting.of(name, number).is_some_and(|words| words[0] == when);
    if is_meant("die_after") {
        std::process::exit(9);
    }
    if is_meant("kill_caller") {
        // SAFETY: takes numbers; 9 is SIGKILL.
        unsafe { kill(std::os::unix::process::parent_id() as c_int, 9) };
        std::thread::sleep(Duration::from_secs(600));
    }
}

impl State {
    /// Reads the state under its lock; initially the partitions of the setting `active` are active.
    fn open(setting: &Setting) -> (Locked, State) {
        let active = setting.all("active").map(|words| (words[0].parse().unwrap(), 0));
        let fresh = || State { since_ms: now_ms(), active: active.collect(), ..State::default() };
        let Some(path) = setting.one("state") else { return (Locked(None), fresh()) };
        let mut open = File::options();
        let open = open.read(true).write(true).create(true).truncate(false);
        let mut file = open.open(path).expect("the state can be opened");
        file.lock().expect("the state can be locked");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the state can be read");
        if text.is_empty() {
            return (Locked(Some(file)), fresh());
        }
        let mut state = State::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |place: usize| words[place].parse::<u64>().expect("a number");
            match words[0] {
                "calls" => state.calls = number(1),
                "since" => state.since_ms = number(1),
                "told" => state.is_told = true,
                "active" => state.active.push((number(1) as u32, number(2) as usize)),
                other => panic!("{other} in the state"),
            }
        }
        (Locked(Some(file)), state)
    }

    /// Saves the state.
    fn save(&self, file: &mut Locked) {
        let Some(file) = &mut file.0 else { return };
        let mut text = format!("calls {}\nsince {}\n", self.calls, self.since_ms);
        if self.is_told {
            text += "told\n";
        }
        for (id, resets) in &self.active {
            text += &format!("active {id} {resets}\n");
        }
        file.set_len(0).expect("the state can be emptied");
        file.rewind().expect("it is a file");
        file.write_all(text.as_bytes()).expect("the state can be written");
    }

    /// The code with which any operation is refused now.
    fn refusal(&self, name: &str, setting: &Setting) -> Option<c_int> {
        let since = now_ms() - self.since_ms;
        if setting.number("starting_for_ms").is_some_and(|ms| since < ms) {
            return Some(NOT_CONFIGURED);
        }
        if setting.number("mode") == Some(0) {
            return Some(NOT_SUPPORTED);
        }
        let restarted = setting.number("restart_mode");
        if restarted.is_some() && name == "fmGetNvlinkFailedDevices" {
            return Some(NOT_SUPPORTED);
        }
        let waits = restarted.filter(|_| !self.is_told)?;
        match name {
            // Without the list in time it has ended.
            _ if since > waits => Some(CONNECTION_NOT_VALID),
            "fmSetActivatedFabricPartitions" => None,
            _ => Some(NOT_SUPPORTED),
        }
    }

    /// The active partitions.
    pub fn active(&self) -> impl Iterator<Item = u32> {
        self.active.iter().map(|(id, _)| *id)
    }

    /// Activates one.
    pub fn activate(&mut self, id: u32, setting: &Setting) {
        self.active.push((id, resets(setting).len()));
    }

    /// Deactivates one. Returns whether it was active.
    pub fn deactivate(&mut self, id: u32) -> bool {
        let before = self.active.len();
        self.active.retain(|(active, _)| *active != id);
        self.active.len() < before
    }

    /// Receives the list of active partitions after a restart.
    pub fn report(&mut self, ids: &[u32]) {
        self.is_told = true;
        self.active = ids.iter().map(|id| (*id, 0)).collect();
    }

    /// Whether a GPU was reset after a partition had been activated.
    pub fn was_reset(&self, id: u32, address: &str, setting: &Setting) -> bool {
        let Some((_, before)) = self.active.iter().find(|(active, _)| *active == id) else {
            return false;
        };
        resets(setting).iter().skip(*before).any(|reset| reset == address)
    }
}

/// The GPUs that were reset so far, in order.
fn resets(setting: &Setting) -> Vec<String> {
    let text = setting.one("resets").and_then(|file| std::fs::read_to_string(file).ok());
    text.unwrap_or_default().lines().map(str::to_owned).collect()
}

impl Setting {
    /// The rest of the first setting of a name that starts with this word.
    pub fn of(&self, name: &str, key: &str) -> Option<&[String]> {
        self.all(name).find(|words| words[0] == key).map(|words| &words[1..])
    }

    /// A setting that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        Some(self.one(name)?.parse().expect("a number"))
    }
}
