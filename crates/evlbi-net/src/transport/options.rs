//! Options of transports, and which of them have an effect on which transport.

use std::net::IpAddr;
use std::time::Duration;

use super::Url;

/// Options of a sending end. Unset ones keep the transport's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOptions {
    /// Size of the socket's buffer in bytes.
    pub buffer: Option<usize>,
    /// Maximum packet length in bytes, including the IP headers.
    pub mtu: Option<usize>,
    /// First sequence number, if datagrams are numbered.
    pub sequence: Option<u64>,
    /// Passes each datagram to the kernel on its own.
    pub single: bool,
    /// Whether the network may mark datagrams for congestion instead of dropping them, where a transport can say so (ECN).
    pub marks: bool,
}

/// Options of a receiving end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InOptions {
    /// Size of the socket's buffer in bytes.
    pub buffer: Option<usize>,
    /// Takes each datagram from the kernel on its own.
    pub single: bool,
    /// Accepts data only from this host.
    pub only: Option<IpAddr>,
    /// Maximum distance of a late datagram behind the newest, in bytes of data.
    pub window: Option<u64>,
    /// Maximum wait for a missing datagram.
    pub hold: Option<Duration>,
    /// Whether to read marks of congestion, where a transport has them (ECN).
    pub marks: bool,
}

/// The options that have an effect on a transport. Each transport answers for each: there is no default.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of the options")]
pub struct Honours {
    pub buffer: bool,
    pub mtu: bool,
    pub sequence: bool,
    pub single: bool,
    pub only: bool,
    pub window: bool,
    pub hold: bool,
    pub interface: bool,
    pub source: bool,
    pub ttl: bool,
}

/// An option without effect on a transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} has no effect on {scheme}://{here}")]
#[non_exhaustive]
pub struct NotHonoured {
    /// The option: the name of its field in [`InOptions`] or [`OutOptions`], or its form in a URL (`?ttl=`).
    pub option: &'static str,
    /// Whether it is an option of a receiver.
    pub receives: bool,
    /// Name of the transport.
    pub scheme: &'static str,
    /// Where it has no effect, if it has one elsewhere.
    pub here: &'static str,
}

/// Whether an option was given, its name, and whether it has an effect.
type Asked = (bool, &'static str, bool);
/// Where options of a URL have no effect.
const RECEIVING: &str = " where data is received";
const SENDING: &str = " where data is sent";
const NO_GROUP: &str = " without a multicast group";

impl OutOptions {
    /// Refuses options without effect on the transport of `to`.
    ///
    /// # Errors
    /// Returns [`NotHonoured`].
    pub fn check(&self, to: &Url) -> Result<(), NotHonoured> {
        let honours = to.transport().service().honours;
        let OutOptions {
            buffer,
            mtu,
            sequence,
            single,
            marks: _,
        } = self;
        let asked = [
            (buffer.is_some(), "buffer", honours.buffer),
            (mtu.is_some(), "mtu", honours.mtu),
            (sequence.is_some(), "sequence", honours.sequence),
            (*single, "single", honours.single),
        ];
        refuse(to, &asked, false)?;
        refuse_here(to, to.source.is_some(), "?source=", SENDING, false)
    }
}

impl InOptions {
    /// Refuses options without effect on the transport of `at`.
    ///
    /// # Errors
    /// Returns [`NotHonoured`].
    pub fn check(&self, at: &Url) -> Result<(), NotHonoured> {
        let honours = at.transport().service().honours;
        let InOptions {
            buffer,
            single,
            only,
            window,
            hold,
            marks: _,
        } = self;
        let asked = [
            (buffer.is_some(), "buffer", honours.buffer),
            (*single, "single", honours.single),
            (only.is_some(), "only", honours.only),
            (window.is_some(), "window", honours.window),
            (hold.is_some(), "hold", honours.hold),
        ];
        refuse(at, &asked, true)?;
        refuse_here(at, at.ttl.is_some(), "?ttl=", RECEIVING, true)?;
        let address = at.host().and_then(|it| it.name.parse::<IpAddr>().ok());
        let is_one = address.is_some_and(|it| !it.is_multicast());
        refuse_here(
            at,
            at.source.is_some() && is_one,
            "?source=",
            NO_GROUP,
            true,
        )
    }
}

fn refuse(url: &Url, asked: &[Asked], receives: bool) -> Result<(), NotHonoured> {
    let honours = url.transport().service().honours;
    let of_url = [
        (url.interface.is_some(), "?interface=", honours.interface),
        (url.source.is_some(), "?source=", honours.source),
        (url.ttl.is_some(), "?ttl=", honours.ttl),
    ];
    let mut refused = asked.iter().chain(&of_url);
    match refused.find(|(is_given, _, honoured)| *is_given && !honoured) {
        Some((_, option, _)) => refuse_here(url, true, option, "", receives),
        None => Ok(()),
    }
}

fn refuse_here(
    url: &Url,
    is_given: bool,
    option: &'static str,
    here: &'static str,
    receives: bool,
) -> Result<(), NotHonoured> {
    let scheme = url.scheme();
    match is_given {
        true => Err(NotHonoured {
            option,
            receives,
            scheme,
            here,
        }),
        false => Ok(()),
    }
}
