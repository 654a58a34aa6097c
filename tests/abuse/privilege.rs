//! Locks, private files, secrets, terminal escapes and endless inputs.
