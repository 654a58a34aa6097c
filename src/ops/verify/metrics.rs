//! Numbers for Prometheus, in its text format, as the node exporter's textfile collector takes them: a file that is
//! replaced by a rename, so that it is never read half written.

use super::Verified;
use gpuvm_core::verify::rules;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Writes the file.
pub fn write(path: &Path, answers: &[Verified], took: Duration) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(dir.unwrap_or(Path::new(".")))?;
    file.write_all(text(answers, now, took).as_bytes())?;
    // The exporter runs as a user of its own.
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.persist(path).map_err(|error| error.error)?;
    crate::trace::wrote(path);
    Ok(())
}

/// The numbers of one run that ended at `now`, since 1970.
fn text(answers: &[Verified], now: Duration, took: Duration) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, samples: Vec<(String, String)>| {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge").expect("text");
        for (labels, value) in samples {
            writeln!(text, "{name}{labels} {value}").expect("text");
        }
    };
    let mut findings = Vec::new();
    for answer in answers {
        let domain = label(&answer.domain);
        for rule in rules() {
            let count = answer.findings.iter().filter(|found| found.rule == rule.id).count();
            // Of a domain that could not be compared nothing else is known.
            if count == 0 && !answer.is_compared() {
                continue;
            }
            let labels = format!("{{domain=\"{domain}\",rule=\"{}\"}}", rule.id);
            findings.push((labels, count.to_string()));
        }
    }
    gauge("gpuvm_verify_findings", "Differences that gpuvm verify found.", findings);
    let running = answers.iter().map(|answer| {
        let labels = format!("{{domain=\"{}\"}}", label(&answer.domain));
        (labels, u8::from(answer.running).to_string())
    });
    gauge("gpuvm_verify_domain_running", "Whether the domain runs.", running.collect());
    let seconds = |time: Duration| vec![(String::new(), format!("{:.3}", time.as_secs_f64()))];
    gauge("gpuvm_verify_duration_seconds", "How long the comparison took.", seconds(took));
    gauge(
        "gpuvm_verify_last_success_timestamp_seconds",
        "When the domains were last compared.",
        seconds(now),
    );
    text
}

/// A value of a label, as the format wants it.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::finding::Severity;
    use gpuvm_core::verify::{Between, Differs, Finding, not_compared};

    #[test]
    fn every_rule_of_every_domain_has_a_number_and_labels_are_escaped() {
        let finding = Finding {
            rule: "vcpu-affinity",
            severity: Severity::Error,
            says: Differs {
                between: Between::Reality,
                message: "m".into(),
                expected: None,
                found: None,
                at: "a".into(),
            },
            hint: "h".into(),
        };
        let answer = |domain: &str, findings| Verified {
            domain: domain.into(),
            running: true,
            findings,
            rules: 1,
            not_checked: vec![],
        };
        let answers = [
            answer("a\"\\b", vec![finding.clone(), finding]),
            answer("c", vec![]),
            answer("d", vec![not_compared("d", "why".into())]),
        ];
        let text = text(&answers, Duration::from_millis(1_500), Duration::from_millis(20));
        let lines: Vec<&str> = text.lines().collect();
        for line in [
            "# TYPE gpuvm_verify_findings gauge",
            "gpuvm_verify_findings{domain=\"a\\\"\\\\b\",rule=\"vcpu-affinity\"} 2",
            "gpuvm_verify_findings{domain=\"c\",rule=\"vcpu-affinity\"} 0",
            "gpuvm_verify_findings{domain=\"c\",rule=\"pcpu-held\"} 0",
            "gpuvm_verify_findings{domain=\"d\",rule=\"not-compared\"} 1",
            "gpuvm_verify_domain_running{domain=\"c\"} 1",
            "gpuvm_verify_duration_seconds 0.020",
            "gpuvm_verify_last_success_timestamp_seconds 1.500",
        ] {
            assert!(lines.contains(&line), "{line}\n{text}");
        }
        let samples = lines.iter().filter(|l| l.starts_with("gpuvm_verify_findings{")).count();
        assert_eq!(samples, 2 * rules().count() + 1);
        let names: std::collections::BTreeSet<&str> = rules().map(|rule| rule.id).collect();
        assert_eq!(names.len(), rules().count(), "two rules of one name");
    }

    #[test]
    fn the_file_is_replaced_whole_and_all_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpuvm.prom");
        std::fs::write(&path, "old").unwrap();
        write(&path, &[], Duration::ZERO).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# HELP"));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something is left");
        assert!(write(&dir.path().join("no/x.prom"), &[], Duration::ZERO).is_err());
    }
}
