//! Errors of evlbi-net and evlbi-core.

use std::error::Error;
use std::io::{self, ErrorKind};

use evlbi_core::packetise::PacketiseError;
use evlbi_core::shed::ShedError;
use evlbi_net::capture::CaptureError;
use evlbi_net::file::WriteError;
use evlbi_net::netns::Unavailable;
use evlbi_net::ring::RingError;
use evlbi_net::tcp::TcpError;
use evlbi_net::transport::{NotHonoured, OpenError};
use evlbi_net::udp;
use nix::errno::Errno;

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_text))
        .or_else(|| error.downcast_ref().and_then(of_option))
        .or_else(|| error.downcast_ref().and_then(of_ring))
        .or_else(|| error.downcast_ref().and_then(of_file))
        .or_else(|| error.downcast_ref().and_then(of_tcp))
        .or_else(|| error.downcast_ref().and_then(of_capture))
        .or_else(|| error.downcast_ref().and_then(of_namespaces))
        .or_else(|| error.downcast_ref().and_then(of_packets))
        .or_else(|| error.downcast_ref().and_then(of_shedding))
        .or_else(|| error.downcast_ref().and_then(of_open))
        .or_else(|| error.downcast_ref().and_then(of_socket))
}

/// Bytes that are not UTF-8 where text is read, e.g. a recording in place of a plan.
fn of_text(error: &io::Error) -> Option<String> {
    let is_own = error.get_ref().is_none() && error.raw_os_error().is_none();
    (is_own && error.kind() == ErrorKind::InvalidData).then(|| "it is not a text file".to_owned())
}

fn of_option(error: &NotHonoured) -> Option<String> {
    let option = match (error.option, error.receives) {
        ("single", false) => "--no-gso",
        ("single", true) => "--no-gro",
        ("only", _) => "--source",
        ("buffer", _) => "--buffer",
        ("mtu", _) => "--mtu",
        ("sequence", _) => "--sequence",
        ("window", _) => "--window",
        ("hold", _) => "--hold",
        // As a URL has it.
        (option, _) => option,
    };
    let (scheme, here) = (error.scheme, error.here);
    Some(format!(
        "{option} has no effect on {scheme}://{here}; leave it out"
    ))
}

fn of_open(error: &OpenError) -> Option<String> {
    match error {
        OpenError::NoMessages(_) => Some(format!("{error}; leave --safe out")),
        OpenError::Messages { at, source } if source.kind() == ErrorKind::AddrInUse => {
            Some(format!("{error}; {}", of_port(&at.to_string())))
        }
        _ => None,
    }
}

fn of_socket(error: &udp::OpenError) -> Option<String> {
    match error {
        udp::OpenError::Bind { address, source } if source.kind() == ErrorKind::AddrInUse => {
            Some(format!("{error}; {}", of_port(&address.to_string())))
        }
        _ => None,
    }
}

/// Returns how to find who uses a port.
fn of_port(address: &str) -> String {
    let port = address.rsplit(':').next().unwrap_or_default();
    format!(
        "`ss -lunp sport = :{port}` shows the program that uses it; messages of SafeUDP take the port after that of the data"
    )
}

fn of_ring(error: &RingError) -> Option<String> {
    Some(match error {
        RingError::Size { .. } => format!("{error}; a larger --ring holds them"),
        RingError::Memory { .. } => {
            format!("{error}; a smaller --ring (or --window, where the ring follows it) needs less")
        }
        _ => return None,
    })
}

fn of_file(error: &WriteError) -> Option<String> {
    let remedy = match error.source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some space or record to another disk"
        }
        ErrorKind::FileTooLarge => "raise `ulimit -f`, or record to a file system for large files",
        _ if error.source.raw_os_error() == Some(Errno::EIO as i32) => {
            "the disk or its connection fails: see dmesg"
        }
        _ => return None,
    };
    Some(format!("{error}; {remedy}"))
}

fn of_tcp(error: &TcpError) -> Option<String> {
    Some(match error {
        TcpError::NoAlgorithm { name, .. } => {
            format!("{error}; if it has the module, as root: modprobe tcp_{name}")
        }
        TcpError::NotAllowed(name) => format!(
            "{error}: as root, sysctl -w net.ipv4.tcp_allowed_congestion_control=\"... {name}\""
        ),
        _ => return None,
    })
}

fn of_capture(error: &CaptureError) -> Option<String> {
    let CaptureError::Socket {
        interface, source, ..
    } = error
    else {
        return None;
    };
    Some(match source.kind() {
        ErrorKind::PermissionDenied => {
            format!(
                "{error}; it needs root or CAP_NET_RAW: setcap cap_net_raw,cap_net_admin+ep PROGRAM"
            )
        }
        ErrorKind::NetworkDown => format!("{error}; as root: ip link set {interface} up"),
        _ => return None,
    })
}

fn of_namespaces(error: &Unavailable) -> Option<String> {
    Some(match error {
        Unavailable::NotPermitted(why) => format!(
            "network namespaces need root or unprivileged user namespaces (sysctl user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): {why}"
        ),
        Unavailable::Tap(why) => match why.kind() {
            ErrorKind::PermissionDenied => {
                "cannot open /dev/net/tun: only root may; let others by chmod a+rw /dev/net/tun"
                    .to_owned()
            }
            ErrorKind::NotFound => {
                "cannot open /dev/net/tun: it is not there; load the module: modprobe tun"
                    .to_owned()
            }
            _ => return None,
        },
        Unavailable::Setting {
            name,
            value,
            source,
            ..
        } if name == "tcp_congestion_control" && source.kind() == ErrorKind::NotFound => format!(
            "{error}: this kernel does not have it (cat /proc/sys/net/ipv4/tcp_available_congestion_control); \
             if it has the module, as root: modprobe tcp_{value}"
        ),
        Unavailable::NoTool(_) => {
            format!("{error} (Debian: apt install iproute2 util-linux ethtool nftables)")
        }
        _ => return None,
    })
}

fn of_packets(error: &PacketiseError) -> Option<String> {
    Some(match error {
        PacketiseError::MtuTooSmall { .. } => format!("{error}; raise --mtu"),
        PacketiseError::SmallParts { enough, .. } => {
            format!("{error}; raise --mtu to {enough} or cut them as bytes with --cut plain")
        }
        PacketiseError::NoDivisor { .. } => {
            format!("{error}; cut them as bytes with --cut plain")
        }
        _ => return None,
    })
}

fn of_shedding(error: &ShedError) -> Option<String> {
    Some(match error {
        ShedError::NoRate => format!("{error}; give --rate or --realtime with it"),
        ShedError::NoFrameRate => format!("{error}; give --frame-rate"),
        _ => return None,
    })
}
