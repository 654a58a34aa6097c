//! Values of a guest's options: each has the words of the command line and the wish that it means.

use crate::request::{CellWish, HugePages, Spelled};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::str::FromStr;

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes
    On,
    /// No
    Off,
}

impl OnOff {
    /// Whether it is.
    pub fn is_on(self) -> bool {
        self == OnOff::On
    }
}

/// A number of guest NUMA cells on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellsArg(pub CellWish);

impl FromStr for CellsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<CellsArg, String> {
        match text {
            "auto" | "per-node" => Ok(CellsArg(CellWish::Auto)),
            _ => match text.parse() {
                Ok(0) => Err("a guest needs at least one NUMA cell".into()),
                Ok(cells) => Ok(CellsArg(CellWish::Count(cells))),
                Err(_) => Err(format!("`{text}` is neither auto nor per-node nor a number")),
            },
        }
    }
}

/// Reads one of the words of a value.
pub fn word<T: Spelled + Send + Sync>() -> impl TypedValueParser<Value = T> {
    word_of(T::all())
}

/// Reads the word of one of these values.
pub fn word_of<T: Spelled + Send + Sync>(values: Vec<T>) -> impl TypedValueParser<Value = T> {
    let shown = |value: &T| PossibleValue::new(value.word()).help(value.meaning());
    let shown: Vec<PossibleValue> = values.iter().map(shown).collect();
    PossibleValuesParser::new(shown)
        .map(|word| T::of_word(&word).expect("one of the words that the parser takes"))
}

/// Reads the pages of an existing guest: its pages are not left to a plan.
pub fn chosen_pages() -> impl TypedValueParser<Value = HugePages> {
    let all = HugePages::all().into_iter();
    word_of(all.filter(|pages| *pages != HugePages::Auto).collect())
}

/// Reads a number. One with a sign would be read as a relative change.
pub fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ if text.starts_with(['+', '-']) => {
            Err("a number without a sign: it is the new number, not a change".to_owned())
        }
        _ if text == "all" => {
            Err("a number: `gpuvm capacity` shows how many there are and fit".to_owned())
        }
        _ => Err("not a number from 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_no_sign() {
        assert_eq!(number("4"), Ok(4));
        for bad in ["+4", "-4", "", "4.0", "four", "4294967296"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cells_are_words_or_a_number() {
        assert_eq!("per-node".parse(), Ok(CellsArg(CellWish::Auto)));
        assert_eq!("2".parse(), Ok(CellsArg(CellWish::Count(2))));
        assert!("0".parse::<CellsArg>().is_err() && "two".parse::<CellsArg>().is_err());
    }
}
