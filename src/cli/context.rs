//! The context of a verb: its world, and how its answer is printed.

use super::args::Global;
use super::output::Output;
use super::terminal::Screen;
use crate::placement::Occupancy;
use gpuvm_ops::taken::{Taken, taken};
use gpuvm_ops::world::{Settings, World};
use std::ops::Deref;
use std::sync::Arc;

/// The context of a verb.
pub struct Context<'a> {
    /// Global options.
    pub global: &'a Global,
    /// How to print.
    pub output: Output,
    world: World,
}

impl Deref for Context<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl<'a> Context<'a> {
    /// Makes the context of a run.
    pub fn new(global: &'a Global) -> Context<'a> {
        let output = Output { json: global.json, quiet: global.quiet };
        let settings = Settings {
            connect: global.connect.clone(),
            connect_is_given: global.connect_is_given,
            host: global.host.clone(),
            state: None,
        };
        let world = World::new(settings, Arc::new(Screen::new(output)));
        Context { global, output, world }
    }

    /// Returns the resources of the domains selected by these arguments.
    pub fn taken<'t, T>(&self, args: &'t T) -> gpuvm_ops::error::Result<Occupancy>
    where
        Taken: From<&'t T>,
    {
        taken(&self.world, &args.into())
    }
}
