//! The route to another host: its NIC, MTU and RTT.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use evlbi_net::clock::Clock;
use evlbi_net::responder;
use evlbi_net::udp::{Fragmentation, Sender, SenderOptions, interface_of};

use super::DoctorError;
use super::interfaces::CARDS;
use super::item::{Found, Item, good, note, quoted};
use super::root::Root;
use evlbi_wire::units::show_seconds;

/// Number of RTT measurements; the minimum counts.
const TRIES: u32 = 3;
/// Timeout for a reply.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum IP packet length in bytes.
const MAX_PACKET: i64 = 65_535;
/// MTU for jumbo frames, in bytes.
const JUMBO: usize = 9000;

/// Properties of the route to a host.
#[derive(Debug)]
pub struct Route {
    to: SocketAddr,
    outbound: Result<Outbound, String>,
    /// RTT in seconds.
    round_trip: Result<f64, String>,
}

/// The outbound direction of a route.
#[derive(Debug)]
struct Outbound {
    from: IpAddr,
    interface: Result<String, String>,
    /// MTU of the interface in bytes.
    interface_mtu: Result<i64, String>,
    path_mtu: Result<usize, String>,
}

impl Route {
    /// Returns the RTT in seconds, if known.
    pub fn round_trip(&self) -> Option<f64> {
        self.round_trip.as_ref().ok().copied()
    }
}

/// Looks up the route, and opens and closes TCP connections to measure the RTT.
pub fn find(root: &Root, target: &str) -> Result<Route, DoctorError> {
    if target.is_empty() {
        return Err(DoctorError::NoHost);
    }
    let (host, port) =
        responder::split(target).ok_or_else(|| DoctorError::NotAHost(target.to_owned()))?;
    let found = (host, port).to_socket_addrs();
    let host = host.to_owned();
    let to = match found.map(|mut addresses| addresses.next()) {
        Ok(Some(to)) => to,
        Ok(None) => return Err(DoctorError::NoAddress(host)),
        Err(source) => return Err(DoctorError::LookUp { host, source }),
    };
    Ok(Route {
        to,
        outbound: outbound(root, to),
        round_trip: round_trip(to),
    })
}

fn outbound(root: &Root, to: SocketAddr) -> Result<Outbound, String> {
    let options = SenderOptions {
        fragmentation: Fragmentation::Forbid,
        ..SenderOptions::default()
    };
    let sender = Sender::connect(to, &options).map_err(|error| error.to_string())?;
    let from = sender.local_address().map_err(|error| error.to_string())?;
    let from = from.ip();
    let interface =
        interface_of(from).ok_or_else(|| format!("no interface has the address {from}"));
    let interface_mtu = interface
        .clone()
        .and_then(|name| root.number(&format!("{CARDS}/{name}/mtu")));
    let path_mtu = sender.path_mtu().map_err(|error| error.to_string());
    Ok(Outbound {
        from,
        interface,
        interface_mtu,
        path_mtu,
    })
}

/// Returns the minimum time until a connection was accepted or refused, in seconds.
fn round_trip(to: SocketAddr) -> Result<f64, String> {
    let (clock, mut shortest) = (Clock::real(), f64::INFINITY);
    for _ in 0..TRIES {
        let begun = clock.now();
        let answer = TcpStream::connect_timeout(&to, TIMEOUT);
        let seconds = clock.now().since(begun).as_secs_f64();
        match answer {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(format!("no answer by TCP from {to}: {error}")),
        }
        shortest = shortest.min(seconds);
    }
    Ok(shortest)
}

pub fn items(route: Option<&Route>) -> Vec<Item> {
    let item = |name, why, found| Item::new("path", name, why, found);
    let Some(route) = route else {
        return vec![item(
            "route",
            "buffer sizes follow from the RTT, and the packet length from the path: --to HOST checks both",
            Ok(note("not checked: no --to")),
        )];
    };
    let mut items = vec![
        item(
            "route",
            "data that leaves by an unexpected NIC shares it with other traffic",
            Ok(leaves(route)),
        ),
        item(
            "round trip",
            "the shortest of three TCP handshakes, which a firewall or proxy on the path may have answered; buffer sizes follow \
             from it",
            route
                .round_trip
                .clone()
                .map(|seconds| good(show_seconds(seconds))),
        ),
    ];
    if let Ok(outbound) = &route.outbound {
        items.push(item(
            "path MTU",
            "known to this host: its NIC's MTU, or less if the route or a router says so; only traffic shows the rest of the \
             path: `evlbi probe udp HOST --size 8972`",
            mtu(route, outbound),
        ));
    }
    items
}

fn leaves(route: &Route) -> Item {
    let outbound = match &route.outbound {
        Ok(outbound) => outbound,
        Err(reason) => return note(format!("none: {reason}")).by(look_up(route)),
    };
    let interface = match &outbound.interface {
        Ok(name) => format!("on {name}"),
        Err(reason) => format!("unknown interface ({reason})"),
    };
    good(format!(
        "to {}: from {}, {interface}",
        route.to.ip(),
        outbound.from
    ))
}

fn mtu(route: &Route, outbound: &Outbound) -> Found {
    let path = outbound.path_mtu.clone()?;
    let of_card = match &outbound.interface_mtu {
        Ok(mtu) => format!("{mtu} at the NIC"),
        Err(reason) => format!("unknown at the NIC: {reason}"),
    };
    let found = note(format!("{path} bytes; {of_card}"));
    let is_less = outbound.interface_mtu.as_ref().is_ok_and(|mtu| {
        // No packet is longer, whatever the NIC allows.
        (path as i64) < (*mtu).min(MAX_PACKET)
    });
    Ok(match path {
        _ if is_less => found.by(look_up(route)),
        JUMBO.. => found,
        _ => found.wanting(format!("{JUMBO} bytes, if the path carries them")),
    })
}

fn look_up(route: &Route) -> String {
    format!("ip route get {}", quoted(&route.to.ip().to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::tests::named;
    use super::*;

    fn route(path: usize, card: i64) -> Route {
        Route {
            to: "192.0.2.1:8620".parse().unwrap(),
            outbound: Ok(Outbound {
                from: "192.0.2.2".parse().unwrap(),
                interface: Ok("eth1".into()),
                interface_mtu: Ok(card),
                path_mtu: Ok(path),
            }),
            round_trip: Ok(0.0271),
        }
    }

    #[test]
    fn the_path_beyond_the_route_is_never_claimed() {
        let items_of = |path, card| items(Some(&route(path, card)));
        let items = items_of(9000, 9000);
        let item = named(&items, "path MTU");
        assert_eq!((item.verdict, &item.wanted), (Verdict::Note, &None));
        assert!(item.why.contains("evlbi probe udp HOST --size 8972"));
        assert_eq!(
            named(&items, "route").found,
            "to 192.0.2.1: from 192.0.2.2, on eth1"
        );
        let items = items_of(1500, 9000);
        let item = named(&items, "path MTU");
        assert_eq!(item.found, "1500 bytes; 9000 at the NIC");
        assert_eq!(item.command.as_deref(), Some("ip route get 192.0.2.1"));
        assert!(named(&items_of(1500, 1500), "path MTU").wanted.is_some());
    }

    #[test]
    fn without_an_answer_there_is_no_round_trip() {
        let mut silent = route(1500, 1500);
        silent.round_trip = Err("no answer".into());
        silent.outbound = Err("no route".into());
        assert_eq!(silent.round_trip(), None);
        let items = items(Some(&silent));
        assert_eq!(items.len(), 2);
        assert_eq!(named(&items, "round trip").verdict, Verdict::Unknown);
        assert_eq!(named(&items, "route").found, "none: no route");
        assert_eq!(super::items(None)[0].verdict, Verdict::Note);
    }

    #[test]
    fn this_host_answers_itself() {
        // Whether the host accepts the connection or refuses it.
        let root = Root("/".into());
        let route = find(&root, "127.0.0.1").unwrap();
        assert!(route.round_trip().unwrap() > 0.0);
        assert_eq!(route.outbound.unwrap().interface.as_deref(), Ok("lo"));
    }
}
