//! What a question was answered for.

use crate::apply::Step;
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// What a person has agreed to; everything where nothing was asked. Between the question and the lock a guest may have been
/// started, another may have got the name, another change may have become the last: what was not shown is not done.
#[derive(Debug, Default)]
pub struct Agreed(Option<BTreeSet<String>>);

impl Agreed {
    /// To these steps.
    pub fn to<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Agreed {
        Agreed(Some(steps.into_iter().map(meant).collect()))
    }

    /// To these lines, too.
    pub fn and(mut self, lines: &[String]) -> Agreed {
        self.0.get_or_insert_default().extend(lines.iter().cloned());
        self
    }

    /// Refuses steps and lines that were not agreed to; `again` is the command that asks anew, where the call is not known.
    pub fn covers<'s>(
        &self,
        steps: impl IntoIterator<Item = &'s Step>,
        lines: &[String],
        again: &str,
    ) -> Result<()> {
        let Some(agreed) = &self.0 else { return Ok(()) };
        let steps = steps.into_iter().map(|step| (meant(step), step.to_string()));
        let lines = lines.iter().map(|line| (line.clone(), line.clone()));
        // What ends by itself need not be asked for.
        let new =
            steps.chain(lines).find(|(meant, _)| !meant.is_empty() && !agreed.contains(meant));
        let Some((_, words)) = new else { return Ok(()) };
        Err(Error::Changed { what: words, again: again.to_owned() })
    }
}

/// What a step means, to the last detail that makes a difference to who agrees to it; empty: it makes none.
fn meant(step: &Step) -> String {
    match step {
        Step::ReleaseLease { .. } => String::new(),
        // Its text bears the time.
        Step::Remember { path, text, .. } => format!("{} {}", path.display(), text.is_some()),
        step => serde_json::to_string(step).expect("plain values"),
    }
}
