//! Numbers in sentences and names. The only place that forms plurals.

/// A number with its noun in the singular: `1 GPU`, `3 GPUs`, `no GPU` is left to the caller.
pub fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", nouns(number, noun))
}

/// A noun as written after this number: `GPU` after 1, `GPUs` after all others.
pub fn nouns(number: impl TryInto<u64>, noun: &str) -> String {
    // In a phrase the first word takes the plural: `page of 2 MiB`.
    let groups: &[&str] = if noun.contains(' ') { &[" of ", " to ", " off "] } else { &[] };
    let end = groups.iter().filter_map(|word| noun.find(word)).min();
    let (first, rest) = noun.split_at(end.unwrap_or(noun.len()));
    let ending = match number.try_into().unwrap_or(u64::MAX) {
        1 => "",
        _ if ["ch", "sh", "s", "x"].iter().any(|end| first.ends_with(end)) => "es",
        _ => "s",
    };
    format!("{first}{ending}{rest}")
}

/// The verb after this number: `is`, `are`.
pub fn are(number: impl TryInto<u64>) -> &'static str {
    if number.try_into().is_ok_and(|number: u64| number == 1) { "is" } else { "are" }
}

/// Returns the name most similar to a mistyped one; `None` if none is similar.
pub fn similar<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // Two of some six letters may be wrong; transposed ones count once.
    let most = 1 + name.chars().count() / 6;
    let near = names.into_iter().map(|one| (strsim::osa_distance(name, one), one));
    let near = near.filter(|(distance, _)| *distance <= most);
    near.min_by_key(|(distance, _)| *distance).map(|(_, one)| one)
}

/// Compares names in natural order: `mlx5_9` before `mlx5_10`.
pub fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let key = |text: &str| {
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = text[stem.len()..].parse::<u64>().unwrap_or(0);
        (stem.to_owned(), number)
    };
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_the_most_similar_one() {
        let there = ["train-a", "train-b", "web"];
        let like = |name: &str| similar(name, there);
        assert_eq!(like("trian-b"), Some("train-b"));
        assert_eq!(like("train-bb"), Some("train-b"));
        assert_eq!(like("wbe"), Some("web"));
        assert_eq!(like("db"), None);
        assert_eq!(like("x"), None);
        assert_eq!(similar("a", []), None);
    }

    #[test]
    fn nouns_follow_their_number() {
        for (number, noun, text) in [
            (1, "GPU", "1 GPU"),
            (0, "GPU", "0 GPUs"),
            (16, "NVSwitch", "16 NVSwitches"),
            (2, "virtual function", "2 virtual functions"),
            (1, "page of 2 MiB", "1 page of 2 MiB"),
            (9, "page of 2 MiB", "9 pages of 2 MiB"),
        ] {
            assert_eq!(count(number, noun), text);
        }
        let mut names = ["mlx5_10", "nvme0n1", "mlx5_9", "mlx5_"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["mlx5_", "mlx5_9", "mlx5_10", "nvme0n1"]);
        assert_eq!((are(1_usize), are(0_u32), are(2_u64)), ("is", "are", "are"));
    }
}
