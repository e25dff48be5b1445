//! Connections: TLS always, each held to its time, so that neither a thousand that say nothing nor one that says it
//! slowly keeps others out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// Connections that have not shown a token yet; of more, the oldest are closed.
const MAX_STRANGERS: usize = 128;
/// Connections of those who have; of more, the oldest are closed, so that a new one can always act.
const MAX_KNOWN: usize = 512;
/// Default limit for the handshake, and for the wait for the head of the next request. It is long so that a browser seldom finds
/// a connection closed that it is about to use.
pub const IDLE: Duration = Duration::from_secs(20);
/// The longest head of a request, in bytes.
const MAX_HEAD: usize = 32 << 10;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// It has shown a token.
    is_known: Arc<AtomicBool>,
}

impl Peer {
    /// It has shown a token: its connection is not closed for others.
    pub fn is_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }
}

/// Answers what comes until it is aborted. The handshake of a connection and the head of its next request come within `idle`.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, router: Router, idle: Duration) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = JoinSet::new();
    let mut open: VecDeque<(Peer, AbortHandle)> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of descriptors, or a connection that broke off: others go on.
            Err(error) => {
                tracing::warn!("a connection could not be taken: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        open.retain(|(_, handle)| !handle.is_finished());
        let is_stranger = |peer: &Peer| !peer.is_known.load(Ordering::Relaxed);
        let strangers = open.iter().filter(|(peer, _)| is_stranger(peer)).count();
        for (of_strangers, is_full) in [
            (true, strangers >= MAX_STRANGERS),
            (false, open.len() - strangers >= MAX_KNOWN),
        ] {
            let mut oldest = open.iter();
            let oldest = oldest.position(|(peer, _)| is_stranger(peer) == of_strangers);
            if is_full && let Some((_, handle)) = oldest.and_then(|oldest| open.remove(oldest)) {
                handle.abort();
            }
        }
        let peer = Peer::default();
        let router = router.clone().layer(Extension(peer.clone()));
        let handle = connections.spawn(answer(acceptor.clone(), stream, router, idle));
        open.push_back((peer, handle));
    }
}

async fn answer(acceptor: TlsAcceptor, stream: TcpStream, router: Router, idle: Duration) {
    // Whatever a stranger does wrong is no matter of ours.
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(idle, acceptor.accept(stream));
    let Ok(Ok(stream)) = handshake.await else {
        return;
    };
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
}
