//! The page: the picture and around it all facts that a reviewer or an admin needs, in one
//! self-contained file. All content is present without scripts; the script only highlights and
//! filters.

mod answers;
mod diff;
mod tables;

pub use diff::{Changed, Line};

use super::Subject;
use super::markup::{Markup, island};
use super::scene::Scene;
use super::svg;
use crate::placement::{Capacity, Placement, Reason};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// The first bytes of every page: a file that begins with them is one of ours, and may be replaced.
pub const PAGE_MARK: &str = "<!DOCTYPE html>\n<html lang=\"en\" data-made-by=\"gpuvm\">";

/// The content of a page.
#[derive(Debug)]
pub struct Page<'a> {
    /// The host and its guests.
    pub subject: Subject<'a>,
    /// The verb: `plan`.
    pub verb: &'a str,
    /// The conclusions, a sentence each without full stop; the first is the verdict.
    pub verdict: &'a [String],
    /// When it was made, in the caller's words; `None` if it does not say.
    pub date: Option<&'a str>,
    /// A planned guest's placement.
    pub placement: Option<&'a Placement>,
    /// Why it was placed so.
    pub reasons: &'a [Reason],
    /// The capacity, as the answer of the page.
    pub capacity: Option<&'a Capacity>,
    /// The capacity, in a line beside other answers.
    pub fits: Option<&'a Capacity>,
    /// Definitions that change.
    pub changed: &'a [Changed],
    /// Missing or degraded parts, and skipped checks.
    pub notes: &'a [String],
    /// The next commands.
    pub commands: &'a [String],
    /// The document that `--json` prints.
    pub json: &'a str,
    /// Makes the commands of a sentence such that they can be pasted, and hides secrets.
    pub offered: fn(&str) -> String,
}

/// Writes a page.
pub fn page(page: &Page<'_>) -> String {
    let scene = Scene::of(&page.subject);
    let mut writer = Writer { page, scene: &scene, out: Markup::default() };
    writer.all();
    writer.out.finish()
}

struct Writer<'a, 'b> {
    page: &'b Page<'a>,
    scene: &'b Scene<'a>,
    out: Markup,
}

impl Writer<'_, '_> {
    /// A sentence as it is shown.
    fn say(&self, sentence: impl std::fmt::Display) -> String {
        (self.page.offered)(&sentence.to_string())
    }

    fn all(&mut self) {
        self.head();
        self.out.open("body", &[]);
        self.header();
        self.out.open("main", &[]);
        self.capacity();
        self.answers();
        self.picture();
        self.tools();
        self.guests();
        self.reasons();
        self.changes();
        self.devices();
        self.matrix();
        self.groups();
        self.notes();
        self.commands();
        self.out.close("main");
        self.out.line();
        let status = [("id", &"info" as _), ("role", &"status" as _), ("hidden", &"hidden" as _)];
        self.out.element("p", &status, "");
        let data = [("type", &"application/json" as _), ("id", &"data" as _)];
        self.out.open("script", &data);
        self.out.verbatim(&island(self.page.json.trim_end()));
        self.out.close("script");
        self.out.line();
        self.out.open("script", &[]);
        self.out.verbatim(SCRIPT);
        self.out.close("script");
        self.out.close("body");
        self.out.close("html");
        self.out.line();
    }

    /// The head: the page may load nothing, and run only its own script.
    fn head(&mut self) {
        let hash = STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()));
        let policy = format!(
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; img-src \
             data:; base-uri 'none'; form-action 'none'"
        );
        self.out.verbatim(PAGE_MARK);
        self.out.line();
        self.out.open("head", &[]);
        self.out.open("meta", &[("charset", &"utf-8")]);
        self.out.open("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &policy)]);
        let width = "width=device-width, initial-scale=1";
        self.out.open("meta", &[("name", &"viewport"), ("content", &width)]);
        self.out.open("meta", &[("name", &"referrer"), ("content", &"no-referrer")]);
        self.out.element("title", &[], self.title());
        self.out.open("style", &[]);
        self.out.verbatim(STYLE);
        self.out.close("style");
        self.out.close("head");
        self.out.line();
    }

    fn title(&self) -> String {
        format!("gpuvm {}: {}", self.page.verb, svg::machine(self.page.subject.topology))
    }

    /// The header: the machine, the request, the verdict.
    fn header(&mut self) {
        let topology = self.page.subject.topology;
        let machine = topology.machine();
        let mut facts: Vec<String> = Vec::new();
        facts.extend(machine.host_name.as_ref().map(|name| format!("host {name}")));
        facts.extend(machine.cpu_model.clone());
        facts.extend(machine.kernel_release.as_ref().map(|kernel| format!("Linux {kernel}")));
        facts.extend(self.page.date.map(str::to_owned));
        self.out.open("header", &[]);
        let title = self.title();
        self.out.element("h1", &[], title);
        if !facts.is_empty() {
            self.out.element("p", &[], facts.join(" · "));
        }
        for (at, line) in self.page.verdict.iter().enumerate() {
            let attrs = [("id", &"verdict" as &dyn std::fmt::Display)];
            self.out.open("p", if at == 0 { &attrs } else { &[] });
            if at == 0 {
                self.out.element("strong", &[], line)
            } else {
                self.out.text(line)
            }
            self.out.close("p");
        }
        self.out.close("header");
        self.out.line();
    }

    fn picture(&mut self) {
        self.section("picture", "Picture");
        let pointing = [("id", &"pointing" as _), ("hidden", &"hidden" as _)];
        let words = "Point at or click what you want to see everywhere; Esc clears.";
        self.out.element("p", &pointing, words);
        self.out.open("figure", &[]);
        // Where the window is narrower than the picture.
        self.out.open("p", &[("class", &"narrow")]);
        self.out.text("The picture goes on to the right → ");
        self.out.open("label", &[("for", &"fit")]);
        self.out.open("input", &[("id", &"fit"), ("type", &"checkbox")]);
        self.out.text(" shrink it to the window");
        self.out.close("label");
        self.out.close("p");
        self.wide("Picture of the host");
        self.out.verbatim(&svg::inline(self.scene, self.page.subject.topology));
        self.out.close("div");
        self.out.close("figure");
        self.out.close("section");
        self.out.line();
    }

    /// The filters of the tables, above them.
    fn tools(&mut self) {
        let tools = [("id", &"tools" as _), ("hidden", &"hidden" as _)];
        self.out.open("p", &tools);
        self.out.element("label", &[("for", &"filter")], "Filter the tables below: ");
        let filter = [("id", &"filter" as _), ("type", &"search" as _)];
        self.out.open("input", &filter);
        self.out.close("p");
        self.out.line();
    }

    /// Begins a section with a heading.
    fn section(&mut self, id: &str, title: &str) {
        let heading = format!("{id}-title");
        self.out.open("section", &[("id", &id), ("aria-labelledby", &heading)]);
        self.out.element("h2", &[("id", &heading)], title);
    }

    /// Begins a part that scrolls by itself where the screen is narrow.
    fn wide(&mut self, label: &str) {
        let attrs = [
            ("class", &"wide" as _),
            ("tabindex", &0 as _),
            ("role", &"group" as _),
            ("aria-label", &label as _),
        ];
        self.out.open("div", &attrs);
    }

    /// Why a guest was placed so.
    fn reasons(&mut self) {
        if self.page.reasons.is_empty() {
            return;
        }
        self.section("reasons", "Why");
        self.wide("Reasons");
        self.table("sift cards", &["choice", "reason", "compromise"]);
        let reasons = self.page.reasons;
        let remedied = reasons.iter().rposition(Reason::has_remedy);
        for (reason, at) in reasons.iter().zip(0..) {
            let Reason { choice, because, .. } = reason;
            if remedied.is_some() && reason.is_remedy() {
                continue;
            }
            self.out.open("tr", &[]);
            self.out.element("th", &[("scope", &"row"), ("class", &"keep")], choice);
            let because = self.say(because);
            self.out.open("td", &[]);
            self.out.text(because);
            if remedied == Some(at) {
                for remedy in reasons.iter().filter(|reason| reason.is_remedy()) {
                    let words = self.say(&remedy.because);
                    self.out.element("p", &[("class", &"remedy")], words);
                }
            }
            self.out.close("td");
            let is_one = reason.is_compromise();
            let class = if is_one { "bad" } else { "good" };
            self.cell("compromise", class, if is_one { "yes" } else { "no" });
            self.out.close("tr");
        }
        self.end_table();
    }

    /// Missing parts and skipped checks.
    fn notes(&mut self) {
        if self.page.notes.is_empty() {
            return;
        }
        self.section("notes", "Notes");
        self.out.open("ul", &[]);
        self.page.notes.iter().for_each(|note| self.out.element("li", &[], note));
        self.out.close("ul");
        self.out.close("section");
        self.out.line();
    }

    fn commands(&mut self) {
        if self.page.commands.is_empty() {
            return;
        }
        self.section("commands", "Commands");
        let text = self.page.commands.join("\n");
        self.out.open("pre", &[("tabindex", &0), ("role", &"group"), ("aria-label", &"Commands")]);
        self.out.element("code", &[], text);
        self.out.close("pre");
        self.out.close("section");
        self.out.line();
    }

    fn table(&mut self, class: &str, head: &[&str]) {
        self.out.open("table", &[("class", &class)]);
        self.out.open("thead", &[]);
        self.out.open("tr", &[]);
        head.iter().for_each(|word| self.out.element("th", &[("scope", &"col")], word));
        self.out.close("tr");
        self.out.close("thead");
        self.out.open("tbody", &[]);
        self.out.line();
    }

    /// A cell of a column, whose head precedes it where rows are cards.
    fn cell(&mut self, head: &str, class: &str, text: impl std::fmt::Display) {
        self.begin_cell(head, class);
        self.out.text(text);
        self.out.close("td");
    }

    /// Begins a cell of a column.
    fn begin_cell(&mut self, head: &str, class: &str) {
        let all: [(&str, &dyn std::fmt::Display); 2] = [("data-h", &head), ("class", &class)];
        self.out.open("td", if class.is_empty() { &all[..1] } else { &all });
    }

    /// Ends a table with its scrolling part and its section.
    fn end_table(&mut self) {
        self.out.close("tbody");
        self.out.close("table");
        self.out.close("div");
        self.out.close("section");
        self.out.line();
    }
}
