//! HTTP API `/api/v1`: JSON over TLS with a bearer token in each request, and the web UI that uses it.
//!
//! There are no cookies or other credentials that browsers send automatically, so other sites cannot act for a user. A repeated request
//! has no second effect: names of flows are used once, and a change names the revision that it applies to.

#![allow(
    unused_qualifications,
    reason = "utoipa generates qualified paths for parameters"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use evlbi_stream::control_socket::Change;
use evlbi_stream::counters::Counters;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, Content, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::Language;
use super::fleet::{
    AboutYou, Checked, Drive, Fleet, NO_SESSION, Problem, ProblemBody, Reply, SessionPlan,
};
use super::flow::{Flow, FlowId, NewFlow};
use super::history::{Event, History, Span, TimeSeries};
use super::identity::{Identity, IdentityError, Role};
use super::schema::{self, NewFlowSchema};
use super::serve::{self, Peer};
use super::time::now;
use super::{metrics, page};

/// Maximum body of a request, in bytes.
const MAX_BODY: usize = 64 << 10;
/// Timeout for the body of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Default length of a time series, in seconds.
const DEFAULT_COURSE: i64 = 600;

/// State that requests are answered from.
#[derive(Clone)]
pub struct Api {
    pub fleet: Arc<dyn Fleet>,
    pub identity: Arc<Identity>,
    pub history: Arc<History>,
    pub language: Language,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "evlbi",
        description = "List, start, change and stop flows of VLBI data on a host (agent) or on all hosts of a session (controller), and read their counters, results and logs."
    ),
    security(("token" = []))
)]
struct Document;

impl Api {
    /// Answers requests to a listener and records the history until the returned future is dropped. A connection is closed if its
    /// handshake or its next request takes longer than `idle`.
    ///
    /// # Errors
    /// Returns [`IdentityError`] if the certificate and its key cannot be used.
    pub fn serve(
        self,
        listener: TcpListener,
        idle: Duration,
    ) -> Result<impl Future<Output = ()>, IdentityError> {
        let tls = self.identity.tls()?;
        let kept = keep_history(Arc::clone(&self.fleet), Arc::clone(&self.history));
        let served = serve::serve(listener, tls, self.router(), idle);
        Ok(async {
            tokio::join!(kept, served);
        })
    }

    /// Builds the router of all requests.
    fn router(self) -> Router {
        let (interface, mut document) = document().split_for_parts();
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "One of the two tokens next to the certificate: `watch` allows viewing everything, `operate` also starting, changing and stopping flows.",
            ))
            .build();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        let new_flow = schema::new_flow(self.language);
        components.schemas.insert(schema::NEW_FLOW.into(), new_flow);
        let is_known = middleware::from_fn_with_state(self.clone(), let_in);
        let interface = interface
            .route("/metrics", get(scrape))
            .route_layer(is_known)
            .with_state(self);
        // The document is built once, not for each request.
        let document = Bytes::from(document.to_json().unwrap_or_default());
        let document = ([(header::CONTENT_TYPE, "application/json")], document);
        let nothing = "not found: see /api/v1/openapi.json";
        let not_so = "method not allowed: see /api/v1/openapi.json";
        let refuse = |status, error| async move { Problem::new(status, error) };
        interface
            .route("/api/v1/openapi.json", get(document))
            .merge(page::router())
            .fallback(move || refuse(StatusCode::NOT_FOUND, nothing))
            .method_not_allowed_fallback(move || refuse(StatusCode::METHOD_NOT_ALLOWED, not_so))
            .layer(middleware::from_fn(take_body))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(middleware::map_response(guard_headers))
    }
}

/// Records the history of all flows once a second.
async fn keep_history(fleet: Arc<dyn Fleet>, history: Arc<History>) {
    let mut is_well = true;
    loop {
        let left = 1.0 - now().fract();
        tokio::time::sleep(Duration::from_secs_f64(left)).await;
        let second = now() as i64;
        let (flows, kept) = (fleet.flows(), Arc::clone(&history));
        let done = off_thread(move || kept.sample(&flows, second)).await;
        let done = done.and_then(|done| done.map_err(Problem::internal));
        if let Err(error) = &done
            && is_well
        {
            tracing::warn!("cannot write the history, flows keep running: {error}");
        }
        is_well = done.is_ok();
    }
}

fn document() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(about))
        .routes(routes!(flows, start))
        .routes(routes!(flow, change, forget))
        .routes(routes!(session))
        .routes(routes!(begin))
        .routes(routes!(end))
        .routes(routes!(check))
        .routes(routes!(stop))
        .routes(routes!(result))
        .routes(routes!(log))
        .routes(routes!(course))
        .routes(routes!(course_csv))
        .routes(routes!(events))
        .routes(routes!(scrape))
        .routes(routes!(counters))
}

/// Reads the whole body before the request is handled. If a request were refused before its body arrived, the connection would be closed
/// while the client still sends the body or its next request.
async fn take_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let problem = match tokio::time::timeout(TIMEOUT, Bytes::from_request(request, &())).await {
        Ok(Ok(bytes)) => return next.run(Request::from_parts(parts, bytes.into())).await,
        Ok(Err(error)) => Problem::new(error.status(), error.body_text()),
        Err(_) => Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request body did not arrive in time",
        ),
    };
    problem.into_response()
}

/// Authenticates a request by its token, and passes it on with the token's role.
async fn let_in(api: State<Api>, mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let Some(role) = token.and_then(|token| api.identity.role(token)) else {
        let error = match token {
            None => {
                "no token: send the header `Authorization: Bearer TOKEN`; the agent prints the directory of its tokens when it starts"
            }
            Some(_) => {
                "unknown token: use the one in tokens/operate or tokens/watch of the agent or controller"
            }
        };
        let problem = Problem::new(StatusCode::UNAUTHORIZED, error);
        return ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response();
    };
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site == "cross-site") {
        let error = "requests from other sites are refused";
        return Problem::new(StatusCode::FORBIDDEN, error).into_response();
    }
    if let Some(peer) = request.extensions().get::<Peer>() {
        peer.authenticate();
    }
    request.extensions_mut().insert(role);
    next.run(request).await
}

/// Adds headers that forbid browsers to frame a response, guess its type, load anything from other sites or store it.
async fn guard_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, page::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        let value = HeaderValue::from_static(value);
        headers.entry(name).or_insert(value);
    }
    response
}

/// Proof that the token allows operating: starting, changing and stopping flows.
struct Operator;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Reply<Operator> {
        match parts.extensions.get::<Role>() {
            Some(Role::Operate) => Ok(Operator),
            _ => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this token allows only viewing: use the token for the role operate",
            )),
        }
    }
}

/// Request body of JSON.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Reply<Body<T>> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Problem::new(error.status(), error.body_text()))?;
        serde_json::from_slice(&bytes)
            .map(Body)
            .map_err(|error| Problem::unprocessable(format!("invalid request body: {error}")))
    }
}

/// Name of a flow in the path, whose errors are answered as JSON like all others.
struct Named(FlowId);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Reply<Named> {
        let found = axum::extract::Path::<FlowId>::from_request_parts(parts, state).await;
        let bad = |error: PathRejection| Problem::new(StatusCode::NOT_FOUND, error.body_text());
        found.map(|path| Named(path.0)).map_err(bad)
    }
}

/// Query parameters, whose errors are answered as JSON like all others.
struct Query<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Reply<Query<T>> {
        let found = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let bad = |error: QueryRejection| Problem::unprocessable(error.body_text());
        found.map(|query| Query(query.0)).map_err(bad)
    }
}

/// Statuses of refusals before a request is handled: first those of requests that read, then those of actions, then those of actions
/// with a body.
const REFUSALS: [(&str, &str); WITH_BODY] = [
    ("401", ""),
    ("403", "The token allows only viewing"),
    ("400", ""),
    ("408", ""),
    ("413", ""),
    ("422", ""),
];
const READS: usize = 1;
const ACTIONS: usize = 2;
const WITH_BODY: usize = 6;

/// The first `COUNT` of [`REFUSALS`], for the OpenAPI document.
struct Refused<const COUNT: usize>;

impl<const COUNT: usize> IntoResponses for Refused<COUNT> {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let refusals = REFUSALS[..COUNT].iter().map(|(status, description)| {
            let body = Content::new(Some(Ref::from_schema_name("ProblemBody")));
            let response = ResponseBuilder::new().description(*description);
            let response = response.content("application/json", body).build();
            ((*status).to_owned(), response.into())
        });
        refusals.collect()
    }
}

/// List of all flows.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Flows {
    /// Flows, sorted by name.
    pub flows: Vec<Flow>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Sight {
    /// Include the amplitudes that the web UI draws fringes from [default: false]
    #[serde(default)]
    pictures: bool,
}

/// Flows to check without starting them.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckFlows {
    #[schema(value_type = Vec<NewFlowSchema>)]
    flows: Vec<NewFlow>,
}

/// Result of a check of flows.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Checks {
    pub flows: Vec<Checked>,
}

/// Changes of a flow. Missing settings stay as they are.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChangeFlow {
    /// Revision that the change applies to. The change is refused if the flow has another revision.
    revision: u64,
    /// New bit rate of a sender that was started with a rate.
    #[schema(examples("512M"))]
    rate: Option<String>,
    /// New shed policy of a sender.
    #[schema(examples("bunch:5%"))]
    shed: Option<String>,
    /// Whether a sender under SafeUDP that has stopped tries again.
    #[serde(default)]
    rearm: bool,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StopFlow {
    /// Kill the process at once (SIGKILL); data that is not written yet is lost.
    #[serde(default)]
    kill: bool,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Part {
    /// Start, in seconds since 1970; a negative value counts back from now [default: 10 minutes before `to`]
    from: Option<i64>,
    /// End, in seconds since 1970; a negative value counts back from now [default: now]
    to: Option<i64>,
    /// Seconds per value [default: 1; at least 30 for times for which only half-minute means are stored]
    #[param(minimum = 1, maximum = 86400)]
    step: Option<i64>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct After {
    /// Return only events with a higher number than this
    #[serde(default)]
    after: i64,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// At most 1000 events, oldest first.
    pub events: Vec<Event>,
}

/// Show what answers here, its clock and the role of the token
#[utoipa::path(get, path = "/api/v1/about", responses(Refused<READS>,
    (status = 200, body = AboutYou)))]
async fn about(api: State<Api>, Extension(role): Extension<Role>) -> Json<AboutYou> {
    Json(AboutYou {
        about: api.fleet.about(),
        your_role: role,
    })
}

/// List all flows
#[utoipa::path(get, path = "/api/v1/flows", params(Sight), responses(Refused<READS>,
    (status = 200, body = Flows), (status = 422, body = ProblemBody)))]
async fn flows(api: State<Api>, sight: Query<Sight>) -> Json<Flows> {
    let mut flows = api.fleet.flows();
    if !sight.0.pictures {
        flows.iter_mut().for_each(Flow::make_brief);
    }
    Json(Flows { flows })
}

/// Show a session: its scans, its planned flows, and the hosts that do not answer
#[utoipa::path(get, path = "/api/v1/session", responses(Refused<READS>,
    (status = 200, body = SessionPlan),
    (status = 404, body = ProblemBody, description = "This is an agent")))]
async fn session(api: State<Api>) -> Reply<Json<SessionPlan>> {
    let plan = api.fleet.session();
    plan.map(Json).ok_or_else(|| Problem::missing(NO_SESSION))
}

/// Begin a held session
#[utoipa::path(post, path = "/api/v1/session/begin", responses(Refused<ACTIONS>,
    (status = 200, body = SessionPlan),
    (status = 404, body = ProblemBody, description = "This is an agent"),
    (status = 409, body = ProblemBody, description = "The session has begun")))]
async fn begin(api: State<Api>, _: Operator) -> Reply<Json<SessionPlan>> {
    api.fleet.drive(Drive::Begin).map(Json)
}

/// End a session: senders first, the other flows when all data has arrived
#[utoipa::path(post, path = "/api/v1/session/end", responses(Refused<ACTIONS>,
    (status = 200, body = SessionPlan),
    (status = 404, body = ProblemBody, description = "This is an agent"),
    (status = 409, body = ProblemBody, description = "The session has not begun, or is already ending")))]
async fn end(api: State<Api>, _: Operator) -> Reply<Json<SessionPlan>> {
    api.fleet.drive(Drive::End).map(Json)
}

/// Check whether flows could be started, without starting any
#[utoipa::path(post, path = "/api/v1/check", request_body = CheckFlows, responses(Refused<WITH_BODY>,
    (status = 200, body = Checks)))]
async fn check(api: State<Api>, _: Operator, Body(asked): Body<CheckFlows>) -> Reply<Json<Checks>> {
    let flows = api.fleet.check(asked.flows).await?;
    Ok(Json(Checks { flows }))
}

/// Start a flow: a command with its options
#[utoipa::path(post, path = "/api/v1/flows", request_body = NewFlowSchema, responses(Refused<WITH_BODY>,
    (status = 201, body = Flow),
    (status = 409, body = ProblemBody, description = "The name was used before, or a limit of the agent is reached"),
    (status = 422, body = ProblemBody, description = "The request is invalid or not allowed")))]
async fn start(
    api: State<Api>,
    _: Operator,
    Body(flow): Body<NewFlow>,
) -> Reply<(StatusCode, Json<Flow>)> {
    Ok((StatusCode::CREATED, Json(api.fleet.start(flow).await?)))
}

/// Show one flow, with the amplitudes that the web UI draws fringes from
#[utoipa::path(get, path = "/api/v1/flows/{id}", params(("id" = FlowId, Path)), responses(Refused<READS>,
    (status = 200, body = Flow), (status = 404, body = ProblemBody)))]
async fn flow(api: State<Api>, Named(id): Named) -> Reply<Json<Flow>> {
    let flows = api.fleet.flows().into_iter();
    let mut found = flows.filter(|flow| flow.id == id);
    found.next().map(Json).ok_or_else(|| Problem::unknown(&id))
}

/// Change the rate or the shed policy of a running flow
#[utoipa::path(patch, path = "/api/v1/flows/{id}", params(("id" = FlowId, Path)), request_body = ChangeFlow, responses(Refused<WITH_BODY>,
    (status = 200, body = Flow),
    (status = 404, body = ProblemBody),
    (status = 409, body = ProblemBody, description = "The flow has another revision, or is not running"),
    (status = 422, body = ProblemBody, description = "The request is invalid or not allowed")))]
async fn change(
    api: State<Api>,
    Named(id): Named,
    _: Operator,
    Body(asked): Body<ChangeFlow>,
) -> Reply<Json<Flow>> {
    let change = Change {
        rate: asked.rate,
        shed: asked.shed,
        rearm: asked.rearm,
    };
    if change == Change::default() {
        let why = "nothing to change: give rate, shed or rearm";
        return Err(Problem::unprocessable(why));
    }
    api.fleet.change(id, asked.revision, change).await.map(Json)
}

/// Stop a flow, with everything written
#[utoipa::path(post, path = "/api/v1/flows/{id}/stop", params(("id" = FlowId, Path)), request_body = StopFlow, responses(Refused<WITH_BODY>,
    (status = 200, body = Flow),
    (status = 404, body = ProblemBody),
    (status = 409, body = ProblemBody, description = "The flow does not answer")))]
async fn stop(
    api: State<Api>,
    Named(id): Named,
    _: Operator,
    Body(asked): Body<StopFlow>,
) -> Reply<Json<Flow>> {
    api.fleet.stop(id, asked.kill).await.map(Json)
}

/// Forget an ended flow; its recordings stay, and its name stays used
#[utoipa::path(delete, path = "/api/v1/flows/{id}", params(("id" = FlowId, Path)), responses(Refused<ACTIONS>,
    (status = 204),
    (status = 404, body = ProblemBody),
    (status = 409, body = ProblemBody, description = "The flow has not ended")))]
async fn forget(api: State<Api>, Named(id): Named, _: Operator) -> Reply<StatusCode> {
    api.fleet.forget(id).await.map(|()| StatusCode::NO_CONTENT)
}

/// Show a flow's result: what its command prints with --json
#[utoipa::path(get, path = "/api/v1/flows/{id}/result", params(("id" = FlowId, Path)), responses(Refused<READS>,
    (status = 200, body = Object),
    (status = 404, body = ProblemBody, description = "There is no such flow, or no result (yet)")))]
async fn result(api: State<Api>, Named(id): Named) -> Reply<Response> {
    let result = api.fleet.result(id).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], result).into_response())
}

/// Show the end of a flow's log
#[utoipa::path(get, path = "/api/v1/flows/{id}/log", params(("id" = FlowId, Path)), responses(Refused<READS>,
    (status = 200, body = String, content_type = "text/plain"),
    (status = 404, body = ProblemBody)))]
async fn log(api: State<Api>, Named(id): Named) -> Reply<String> {
    api.fleet.log(id).await
}

/// Show the time series of a flow: rate, loss and its location, shed data, ring fill, fringes
#[utoipa::path(get, path = "/api/v1/flows/{id}/course", params(("id" = FlowId, Path), Part), responses(Refused<READS>,
    (status = 200, body = TimeSeries),
    (status = 404, body = ProblemBody),
    (status = 422, body = ProblemBody)))]
async fn course(api: State<Api>, id: Named, part: Query<Part>) -> Reply<Json<TimeSeries>> {
    course_of(api, id, part).await.map(Json)
}

/// Show the time series of a flow as CSV, without fringes
#[utoipa::path(get, path = "/api/v1/flows/{id}/course.csv", params(("id" = FlowId, Path), Part), responses(Refused<READS>,
    (status = 200, body = String, content_type = "text/csv"),
    (status = 404, body = ProblemBody),
    (status = 422, body = ProblemBody)))]
async fn course_csv(api: State<Api>, id: Named, part: Query<Part>) -> Reply<Response> {
    let course = course_of(api, id, part).await?;
    let table = off_thread(move || course.csv()).await?;
    let table = table.map_err(Problem::internal)?;
    Ok(([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], table).into_response())
}

async fn course_of(
    api: State<Api>,
    Named(id): Named,
    Query(part): Query<Part>,
) -> Reply<TimeSeries> {
    let now = now() as i64;
    let at = |time: i64| time.saturating_add(if time < 0 { now } else { 0 });
    let to = at(part.to.unwrap_or(now));
    let default = to.saturating_sub(DEFAULT_COURSE).max(0);
    let span = Span {
        from: at(part.from.unwrap_or(default)),
        to,
        step: part.step.unwrap_or(1),
    };
    if !(1..=86_400).contains(&span.step) {
        return Err(Problem::unprocessable(
            "invalid step: give 1 to 86400 seconds",
        ));
    }
    if !api.fleet.flows().iter().any(|flow| flow.id == id) {
        return Err(Problem::unknown(&id));
    }
    let history = Arc::clone(&api.history);
    let course = off_thread(move || history.time_series(&id, span, now)).await?;
    course.map_err(Problem::internal)
}

/// List events, oldest first
#[utoipa::path(get, path = "/api/v1/events", params(After), responses(Refused<READS>,
    (status = 200, body = Events),
    (status = 422, body = ProblemBody)))]
async fn events(api: State<Api>, Query(asked): Query<After>) -> Reply<Json<Events>> {
    let history = Arc::clone(&api.history);
    let events = off_thread(move || history.events(asked.after)).await?;
    let events = events.map_err(Problem::internal)?;
    Ok(Json(Events { events }))
}

/// Show the counters of all flows for Prometheus (OpenMetrics); also at `/metrics`
#[utoipa::path(get, path = "/api/v1/metrics", responses(Refused<READS>,
    (status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn scrape(api: State<Api>) -> Reply<Response> {
    let text = metrics::text(api.fleet.about(), api.fleet.flows());
    let text = text.map_err(Problem::internal)?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// Describe each counter of a status
#[utoipa::path(get, path = "/api/v1/counters", responses(Refused<READS>,
    (status = 200, body = Counters)))]
async fn counters() -> Json<Counters> {
    Json(Counters::default())
}

/// Runs work that may wait for a disk on a thread for blocking calls.
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Reply<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|panic| {
        let error = format!("internal error: {panic}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    })
}
