//! `host trust`: whether the guests of this machine trust each other.

use crate::cli::args::{HostTrustArgs, TrustArg};
use crate::cli::change::change_host;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::topology::Trust;
use gpuvm_ops::trust::say;
use serde::Serialize;
use std::borrow::Cow;

/// The answer as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Answer {
    /// The admin's setting; `None` if not set.
    trust: Option<Trust>,
    /// Why it is not read, so that guests are treated as strangers; `None` if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<String>,
    /// The consequence for guests that are not isolated on NVLink.
    advice: Cow<'static, str>,
}

/// Runs the verb.
pub fn run(args: &HostTrustArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let said = match args.guests {
        Some(TrustArg::OneTenant) => Some(Trust::OneTenant),
        Some(TrustArg::Strangers) => Some(Trust::Strangers),
        None if args.unset => None,
        None => return show(cx),
    };
    change_host("host trust", &args.lock, args.dry_run, || Ok(say(said)?), cx)?;
    Ok(EXIT_DONE)
}

fn show(cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let (trust, unread) = (topology.machine().trust, topology.machine().trust_unread.clone());
    let advice = topology.trust_advice();
    if cx.output.json {
        let trust = trust.filter(|_| unread.is_none());
        cx.output.json("gpuvm-host-trust", &Answer { trust, unread, advice })?;
    } else if unread.is_some() {
        cx.output.text("not read: no guest is made that shares NVLink")?;
        cx.output.warning(&advice);
    } else {
        cx.output.text(match trust {
            Some(Trust::OneTenant) => "one-tenant: guests may share NVLink",
            Some(Trust::Strangers) => "strangers: no guest is made that shares NVLink",
            None => "not set: guests share NVLink only with --accept-shared-fabric",
        })?;
    }
    Ok(EXIT_DONE)
}
