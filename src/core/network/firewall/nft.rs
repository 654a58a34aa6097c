//! Parses the output of `nft -j list ruleset` (libnftables-json(5)).

use super::{Action, Asks, Chain, Condition, Hook, Rule, Ruleset, subnet};
use serde_json::Value;

/// Parses the output. With `without_iptables` it skips the tables of `iptables`, which are then
/// read through that program, since it knows its own extensions. Errors: not such a document.
pub fn read(text: &str, without_iptables: bool) -> Result<Ruleset, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let parts = document["nftables"].as_array().ok_or("it holds no `nftables`")?;
    let mut rules = Ruleset::default();
    for part in parts {
        let (chain, rule) = (&part["chain"], &part["rule"]);
        let said = if chain.is_null() { rule } else { chain };
        let (family, table) = (word(said, "family"), word(said, "table"));
        let is_iptables =
            family == "ip" && matches!(table, "filter" | "nat" | "mangle" | "raw" | "security");
        if !matches!(family, "ip" | "inet") || (is_iptables && without_iptables) {
            continue;
        }
        let table = format!("nft {family} {table}");
        if !chain.is_null() {
            let hook = match word(chain, "hook") {
                "input" => Some(Hook::Input),
                "forward" => Some(Hook::Forward),
                _ => None,
            };
            let hook = hook.filter(|_| word(chain, "type") == "filter");
            let entry = rules.chains.entry((table, word(chain, "name").to_owned())).or_default();
            (entry.hook, entry.drops) = (hook, word(chain, "policy") == "drop");
        } else if !rule.is_null() {
            let name = word(rule, "chain").to_owned();
            let rule = self::rule(&name, rule);
            let chain: &mut Chain = rules.chains.entry((table, name)).or_default();
            chain.rules.push(rule);
        }
    }
    Ok(rules)
}

/// A text of an object; empty: it has none.
fn word<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn rule(chain: &str, rule: &Value) -> Rule {
    let (mut conditions, mut action) = (Vec::new(), Action::Next);
    for part in rule["expr"].as_array().into_iter().flatten() {
        let Some((kind, value)) = part.as_object().and_then(|part| part.iter().next()) else {
            continue;
        };
        let target = || word(value, "target").to_owned();
        match kind.as_str() {
            "accept" => action = Action::Accept,
            "drop" | "reject" => action = Action::Drop,
            "return" => action = Action::Return,
            "jump" => action = Action::Jump(target()),
            "goto" => action = Action::Goto(target()),
            "match" => {
                let (asks, turned) = (asks(value), word(value, "op") == "!=");
                conditions.push(Condition { asks, not: turned });
            }
            // A verdict map, or an iptables extension that `nft` does not translate.
            "vmap" | "xt" | "limit" | "queue" => {
                conditions.push(Condition { asks: Asks::Unknown, not: false });
            }
            _ => {}
        }
    }
    let at = rule["handle"].as_u64().map_or(String::new(), |handle| format!(" handle {handle}"));
    let does = match &action {
        Action::Accept => "accepts",
        Action::Drop => "drops",
        _ => "is asked",
    };
    Rule { conditions, action, text: format!("chain {chain}: rule{at} {does}") }
}

/// Returns the test of a match.
fn asks(value: &Value) -> Asks {
    let (left, right) = (&value["left"], &value["right"]);
    let meta = word(&left["meta"], "key");
    let (protocol, field) = (word(&left["payload"], "protocol"), word(&left["payload"], "field"));
    let texts = || each(right, |one| one.as_str().map(str::to_owned));
    let device = |make: fn(String, bool) -> Asks| match right.as_str() {
        Some(name) => match name.strip_suffix('*') {
            Some(begin) => make(begin.to_owned(), true),
            None => make(name.to_owned(), false),
        },
        None => Asks::Unknown,
    };
    let known = match (meta, protocol, field) {
        ("iifname" | "iif", _, _) => return device(Asks::From),
        ("oifname" | "oif", _, _) => return device(Asks::To),
        ("l4proto", _, _) | (_, "ip", "protocol") => texts().map(Asks::Protocol),
        (_, "ip", "saddr") => each(right, address).map(Asks::Source),
        (_, "ip", "daddr") => each(right, address).map(Asks::Target),
        (_, "tcp" | "udp" | "th", "dport") => each(right, port).map(Asks::Port),
        _ if word(&left["ct"], "key") == "state" => texts().map(Asks::State),
        _ => None,
    };
    known.unwrap_or(Asks::Unknown)
}

/// The values of a right side, one or a set of them; none if one is unknown.
fn each<T>(right: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    let set = right["set"].as_array().or(right.as_array());
    match set {
        Some(values) => values.iter().map(read).collect(),
        None => Some(vec![read(right)?]),
    }
}

/// An address or a subnet.
fn address(value: &Value) -> Option<super::Subnet> {
    let prefix = &value["prefix"];
    match prefix["addr"].as_str() {
        Some(base) => subnet(&format!("{base}/{}", prefix["len"].as_u64()?)),
        None => subnet(value.as_str()?),
    }
}

/// A port or a run of them.
fn port(value: &Value) -> Option<(u16, u16)> {
    let number = |value: &Value| u16::try_from(value.as_u64()?).ok();
    match value["range"].as_array().map(Vec::as_slice) {
        Some([first, last]) => Some((number(first)?, number(last)?)),
        _ => number(value).map(|port| (port, port)),
    }
}
