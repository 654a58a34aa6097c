//! Names of users.

/// Whether a user may have this name, by the rules of useradd(8).
pub fn is_user_name(name: &str) -> bool {
    let good = |at: usize, c: char| {
        c.is_ascii_lowercase() || c == '_' || (at > 0 && (c.is_ascii_digit() || c == '-'))
    };
    (1..=32).contains(&name.len()) && name.chars().enumerate().all(|(at, c)| good(at, c))
}
