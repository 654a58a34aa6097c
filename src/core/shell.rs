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

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(word("/raid/a-1.raw"), "/raid/a-1.raw");
        assert_eq!(word("a b"), "'a b'");
        assert_eq!(word("it's $x"), r"'it'\''s $x'");
        assert_eq!(word(""), "''");
    }
}
