//! Arguments that are built when their verb is parsed: those of all verbs take longer than a plan.

use super::Cli;
use clap::error::Error;
use clap::{ArgMatches, Args, Command, CommandFactory as _, FromArgMatches, Id};
use std::cell::Cell;
use std::ops::Deref;

thread_local! {
    /// Whether arguments are built with their verbs.
    static IS_WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// The command line with the arguments of all verbs, in the order in which help shows them.
pub fn whole() -> Command {
    IS_WHOLE.set(true);
    let made = Cli::command();
    IS_WHOLE.set(false);
    made
}

/// The arguments of a verb.
#[derive(Debug, Clone)]
pub struct Late<T>(T);

impl<T> Deref for Late<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Args> Args for Late<T> {
    fn group_id() -> Option<Id> {
        T::group_id()
    }

    fn augment_args(verb: Command) -> Command {
        if IS_WHOLE.get() { T::augment_args(verb) } else { verb.defer(T::augment_args) }
    }

    fn augment_args_for_update(verb: Command) -> Command {
        T::augment_args_for_update(verb)
    }
}

impl<T: FromArgMatches> FromArgMatches for Late<T> {
    fn from_arg_matches(given: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(given).map(Late)
    }

    fn update_from_arg_matches(&mut self, given: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(given)
    }
}
