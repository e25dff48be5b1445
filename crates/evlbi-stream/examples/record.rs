//! Records a stream, and reports how much was lost and where: `cargo run --example record udp://:2630 scan.vdif`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use evlbi_net::run::{Note, Notes, Run};
use evlbi_stream::recv::{RecvOptions, receive};

/// Terminal that shows the receiver's notes on standard error.
struct Terminal;

impl Notes for Terminal {
    fn take(&self, note: &Note<'_>) {
        match note {
            Note::Listens(address) => eprintln!("listening on {address}"),
            Note::Said(what) | Note::Warned(what) => eprintln!("{what}"),
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let [from, to] = arguments("URL FILE")?;
    let options = RecvOptions {
        from: from.parse()?,
        to,
        // The stream is over after a second without data.
        idle: Some(Duration::from_secs(1)),
        ..RecvOptions::default()
    };
    let receiving = receive(&options, &Run::new(Arc::new(Terminal)))?;
    // A program could do other work here; `receiving.stop()` ends the recording earlier.
    let result = receiving.join();

    let (counters, attribution) = (&result.live.counters, &result.live.attribution);
    println!("received {}", counters.unique);
    println!("lost {}", counters.lost);
    println!("  in this host {}", attribution.host_lost);
    println!("  in the network {}", attribution.network_lost);
    for file in &result.sink.files {
        println!("recorded {} bytes in {}", file.bytes, file.path.display());
    }
    Ok(())
}

/// Returns the command-line arguments if their number is right.
fn arguments<const N: usize>(usage: &str) -> Result<[String; N], Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    given
        .try_into()
        .map_err(|_| format!("arguments: {usage}").into())
}
