//! A watchdog for hanging tests: a program that runs for too long is shown with all other processes
//! and killed, so that its test fails with a reason and the others go on.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

/// How long a program that a test has started may run; the longest takes two minutes on two busy
/// cores.
const LIMIT: Duration = Duration::from_secs(900);
/// The limit of the whole test run, as a multiple of that time.
const WHOLE: u32 = 3;
/// The interval of the checks.
const PERIOD: Duration = Duration::from_secs(10);

/// The limits of the report on one process and on all together, in bytes.
const TOLD: (usize, usize) = (300, 6000);

/// The failure messages of tests so far.
static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts the watchdog of this test run, once.
pub fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        remember_failures();
        std::thread::spawn(|| {
            let begun = Instant::now();
            loop {
                std::thread::sleep(PERIOD);
                if begun.elapsed() > limit() * WHOLE {
                    let failed = FAILED.lock().map(|all| all.join("\n")).unwrap_or_default();
                    let text = format!("{}== failed until then:\n{failed}\n", shown(&[]));
                    let _ = std::io::stderr().write_all(text.as_bytes());
                    std::process::exit(101);
                }
                let late = late();
                if !late.is_empty() {
                    // Written directly, since captured output would belong to the test that started
                    // the watchdog.
                    let _ = std::io::stderr().write_all(shown(&late).as_bytes());
                    late.iter().for_each(|pid| end(*pid));
                }
            }
        });
    });
}

/// Records why tests fail, since a run that must be killed does not report it.
fn remember_failures() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current().name().unwrap_or("?").to_owned();
        let text = cut(&format!("{thread}: {panic}"), 2000);
        if let Ok(mut failed) = FAILED.lock() {
            failed.push(text);
        }
        before(panic);
    }));
}

/// The beginning of a text.
fn cut(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// The limit; GPUVM_TEST_LIMIT_S sets another one.
fn limit() -> Duration {
    let given = std::env::var("GPUVM_TEST_LIMIT_S").ok().and_then(|given| given.parse().ok());
    given.map_or(LIMIT, Duration::from_secs)
}

/// Programs that tests started and that run for too long. Exempt is what lives as long as the run:
/// the holder of a libvirtd's namespaces, and what removes the tests' machine at the end.
fn late() -> Vec<u32> {
    let of_run = ["virtlogd --pid-file", "gpuvm-test-machine-"];
    let is_late = |pid: &u32| {
        let command = command_of(*pid);
        let is_of_run = of_run.iter().any(|words| command.contains(words));
        age(*pid).is_some_and(|age| age > limit()) && !is_of_run
    };
    children(std::process::id()).into_iter().filter(is_late).collect()
}

/// The child processes of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<u32>>()
    };
    tasks.flat_map(of).collect()
}

/// A process's command line.
fn command_of(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()
}

/// How long a process has run; none if it has ended, also as a zombie.
fn age(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1;
    if fields.starts_with('Z') {
        return None;
    }
    // Field 22, the 20th after the name, which may contain blanks: its start in ticks of 10 ms
    // since boot.
    let ticks: u64 = fields.split(' ').nth(19)?.parse().ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Duration::from_secs_f64(uptime).checked_sub(Duration::from_millis(ticks * 10))
}

/// The running processes, for the reader of the failure.
fn shown(late: &[u32]) -> String {
    let mut text =
        format!("== {late:?} run for more than {} s; all that runs:\n", limit().as_secs());
    show(std::process::id(), 0, &mut text);
    cut(&text, TOLD.1) + "\n"
}

/// Adds a process, the kernel functions that its threads wait in, and its descendants.
fn show(pid: u32, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    // A zombie has no age.
    let Some(age) = age(pid) else { return };
    let command = cut(&command_of(pid).replace('\n', " "), TOLD.0);
    *text += &format!("{indent}{pid} ({} s) {command}\n", age.as_secs());
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let said = |name: &str| read(&task.path().join(name));
        *text += &format!("{indent}  {}: {}\n", said("comm"), said("wchan"));
    }
    children(pid).into_iter().for_each(|child| show(child, depth + 1, text));
}

/// The content of a file of /proc.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Kills a process and its descendants.
fn end(pid: u32) {
    let below = children(pid);
    let _ = nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.cast_signed()),
        nix::sys::signal::Signal::SIGKILL,
    );
    below.into_iter().for_each(end);
}
