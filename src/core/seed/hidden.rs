//! Text that no log, error or list shows.

use std::fmt;
use std::ops::Deref;

/// A text that may be secret: `{:?}` shows only its length.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(String);

impl From<String> for Hidden {
    fn from(text: String) -> Hidden {
        Hidden(text)
    }
}

impl From<&str> for Hidden {
    fn from(text: &str) -> Hidden {
        Hidden(text.to_owned())
    }
}

impl Deref for Hidden {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
