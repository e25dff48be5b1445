//! Control: agents and their flows over real sockets, what they allow, and what is left of them when something is killed.

#[path = "../common"]
mod common {
    pub mod paths;
    pub mod python;
    pub mod result;
    pub mod stalls;
    pub mod stolen;
}
mod browser;
mod demo;
mod flows;
mod fuzz;
mod guard;
mod kills;
mod load;
mod past;
mod session;
mod support;
