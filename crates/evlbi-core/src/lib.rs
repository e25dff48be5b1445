//! The rules of transport, apart from any kernel: which bytes go where and when, and what became of them.
#![forbid(unsafe_code)]

pub mod deframe;
