//! Who asks an agent: over TLS, certain of its certificate by the fingerprint.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::{Method, Response};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api::{AboutYou, Checks, Events, Flows};
use super::fleet::{Checked, Problem, ProblemBody, Reply};
use super::flow::{Flow, FlowId, NewFlow};
use super::history::Event;
use super::identity::Fingerprint;
use crate::steer::Change;

/// An agent answers within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest result of a flow that is read as a whole, in bytes.
const LONGEST_RESULT: usize = 64 << 20;

/// A connection is used again within this time. An agent keeps one that asks nothing for longer (its configuration is refused
/// otherwise): what is asked at the moment at which it ends it would get no answer.
pub const KEPT: Duration = Duration::from_secs(5);

/// A way to an agent.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    /// `https://HOST:PORT`.
    url: String,
    token: String,
}

impl Client {
    /// To the agent at `url` that has this certificate.
    pub fn new(url: &str, fingerprint: Fingerprint, token: &str) -> Result<Client> {
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
            .timeout(PATIENCE)
            .pool_idle_timeout(KEPT)
            .build()
            .context("no client for HTTPS can be made")?;
        Ok(Client {
            http,
            url: url.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
        })
    }

    pub async fn about(&self) -> Reply<AboutYou> {
        self.ask(Method::GET, "about", None).await
    }

    pub async fn flows(&self) -> Reply<Vec<Flow>> {
        let flows: Flows = self.ask(Method::GET, "flows?pictures=true", None).await?;
        Ok(flows.flows)
    }

    pub async fn events(&self, after: i64) -> Reply<Vec<Event>> {
        let path = format!("events?after={after}");
        let events: Events = self.ask(Method::GET, &path, None).await?;
        Ok(events.events)
    }

    pub async fn check(&self, flows: &[NewFlow]) -> Reply<Vec<Checked>> {
        let body = json!({"flows": flows});
        let checks: Checks = self.ask(Method::POST, "check", Some(body)).await?;
        Ok(checks.flows)
    }

    pub async fn start(&self, flow: &NewFlow) -> Reply<Flow> {
        self.ask(Method::POST, "flows", Some(json!(flow))).await
    }

    pub async fn change(&self, id: &FlowId, revision: u64, change: &Change) -> Reply<Flow> {
        let mut body = json!(change);
        body["revision"] = revision.into();
        let path = format!("flows/{id}");
        self.ask(Method::PATCH, &path, Some(body)).await
    }

    pub async fn stop(&self, id: &FlowId, kill: bool) -> Reply<Flow> {
        let path = format!("flows/{id}/stop");
        let body = json!({"kill": kill});
        self.ask(Method::POST, &path, Some(body)).await
    }

    pub async fn forget(&self, id: &FlowId) -> Reply<()> {
        let path = format!("flows/{id}");
        self.text(Method::DELETE, &path, None).await.map(drop)
    }

    /// What a flow printed as its result, as it comes.
    pub async fn result(&self, id: &FlowId) -> Reply<Response> {
        let path = format!("flows/{id}/result");
        self.response(Method::GET, &path, None).await
    }

    /// The same as a whole, if it is not too long for that.
    pub async fn whole_result(&self, id: &FlowId) -> Reply<Value> {
        let mut response = self.result(id).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > LONGEST_RESULT {
                return Err(Problem::internal(&anyhow::anyhow!(
                    "the result of flow {id} is longer than {LONGEST_RESULT} bytes: read it from its agent"
                )));
            }
        }
        serde_json::from_slice(&bytes).map_err(|error| self.odd(&error))
    }

    pub async fn log(&self, id: &FlowId) -> Reply<String> {
        let path = format!("flows/{id}/log");
        self.text(Method::GET, &path, None).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Reply<T> {
        let text = self.text(method, path, body).await?;
        serde_json::from_str(&text).map_err(|error| self.odd(&error))
    }

    fn odd(&self, error: &serde_json::Error) -> Problem {
        self.silent(&format!(
            "answered what is not understood here ({error}); is it of another version?"
        ))
    }

    fn failed(&self, error: reqwest::Error) -> Problem {
        let error = crate::output::explain(&error.into());
        self.silent(&format!("does not answer: {error}"))
    }

    async fn text(&self, method: Method, path: &str, body: Option<Value>) -> Reply<String> {
        let response = self.response(method, path, body).await?;
        response.text().await.map_err(|error| self.failed(error))
    }

    /// An answer that reports success.
    async fn response(&self, method: Method, path: &str, body: Option<Value>) -> Reply<Response> {
        // What does nothing twice when it comes twice.
        let may_repeat = method == Method::GET || path == "check" || path.ends_with("/stop");
        let url = format!("{}/api/v1/{path}", self.url);
        let mut request = self.http.request(method, url).bearer_auth(&self.token);
        if let Some(body) = &body {
            request = request.json(body);
        }
        let again = may_repeat.then(|| request.try_clone()).flatten();
        let response = match (request.send().await, again) {
            // A connection that was kept may be closed by the agent while a request is under way to it.
            (Err(error), Some(again)) if !error.is_timeout() && !error.is_connect() => {
                again.send().await
            }
            (answer, _) => answer,
        };
        let response = response.map_err(|error| self.failed(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|error| self.failed(error))?;
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

/// Believes one certificate, whatever stands in it.
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
            "its certificate has the fingerprint {found}, not {}: it is another agent, or somebody stands between",
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
