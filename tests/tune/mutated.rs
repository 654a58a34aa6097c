//! Damaged documents: none causes a panic, and one that can be tuned is stable after one tune and
//! can be undone.

use super::corpus::{documents, domains, undone};
use super::domains::{Wanted, tuned};
use super::property::{DGX2, THERE, cases};
use gpuvm::domain::DomainXml;
use gpuvm::placement::Occupancy;
use gpuvm::request::PageSize;
use gpuvm::tune::{Item, Items};

/// Numbers as a small generator gives them, the same in every run.
struct Numbers(u64);

impl Numbers {
    /// The next, below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }
}

/// The documents to damage: tuned guests of the vendor's kind, and those of libvirt's tests if
/// available.
fn corpus() -> [Vec<String>; 2] {
    let ours = [(0, 1), (8, 8), (0, 16)].into_iter().map(|(first, count)| {
        let mut wanted = Wanted::vendor(first, count);
        wanted.more = THERE[wanted.gpus.len() % 5];
        let xml = DomainXml::parse(&wanted.xml(&DGX2)).unwrap();
        let tuned = tuned(&xml, &DGX2, &Occupancy::default(), &Items::all()).unwrap();
        tuned.after.text().to_owned()
    });
    let theirs = documents().map(|dir| domains(&dir)).unwrap_or_default();
    [ours.collect(), theirs.into_iter().map(|(_, text)| text).collect()]
}

/// Moves, doubles and drops pieces between quotes and angle brackets, and changes numbers.
fn damaged(text: &str, numbers: &mut Numbers) -> String {
    let mut pieces: Vec<String> =
        text.split_inclusive(['\'', '"', '<', '>']).map(str::to_owned).collect();
    for _ in 0..=numbers.below(4) {
        let (at, other) = (numbers.below(pieces.len()), numbers.below(pieces.len()));
        let digits = |with: &str, most| {
            let is = |c: char| c.is_ascii_digit();
            pieces[at].replacen(is, with, most)
        };
        match numbers.below(6) {
            0 => pieces[at] = pieces[other].clone(),
            1 => pieces.swap(at, other),
            2 if pieces.len() > 1 => drop(pieces.remove(at)),
            3 => pieces[at] = digits("9", usize::MAX),
            4 => pieces[at] = digits("-", 1),
            _ => pieces[at] = digits(&numbers.below(10).to_string(), 1),
        }
    }
    pieces.concat()
}

/// The settings for one document.
fn items(numbers: &mut Numbers) -> Items {
    let huge_pages = match numbers.below(4) {
        0 => Item::To(PageSize::TwoMib),
        1 => Item::To(PageSize::OneGib),
        2 => Item::Off,
        _ => Item::Keep,
    };
    Items { huge_pages, ..Items::all() }
}

#[test]
fn no_damaged_document_makes_it_panic_or_is_tuned_twice() {
    let (corpus, unoccupied) = (corpus(), Occupancy::default());
    let (mut numbers, mut read, mut done, mut wrong) = (Numbers(1), 0, 0, Vec::new());
    let cases = cases(300);
    for case in 0..cases {
        // Half of the cases are of the few that have all that tuning knows.
        let half = &corpus[numbers.below(corpus.iter().filter(|half| !half.is_empty()).count())];
        let text = damaged(&half[numbers.below(half.len())], &mut numbers);
        let items = items(&mut numbers);
        let Ok(xml) = DomainXml::parse(&text) else { continue };
        read += 1;
        assert_eq!(xml.text(), text);
        let Ok(first) = tuned(&xml, &DGX2, &unoccupied, &items) else { continue };
        done += 1;
        assert_eq!(first.changes.is_empty(), first.after.text() == text, "case {case}:\n{text}");
        assert_eq!(undone(&xml, &first), text, "case {case}");
        let again = match tuned(&first.after, &DGX2, &unoccupied, &items) {
            Ok(second) if second.changes.is_empty() => continue,
            Ok(second) => format!("{:?}", second.changes),
            Err(error) => error.to_string(),
        };
        wrong.push(format!("case {case}: {again}\n{text}"));
    }
    eprintln!("{cases} damaged documents, {read} read, {done} tuned and undone");
    assert!(read > 20, "only {read} could be read");
    assert!(wrong.is_empty(), "{} are not the same twice:\n{}", wrong.len(), wrong.join("\n"));
}
