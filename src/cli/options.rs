//! Requests as options of the command line, for sentences and commands.

use crate::request::Request;
use crate::shell::word;
use gpuvm_core::guest::{self, Changed, Opt, Shape};
use std::borrow::Cow;

/// A change of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The option: `--gpus`.
    pub flag: Cow<'static, str>,
    /// Its values, each with the option before it, none for a switch; none at all: it is left out.
    pub values: Option<Vec<String>>,
}

impl Edit {
    /// An option with one value.
    pub fn to(flag: &'static str, value: impl Into<String>) -> Edit {
        Edit { flag: flag.into(), values: Some(vec![value.into()]) }
    }

    /// Whether it is one of the options that choose GPUs, of which a command has those of one.
    pub fn is_of_gpus(flag: &str) -> bool {
        guest::GPU_OPTIONS.iter().any(|opt| flag.strip_prefix("--") == Some(opt.field()))
    }
}

/// Returns the option changes that turn `from` into `to`, in display order.
pub fn changes(from: &Request, to: &Request) -> Vec<Edit> {
    let edit = |Changed { opt, values }| Edit {
        flag: opt.flag().into(),
        values: values.map(|values| worded(opt, values)),
    };
    guest::changes(from, to).into_iter().map(edit).collect()
}

/// The values of an option as words of a command line.
fn worded(opt: Opt, values: Vec<String>) -> Vec<String> {
    if opt.shape() == Shape::Joined { vec![values.join(",")] } else { values }
}

/// Returns options of `create` as words of a command line.
pub fn words(options: Vec<(Opt, Vec<String>)>) -> String {
    let edit = |(opt, values): (Opt, Vec<String>)| Edit {
        flag: opt.flag().into(),
        values: Some(worded(opt, values)),
    };
    if options.is_empty() {
        return "--gpus 0".to_owned();
    }
    let edits: Vec<Edit> = options.into_iter().map(edit).collect();
    text_of(&edits)
}

/// Formats the changes: `--gpus 2 --allow remote`, with `without --huge-pages` at the end for
/// omitted options.
pub fn text_of(edits: &[Edit]) -> String {
    let option = |Edit { flag, values }: &Edit| -> Vec<String> {
        match values.as_deref() {
            None => Vec::new(),
            Some([]) => vec![flag.to_string()],
            Some(values) => values.iter().map(|value| format!("{flag} {}", word(value))).collect(),
        }
    };
    let mut words: Vec<String> = edits.iter().flat_map(option).collect();
    let gone = edits.iter().filter(|edit| edit.values.is_none());
    let flags: Vec<&str> = gone.map(|edit| &*edit.flag).collect();
    match flags.split_last() {
        None => {}
        Some((last, [])) => words.push(format!("without {last}")),
        Some((last, first)) => words.push(format!("without {} and {last}", first.join(", "))),
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{IommufdWish, P2pWish, PinPolicy, Profile};

    #[test]
    fn omitted_options_come_last() {
        let mut from = Request { pins: PinPolicy::Auto, ..Request::for_gpus(1) };
        let mut to = from.clone();
        (from.reserve.cores, from.spare_ports, to.pins) = (400, Some(3), PinPolicy::None);
        let said = text_of(&changes(&from, &to));
        assert_eq!(said, "--pins none without --spare-ports and --reserve-cores");
    }

    #[test]
    fn a_request_has_all_its_options() {
        let mut request = Request { pins: PinPolicy::Auto, ..Request::for_gpus(0) };
        assert_eq!(words(guest::options(&request)), "--gpus 0");
        (request.profile, request.spare_ports) = (Profile::Near, Some(3));
        (request.p2p_clique, request.movable) = (true, true);
        (request.iommufd, request.p2p) = (IommufdWish::On, P2pWish::Auto);
        request.gpu_model = Some("A100 80".into());
        (request.allow.remote, request.allow.split) = (true, true);
        let all = "--gpu-model 'A100 80' --p2p-clique --p2p auto --iommufd on --spare-ports 3 \
                   --profile near --allow remote,split --movable";
        assert_eq!(words(guest::options(&request)), all);
    }
}
