//! Quoting of words in displayed commands, so that they can be pasted.

use std::borrow::Cow;

/// Returns a word for a shell, quoted if necessary.
pub fn word(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./@%+=:,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
    }
}

/// How virsh interprets the name of a domain, before it looks for a name (`VIRSH_BYID` and
/// `VIRSH_BYUUID` of its lookup); `None` if only as a name.
pub fn taken_for(name: &str) -> Option<&'static str> {
    let digits = name.strip_prefix('+').unwrap_or(name);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some("the id of a running domain");
    }
    let hex: String = name.chars().filter(|c| *c != '-').collect();
    let is_uuid = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_uuid.then_some("a UUID")
}

/// Returns the word by which virsh finds the domain of this name: the name, or where virsh takes
/// that for an id or a UUID, a command that prints the domain's UUID.
pub fn domain(name: &str) -> Cow<'_, str> {
    if taken_for(name).is_none() {
        return word(name);
    }
    Cow::Owned(format!(
        "\"$(virsh list --all --uuid --name | awk '$2 == \"{name}\" {{ print $1 }}')\""
    ))
}

#[cfg(test)]
mod tests {
    use super::{domain, taken_for, word};

    #[test]
    fn a_name_that_virsh_takes_for_an_id_is_named_by_its_uuid() {
        for id in ["1", "007", "+4", "20261127"] {
            assert_eq!(taken_for(id), Some("the id of a running domain"), "{id}");
        }
        for uuid in ["40955dd6-1111-4222-8333-444444444444", "40955DD6111142228333444444444444"] {
            assert_eq!(taken_for(uuid), Some("a UUID"), "{uuid}");
        }
        for name in ["a1", "1a", "1.2", "1-2", "", "+", "cafe", "40955dd6-1111-4222-8333-44444444"]
        {
            assert_eq!(taken_for(name), None, "{name}");
            assert_eq!(domain(name), word(name));
        }
        let of = "virsh list --all --uuid --name | awk '$2 == \"1\" { print $1 }'";
        assert_eq!(domain("1"), format!("\"$({of})\""));
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(word("/raid/a-1.raw"), "/raid/a-1.raw");
        assert_eq!(word("a b"), "'a b'");
        assert_eq!(word("it's $x"), r"'it'\''s $x'");
        assert_eq!(word(""), "''");
    }
}
