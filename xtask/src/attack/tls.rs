//! Requests to an agent, byte by byte, unlike those of an honest client.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A client that has the agent's certificate.
pub struct Client {
    config: Arc<ClientConfig>,
    address: SocketAddr,
}

/// A connection whose handshake happens with its first bytes.
pub type Connection = StreamOwned<ClientConnection, TcpStream>;

/// Answer of an agent.
pub enum Answer {
    Status(u16, Vec<u8>),
    /// It closed the connection without an answer.
    Closed,
    /// Nothing arrived for a while.
    Silence,
}

impl Client {
    pub fn new(certificate: &str, address: SocketAddr) -> Result<Client> {
        let mut roots = RootCertStore::empty();
        let certificate = File::open(certificate).context("the agent's certificate")?;
        let certificate = CertificateDer::from_pem_reader(BufReader::new(certificate))?;
        roots.add(certificate)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Client {
            config: Arc::new(config),
            address,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address)?;
        let name = ServerName::from(self.address.ip());
        let connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        Ok(StreamOwned::new(connection, stream))
    }

    /// Writes a request, and waits at most this long for an answer.
    pub fn ask(&self, request: &[u8], patience: Duration) -> Result<Answer> {
        let mut connection = self.connect()?;
        connection.sock.set_read_timeout(Some(patience))?;
        // A request that is refused early is not read to its end.
        let _ = connection
            .write_all(request)
            .and_then(|()| connection.flush());
        let mut answer = Vec::new();
        let mut bytes = [0; 16 << 10];
        loop {
            match connection.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&bytes[..count]),
                Err(error) if is_timeout(&error) && answer.is_empty() => {
                    return Ok(Answer::Silence);
                }
                Err(_) => break,
            }
        }
        let text = String::from_utf8_lossy(&answer[..answer.len().min(32)]);
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok(status.map_or(Answer::Closed, |status| Answer::Status(status, answer)))
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}
