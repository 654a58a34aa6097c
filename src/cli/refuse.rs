//! Errors of the verbs, with a hint.

use gpuvm_ops::error::{Class, Refusal as Hinted};

/// Makes an error of a class, with a hint.
pub fn classed(class: Class, message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    coded(class.into(), message, hint)
}

/// Makes an error with a code of its own, with a hint.
pub fn coded(
    code: &'static str,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> anyhow::Error {
    Hinted::coded(code, message, hint).into()
}

/// Makes an error with a hint that ends the program with [`EXIT_USAGE`](super::error::EXIT_USAGE).
pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    classed(Class::Usage, message, hint)
}

/// Wraps an error of another module with a message and a hint; it keeps its code.
pub fn around<E>(error: E, message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    anyhow::Error::from(error).context(Hinted::around(message, hint))
}
