//! `host p2p`: the ways between functions below a PCIe switch, and restoring the ports of guests.

use crate::cli::args::{P2pAction, P2pArgs};
use crate::cli::change::{change_host, manner, program};
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::table::Table;
use crate::words::count;
use gpuvm_core::p2p::{Block, Op, Way};
use gpuvm_core::topology::pairs::{Pair, Pairs};
use gpuvm_ops::p2p::pairs;
use gpuvm_ops::p2p::restore::{at_boot, restore};
use gpuvm_ops::session::{Manner, Session};
use gpuvm_ops::taken::Taken;

/// Runs the verb.
pub fn run(args: &P2pArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    if args.action == Some(P2pAction::Restore) {
        return restores(args, cx);
    }
    let found = pairs(cx, args.guest.as_deref(), &Taken::from(&args.taken))?;
    if cx.output.json {
        cx.output.json("gpuvm-host-p2p", &found)?;
        return Ok(EXIT_DONE);
    }
    if !found.pairs.is_empty() {
        cx.output.table(&table(&found.pairs))?;
    }
    cx.output.text(&summary(&found))?;
    Ok(EXIT_DONE)
}

/// Runs `host p2p restore`.
fn restores(args: &P2pArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let verb = "host p2p restore";
    cx.refuse_recorded(verb)?;
    cx.refuse_elsewhere(verb)?;
    let mut made = Vec::new();
    if args.at_boot {
        let program = program()?;
        let program = (!args.remove).then_some(program.as_str());
        let plan = || Ok(at_boot(program)?);
        made = change_host(verb, &args.lock, args.dry_run, plan, cx)?;
    }
    if !args.remove {
        let manner = Manner { dry_run: args.dry_run, ..manner(&args.lock) };
        let done = Session::begin(cx, manner)?.run(restore)?;
        let found = &done.change.about;
        if let Some(argument) = found.argument.as_ref().filter(|_| args.at_boot) {
            cx.output.progress(&format!(
                "the kernel sets these ports at boot by its argument `{argument}`"
            ));
        }
        if !done.made && !args.dry_run {
            cx.output.progress("no port to restore");
        }
        found.refuse_left()?;
        if done.made {
            made.extend(done.change.steps());
        }
    }
    if cx.output.json && !args.dry_run {
        cx.output.json_rows("gpuvm-steps", &made)?;
    }
    Ok(EXIT_DONE)
}

fn table(pairs: &[Pair]) -> Table {
    let mut table = Table::new(["PAIR", "MEETS AT", "WRITES", "READS", "GB/S", "BLOCKED BY"]);
    for pair in pairs {
        table.push([
            format!("{} - {}", pair.a_name, pair.b_name),
            pair.meets.to_string(),
            way(pair.way(Op::Write)).to_owned(),
            way(pair.way(Op::Read)).to_owned(),
            rate(pair),
            blocked(pair),
        ]);
    }
    table
}

/// The name of a route.
fn way(way: Way) -> &'static str {
    match way {
        Way::Switch => "switch",
        Way::Root => "root",
        Way::Rejected => "rejected",
        Way::Unknown => "unknown",
    }
}

/// The rate of the links, and the expected rate; none if a transfer of the pair is rejected.
fn rate(pair: &Pair) -> String {
    let is_rejected = pair.routes.iter().any(|route| route.way == Way::Rejected);
    match (pair.gb_s, pair.expected_gb_s) {
        (None, _) => "-".to_owned(),
        _ if is_rejected => "-".to_owned(),
        (Some(full), Some(half)) if half < full => {
            format!("{}, about {}", number(full), number(half))
        }
        (Some(full), _) => number(full),
    }
}

/// A rate in GB/s with at most two decimals: a single slow lane has 0.19.
fn number(rate: f64) -> String {
    let text = format!("{rate:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn blocked(pair: &Pair) -> String {
    let all: Vec<String> = pair.blocked().iter().map(Block::to_string).collect();
    if all.is_empty() { "-".to_owned() } else { all.join("; ") }
}

fn summary(found: &Pairs) -> String {
    let below = count(found.pairs.len(), "pair");
    let elsewhere = found.elsewhere;
    let mut text =
        format!("{below} below a switch; {elsewhere} meet at a root complex or across sockets\n");
    if found.ports.iter().any(|port| port.ctl.is_none()) {
        text += "registers of ports are readable by root only; a record by `sudo gpuvm host \
                 capture FILE` has them\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Pairs, Way, number, rate};
    use gpuvm_core::p2p::{Acs, Ats, Op, bits};
    use gpuvm_core::topology::file::from_json;
    use gpuvm_core::topology::{DeviceKind, Topology};

    #[test]
    fn a_rejected_pair_has_no_rate() {
        let text = include_str!("../../../topologies/dgx-2.json");
        let rate_with = |ctl: u16| {
            let mut parts = from_json(text).unwrap().parts().clone();
            for device in &mut parts.devices {
                let is_port = device.kind() == DeviceKind::Bridge;
                let (cap, ctl) = if is_port { (bits::ISOLATING | bits::TB, ctl) } else { (0, 0) };
                device.acs = Some(Acs { cap, ctl });
                device.ats = Some(Ats { present: !is_port, enabled: !is_port });
            }
            let found = Pairs::of(&Topology::new(parts).unwrap(), None);
            let pair = &found.pairs[0];
            (pair.way(Op::Write), rate(pair))
        };
        assert_eq!(rate_with(bits::ISOLATING), (Way::Root, "12, about 6".to_owned()));
        assert_eq!(rate_with(bits::ISOLATING | bits::TB), (Way::Rejected, "-".to_owned()));
    }

    #[test]
    fn a_slow_rate_is_not_rounded_to_nothing() {
        let rates = [24.0, 6.0, 1.5, 0.1875, 0.09375, 100.0];
        assert_eq!(rates.map(number), ["24", "6", "1.5", "0.19", "0.09", "100"]);
    }
}
