//! Runs a program in a guest by its agent: without an address, a key or a network.
//!
//! The guest's output is bounded in the guest, by `head`: libvirt refuses a message of more than 4
//! MiB, and gives up an agent whose answer has more than 10 MiB.

use crate::agent::{BASE64, is_forbidden};
use crate::domain::DomainXml;
use crate::domain::view::{AgentState, View};
use crate::error::{Class, Coded, Result, classed};
use crate::guest::{find_alive, still};
use crate::hypervisor::{Hypervisor, HypervisorError, XmlOf};
use crate::shell::word;
use crate::world::World;
use base64::Engine as _;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long one answer of the agent may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The most bytes that come from each of standard output and standard error.
pub const MOST_OUTPUT: usize = 1 << 20;
/// The most bytes of standard input.
pub const MOST_INPUT: usize = 1 << 20;
/// The longest time between two looks at a program.
const LONGEST_LOOK: Duration = Duration::from_millis(500);
/// Runs a program with both outputs bounded, and passes its status on: both go through `head`, and
/// the status through descriptor 5. systemd gives an agent no HOME.
pub(crate) const BOUNDED: &str = "exec 3>&1 4>&2
s=$( { { { HOME=${HOME-/root} \"$@\" 3>&- 4>&- 5>&- 6>&-; echo $? >&5; } 2>&6 | \
                       head -c LIMIT >&3; } 6>&1 | head -c LIMIT >&4; } 5>&1 )
exit $s";

/// The reason nothing is run in a guest.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "exec-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ExecError {
    /// The domain has no channel for an agent.
    #[error("domain `{name}` has no channel for a guest agent")]
    NoChannel { name: String },
    /// The agent does not run in the guest.
    #[error("the guest agent of `{name}` is not running in the guest")]
    NotRunning { name: String },
    /// The agent is there and does not answer.
    #[error("the guest agent of `{name}` does not answer: {message}")]
    Silent { name: String, message: String },
    /// The agent refuses the command that this needs.
    #[error("the guest agent of `{name}` has {command} disabled")]
    Forbidden { name: String, command: &'static str },
    /// The agent cannot start the program.
    #[error("the guest agent of `{name}` cannot start {program}: {message}")]
    NotStarted { name: String, program: String, message: String },
}

impl Coded for ExecError {}

/// A program to run in a guest.
#[derive(Debug, Clone)]
pub struct ExecWanted {
    /// The domain.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its standard input; `None` if empty.
    pub input: Option<Vec<u8>>,
    /// How long it may take; `None` for no limit.
    pub limit: Option<Duration>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Executed {
    /// The domain.
    pub domain: String,
    /// Its exit status; 128 and the signal's number where a signal ended it.
    pub status: u8,
    /// Its standard output, as text.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub stdout: Vec<u8>,
    /// Its standard error, as text.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub stderr: Vec<u8>,
    /// Whether it printed more than is passed on.
    pub cut_off: bool,
}

/// Writes bytes as text.
fn as_text<S: serde::Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&String::from_utf8_lossy(bytes))
}

/// A guest whose agent is connected.
pub(crate) struct Inside<'h> {
    /// The hypervisor to reach it through.
    hypervisor: &'h dyn Hypervisor,
    name: String,
}

impl<'h> Inside<'h> {
    /// Finds the agent of a running guest.
    pub(crate) fn of(hypervisor: &'h dyn Hypervisor, name: &str) -> Result<Inside<'h>> {
        let row = find_alive(hypervisor, name, "nothing can be run in it")?;
        if let Some((is, wake)) = still(row.state, name) {
            let message = format!("domain `{name}` {is}, so its agent does not answer");
            return Err(classed(Class::WrongState, message, format!("{wake} lets it go on")));
        }
        let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
        let (name, shown) = (name.to_owned(), word(name));
        match View::of(&live, None)?.agent {
            AgentState::Connected => {}
            AgentState::None => {
                return Err(ExecError::NoChannel { name: name.clone() }.hint(format!(
                    "`gpuvm tune {shown} --agent on` adds it, from the next start on"
                )));
            }
            AgentState::Disconnected => return Err(not_running(&name)),
        }
        Ok(Inside { hypervisor, name })
    }

    /// Sends a command of the agent and returns its answer.
    pub(crate) fn ask(&self, command: &'static str, arguments: &Value) -> Result<Value> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string();
        let answer = self.hypervisor.ask_agent(&self.name, &text, ANSWER);
        let answer = answer.map_err(|error| self.refused(command, arguments, &error))?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| {
            let (name, message) = (self.name.clone(), error.to_string());
            ExecError::Silent { name, message }.refusal("")
        })?;
        Ok(answer.get("return").cloned().unwrap_or_default())
    }

    fn refused(
        &self,
        command: &'static str,
        arguments: &Value,
        error: &HypervisorError,
    ) -> crate::error::Error {
        let (name, message) = (self.name.clone(), error.message.clone());
        let shown = word(&self.name).into_owned();
        if is_forbidden(error) {
            return ExecError::Forbidden { name, command }.hint(format!(
                "in the guest, allow it in /etc/sysconfig/qemu-ga or /etc/qemu/qemu-ga.conf, and \
                 restart qemu-guest-agent; `gpuvm ssh {shown}` needs no agent"
            ));
        }
        if message.contains("not connected") {
            return not_running(&name);
        }
        if let Some(path) = arguments["path"].as_str().filter(|_| message.contains("child process"))
        {
            let said = message.rsplit("guest-exec': ").next().unwrap_or(&message).to_owned();
            let program = path.to_owned();
            return ExecError::NotStarted { name, program, message: said }.hint("");
        }
        let hint = format!(
            "`gpuvm console {shown}` shows whether the guest has started; in it, `systemctl restart \
             qemu-guest-agent`"
        );
        ExecError::Silent { name, message }.hint(hint)
    }

    /// Starts a script with these words; returns its process in the guest. `input`: its standard
    /// input, where its output is wanted; `None` if neither is.
    pub(crate) fn start(
        &self,
        script: &str,
        words: &[String],
        input: Option<&[u8]>,
    ) -> Result<i64> {
        let before = ["-c", script, "gpuvm"].map(str::to_owned);
        let all: Vec<&String> = before.iter().chain(words).collect();
        let mut arguments =
            json!({ "path": "/bin/sh", "arg": all, "capture-output": input.is_some() });
        if let Some(input) = input.filter(|input| !input.is_empty()) {
            arguments["input-data"] = BASE64.encode(input).into();
        }
        let started = self.ask("guest-exec", &arguments)?;
        started["pid"].as_i64().ok_or_else(|| self.nonsense("guest-exec"))
    }

    /// Starts a program with bounded outputs; returns its process in the guest.
    pub(crate) fn begin(&self, command: &[String], input: Option<&[u8]>) -> Result<i64> {
        let script = BOUNDED.replace("LIMIT", &MOST_OUTPUT.to_string());
        self.start(&script, command, Some(input.unwrap_or_default()))
    }

    /// Looks whether a program has ended.
    pub(crate) fn ended(&self, pid: i64) -> Result<Option<Executed>> {
        let status = self.ask("guest-exec-status", &json!({ "pid": pid }))?;
        if status["exited"].as_bool() != Some(true) {
            return Ok(None);
        }
        let bytes = |key: &str| {
            BASE64
                .decode(status[key].as_str().unwrap_or_default())
                .map_err(|_| self.nonsense("guest-exec-status"))
        };
        let code = status["exitcode"].as_u64();
        let signal = status["signal"].as_u64().map(|signal| 128 + signal);
        let (stdout, stderr) = (bytes("out-data")?, bytes("err-data")?);
        let is_cut = |what: &[u8]| what.len() >= MOST_OUTPUT;
        Ok(Some(Executed {
            domain: self.name.clone(),
            status: signal.or(code).and_then(|code| u8::try_from(code).ok()).unwrap_or(255),
            cut_off: is_cut(&stdout) || is_cut(&stderr),
            stdout,
            stderr,
        }))
    }

    /// The error of an answer that is not one.
    fn nonsense(&self, command: &str) -> crate::error::Error {
        let message = format!("its answer to {command} is invalid");
        ExecError::Silent { name: self.name.clone(), message }.bare()
    }
}

/// The error of a guest without a running agent.
fn not_running(name: &str) -> crate::error::Error {
    ExecError::NotRunning { name: name.to_owned() }.hint(format!(
        "it starts late in the boot; where it is missing, install and start qemu-guest-agent in the \
         guest: `gpuvm ssh {name}` or `gpuvm console {name}`",
        name = word(name)
    ))
}

/// Runs a program in a guest, and waits for its end.
pub fn exec(world: &World, wanted: &ExecWanted) -> Result<Executed> {
    world.refuse_without_running_guests("exec")?;
    let hypervisor = &*world.hypervisor()?;
    let inside = Inside::of(hypervisor, &wanted.name)?;
    let pid = inside.begin(&wanted.command, wanted.input.as_deref())?;
    let until = wanted.limit.map(|limit| Instant::now() + limit);
    let mut pause = Duration::from_millis(10);
    loop {
        if let Some(ended) = inside.ended(pid)? {
            return Ok(ended);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let seconds = wanted.limit.unwrap_or_default().as_secs();
            let program = wanted.command.first().map_or("", String::as_str);
            let message = format!(
                "{program} did not end within {seconds} s; it goes on in `{}`, below process {pid}",
                wanted.name
            );
            let hint = format!("`gpuvm exec {} -- ps -ef` shows it", word(&wanted.name));
            return Err(classed(Class::Timeout, message, hint));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::DomainState;
    use crate::reporter::Answer;
    use crate::stage::fake::xml;
    use crate::stage::guest;
    use crate::stage::local::LocalAgent;
    use crate::stage::{Stage, UUID};

    fn run(stage: &Stage, command: &[&str], input: Option<&[u8]>) -> Result<Executed> {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let (name, input, limit) = ("g".to_owned(), input.map(<[u8]>::to_vec), None);
        exec(&stage.world, &ExecWanted { name, command, input, limit })
    }

    fn code(result: Result<Executed>) -> &'static str {
        result.unwrap_err().refusal().expect("a refusal").code
    }

    #[test]
    fn a_program_runs_with_its_words_input_outputs_and_status() {
        let stage = guest("connected");
        let script = "printf '%s|' \"$@\"; cat; echo bad >&2; exit 7";
        let got =
            run(&stage, &["sh", "-c", script, "sh", "a b", "$HOME", ""], Some(b"in")).unwrap();
        let (stdout, stderr) = (b"a b|$HOME||in".to_vec(), b"bad\n".to_vec());
        let domain = "g".to_owned();
        assert_eq!(got, Executed { domain, status: 7, stdout, stderr, cut_off: false });
        let ended = |command: &[&str]| run(&stage, command, None).unwrap();
        assert_eq!(ended(&["true"]).status, 0);
        // As a shell has it: by a signal, and a program that is missing.
        assert_eq!(ended(&["sh", "-c", "kill -9 $$"]).status, 137);
        let missing = ended(&["gpuvm-nosuch"]);
        let said = String::from_utf8(missing.stderr).unwrap();
        assert!(missing.status == 127 && said.contains("gpuvm-nosuch"), "{said}");
        // A word is no assignment and no option of the shell that bounds it.
        assert_eq!(ended(&["A=b"]).status, 127);
        assert!(!ended(&["sh", "-c", "echo $HOME >&2"]).cut_off);
    }

    #[test]
    fn output_without_end_is_cut_off_in_the_guest() {
        let stage = guest("connected");
        let got = run(&stage, &["sh", "-c", "yes; echo done >&2"], None).unwrap();
        assert!(got.cut_off && got.stdout.len() == MOST_OUTPUT, "{}", got.stdout.len());
        assert_eq!(got.stderr, b"done\n");
        let got = run(&stage, &["sh", "-c", "yes >&2"], None).unwrap();
        assert!(got.cut_off && got.stdout.is_empty() && got.stderr.len() == MOST_OUTPUT);
    }

    #[test]
    fn a_guest_without_an_agent_is_refused_with_its_way_out() {
        assert_eq!(code(run(&guest("disconnected"), &["true"], None)), "exec-not-running");
        let stage = Stage::who_says(Answer::Nobody);
        stage.fake.put_xml(&xml("g", UUID), true);
        assert_eq!(code(run(&stage, &["true"], None)), "exec-no-channel");
        stage.fake.put_xml(&xml("g", UUID), false);
        assert_eq!(code(run(&stage, &["true"], None)), "wrong-state");
        let stage = guest("connected");
        stage.fake.states.borrow_mut().insert("g".into(), DomainState::Paused);
        assert_eq!(code(run(&stage, &["true"], None)), "wrong-state");
        let stage = guest("connected");
        stage.fake.local.replace(Some(LocalAgent::that_forbids("guest-exec")));
        let error = run(&stage, &["true"], None).unwrap_err();
        assert!(error.to_string().contains("has guest-exec disabled"), "{error}");
        // It is there and hangs: libvirt's own words.
        let stage = guest("connected");
        stage.fake.local.replace(None);
        assert_eq!(code(run(&stage, &["true"], None)), "exec-silent");
    }

    #[test]
    fn a_program_that_takes_too_long_is_left_and_said_so() {
        let stage = guest("connected");
        let command = ["sleep", "5"].map(str::to_owned).to_vec();
        let limit = Some(Duration::from_millis(50));
        let wanted = ExecWanted { name: "g".into(), command, input: None, limit };
        let error = exec(&stage.world, &wanted).unwrap_err();
        assert_eq!(error.refusal().unwrap().code, "timeout");
        assert!(error.to_string().contains("it goes on in `g`"), "{error}");
    }
}
