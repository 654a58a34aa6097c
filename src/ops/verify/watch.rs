//! Repeated comparison: new findings and resolved ones.

use super::Verified;
use gpuvm_core::verify::Finding;
use serde::Serialize;

/// Changes of one domain since the last comparison.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Changed {
    /// Name of the domain.
    pub domain: String,
    /// New differences.
    pub appeared: Vec<Finding>,
    /// Differences that are gone.
    pub gone: Vec<Finding>,
}

/// The rounds of a repeated comparison.
#[derive(Debug, Default)]
pub struct Rounds {
    /// The latest findings, including earlier ones of domains that can no longer be compared.
    last: Option<Vec<Verified>>,
}

impl Rounds {
    /// Whether no round was made yet.
    pub fn is_first(&self) -> bool {
        self.last.is_none()
    }

    /// Takes the new findings. Returns the changes since the last round, by domain.
    pub fn next(&mut self, mut now: Vec<Verified>) -> Vec<Changed> {
        let before = self.last.take().unwrap_or_default();
        keep(&before, &mut now);
        let changed = changes(&before, &now);
        self.last = Some(now);
        changed
    }

    /// The latest findings of each domain.
    pub fn known(&self) -> &[Verified] {
        self.last.as_deref().unwrap_or_default()
    }
}

/// Keeps the findings of domains that could not be compared this time: they are not resolved.
fn keep(before: &[Verified], now: &mut [Verified]) {
    for answer in now.iter_mut().filter(|answer| !answer.is_compared()) {
        let old = before.iter().filter(|old| old.domain == answer.domain);
        let found = old.flat_map(|old| &old.findings).filter(|finding| !finding.is_not_compared());
        answer.findings.extend(found.cloned());
    }
}

/// The changes between two rounds, by domain; a deleted domain has none.
fn changes(before: &[Verified], now: &[Verified]) -> Vec<Changed> {
    let less = |these: &[Finding], those: &[Finding]| -> Vec<Finding> {
        let is_new = |this: &&Finding| !those.iter().any(|that| that.is_same(this));
        these.iter().filter(is_new).cloned().collect()
    };
    let ended = before.iter().filter(|old| !now.iter().any(|new| new.domain == old.domain));
    let all = now.iter().chain(ended).map(|answer| {
        let domain = answer.domain.clone();
        let (old, new) = (findings_of(before, &domain), findings_of(now, &domain));
        Changed { domain, appeared: less(new, old), gone: less(old, new) }
    });
    all.filter(|change| !change.appeared.is_empty() || !change.gone.is_empty()).collect()
}

/// The findings of a domain; none if it does not exist.
fn findings_of<'a>(all: &'a [Verified], domain: &str) -> &'a [Finding] {
    all.iter().find(|one| one.domain == domain).map_or(&[][..], |one| &one.findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::finding::Severity;
    use gpuvm_core::verify::{Between, Differs, not_compared};

    /// A domain with findings of these messages.
    fn answer(domain: &str, messages: &[&str]) -> Verified {
        let finding = |message: &&str| Finding {
            rule: "vcpu-affinity",
            severity: Severity::Error,
            says: Differs {
                between: Between::Reality,
                message: (*message).into(),
                expected: None,
                found: None,
                at: "somewhere".into(),
            },
            hint: String::new(),
        };
        let findings = messages.iter().map(finding).collect();
        Verified { domain: domain.into(), running: true, findings, rules: 1, not_checked: vec![] }
    }

    #[test]
    fn only_what_appears_and_what_is_gone_is_a_change() {
        let before = [answer("a", &["x", "y"]), answer("b", &["x"]), answer("c", &["z"])];
        let now = [answer("a", &["y", "w"]), answer("b", &["x"]), answer("d", &["v"])];
        let text = |findings: &[Finding]| -> Vec<String> {
            findings.iter().map(|finding| finding.says.message.clone()).collect()
        };
        let changes: Vec<_> = changes(&before, &now)
            .iter()
            .map(|change| (change.domain.clone(), text(&change.appeared), text(&change.gone)))
            .collect();
        let change = |domain: &str, appeared: &[&str], gone: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            (domain.to_owned(), owned(appeared), owned(gone))
        };
        let wanted =
            [change("a", &["w"], &["x"]), change("d", &["v"], &[]), change("c", &[], &["z"])];
        assert_eq!(changes, wanted);
    }

    #[test]
    fn findings_of_an_unreadable_domain_remain() {
        let before = [answer("a", &["x"])];
        let mut now = [answer("a", &[])];
        now[0].findings = vec![not_compared("a", "why".into())];
        keep(&before, &mut now);
        let first = changes(&before, &now);
        assert_eq!((first[0].appeared.len(), first[0].gone.len()), (1, 0));
        assert_eq!(first[0].appeared[0].says.message, "why");
        let after = [answer("a", &["x"])];
        let then = changes(&now, &after);
        assert_eq!((then[0].appeared.len(), then[0].gone.len()), (0, 1));
    }
}
