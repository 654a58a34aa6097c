//! The words of values that an option takes: one spelling for the command line, files and
//! sentences.

use super::{HugePages, PageSize};
use strum::{EnumMessage, VariantArray};

/// A value that is one of several words.
pub trait Spelled: Copy + PartialEq + Sized + 'static {
    /// Returns all values, in the order of the help text.
    fn all() -> Vec<Self>;
    /// Returns its word.
    fn word(self) -> &'static str;
    /// Returns its meaning for the help text: its documentation as a phrase.
    fn meaning(self) -> String;

    /// Returns the value with this word.
    fn of_word(word: &str) -> Option<Self> {
        Self::all().into_iter().find(|value| value.word() == word)
    }
}

impl<T> Spelled for T
where
    T: Copy + PartialEq + EnumMessage + VariantArray + Into<&'static str> + 'static,
{
    fn all() -> Vec<T> {
        T::VARIANTS.to_vec()
    }

    fn word(self) -> &'static str {
        self.into()
    }

    fn meaning(self) -> String {
        let text = self.get_documentation().unwrap_or_default().trim().replace('\n', " ");
        text.trim_end_matches('.').to_owned()
    }
}

impl Spelled for HugePages {
    fn all() -> Vec<HugePages> {
        let sizes = PageSize::VARIANTS.iter().map(|size| HugePages::Size(*size));
        [HugePages::Auto, HugePages::Off].into_iter().chain(sizes).collect()
    }

    fn word(self) -> &'static str {
        match self {
            HugePages::Auto => "auto",
            HugePages::Off => "off",
            HugePages::Size(size) => size.word(),
        }
    }

    fn meaning(self) -> String {
        match self {
            HugePages::Auto => {
                "The largest of which enough are free, for guests with GPUs and 32 GiB or more"
                    .to_owned()
            }
            HugePages::Off => "Normal pages".to_owned(),
            HugePages::Size(size) => size.meaning(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Near, Policy, Prefer, Profile, Rule};
    use super::*;

    #[test]
    fn each_word_is_read_back() {
        fn words<T: Spelled + std::fmt::Debug>() -> String {
            for value in T::all() {
                assert_eq!(T::of_word(value.word()), Some(value));
                assert!(!value.meaning().is_empty() && !value.meaning().ends_with('.'));
            }
            T::all().into_iter().map(Spelled::word).collect::<Vec<_>>().join(" ")
        }
        assert_eq!(words::<HugePages>(), "auto off 2M 1G");
        assert_eq!(words::<Profile>(), "share near nvidia-vm");
        assert_eq!(words::<Near>(), "switch node any");
        assert_eq!(
            (words::<Policy>(), words::<Prefer>()),
            ("pack spread".into(), "auto nic package".into())
        );
        assert_eq!(words::<Rule>(), "remote split mig");
        assert_eq!(Profile::of_word("nvidiavm"), None);
    }
}
