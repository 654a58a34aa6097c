//! Sets of pcpus and of NUMA nodes, in the kernel's list form (`0-23,48-71`).
//!
//! One implementation, [`IdSet`], for both kinds; the kinds cannot be mixed. A set knows nothing of
//! the host: whether a pcpu exists is the topology's question.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// The largest id that a set takes: eight times the largest CPU count that Linux is built for.
pub const MAX_ID: u32 = 65_535;

/// A host logical CPU, by the kernel's number (`os_index`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PcpuId(pub u32);

/// A host NUMA node, by the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A number that identifies one kind of object.
pub trait Id: Copy + Ord {
    /// The counted objects, for error texts.
    const KIND: &'static str;
    /// Wraps the number.
    fn from_u32(value: u32) -> Self;
    /// The number.
    fn as_u32(self) -> u32;
}

impl Id for PcpuId {
    const KIND: &'static str = "pcpu";
    fn from_u32(value: u32) -> Self {
        PcpuId(value)
    }
    fn as_u32(self) -> u32 {
        self.0
    }
}

impl Id for NodeId {
    const KIND: &'static str = "node";
    fn from_u32(value: u32) -> Self {
        NodeId(value)
    }
    fn as_u32(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PcpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Set of pcpus.
pub type CpuSet = IdSet<PcpuId>;
/// Set of host NUMA nodes.
pub type NodeSet = IdSet<NodeId>;

/// A set of ids from 0 to [`MAX_ID`], ascending.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdSet<I> {
    /// Words of zeros left out in front, so that a high id takes no more memory than a low one; 0
    /// for the empty set.
    base: u32,
    /// Bit `id % 64` of the first word; zero only in the empty set. Most sets, such as the pin of a
    /// vCPU, have no other, and take no memory of their own.
    first: u64,
    /// The words after it; the last one is never zero.
    more: Vec<u64>,
    kind: PhantomData<I>,
}

/// The error of a text that is not a set.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "list-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum IdSetError {
    /// A part is neither a number nor a range, or the range runs backwards.
    #[error("`{part}` in {kind} list `{text}` is not a number or a range such as 0-23")]
    Part { part: String, kind: &'static str, text: String },
    /// An id is above [`MAX_ID`].
    #[error("{kind} {id} is above {max}", max = MAX_ID)]
    TooLarge { kind: &'static str, id: u64 },
}

impl<I> Default for IdSet<I> {
    fn default() -> Self {
        IdSet { base: 0, first: 0, more: Vec::new(), kind: PhantomData }
    }
}

impl<I: Id> IdSet<I> {
    /// Makes the empty set.
    pub fn new() -> Self {
        IdSet::default()
    }

    /// Makes the set of one id.
    pub fn of(id: I) -> Self {
        let id = id.as_u32();
        assert!(id <= MAX_ID, "{} {id} is above {MAX_ID}", I::KIND);
        IdSet { base: id / 64, first: 1 << (id % 64), more: Vec::new(), kind: PhantomData }
    }

    /// Adds an id; ids above [`MAX_ID`] are refused by the parsers and cannot come from a checked
    /// host.
    pub fn insert(&mut self, id: I) {
        let id = id.as_u32();
        assert!(id <= MAX_ID, "{} {id} is above {MAX_ID}", I::KIND);
        let (place, bit) = (id / 64, 1 << (id % 64));
        if self.is_empty() {
            self.base = place;
        } else if place < self.base {
            let gap = (self.base - place - 1) as usize;
            let zeros = std::iter::repeat_n(0, gap);
            self.more.splice(0..0, zeros.chain([self.first]));
            (self.base, self.first) = (place, 0);
        }
        match (place - self.base) as usize {
            0 => self.first |= bit,
            word => {
                if self.more.len() < word {
                    self.more.resize(word, 0);
                }
                self.more[word - 1] |= bit;
            }
        }
    }

    /// Removes an id.
    pub fn remove(&mut self, id: I) {
        let id = id.as_u32();
        let word = match (id / 64).checked_sub(self.base) {
            Some(0) => Some(&mut self.first),
            Some(word) => self.more.get_mut(word as usize - 1),
            None => None,
        };
        if let Some(word) = word {
            *word &= !(1 << (id % 64));
        }
        self.trim();
    }

    /// Whether the id is in the set.
    pub fn contains(&self, id: I) -> bool {
        let id = id.as_u32();
        self.word(id / 64) >> (id % 64) & 1 == 1
    }

    /// Returns the word at a place, counted from the word of id 0.
    fn word(&self, place: u32) -> u64 {
        match place.checked_sub(self.base) {
            Some(0) => self.first,
            Some(word) => self.more.get(word as usize - 1).copied().unwrap_or(0),
            None => 0,
        }
    }

    /// Returns its words with their places.
    fn places(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        (self.base..).zip(std::iter::once(self.first).chain(self.more.iter().copied()))
    }

    /// How many ids are in the set.
    pub fn len(&self) -> usize {
        self.places().map(|(_, word)| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// The smallest id.
    pub fn first(&self) -> Option<I> {
        self.iter().next()
    }

    /// The largest id.
    pub fn last(&self) -> Option<I> {
        let top = self.more.last().unwrap_or(&self.first);
        let above = (self.base as usize + self.more.len()) * 64;
        let id = (above + 63).checked_sub(top.leading_zeros() as usize)?;
        let id = u32::try_from(id).expect("ids are at most MAX_ID");
        (!self.is_empty()).then(|| I::from_u32(id))
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = I> + '_ {
        self.places().flat_map(|(index, word)| {
            // Each step clears the lowest set bit, so that gaps cost nothing.
            let bits = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            let bits = bits.take_while(|rest| *rest != 0);
            bits.map(move |rest| I::from_u32(index * 64 + rest.trailing_zeros()))
        })
    }

    /// Whether every id of `self` is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.places().all(|(place, word)| word & !other.word(place) == 0)
    }

    /// Whether some id is in both.
    pub fn intersects(&self, other: &Self) -> bool {
        self.places().any(|(place, word)| word & other.word(place) != 0)
    }

    /// The ids in both.
    pub fn and(&self, other: &Self) -> Self {
        self.with(|place, word| word & other.word(place))
    }

    /// The ids in either.
    pub fn or(&self, other: &Self) -> Self {
        if self.is_empty() {
            return other.clone();
        }
        if other.is_empty() {
            return self.clone();
        }
        let base = self.base.min(other.base);
        let end = |set: &Self| set.base as usize + set.more.len();
        let more = end(self).max(end(other)) - base as usize;
        let word = |place| self.word(place) | other.word(place);
        let more = (base + 1..).take(more).map(word).collect();
        IdSet { base, first: word(base), more, kind: PhantomData }
    }

    /// The ids in `self` and not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        self.with(|place, word| word & !other.word(place))
    }

    /// Makes a set from these words, at the same places as its own; a word may only lose bits.
    fn with(&self, word: impl Fn(u32, u64) -> u64) -> Self {
        let first = word(self.base, self.first);
        let more = self.places().skip(1).map(|(place, own)| word(place, own)).collect();
        let mut set = IdSet { base: self.base, first, more, kind: PhantomData };
        set.trim();
        set
    }

    /// Drops zero words at both ends, so that equal sets compare equal.
    fn trim(&mut self) {
        while self.more.last() == Some(&0) {
            self.more.pop();
        }
        if self.first != 0 {
            return;
        }
        // The last word is not zero, so that one of them is not.
        let zeros = self.more.iter().take_while(|word| **word == 0).count();
        match self.more.drain(..(zeros + 1).min(self.more.len())).next_back() {
            Some(word) => {
                self.first = word;
                self.base +=
                    u32::try_from(zeros + 1).expect("no set has more than MAX_ID / 64 words");
            }
            None => self.base = 0,
        }
    }
}

impl<I: Id> FromIterator<I> for IdSet<I> {
    fn from_iter<T: IntoIterator<Item = I>>(iter: T) -> Self {
        let mut set = IdSet::new();
        set.extend(iter);
        set
    }
}

impl<I: Id> Extend<I> for IdSet<I> {
    fn extend<T: IntoIterator<Item = I>>(&mut self, iter: T) {
        for id in iter {
            self.insert(id);
        }
    }
}

impl<I: Id> fmt::Display for IdSet<I> {
    /// Prints the kernel's list form; the empty set prints nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().map(I::as_u32).peekable();
        let mut comma = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while ids.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl<I: Id> fmt::Debug for IdSet<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl<I: Id> FromStr for IdSet<I> {
    type Err = IdSetError;

    /// Reads the kernel's list form (`0-23,48-71`, `0-30:2`) and libvirt's exclusions (`0-7,^3`).
    /// White space around parts is ignored; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, IdSetError> {
        let (mut set, mut out) = (IdSet::new(), IdSet::new());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = || IdSetError::Part {
                part: part.chars().take(40).collect(),
                kind: I::KIND,
                text: text.chars().take(80).collect(),
            };
            let number = |digits: &str| -> Result<u32, IdSetError> {
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(bad());
                }
                let id = digits.parse::<u64>().map_err(|_| bad())?;
                match u32::try_from(id) {
                    Ok(id) if id <= MAX_ID => Ok(id),
                    _ => Err(IdSetError::TooLarge { kind: I::KIND, id }),
                }
            };
            if let Some(excluded) = part.strip_prefix('^') {
                out.insert(I::from_u32(number(excluded)?));
                continue;
            }
            let (range, stride) = match part.split_once(':') {
                Some((range, stride)) => (range, number(stride)?),
                None => (part, 1),
            };
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(range)?, number(range)?),
            };
            if first > last || stride == 0 {
                return Err(bad());
            }
            set.extend((first..=last).step_by(stride as usize).map(I::from_u32));
        }
        Ok(set.minus(&out))
    }
}

impl<I: Id> Serialize for IdSet<I> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de, I: Id> Deserialize<'de> for IdSet<I> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
