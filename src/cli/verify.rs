//! `verify`, once or again and again.

mod text;

use super::args::VerifyArgs;
use super::change::name_unfinished;
use super::context::Context;
use super::error::{self, EXIT_DONE, EXIT_FAILED, EXIT_FOUND, usage};
use super::metrics::{check, warn_of_name};
use gpuvm_ops::gone;
use gpuvm_ops::verify::watch::{Changed, Rounds};
use gpuvm_ops::verify::{Verified, Verify, called, metrics, verify};
use std::time::{Duration, Instant};
use text::{finding_text, summary, text};

/// Runs the verb.
pub fn run(args: &VerifyArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if cx.global.host.is_some() {
        return Err(usage(
            "`verify` compares with what runs, so it does not take --host",
            "`gpuvm check FILE --host HOST` judges a domain on a recorded host",
        ));
    }
    check(args.metrics.as_deref(), true)?;
    if let Some(path) = &args.metrics {
        warn_of_name(path, cx);
    }
    if let Some(seconds) = args.watch {
        return watch(args, cx, Duration::from_secs(seconds));
    }
    let all = round(args, cx)?;
    if args.all {
        name_unfinished(cx.output);
        for left in gone::left_or_warn(cx) {
            cx.output.warning(&format!("{}; `gpuvm recover --gone` gives it back", left.text()));
        }
    }
    match (cx.output.json, all.as_slice()) {
        (true, [one]) if args.names.len() == 1 => cx.output.json("gpuvm-verify", one)?,
        (true, all) => cx.output.json_rows("gpuvm-verify-all", &all)?,
        (false, []) => cx.output.progress("no domain is defined"),
        (false, all) => cx.output.text(&all.iter().map(text).collect::<String>())?,
    }
    if !all.iter().all(Verified::is_compared) {
        return Ok(EXIT_FAILED);
    }
    let clean = all.iter().all(|one| one.findings.is_empty());
    Ok(if clean { EXIT_DONE } else { EXIT_FOUND })
}

/// Compares once, and writes the numbers.
fn round(args: &VerifyArgs, cx: &Context<'_>) -> anyhow::Result<Vec<Verified>> {
    let begun = Instant::now();
    let agent_wait = Duration::from_secs(args.agent_wait);
    let sample = Duration::from_secs(args.sample);
    let found = verify(cx, &Verify { names: args.names.clone(), agent_wait, sample })?;
    if let Some(path) = &args.metrics {
        metrics::write(path, &found, begun.elapsed())?;
    }
    Ok(found.all)
}

/// Compares until interrupted. A failing round is reported but does not end it: libvirt may be
/// starting.
fn watch(args: &VerifyArgs, cx: &Context<'_>, every: Duration) -> anyhow::Result<u8> {
    let (mut rounds, mut failure) = (Rounds::default(), String::new());
    loop {
        let begun = Instant::now();
        // A new connection each round, since a broken one stays broken.
        match round(args, &Context::new(cx.global)) {
            Ok(now) => {
                failure.clear();
                let first = rounds.is_first();
                for changed in rounds.next(now) {
                    report(&changed, cx)?;
                }
                if first {
                    cx.output.progress(&summary(rounds.known()));
                }
            }
            // The first round must succeed: the domains may not exist at all.
            Err(error) if rounds.is_first() => return Err(error),
            Err(error) => {
                let text = error::report(&error);
                if text != failure {
                    cx.output.progress(text.trim_end());
                    failure = text;
                }
            }
        }
        std::thread::sleep(every.saturating_sub(begun.elapsed()));
    }
}

/// Prints one change; as JSON in one line, for programs that read lines.
fn report(changed: &Changed, cx: &Context<'_>) -> anyhow::Result<()> {
    if cx.output.json {
        return Ok(cx.output.json_line("gpuvm-verify-change", changed)?);
    }
    let Changed { domain, appeared, gone } = changed;
    let domain = called(domain);
    let appeared = appeared.iter().map(|finding| format!("{domain}: {}", finding_text(finding)));
    let gone = gone
        .iter()
        .map(|finding| format!("{domain}: gone: {} ({})\n", finding.says.message, finding.rule));
    Ok(cx.output.text(&appeared.chain(gone).collect::<String>())?)
}
