//! What the caller of an operation gives it: somebody who is told and asked. The operations print nothing.

use crate::apply::Step;
use crate::error::{Class, Result, classed, usage};
use crate::shell::word;
use std::io;

/// A question before a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Whether something is to be done to a thing of a kind (`domain`), answered by its name.
    Name {
        /// What.
        deed: Deed,
        /// The kind.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Whether the change may be made, answered by yes.
    Agree {
        /// What is done, a line each; none: the steps say it.
        lines: Option<Vec<String>>,
        /// The question.
        question: &'static str,
        /// What is said where nobody can be asked, or says no: `taking devices from the host`.
        what: String,
    },
    /// Whether a guest may have drives that data lies on, answered by yes.
    Losses {
        /// The guest.
        name: String,
    },
    /// Whether a guest that runs may be ended, answered by its name.
    End {
        /// Why it would be: `create a` (process 7) would be undone.
        why: String,
        /// The guest.
        name: String,
    },
    /// Whether to cut the power of a guest that does not shut down, answered by yes. Nobody to ask is a no.
    CutPower {
        /// Why.
        why: String,
    },
}

/// What is done to a thing whose name is to be typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// It goes.
    Delete,
    /// It is taken from the host.
    Release,
    /// It is given back to the host.
    Restore,
    /// What is on it goes.
    Erase,
}

impl Deed {
    /// It in words: `delete`, `deleting`, `deleted`.
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
    /// Refuses to go on after any answer but yes; `losses`: what the change would lose.
    pub fn settle(&self, answer: Answer, losses: &[String]) -> Result<()> {
        let nobody = answer == Answer::Nobody;
        let no_one = "is not confirmed, and there is no terminal to ask at";
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
                        "{why}, and domain `{name}` runs: that it may be ended is not \
                         confirmed, and there is no terminal to ask at"
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
            Question::Losses { .. } | Question::CutPower { .. } => {
                classed(Class::Declined, "declined; nothing is changed", "")
            }
        })
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Yes, or the name.
    Yes,
    /// Anything else.
    No,
    /// There is nobody to ask.
    Nobody,
}

/// What a question is about.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The question.
    pub question: &'a Question,
    /// What would be done.
    pub steps: &'a [Step],
    /// What would be lost, a phrase each.
    pub losses: &'a [String],
}

/// Whoever sees an operation from outside; told from several threads.
pub trait Reporter: Send + Sync {
    /// Something goes on.
    fn progress(&self, text: &str);
    /// Something is not as it should be, and the operation goes on.
    fn warning(&self, text: &str);
    /// So many bytes of a long step are through, of so many.
    fn bytes(&self, _through: u64, _of: u64) {}
    /// The connection of this URI is of another machine: commands that are offered lead there.
    fn leads_away(&self, _uri: &str) {}
    /// The steps of a change that is only looked at.
    fn preview(&self, steps: &[Step]) -> io::Result<()>;
    /// Asks.
    fn ask(&self, asked: Asked<'_>) -> io::Result<Answer>;
}
