//! The one integration binary: the program from outside, and the library on recorded hosts.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::missing_docs_in_private_items)]
// A test is one story, and a table of examples one table.
#![allow(clippy::too_many_lines)]

mod abuse;
mod ansible;
mod arrays;
mod devices;
mod doctor;
mod gpus;
mod help;
mod hints;
mod hostbridge;
mod support;

mod check;
mod cli;
mod damage;
mod day;
mod demo;
mod drives;
mod errors;
mod examples;
mod export;
mod fabric;
mod fleet;
mod grace;
mod hosts;
mod imports;
mod iommufd;
mod law;
mod libvirt;
mod lstopo;
mod manual;
mod matrix;
mod metrics;
mod nccl;
mod nics;
mod p2p;
mod packages;
mod partitions;
mod plans;
mod posted;
mod requirements;
mod rooms;
mod schemas;
mod screen;
mod slurm;
mod traps;
mod trixie;
mod tune;
mod verbose;
mod vgpus;
mod view;
mod words;
mod xml;
