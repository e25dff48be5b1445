//! Addresses of responders (`evlbi respond`), as people write them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Default port of a responder.
pub const PORT: u16 = 8620;

/// Splits `HOST`, `HOST:PORT`, `ADDRESS` or `[ADDRESS]:PORT`, where the default port is [`PORT`]. `None` for other text.
pub fn split(text: &str) -> Option<(&str, u16)> {
    if let Some(address) = bracketed(text) {
        return Some((address, PORT)).filter(|_| !address.is_empty());
    }
    if text.parse::<IpAddr>().is_ok() || !text.contains(':') {
        return Some((text, PORT)).filter(|_| !text.is_empty());
    }
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = match bracketed(host) {
        Some(address) => address,
        // An IPv6 address with a port would be ambiguous.
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some((host, port))
}

/// The address in brackets.
fn bracketed(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

/// Looks up the addresses of a responder.
///
/// # Errors
/// Returns the resolver's error; [`ErrorKind::InvalidInput`] if [`split`] gives `None`.
pub fn look_up(text: &str) -> io::Result<Vec<SocketAddr>> {
    let invalid = || io::Error::new(ErrorKind::InvalidInput, "neither HOST nor HOST:PORT");
    let addresses = split(text).ok_or_else(invalid)?.to_socket_addrs()?;
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_responder_is_a_host_with_or_without_a_port() {
        for (text, host, port) in [
            ("jive", "jive", 8620),
            ("jive:2630", "jive", 2630),
            ("192.0.2.1", "192.0.2.1", 8620),
            ("192.0.2.1:2630", "192.0.2.1", 2630),
            ("2001:db8::5", "2001:db8::5", 8620),
            ("::1", "::1", 8620),
            ("[2001:db8::5]", "2001:db8::5", 8620),
            ("[2001:db8::5]:2630", "2001:db8::5", 2630),
            ("[fe80::1%eth0]:2630", "fe80::1%eth0", 2630),
        ] {
            assert_eq!(split(text), Some((host, port)), "{text}");
        }
        for bad in [
            "",
            "[]",
            "jive:",
            "jive:x",
            ":1",
            "[]:1",
            "jive:99999",
            "2001:db8::x:1",
        ] {
            assert_eq!(split(bad), None, "{bad}");
            assert_eq!(look_up(bad).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        let loopback = look_up("::1").unwrap();
        assert_eq!(loopback, ["[::1]:8620".parse().unwrap()]);
    }
}
