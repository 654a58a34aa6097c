//! `network delete`.

use super::create::would;
use crate::cli::args::NetworkDeleteArgs;
use crate::cli::change::{asking, print_steps};
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::shell::word;
use gpuvm_ops::networks::delete::{Left, delete, take_away};
use gpuvm_ops::session::Session;

/// Runs the verb.
pub fn run(args: &NetworkDeleteArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("network delete")?;
    let name = args.name.as_str();
    let mut session = Session::begin(cx, asking(&args.lock, (args.yes, false)))?;
    if args.dry_run {
        let change = session.look(|world| delete(world, name))?;
        would(&change.losses, cx);
        print_steps(&change.steps(), cx)?;
        return Ok(EXIT_DONE);
    }
    let Left { is_kept, card } = take_away(&mut session, name)?;
    let again = if is_kept {
        format!("; `gpuvm network undo {name}` makes it again", name = word(name))
    } else {
        String::new()
    };
    cx.output.progress(&format!("network `{name}` is deleted{again}"));
    if let Some(card) = card {
        let hint = format!("`gpuvm nic vfs {card} --count 0 --at-boot` removes them");
        cx.output.progress(&format!("the virtual functions of {card} stay: {hint}"));
    }
    Ok(EXIT_DONE)
}
