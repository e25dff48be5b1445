//! URLs of sources and destinations, such as `udp://host:port`.
//!
//! The scheme names the transport. Ports may be a range (`2630-2633`): one stream over several ports. A query holds the options of
//! multicast: `udp://232.1.2.3:2630?interface=eth1&source=10.0.0.5&ttl=8`.

use std::any::Any;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::run::Run;
use crate::udp::Interface;

use super::{
    Carries, InOptions, Incoming, Numbers, OpenError, Opened, OutOptions, Outgoing, TRANSPORTS,
    Transport,
};

/// Names of transports that plans use too.
pub mod scheme {
    /// Datagrams with sequence numbers.
    pub const UDP: &str = "udp";
    /// Datagrams without sequence numbers.
    pub const PUDP: &str = "pudp";
    /// A byte stream.
    pub const TCP: &str = "tcp";
}

/// Maximum number of ports in a range, for any transport.
pub(super) const MAX_PORTS: u16 = 64;
/// Known transports that are not built in.
const NOT_BUILT: [&str; 3] = ["dccp", "udt", "quic"];

/// A parsed URL.
#[derive(Clone)]
pub struct Url {
    transport: &'static dyn Transport,
    /// The part between the scheme and the query.
    pub place: Place,
    /// Interface for multicast.
    pub interface: Option<Interface>,
    /// Source address to accept in a source-specific multicast group.
    pub source: Option<IpAddr>,
    /// Time to live (hop limit) of multicast datagrams.
    pub ttl: Option<u8>,
}

/// A place that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ports of a host.
    Host(Host),
    /// A Unix socket in the file system.
    Path(PathBuf),
    /// UDP ports in the packets that an interface shows.
    Interface {
        /// The interface.
        interface: Interface,
        /// First port.
        port: u16,
        /// Number of ports; 1 unless a range was given.
        ports: u16,
    },
    /// A handle of its transport, without a text form.
    Handle(Handle),
}

/// The query of a URL: its keys with their values.
pub type Query<'a> = Vec<(&'a str, &'a str)>;

/// A handle that a transport created, and the text that is shown for it.
#[derive(Clone)]
pub struct Handle {
    shown: String,
    what: Arc<dyn Any + Send + Sync>,
}

impl Handle {
    /// Creates a handle of `what`, shown as `shown`.
    pub fn new(shown: impl fmt::Display, what: impl Any + Send + Sync) -> Handle {
        Handle {
            shown: shown.to_string(),
            what: Arc::new(what),
        }
    }

    /// Returns its content, if it is of this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.what.downcast_ref()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Handle) -> bool {
        Arc::ptr_eq(&self.what, &other.what)
    }
}

impl Eq for Handle {}

/// Ports of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Host name or address, without brackets.
    pub name: String,
    /// First port.
    pub port: u16,
    /// Number of ports; 1 unless a range was given.
    pub ports: u16,
}

/// Returns the forms of URLs.
fn forms() -> String {
    let forms = TRANSPORTS.iter().map(|it| it.form());
    let forms: Vec<&str> = forms.filter(|form| !form.is_empty()).collect();
    let (last, others) = forms.split_last().unwrap_or((&"", &[]));
    format!(
        "give {} or {last} (IPv6 in brackets, a range of ports like 2630-2633, multicast with ?interface=NAME&source=ADDRESS&ttl=N)",
        others.join(", ")
    )
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("no transport in URL `{text}`: {}", forms()))?;
        let has_scheme = |it: &&&dyn Transport| it.schemes().contains(&scheme);
        let transport = TRANSPORTS.iter().find(has_scheme).ok_or_else(|| {
            match NOT_BUILT.contains(&scheme) {
                true => format!("the transport {scheme}:// is not built yet: {}", forms()),
                false => format!("unknown transport `{scheme}://`: {}", forms()),
            }
        })?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let mut query: Query<'_> = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .collect();
        let mut url = Url::new(*transport, transport.place(place, &mut query)?);
        for (key, value) in query {
            url.apply_query(key, value)?;
        }
        Ok(url)
    }
}

/// Parses the host and its ports in a URL of `transport`.
pub(super) fn host(text: &str, transport: &dyn Transport) -> Result<Place, String> {
    let scheme = transport.schemes()[0];
    let (name, ports) = text
        .trim_end_matches('/')
        .rsplit_once(':')
        .ok_or_else(|| format!("`{scheme}://{text}` has no port: {}", forms()))?;
    let name = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    // Listens on all addresses.
    let name = if name.is_empty() { "0.0.0.0" } else { name };
    let (port, ports) = parse_ports(ports).ok_or_else(|| {
        format!(
            "invalid port `{ports}` (1 to 65535, a range of up to {MAX_PORTS}, or 0 to listen on a free one): {}",
            forms()
        )
    })?;
    if ports > transport.service().max_ports {
        return Err(format!(
            "a {} stream takes one port; give {}",
            scheme.to_uppercase(),
            transport.form()
        ));
    }
    Ok(Place::Host(Host {
        name: name.to_owned(),
        port,
        ports,
    }))
}

/// Parses a port, or a range of ports: the first one, and their number.
pub(super) fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first: u16 = first.parse().ok()?;
    let last: u16 = last.parse().ok()?;
    let count = last.checked_sub(first)?.checked_add(1)?;
    (count <= MAX_PORTS && (first > 0 || count == 1)).then_some((first, count))
}

/// Parses a URL to send to, which must name a port.
///
/// # Errors
/// Returns what is wrong with it, and what to give.
pub fn destination(text: &str) -> Result<Url, String> {
    let url: Url = text.parse()?;
    if matches!(url.place, Place::Interface { .. }) {
        return Err(format!(
            "cannot send to `{text}`: it only receives; give the address of a receiver"
        ));
    }
    if text.contains("://:") {
        return Err(format!("`{text}` has no host to send to: {}", forms()));
    }
    if url.host().is_some_and(|host| host.port == 0) {
        return Err(format!(
            "port 0 is for listening on a free one; name the port that the receiver prints: {}",
            forms()
        ));
    }
    Ok(url)
}

impl Url {
    /// Returns the URL of a place, without a query.
    pub fn new(transport: &'static dyn Transport, place: Place) -> Url {
        Url {
            transport,
            place,
            interface: None,
            source: None,
            ttl: None,
        }
    }

    /// Returns the URL of all addresses of this host, at any free port, with the first of the transports.
    pub fn anywhere() -> Url {
        let host = Host {
            name: "0.0.0.0".into(),
            port: 0,
            ports: 1,
        };
        Url::new(TRANSPORTS[0], Place::Host(host))
    }

    /// Returns its transport.
    pub fn transport(&self) -> &'static dyn Transport {
        self.transport
    }

    /// Returns the name of its transport.
    pub fn scheme(&self) -> &'static str {
        self.transport.schemes()[0]
    }

    /// Opens a connection to it.
    ///
    /// # Errors
    /// Returns [`OpenError`], also if an option has no effect on the transport.
    pub fn open_out(&self, with: &OutOptions, run: &Run) -> Opened<dyn Outgoing> {
        with.check(self)?;
        self.transport.open_out(self, with, run)
    }

    /// Listens at it.
    ///
    /// # Errors
    /// Returns [`OpenError`], also if an option has no effect on the transport.
    pub fn open_in(&self, with: &InOptions, run: &Run) -> Opened<dyn Incoming> {
        with.check(self)?;
        self.transport.open_in(self, with, run)
    }

    /// Returns whether a listener at this URL receives what is sent to that URL, if both are on one host.
    pub fn takes(&self, to: &Url) -> bool {
        let has_port = |own: &Host, to: &Host| own.has_port(to.port);
        let both = self.host().zip(to.host());
        self.scheme() == to.scheme() && both.is_some_and(|(own, to)| has_port(own, to))
    }

    /// Returns whether SafeUDP can control a flow to it, or from there: its datagrams have numbers of their own and may be lost, and it is
    /// no multicast group.
    pub fn can_be_safe(&self) -> bool {
        let service = self.transport.service();
        let is_vtp = service.carries == Carries::Datagrams && service.numbers == Numbers::InBand;
        let is_group = |host: &Host| {
            let address = host.name.parse::<IpAddr>();
            address.is_ok_and(|address| address.is_multicast())
        };
        is_vtp && !service.reliable && !self.host().is_some_and(is_group)
    }

    /// Returns whether data sent to it leave this host without a congestion control of the transport.
    pub fn lacks_control(&self) -> bool {
        let service = self.transport.service();
        let leaves = |host: &Host| {
            let address = host.name.parse::<IpAddr>();
            host.name != "localhost" && !address.is_ok_and(|it| it.to_canonical().is_loopback())
        };
        let is_free = service.carries == Carries::Datagrams && !service.reliable;
        is_free && self.host().is_some_and(leaves)
    }

    /// Returns the host, if it names one.
    pub fn host(&self) -> Option<&Host> {
        match &self.place {
            Place::Host(host) => Some(host),
            Place::Path(_) | Place::Interface { .. } | Place::Handle(_) => None,
        }
    }

    fn apply_query(&mut self, key: &str, value: &str) -> Result<(), String> {
        let bad = |what: &str| format!("invalid {what} `{value}` in `?{key}={value}`");
        match key {
            "interface" => self.interface = value.parse().ok(),
            "source" => self.source = Some(value.parse().map_err(|_| bad("IP address"))?),
            "ttl" => {
                let ttl = value.parse().map_err(|_| bad("time to live (0 to 255)"))?;
                self.ttl = Some(ttl);
            }
            _ => {
                let honours = self.transport.service().honours;
                let is_used = honours.interface || honours.source || honours.ttl;
                return Err(match is_used {
                    true => format!("unknown `{key}` in the query: use interface, source or ttl"),
                    false => {
                        format!(
                            "unknown `{key}` in the query: give {}",
                            self.transport.form()
                        )
                    }
                });
            }
        }
        Ok(())
    }

    /// Returns the addresses of all ports, for each address of its host, in order of preference.
    ///
    /// # Errors
    /// Returns [`OpenError::Name`] if the name cannot be resolved.
    pub fn addresses(&self) -> Result<Vec<Vec<SocketAddr>>, OpenError> {
        let Some(host) = self.host() else {
            return Ok(Vec::new());
        };
        let failed = |source| OpenError::Name {
            host: host.name.clone(),
            url: self.to_string(),
            source,
        };
        let found = (host.name.as_str(), host.port).to_socket_addrs();
        let found: Vec<Vec<SocketAddr>> = found
            .map_err(failed)?
            .map(|first| {
                let ports = 0..host.ports;
                let of = |offset| SocketAddr::new(first.ip(), first.port() + offset);
                ports.map(of).collect()
            })
            .collect();
        match found.is_empty() {
            true => Err(failed(io::Error::other("it has no address"))),
            false => Ok(found),
        }
    }
}

/// Opens with the first of the host's addresses that works; the error is that of the first address.
pub(super) fn first<T>(
    url: &Url,
    open: impl FnMut(&[SocketAddr]) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let none = || Err(failed(url)(io::ErrorKind::AddrNotAvailable.into()));
    first_of(&url.addresses()?, open).unwrap_or_else(none)
}

/// Returns a wrapper of errors while connecting to `to`.
pub(super) fn failed(to: &Url) -> impl Fn(io::Error) -> OpenError + Copy {
    move |source| OpenError::Connect {
        url: to.to_string(),
        source,
    }
}

/// Returns the first success, or the first error if there is none; `None` if there are no attempts.
fn first_of<T>(
    addresses: &[Vec<SocketAddr>],
    mut open: impl FnMut(&[SocketAddr]) -> Result<T, OpenError>,
) -> Option<Result<T, OpenError>> {
    let mut failed = None;
    for ports in addresses {
        match open(ports) {
            Ok(opened) => return Some(Ok(opened)),
            Err(error) => failed.get_or_insert(error),
        };
    }
    failed.map(Err)
}

impl Host {
    /// Returns whether it names this port.
    pub fn has_port(&self, port: u16) -> bool {
        let offset = port.checked_sub(self.port);
        offset.is_some_and(|offset| offset < self.ports)
    }
}

impl PartialEq for Url {
    fn eq(&self, other: &Url) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Url {}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]", self.name)?;
        } else {
            f.write_str(&self.name)?;
        }
        write!(f, ":{}", Ports(self.port, self.ports))
    }
}

/// A first port and the number of ports, as a URL has them.
struct Ports(u16, u16);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ports(port, ports) = self;
        match ports {
            0 | 1 => port.fmt(f),
            _ => write!(f, "{port}-{}", port + (ports - 1)),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme())?;
        match &self.place {
            Place::Host(host) => host.fmt(f)?,
            Place::Path(path) => path.display().fmt(f)?,
            Place::Interface {
                interface,
                port,
                ports,
            } => {
                write!(f, "{interface}?udp={}", Ports(*port, *ports))?;
            }
            Place::Handle(handle) => f.write_str(&handle.shown)?,
        }
        let pairs = [
            self.interface.as_ref().map(|interface| match interface {
                Interface::Name(name) => format!("interface={name}"),
                Interface::Address(address) => format!("interface={address}"),
            }),
            self.source.map(|source| format!("source={source}")),
            self.ttl.map(|ttl| format!("ttl={ttl}")),
        ];
        let has_query = matches!(self.place, Place::Interface { .. });
        for (index, pair) in pairs.into_iter().flatten().enumerate() {
            let is_first = index == 0 && !has_query;
            write!(f, "{}{pair}", if is_first { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn urls_are_parsed_as_printed() {
        for text in [
            "udp://127.0.0.1:2630",
            "udp://[::1]:2630",
            "pudp://correlator.example:46227",
            "tcp://10.0.0.1:2630",
            "udp://0.0.0.0:2630-2633",
            "udp://232.1.2.3:2630?interface=eth1&source=10.0.0.5&ttl=8",
            "mirror://eth1?udp=2630",
            "mirror://10.0.0.5?udp=2630-2633&ttl=8",
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
        }
        let url: Url = "udp://[ff15::1]:65535".parse().unwrap();
        let host = Host {
            name: "ff15::1".into(),
            port: 65535,
            ports: 1,
        };
        assert_eq!(url.host(), Some(&host));
    }

    #[test]
    fn a_range_of_ports_makes_an_address_each() {
        let url: Url = "udp://127.0.0.1:65534-65535".parse().unwrap();
        let ports: Vec<u16> = url
            .addresses()
            .unwrap()
            .iter()
            .flatten()
            .map(SocketAddr::port)
            .collect();
        assert_eq!(ports, [65534, 65535]);
    }

    /// A name may have an address without a listener or a route, next to one that works.
    #[test]
    fn all_addresses_of_a_name_are_tried_in_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let works = listener.local_addr().unwrap();
        let taken = TcpListener::bind("127.0.0.2:0").unwrap();
        let refuses = taken.local_addr().unwrap();
        drop(taken);
        let connect = |ports: &[SocketAddr]| {
            TcpStream::connect(ports[0]).map_err(|source| OpenError::Connect {
                url: ports[0].to_string(),
                source,
            })
        };
        let found = first_of(&[vec![refuses], vec![works]], connect);
        assert_eq!(found.unwrap().unwrap().peer_addr().unwrap(), works);
        let error = first_of(&[vec![refuses], vec![refuses]], connect);
        let error = error.unwrap().unwrap_err().to_string();
        assert!(error.contains(&refuses.to_string()), "{error}");
        assert!(first_of(&[], connect).is_none());
    }

    #[test]
    fn port_0_is_for_listening_only() {
        assert_eq!(
            "udp://[::1]:0".parse::<Url>().unwrap().host().unwrap().port,
            0
        );
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
    fn errors_of_bad_urls_show_a_valid_form() {
        for (text, says) in [
            ("localhost:2630", "no transport in URL"),
            ("http://localhost:2630", "unknown transport"),
            ("quic://localhost:2630", "not built yet"),
            ("udp://localhost", "no port"),
            ("udp://localhost:0-3", "invalid port"),
            ("udp://localhost:70000", "invalid port"),
            ("udp://localhost:20-10", "invalid port"),
            ("tcp://localhost:10-20", "one port"),
            ("udp://239.1.1.1:1?ttl=900", "time to live"),
            ("udp://239.1.1.1:1?colour=red", "unknown `colour`"),
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
