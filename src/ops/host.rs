//! Changes of the host itself, which `host undo` reverts: each is kept in a history, as those of a
//! domain are.

use crate::apply::text::TextStep;
use crate::apply::{HostStep, Step};
use crate::change::{Change, Part};
use crate::discover::tuning::value;
use crate::domain_history::{boot, when};
use crate::error::{Class, Coded, Result, classed};
use crate::files::configuration;
use crate::fsroot::FsRoot;
use crate::history::Entry;
use crate::reporter::Question;
use crate::world::World;

/// The reason a change of the host is not undone.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "host-undo-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum HostUndoError {
    /// A file was edited since the change to be undone.
    #[error("{path} was edited since {change}, and what that made no longer exists: {what}")]
    Edited { path: String, change: String, what: String },
}

impl Coded for HostUndoError {}

/// A change in words.
pub fn named(entry: &Entry) -> String {
    format!("change {} of the host ({}, {})", entry.number, entry.verb, when(entry.at_s))
}

/// Plans to revert the last change of the host, or with `discard` only to forget it.
pub fn undo(world: &World, discard: bool) -> Result<Change<Entry>> {
    let history = world.host_history()?;
    let Some(entry) = history.entries.last() else {
        let hint = "`gpuvm host files` and `gpuvm host tuning` show how it is";
        return Err(classed(Class::NotFound, "the host has no change to undo", hint));
    };
    let root = FsRoot::live()?;
    let mut steps = Vec::new();
    for step in entry.undo("", false, &boot()?, false) {
        match step {
            _ if discard => {}
            Step::Host(HostStep::EditText(edit)) => steps.push(text_back(edit, entry)?),
            Step::Host(HostStep::Set(mut setting)) => {
                // A value that others have set since stays.
                setting
                    .was
                    .retain(|path, was| value(&root, path).ok().flatten().as_ref() == Some(was));
                setting.to.retain(|path, _| setting.was.contains_key(path));
                if !setting.to.is_empty() {
                    steps.push(setting.into());
                }
            }
            step => steps.push(step),
        }
    }
    steps.push(history.forget(entry));
    let what = format!("undoing {}", named(entry));
    let question = Some(Question::Agree { lines: None, question: "undo it?", what });
    let change = Change::new("host undo", "", steps, entry.clone());
    Ok(Change { question, again: "gpuvm host undo".into(), ..change })
}

/// The change that applies settings of the host, kept for [`undo`].
pub fn setting(verb: &'static str, steps: Vec<Step>) -> Change {
    Change { parts: vec![Part::Host(steps)], ..Change::new(verb, "", Vec::new(), ()) }
}

/// The step that reverts the change of a text within the current text.
fn text_back(edit: TextStep, entry: &Entry) -> Result<Step> {
    let now = configuration(&edit.path)?.unwrap_or_default();
    let Some(back) = edit.back(&now) else {
        let path = edit.path.display();
        let hint = "`gpuvm host undo --discard` forgets the change and leaves the file as it is";
        return Err(HostUndoError::Edited {
            path: path.to_string(),
            change: named(entry).to_string(),
            what: edit.what.to_string(),
        }
        .hint(hint));
    };
    let what = format!("take back: {}", edit.what);
    Ok(TextStep { before: now, after: back, what, path: edit.path }.into())
}
