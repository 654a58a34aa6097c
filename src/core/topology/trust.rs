//! Whether the guests of a host trust each other, as its admin has said.

use serde::{Deserialize, Serialize};

/// Whether the guests of a host trust each other: what no hardware tells, and nobody guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// All are of one tenant.
    OneTenant,
    /// They are of strangers.
    Strangers,
}

impl Trust {
    /// Whether a guest whose NVLinks others reach is refused: always where guests are strangers, which is not overruled for
    /// one guest; where nothing was said, unless it was accepted for this one. The one rule of `create` and `start`.
    pub fn refuses(said: Option<Trust>, is_accepted: bool) -> bool {
        match said {
            None => !is_accepted,
            Some(Trust::OneTenant) => false,
            Some(Trust::Strangers) => true,
        }
    }

    /// What helps where guests are not isolated on NVLink, by what was said: the one sentence of `plan`, `capacity` and
    /// `create`.
    pub fn advice(said: Option<Trust>) -> &'static str {
        match said {
            None => {
                "`gpuvm host trust one-tenant` says once that all guests of this host trust each other; \
                 `--accept-shared-fabric` takes it for one guest"
            }
            Some(Trust::OneTenant) => {
                "all guests of this host trust each other, by `gpuvm host trust`"
            }
            Some(Trust::Strangers) => {
                "guests of this host are of strangers, by `gpuvm host trust`: `gpuvm capacity` counts the sizes that \
                 are isolated"
            }
        }
    }
}
