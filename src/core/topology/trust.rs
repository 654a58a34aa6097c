//! Whether the guests of a host trust each other, as declared by its admin.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Whether the guests of a host trust each other, which only the admin can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// All guests belong to one tenant.
    OneTenant,
    /// The guests belong to different tenants.
    Strangers,
}

/// The part of the advice that names an option.
macro_rules! takes_one {
    () => {
        "`--accept-shared-fabric` accepts it for one guest"
    };
}

/// The part of [`Trust::advice`] that names an option of `create`, which a file spells as a field.
pub const TAKES_ONE: &str = takes_one!();

impl Trust {
    /// Whether a guest whose NVLinks others reach is refused: always if the guests are declared
    /// strangers, which cannot be overridden for one guest; without a declaration, unless accepted
    /// for this guest. The common rule of `create` and `start`.
    pub fn refuses(said: Option<Trust>, is_accepted: bool) -> bool {
        match said {
            None => !is_accepted,
            Some(Trust::OneTenant) => false,
            Some(Trust::Strangers) => true,
        }
    }

    /// Returns the same for a host whose declaration may not have been read (`unread`: why).
    pub fn advice_of_host(said: Option<Trust>, unread: Option<&str>) -> Cow<'static, str> {
        match unread {
            None => Trust::advice(said).into(),
            Some(why) => format!(
                "{why}; guests are treated as strangers: `gpuvm host trust one-tenant` prints how \
                 to replace that file"
            )
            .into(),
        }
    }

    /// Returns the remedy if guests are not isolated on NVLink, given the declaration: the common
    /// sentence of `plan`, `capacity` and `create`.
    pub fn advice(said: Option<Trust>) -> &'static str {
        match said {
            None => concat!(
                "if all guests of this host trust each other, run `gpuvm host trust one-tenant` \
                 once; ",
                takes_one!()
            ),
            Some(Trust::OneTenant) => {
                "all guests of this host trust each other, by `gpuvm host trust`"
            }
            Some(Trust::Strangers) => {
                "guests of this host belong to strangers, by `gpuvm host trust`: `gpuvm capacity` \
                 counts the sizes that are isolated"
            }
        }
    }
}
