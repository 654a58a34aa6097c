//! `host trust`: whether the guests of this machine trust each other.

use crate::cli::args::{HostTrustArgs, TrustArg};
use crate::cli::change::change_host;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::topology::Trust;
use gpuvm_ops::trust::say;
use serde::Serialize;

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer {
    /// The admin's setting; none: not set.
    trust: Option<Trust>,
    /// What that means for guests that are not isolated on NVLink.
    advice: &'static str,
}

/// Runs the verb.
pub fn run(args: &HostTrustArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let said = match args.guests {
        Some(TrustArg::OneTenant) => Some(Trust::OneTenant),
        Some(TrustArg::Strangers) => Some(Trust::Strangers),
        None if args.unset => None,
        None => return show(cx),
    };
    change_host("host trust", (&args.lock, args.dry_run), || Ok(say(said)?), cx)?;
    Ok(EXIT_DONE)
}

/// Shows the current declaration.
fn show(cx: &Context<'_>) -> anyhow::Result<u8> {
    let trust = cx.topology()?.machine().trust;
    let advice = Trust::advice(trust);
    if cx.output.json {
        cx.output.json("gpuvm-host-trust", &Answer { trust, advice })?;
    } else {
        cx.output.text(match trust {
            Some(Trust::OneTenant) => "one-tenant: guests may share NVLink",
            Some(Trust::Strangers) => "strangers: no guest is made that shares NVLink",
            None => "not set: guests share NVLink only by --accept-shared-fabric",
        })?;
    }
    Ok(EXIT_DONE)
}
