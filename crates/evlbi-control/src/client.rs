//! Client of an agent: HTTPS with a pinned certificate.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use evlbi_net::run::explain;
use evlbi_stream::control_socket::Change;
use reqwest::{Method, Response};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use super::api::{Checks, Events, Flows};
use super::fleet::{AboutYou, Checked, Control, Later, Problem, ProblemBody, Remote, Reply};
use super::flow::{Flow, FlowId, NewFlow};
use super::history::Event;
use super::identity::Fingerprint;

/// Timeout for an answer of an agent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time within which an idle connection is reused. Agents must keep idle connections open for longer, which their settings check: a
/// request that is sent while the agent closes the connection gets no answer.
pub const POOL_IDLE: Duration = Duration::from_secs(5);

/// Error: no client of an agent can be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// TLS cannot be set up.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be set up.
    #[error("cannot set up an HTTPS client")]
    Http(#[source] reqwest::Error),
}

/// Client of an agent.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    /// `https://HOST:PORT`.
    url: String,
    token: String,
}

impl Client {
    /// Creates a client of the agent at `url` (`https://HOST:PORT`), whose certificate must have this fingerprint. It connects with the
    /// first request.
    ///
    /// # Errors
    /// Returns [`ClientError`] if TLS or HTTP cannot be set up on this host.
    pub fn new(url: &str, fingerprint: Fingerprint, token: &str) -> Result<Client, ClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pinned = Pinned {
            fingerprint,
            algorithms: provider.signature_verification_algorithms,
        };
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_no_client_auth();
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .no_proxy()
            .timeout(TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .build()
            .map_err(ClientError::Http)?;
        Ok(Client {
            http,
            url: url.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
        })
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
    ) -> Reply<T> {
        let text = self.text(method, path, body).await?;
        serde_json::from_str(&text).map_err(|error| self.odd(&error))
    }

    fn odd(&self, error: &serde_json::Error) -> Problem {
        self.silent(&format!(
            "sent an invalid answer ({error}): is it another version of evlbi?"
        ))
    }

    fn failed(&self, error: &reqwest::Error) -> Problem {
        if is_refused(error) {
            let address = self.url.trim_start_matches("https://");
            let why = format!("no agent answers at {address}: start `evlbi agent` there");
            return Problem::new(reqwest::StatusCode::BAD_GATEWAY, why);
        }
        let error = explain(error);
        self.silent(&format!("does not answer: {error}"))
    }

    async fn text(&self, method: Method, path: String, body: Option<Value>) -> Reply<String> {
        let response = self.response(method, path, body).await?;
        response.text().await.map_err(|error| self.failed(&error))
    }

    /// Sends a request and returns a successful response.
    async fn response(&self, method: Method, path: String, body: Option<Value>) -> Reply<Response> {
        // These requests are idempotent.
        let may_repeat = method == Method::GET || path == "check" || path.ends_with("/stop");
        let url = format!("{}/api/v1/{path}", self.url);
        let mut request = self.http.request(method, url).bearer_auth(&self.token);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let again = may_repeat.then(|| request.try_clone()).flatten();
        let response = match (request.send().await, again) {
            // The agent may close a reused connection while a request is in flight.
            (Err(error), Some(again)) if !error.is_timeout() && !error.is_connect() => {
                again.send().await
            }
            (answer, _) => answer,
        };
        let response = response.map_err(|error| self.failed(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|error| self.failed(&error))?;
        let body: Result<ProblemBody, _> = serde_json::from_str(&text);
        Err(Problem {
            status,
            error: body.map_or(text, |body| body.error),
        })
    }

    fn silent(&self, what: &str) -> Problem {
        let error = format!("{} {what}", self.url);
        Problem::new(reqwest::StatusCode::BAD_GATEWAY, error)
    }
}

impl Control for Client {
    fn start(&self, flow: NewFlow) -> Later<'_, Flow> {
        Box::pin(self.ask(Method::POST, "flows".to_owned(), Some(json!(flow))))
    }

    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow> {
        let mut body = json!(change);
        body["revision"] = revision.into();
        Box::pin(self.ask(Method::PATCH, format!("flows/{id}"), Some(body)))
    }

    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow> {
        let body = json!({"kill": kill});
        Box::pin(self.ask(Method::POST, format!("flows/{id}/stop"), Some(body)))
    }

    fn forget(&self, id: FlowId) -> Later<'_, ()> {
        let path = format!("flows/{id}");
        Box::pin(async { self.text(Method::DELETE, path, None).await.map(drop) })
    }

    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>> {
        let body = json!({"flows": flows});
        Box::pin(async {
            let checks: Checks = self
                .ask(Method::POST, "check".to_owned(), Some(body))
                .await?;
            Ok(checks.flows)
        })
    }

    fn result(&self, id: FlowId) -> Later<'_, Body> {
        let path = format!("flows/{id}/result");
        Box::pin(async {
            let response = self.response(Method::GET, path, None).await?;
            Ok(Body::new(reqwest::Body::from(response)))
        })
    }

    fn log(&self, id: FlowId) -> Later<'_, String> {
        Box::pin(self.text(Method::GET, format!("flows/{id}/log"), None))
    }
}

impl Remote for Client {
    fn about(&self) -> Later<'_, AboutYou> {
        Box::pin(self.ask(Method::GET, "about".to_owned(), None))
    }

    fn flows(&self) -> Later<'_, Vec<Flow>> {
        Box::pin(async {
            let path = "flows?pictures=true".to_owned();
            let flows: Flows = self.ask(Method::GET, path, None).await?;
            Ok(flows.flows)
        })
    }

    fn events(&self, after: i64) -> Later<'_, Vec<Event>> {
        let path = format!("events?after={after}");
        Box::pin(async {
            let events: Events = self.ask(Method::GET, path, None).await?;
            Ok(events.events)
        })
    }
}

/// Returns whether nothing listens at the address of a request. Other errors of a connection have other causes, e.g. a certificate.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut causes = iter::successors(error.source(), |&cause| cause.source());
    let is_so = |cause: &io::Error| cause.kind() == ErrorKind::ConnectionRefused;
    error.is_connect() && causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_so))
}

/// Verifier that accepts one certificate, whatever names and dates it contains.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of(certificate);
        if found == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General(format!(
            "its certificate has the fingerprint {found}, not {}: it is another agent, or somebody intercepts the connection",
            self.fingerprint
        )))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_does_not_run_is_named() {
        // Nobody listens there: tests never get this port.
        let address = "127.0.0.1:1";
        let fingerprint = "01".repeat(32).parse().unwrap();
        let client = Client::new(&format!("https://{address}"), fingerprint, "t").unwrap();
        let problem = client.about().await.err().unwrap();
        assert_eq!(
            problem.error,
            format!("no agent answers at {address}: start `evlbi agent` there")
        );
    }
}
