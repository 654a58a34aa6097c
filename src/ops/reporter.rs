//! The interface from an operation to its caller: messages and questions. The operations print
//! nothing themselves.

use crate::apply::Step;
use crate::error::{Class, Result, classed, crashed, dump_hint, usage};
use crate::shell::word;
use std::io;

/// A question before a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Whether to perform a deed on an object of a kind (`domain`), answered with its name.
    Name {
        /// The deed.
        deed: Deed,
        /// The kind.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Whether the change may be made, answered with yes.
    Agree {
        /// The actions, one line each; `None` if the steps show them.
        lines: Option<Vec<String>>,
        /// The question.
        question: &'static str,
        /// The phrase for the refusal, if there is no terminal or the answer is no: `taking devices
        /// from the host`.
        what: String,
    },
    /// Whether a guest may get drives with data on them, answered with yes.
    Losses {
        /// The guest.
        name: String,
    },
    /// Whether a running guest may be ended, answered with its name.
    End {
        /// The reason, such as: `create a` (process 7) would be undone.
        why: String,
        /// The guest.
        name: String,
    },
    /// Whether a crashed guest may be ended, answered by yes: its process is kept for the content
    /// of its memory.
    EndCrashed {
        /// The verb that ends it: `stop`.
        verb: &'static str,
        /// The guest.
        name: String,
    },
    /// Whether to cut the power of a guest that does not shut down, answered with yes. Without a
    /// terminal the answer is no.
    CutPower {
        /// The reason.
        why: String,
    },
}

/// A deed that is confirmed by typing the object's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// The object is deleted.
    Delete,
    /// The device is taken from the host.
    Release,
    /// The device is returned to the host.
    Restore,
    /// The data on the object is erased.
    Erase,
}

impl Deed {
    /// The deed in words: `delete`, `deleting`, `deleted`.
    pub fn words(self) -> [&'static str; 3] {
        match self {
            Deed::Delete => ["delete", "deleting", "deleted"],
            Deed::Release => ["release", "releasing", "released"],
            Deed::Restore => ["restore", "restoring", "restored"],
            Deed::Erase => ["erase", "erasing", "erased"],
        }
    }
}

impl Question {
    /// Refuses to go on after any answer but yes; `losses`: the data that the change would lose.
    pub fn settle(&self, answer: Answer, losses: &[String]) -> Result<()> {
        let nobody = answer == Answer::Nobody;
        let no_one = "was not confirmed, and there is no terminal to ask at";
        let yes = "--yes does it without asking";
        Err(match self {
            _ if answer == Answer::Yes => return Ok(()),
            Question::Name { deed, kind, name } if nobody => {
                usage(format!("{} {kind} `{name}` {no_one}", deed.words()[1]), yes)
            }
            Question::Name { deed, kind, name } => {
                let done = deed.words()[2];
                let message = format!("name does not match; {kind} `{name}` was not {done}");
                classed(Class::Declined, message, "")
            }
            Question::Agree { what, .. } if nobody => usage(format!("{what} {no_one}"), yes),
            Question::Agree { what, .. } => {
                classed(Class::Declined, format!("{what} was declined; nothing is changed"), "")
            }
            Question::Losses { name } if nobody => {
                let lines: String = losses.iter().map(|loss| format!("\n  {loss}")).collect();
                usage(
                    format!("domain `{name}` would get drives with data on them{lines}"),
                    "--accept-data-loss gives them as they are; `gpuvm drive wipe ID` erases one",
                )
            }
            Question::End { why, name } => {
                let message = if nobody {
                    format!(
                        "{why}, and domain `{name}` is running: ending it was not confirmed, and \
                         there is no terminal to ask at"
                    )
                } else {
                    format!("domain `{name}` is not ended: its name was not repeated")
                };
                let hint = format!(
                    "`gpuvm recover --end {name}` ends it; `gpuvm recover --discard` lets it run \
                     and forgets the change",
                    name = word(name)
                );
                classed(Class::Declined, message, hint)
            }
            Question::EndCrashed { verb, name } if nobody => usage(
                format!("{}; ending it {no_one}", crashed(name)),
                format!(
                    "{}; `gpuvm {verb} --force {}` ends it without asking",
                    dump_hint(name),
                    word(name)
                ),
            ),
            Question::EndCrashed { name, .. } => {
                let message = format!("domain `{name}` is not ended; nothing is changed");
                classed(Class::Declined, message, dump_hint(name))
            }
            Question::Losses { .. } | Question::CutPower { .. } => {
                classed(Class::Declined, "declined; nothing is changed", "")
            }
        })
    }
}

/// The answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Yes, or the name.
    Yes,
    /// Any other input.
    No,
    /// There is no terminal to ask at.
    Nobody,
}

/// A question with its context.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The question.
    pub question: &'a Question,
    /// What would be done.
    pub steps: &'a [Step],
    /// The losses, one phrase each.
    pub losses: &'a [String],
}

/// The observer of an operation, which is called from several threads.
pub trait Reporter: Send + Sync {
    /// Reports progress.
    fn progress(&self, text: &str);
    /// Reports progress that only whoever asks for more details wants.
    fn detail(&self, _text: &str) {}
    /// Reports a problem that does not stop the operation.
    fn warning(&self, text: &str);
    /// Reports the bytes done of a long step, and their total.
    fn bytes(&self, _through: u64, _of: u64) {}
    /// Reports that this URI leads to another machine, so that suggested commands name it.
    fn leads_away(&self, _uri: &str) {}
    /// Shows the steps of a change that is not carried out.
    fn preview(&self, steps: &[Step]) -> io::Result<()>;
    /// Asks a question.
    fn ask(&self, asked: Asked<'_>) -> io::Result<Answer>;
}
