//! Several reasons why something cannot be done, collected so that they are reported at once.

use crate::error::{Error, Obstacles, Result};

#[derive(Debug, Default)]
pub(crate) struct Found(Vec<Error>);

impl Found {
    /// Adds a reason; the same one counts once.
    pub fn add(&mut self, error: Error) {
        if self.0.iter().all(|known| known.whole() != error.whole()) {
            self.0.push(error);
        }
    }

    /// Adds reasons that were found together.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = Error>) {
        errors.into_iter().for_each(|error| self.add(error));
    }

    /// Returns a value; without it adds the reason.
    pub fn keep<T>(&mut self, found: Result<T>) -> Option<T> {
        found.map_err(|error| self.add(error)).ok()
    }

    /// Fails if there is a reason; a wrong command line is reported alone.
    pub fn end(mut self) -> Result<()> {
        let is_usage = |error: &Error| error.refusal().is_some_and(|refusal| refusal.is_usage());
        if let Some(at) = self.0.iter().position(is_usage) {
            return Err(self.0.swap_remove(at));
        }
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            _ => Err(Obstacles { errors: self.0 }.into()),
        }
    }

    /// The same, with a value that is missing only for a reason.
    pub fn end_with<T>(self, value: Option<T>) -> Result<T> {
        self.end().map(|()| value.expect("it is missing only for a reason"))
    }

    /// The error of all reasons, of which there is at least one.
    pub fn error(self) -> Error {
        self.end().expect_err("at least one reason")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Class, classed, usage};

    #[test]
    fn one_reason_is_itself_and_several_are_listed_once_each() {
        let one = || classed(Class::Refused, "one", "do this");
        assert!(Found::default().end().is_ok());
        let mut found = Found::default();
        found.extend([one(), one()]);
        assert_eq!(found.error().to_string(), "one");
        let mut found = Found::default();
        found.add(one());
        assert_eq!(found.keep(Ok(1)), Some(1));
        assert_eq!(found.keep::<u8>(Err(classed(Class::Refused, "two", ""))), None);
        let Err(Error::Several(Obstacles { errors })) = found.end() else { panic!("one alone") };
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["one", "two"]);
        let mut wrong = Found::default();
        wrong.add(one());
        wrong.add(usage("wrong", "right"));
        assert_eq!(wrong.error().to_string(), "wrong");
    }
}
