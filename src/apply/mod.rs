//! Steps, in order, undone in reverse on failure.
