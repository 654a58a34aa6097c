//! The consent given in an answer.

use crate::apply::{DomainStep, FileStep, Step};
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// The steps and losses that a person has agreed to; everything if nothing was asked. Between the
/// question and the lock a guest may have started, another may have got the name, or another change
/// may have become the last: steps that were not shown are not done.
#[derive(Debug, Default)]
pub struct Agreed(Option<BTreeSet<String>>);

impl Agreed {
    /// Consent to these steps.
    pub fn to<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Agreed {
        Agreed(Some(steps.into_iter().map(meant).collect()))
    }

    /// Extends the consent to these lines.
    pub fn and(mut self, lines: &[String]) -> Agreed {
        self.0.get_or_insert_default().extend(lines.iter().cloned());
        self
    }

    /// Refuses steps and lines that were not agreed to; `again` is the command that asks again, if
    /// the call is not known.
    pub fn covers<'s>(
        &self,
        steps: impl IntoIterator<Item = &'s Step>,
        lines: &[String],
        again: &str,
    ) -> Result<()> {
        let Some(agreed) = &self.0 else { return Ok(()) };
        let steps = steps.into_iter().map(|step| (meant(step), step.to_string()));
        let lines = lines.iter().map(|line| (line.clone(), line.clone()));
        // A DHCP lease expires by itself, so its release needs no consent.
        let new =
            steps.chain(lines).find(|(meant, _)| !meant.is_empty() && !agreed.contains(meant));
        let Some((_, words)) = new else { return Ok(()) };
        Err(Error::Changed { what: words, again: again.to_owned() })
    }
}

/// The meaning of a step, with every detail that matters for consent; empty: it does not matter.
fn meant(step: &Step) -> String {
    match step {
        Step::Domain(DomainStep::ReleaseLease { .. }) => String::new(),
        // Its text contains the time.
        Step::File(FileStep::Remember { path, text, .. }) => {
            format!("{} {}", path.display(), text.is_some())
        }
        step => serde_json::to_string(step).expect("plain values"),
    }
}
