//! TLS connections with timeouts and limits, so that many idle or slow connections cannot keep other clients out.

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

/// Maximum number of unauthenticated connections. If there are more, the oldest are closed.
const MAX_UNAUTHENTICATED: usize = 128;
/// Maximum number of authenticated connections. If there are more, the oldest are closed, so new clients can always connect.
const MAX_AUTHENTICATED: usize = 512;
/// Default timeout for the handshake and for the head of the next request. It is long, so browsers rarely find that a connection
/// that they reuse is closed.
pub const IDLE: Duration = Duration::from_secs(20);
/// Maximum head of a request, in bytes.
const MAX_HEAD: usize = 32 << 10;

/// Client of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The client has sent a valid token.
    is_known: Arc<AtomicBool>,
}

impl Peer {
    /// Marks the client as authenticated: its connection is not closed in favour of unauthenticated ones.
    pub fn authenticate(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }
}

/// Answers requests until it is aborted. `idle` is the timeout for the handshake and for the head of the next request.
pub async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, router: Router, idle: Duration) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = JoinSet::new();
    let mut open: VecDeque<(Peer, AbortHandle)> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // No file descriptors are left, or the connection was aborted: keep serving others.
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        open.retain(|(_, handle)| !handle.is_finished());
        let is_known = |peer: &Peer| peer.is_known.load(Ordering::Relaxed);
        let known = open.iter().filter(|(peer, _)| is_known(peer)).count();
        for (of_known, is_full) in [
            (false, open.len() - known >= MAX_UNAUTHENTICATED),
            (true, known >= MAX_AUTHENTICATED),
        ] {
            let mut oldest = open.iter();
            let oldest = oldest.position(|(peer, _)| is_known(peer) == of_known);
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
    // Errors of unauthenticated clients are ignored.
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
