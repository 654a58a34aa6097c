//! What the caller of an operation gives it: somebody who is told and asked. The operations print nothing.

use crate::apply::Step;
use std::io;

/// A question before a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Whether something of a kind (`domain`) is to be deleted, answered by its name.
    Delete {
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
    /// Whether to cut the power of a guest that does not shut down, answered by yes. Nobody to ask is a no.
    CutPower {
        /// Why.
        why: String,
    },
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
