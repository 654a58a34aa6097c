//! The only reader of the host's files: everything is read below a root directory, so a recorded host and the live
//! one are the same to the rest of the program.
