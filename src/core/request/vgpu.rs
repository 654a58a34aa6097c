//! The text form of requested vGPUs: `TYPE[,count=N][,gpu=I|BDF]`.

use super::Which;
use crate::bdf::Bdf;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most vGPUs of a guest: QEMU's `-uuid` names one guest to the vendor's manager, which knows
/// 16 of each (NVIDIA vGPU release notes, "Multiple vGPU Support").
pub const MOST_VGPUS: u32 = 16;

/// The requested vGPUs, all of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VgpuWish {
    /// The type: its name, the last word of it, or its number.
    #[serde(rename = "type")]
    pub type_name: String,
    /// How many.
    pub count: u32,
    /// The card; `None` if the planner chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<VgpuCardName>,
}

/// A card as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VgpuCardName {
    /// Its index among the host's GPUs.
    Index(u32),
    /// Its address.
    At(Bdf),
}

impl fmt::Display for VgpuCardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VgpuCardName::Index(index) => index.fmt(f),
            VgpuCardName::At(bdf) => bdf.fmt(f),
        }
    }
}

impl FromStr for VgpuWish {
    type Err = String;
    fn from_str(text: &str) -> Result<VgpuWish, String> {
        let mut words = text.split(',');
        let type_name = words.next().unwrap_or_default().trim();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || " ._+-()/".contains(c);
        if type_name.is_empty() || type_name.len() > 64 || !type_name.chars().all(is_plain) {
            return Err("no vGPU type, such as H200X-18C; `gpuvm vgpu list` lists them".into());
        }
        let (mut count, mut gpu) = (None, None);
        for word in words {
            let unknown = || format!("`{word}` is none of count=, gpu=");
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let twice = match name {
                "count" => {
                    let number = value.parse().ok().filter(|n| (1..=MOST_VGPUS).contains(n));
                    let wrong = || format!("`{value}` is no number from 1 to {MOST_VGPUS}");
                    count.replace(number.ok_or_else(wrong)?).is_some()
                }
                "gpu" => {
                    let card = match value.parse()? {
                        Which::Number(index) => VgpuCardName::Index(index),
                        Which::At(bdf) => VgpuCardName::At(bdf),
                    };
                    gpu.replace(card).is_some()
                }
                _ => return Err(unknown()),
            };
            if twice {
                return Err(format!("{name}= is given twice"));
            }
        }
        Ok(VgpuWish { type_name: type_name.to_owned(), count: count.unwrap_or(1), gpu })
    }
}

impl fmt::Display for VgpuWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.type_name)?;
        if self.count != 1 {
            write!(f, ",count={}", self.count)?;
        }
        match self.gpu {
            Some(gpu) => write!(f, ",gpu={gpu}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read() {
        for text in [
            "H200X-18C",
            "1437,count=2",
            "RTX Pro 6000 Blackwell DC-1-2Q,gpu=3",
            "A,gpu=0000:3b:00.0",
        ] {
            assert_eq!(text.parse::<VgpuWish>().unwrap().to_string(), text);
        }
        for bad in
            ["", ",count=1", "A,count=0", "A,count=17", "A,gpu=x", "A,b=1", "A,gpu=1,gpu=2", "a'b"]
        {
            assert!(bad.parse::<VgpuWish>().is_err(), "{bad}");
        }
    }
}
