//! The host's packet filter, from the programs that show it: `nft`, `iptables-save`.

use crate::command;
use crate::fsroot::FsRoot;
use crate::network::firewall::{Ruleset, read_iptables, read_nft};

/// How long a program may take: hosts of many containers have some ten thousand rules.
const SECONDS: u64 = 20;

/// Reads the packet filter. The error says why neither program shows it.
pub fn read(root: &FsRoot) -> Result<Ruleset, String> {
    let run = |argv: &[&str]| command::output(argv, SECONDS).map_err(|error| error.to_string());
    let saved = run(&["iptables-save", "-t", "filter"]);
    let native = run(&["nft", "-j", "list", "ruleset"]);
    let mut rules = Ruleset::default();
    let mut is_told = false;
    // Tables of nftables that are not iptables' are shown only by `nft`, and `iptables-save` notes
    // that.
    let is_nft = saved.as_ref().is_ok_and(|text| text.contains("(nf_tables)"))
        && !saved.as_ref().is_ok_and(|text| text.contains("is incompatible"));
    if let Ok(text) = &saved {
        rules.extend(read_iptables(text, "iptables filter"));
        is_told = true;
    }
    if let Ok(text) = &native {
        rules.extend(
            read_nft(text, is_nft).map_err(|error| format!("`nft -j list ruleset`: {error}"))?,
        );
        is_told = true;
    }
    // iptables-legacy has its own tables in addition.
    let has_legacy = root.read("proc/net/ip_tables_names").ok().flatten();
    if has_legacy.is_some_and(|names| names.lines().any(|name| name == "filter"))
        && let Ok(text) = run(&["iptables-legacy-save", "-t", "filter"])
    {
        rules.extend(read_iptables(&text, "iptables-legacy filter"));
    }
    match (is_told, saved, native) {
        (true, _, _) => Ok(rules),
        (false, Err(saved), Err(native)) => Err(format!("{native}; {saved}")),
        (false, _, _) => Err("no program tells its rules".into()),
    }
}
