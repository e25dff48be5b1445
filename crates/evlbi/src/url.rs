//! Where data goes to and comes from: `udp://host:port` and its kin.
//!
//! The scheme names the transport. Ports may be a range (`2630-2633`): one stream split over several.
//! A query names what multicast needs: `udp://232.1.2.3:2630?interface=eth1&source=10.0.0.5&ttl=8`.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use evlbi_net::udp::Interface;

/// How datagrams or bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// VTP: UDP with a sequence number before the data (jive5ab's udps).
    Udp,
    /// Plain UDP without sequence numbers; the VDIF headers tell order and loss.
    Pudp,
    /// The raw stream over TCP.
    Tcp,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Udp => "udp",
            Scheme::Pudp => "pudp",
            Scheme::Tcp => "tcp",
        })
    }
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Transport.
    pub scheme: Scheme,
    /// Host name or address, without brackets.
    pub host: String,
    /// First port.
    pub port: u16,
    /// Number of ports, 1 unless a range was given.
    pub ports: u16,
    /// Interface for multicast.
    pub interface: Option<Interface>,
    /// Source address to accept in a source-specific multicast group.
    pub source: Option<IpAddr>,
    /// Time to live (hop limit) of multicast datagrams.
    pub ttl: Option<u32>,
}

const FORMS: &str = "give udp://HOST:PORT, pudp://HOST:PORT or tcp://HOST:PORT (IPv6 in brackets, a range of ports as 2630-2633, multicast with ?interface=NAME&source=ADDRESS&ttl=N)";

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("`{text}` names no transport: {FORMS}"))?;
        let scheme = match scheme {
            "udp" | "udps" | "vtp" => Scheme::Udp,
            "pudp" => Scheme::Pudp,
            "tcp" => Scheme::Tcp,
            "dccp" | "udt" | "quic" => {
                return Err(format!(
                    "the transport {scheme}:// is not built yet: {FORMS}"
                ));
            }
            _ => return Err(format!("unknown transport `{scheme}://`: {FORMS}")),
        };
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, ports) = authority
            .trim_end_matches('/')
            .rsplit_once(':')
            .ok_or_else(|| format!("`{text}` has no port: {FORMS}"))?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        // To listen everywhere.
        let host = if host.is_empty() { "0.0.0.0" } else { host };
        let (port, ports) = parse_ports(ports).ok_or_else(|| {
            format!(
                "`{ports}` is no port or range of ports (1 to 65535, at most 64 at once; 0 to listen on a free one): {FORMS}"
            )
        })?;
        if scheme == Scheme::Tcp && ports > 1 {
            return Err("a TCP stream takes one port; give tcp://HOST:PORT".into());
        }
        let mut url = Url {
            scheme,
            host: host.to_string(),
            port,
            ports,
            interface: None,
            source: None,
            ttl: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            url.apply_query(pair)?;
        }
        Ok(url)
    }
}

fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first: u16 = first.parse().ok()?;
    let last: u16 = last.parse().ok()?;
    let count = last.checked_sub(first)?.checked_add(1)?;
    (count <= 64 && (first > 0 || count == 1)).then_some((first, count))
}

/// A URL to send to, which names a port.
///
/// # Errors
/// What is wrong with it, and what to give.
pub fn destination(text: &str) -> Result<Url, String> {
    let url: Url = text.parse()?;
    if text.contains("://:") {
        return Err(format!("`{text}` has no host to send to: {FORMS}"));
    }
    if url.port == 0 {
        return Err(format!(
            "port 0 is for listening on a free one; name the port that the receiver prints: {FORMS}"
        ));
    }
    Ok(url)
}

impl Url {
    fn apply_query(&mut self, pair: &str) -> Result<(), String> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let bad = |what: &str| format!("`{value}` in `?{pair}` is no {what}");
        match key {
            "interface" => self.interface = value.parse().ok(),
            "source" => self.source = Some(value.parse().map_err(|_| bad("IP address"))?),
            "ttl" => {
                self.ttl = Some(
                    value
                        .parse()
                        .ok()
                        .filter(|ttl| *ttl <= 255)
                        .ok_or_else(|| bad("time to live from 0 to 255"))?,
                );
            }
            _ => {
                return Err(format!(
                    "unknown `{key}` in the query: interface, source and ttl are known"
                ));
            }
        }
        Ok(())
    }

    /// All addresses of this host, at a port that is free.
    pub fn anywhere() -> Url {
        Url {
            scheme: Scheme::Udp,
            host: "0.0.0.0".into(),
            port: 0,
            ports: 1,
            interface: None,
            source: None,
            ttl: None,
        }
    }

    /// Whether it names this port.
    pub fn has_port(&self, port: u16) -> bool {
        let offset = port.checked_sub(self.port);
        offset.is_some_and(|offset| offset < self.ports)
    }

    /// The addresses of all ports, the name looked up.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let first = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot look up host `{}` of {self}: {error}", self.host))?
            .next()
            .ok_or_else(|| format!("host `{}` of {self} has no address", self.host))?;
        Ok((0..self.ports)
            .map(|offset| SocketAddr::new(first.ip(), first.port() + offset))
            .collect())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        write!(f, ":{}", self.port)?;
        if self.ports > 1 {
            write!(f, "-{}", self.port + (self.ports - 1))?;
        }
        let pairs = [
            self.interface.as_ref().map(|interface| match interface {
                Interface::Name(name) => format!("interface={name}"),
                Interface::Address(address) => format!("interface={address}"),
            }),
            self.source.map(|source| format!("source={source}")),
            self.ttl.map(|ttl| format!("ttl={ttl}")),
        ];
        for (index, pair) in pairs.into_iter().flatten().enumerate() {
            write!(f, "{}{pair}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_go_there_and_back() {
        for text in [
            "udp://127.0.0.1:2630",
            "udp://[::1]:2630",
            "pudp://correlator.example:46227",
            "tcp://10.0.0.1:2630",
            "udp://0.0.0.0:2630-2633",
            "udp://232.1.2.3:2630?interface=eth1&source=10.0.0.5&ttl=8",
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
        }
        let url: Url = "udp://[ff15::1]:65535".parse().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.ports),
            ("ff15::1", 65535, 1)
        );
    }

    #[test]
    fn a_range_of_ports_makes_an_address_each() {
        let url: Url = "udp://127.0.0.1:65534-65535".parse().unwrap();
        let ports: Vec<u16> = url
            .addresses()
            .unwrap()
            .iter()
            .map(SocketAddr::port)
            .collect();
        assert_eq!(ports, [65534, 65535]);
    }

    #[test]
    fn port_0_is_for_listening_only() {
        assert_eq!("udp://[::1]:0".parse::<Url>().unwrap().port, 0);
        let error = destination("udp://[::1]:0").unwrap_err();
        assert!(error.contains("name the port"), "{error}");
        assert!(destination("udp://[::1]:1").is_ok());
    }

    #[test]
    fn no_host_is_every_address_to_listen_on() {
        let url: Url = "udp://:2630".parse().unwrap();
        assert_eq!(url.to_string(), "udp://0.0.0.0:2630");
        let error = destination("udp://:2630").unwrap_err();
        assert!(error.contains("no host"), "{error}");
    }

    #[test]
    fn bad_urls_say_what_to_give() {
        for (text, says) in [
            ("localhost:2630", "names no transport"),
            ("http://localhost:2630", "unknown transport"),
            ("quic://localhost:2630", "not built yet"),
            ("udp://localhost", "no port"),
            ("udp://localhost:0-3", "no port or range"),
            ("udp://localhost:70000", "no port or range"),
            ("udp://localhost:20-10", "no port or range"),
            ("tcp://localhost:10-20", "one port"),
            ("udp://239.1.1.1:1?ttl=900", "time to live"),
            ("udp://239.1.1.1:1?colour=red", "unknown `colour`"),
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
