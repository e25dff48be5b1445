//! The HTTP interface, `/api/v1`: JSON over TLS, a bearer token with each request, and the page that uses it.
//!
//! Nothing that a browser sends by itself lets anyone in (no cookies), so no other site can act for its user. A command
//! that comes twice does nothing twice: names of flows are used once, and a change names the revision it is meant for.

#![allow(
    unused_qualifications,
    reason = "what utoipa makes of parameters is qualified"
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

/// Longest body of a request, in bytes.
const MAX_BODY: usize = 64 << 10;
/// A body comes within this time.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds that a course has where nothing is said.
const DEFAULT_COURSE: i64 = 600;

/// What requests are answered from.
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
        description = "Flows of VLBI data on a host (agent), or on all hosts of a session: listed, started, changed, stopped, and what became of them."
    ),
    security(("token" = []))
)]
struct Document;

impl Api {
    /// Answers what comes to a listener, and keeps the history, until it is dropped. Connections whose handshake or next request
    /// takes longer than `idle` are closed.
    ///
    /// # Errors
    /// Where the certificate and its key are of no use.
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

    /// Everything that is answered.
    fn router(self) -> Router {
        let (interface, mut document) = document().split_for_parts();
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "One of the two tokens that lie beside the certificate: `watch` sees everything, `operate` starts, changes and stops as well.",
            ))
            .build();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        let new_flow = schema::new_flow(self.language);
        components.schemas.insert(schema::NEW_FLOW.into(), new_flow);
        let is_known = middleware::from_fn_with_state(self.clone(), let_in);
        let interface = interface
            .route("/metrics", get(scrape))
            .route_layer(is_known)
            .with_state(self)
            .layer(middleware::from_fn(take_body))
            .layer(DefaultBodyLimit::max(MAX_BODY));
        // Made once: it is given to whoever asks.
        let document = Bytes::from(document.to_json().unwrap_or_default());
        let document = ([(header::CONTENT_TYPE, "application/json")], document);
        let nothing = "there is nothing here; see /api/v1/openapi.json";
        let not_so = "this cannot be done here; see /api/v1/openapi.json";
        let refuse = |status, error| async move { Problem::new(status, error) };
        interface
            .route("/api/v1/openapi.json", get(document))
            .merge(page::router())
            .fallback(move || refuse(StatusCode::NOT_FOUND, nothing))
            .method_not_allowed_fallback(move || refuse(StatusCode::METHOD_NOT_ALLOWED, not_so))
            .layer(middleware::map_response(guard_headers))
    }
}

/// Takes down every second what all flows do.
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
            tracing::warn!("the history cannot be kept, and flows go on without: {error}");
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

/// Reads the body before anything is decided. If a request were refused before its body had come, the connection would be closed
/// while the client still sends the body or its next request.
async fn take_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let problem = match tokio::time::timeout(TIMEOUT, Bytes::from_request(request, &())).await {
        Ok(Ok(bytes)) => return next.run(Request::from_parts(parts, bytes.into())).await,
        Ok(Err(error)) => Problem::new(error.status(), error.body_text()),
        Err(_) => Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not come"),
    };
    problem.into_response()
}

/// Who shows a token goes on with its role.
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
                "a token is needed: Authorization: Bearer TOKEN; the agent says where its tokens lie when it starts"
            }
            Some(_) => "this token is none of those that are known here",
        };
        let problem = Problem::new(StatusCode::UNAUTHORIZED, error);
        return ([(header::WWW_AUTHENTICATE, "Bearer")], problem).into_response();
    };
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site == "cross-site") {
        let error = "no other site may act for you here";
        return Problem::new(StatusCode::FORBIDDEN, error).into_response();
    }
    if let Some(peer) = request.extensions().get::<Peer>() {
        peer.is_known();
    }
    request.extensions_mut().insert(role);
    next.run(request).await
}

/// No page may frame, guess types of or add anything to what is answered.
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

/// The bearer may start, change and stop.
struct Operator;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Reply<Operator> {
        match parts.extensions.get::<Role>() {
            Some(Role::Operate) => Ok(Operator),
            _ => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this token may watch only; the one for the role operate is needed",
            )),
        }
    }
}

/// A body of JSON.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Reply<Body<T>> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Problem::new(error.status(), error.body_text()))?;
        serde_json::from_slice(&bytes).map(Body).map_err(|error| {
            Problem::unprocessable(format!("the body is not what is asked for here: {error}"))
        })
    }
}

/// A part of the path, whose errors are answered as all others.
struct Named(FlowId);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Reply<Named> {
        let found = axum::extract::Path::<FlowId>::from_request_parts(parts, state).await;
        let bad = |error: PathRejection| Problem::new(StatusCode::NOT_FOUND, error.body_text());
        found.map(|path| Named(path.0)).map_err(bad)
    }
}

/// What follows the path's `?`.
struct Query<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Reply<Query<T>> {
        let found = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let bad = |error: QueryRejection| Problem::unprocessable(error.body_text());
        found.map(|query| Query(query.0)).map_err(bad)
    }
}

/// How requests are refused before anything is decided: those that look, then those that act, then those that tell in a body how.
const REFUSALS: [(&str, &str); TELLS] = [
    ("401", ""),
    ("403", "The token may watch only"),
    ("400", ""),
    ("408", ""),
    ("413", ""),
    ("422", ""),
];
const POLLS: usize = 1;
const ACTS: usize = 2;
const TELLS: usize = 6;

/// The first so many of [`REFUSALS`], as the interface describes them.
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

/// All flows.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Flows {
    /// In the order of their names.
    pub flows: Vec<Flow>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Sight {
    /// With the pictures of fringes, which are left out else
    #[serde(default)]
    pictures: bool,
}

/// Flows that are not to be started yet.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckFlows {
    #[schema(value_type = Vec<NewFlowSchema>)]
    flows: Vec<NewFlow>,
}

/// What was found of each.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Checks {
    pub flows: Vec<Checked>,
}

/// What is to be otherwise; what is left out stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChangeFlow {
    /// The revision of the flow that this is meant for: of another it is refused.
    revision: u64,
    /// Bit rate of a sender that was given one.
    #[schema(examples("512M"))]
    rate: Option<String>,
    /// What a sender leaves out on purpose.
    #[schema(examples("bunch:5%"))]
    shed: Option<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StopFlow {
    /// At once, by a signal that cannot be caught: what is not written yet is lost.
    #[serde(default)]
    kill: bool,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Part {
    /// Seconds since 1970, or below 0 before now [default: ten minutes before `to`]
    from: Option<i64>,
    /// Seconds since 1970, or below 0 before now [default: now]
    to: Option<i64>,
    /// Seconds of each value; of times of which half minutes are kept only, 30
    #[param(minimum = 1, maximum = 86400)]
    step: Option<i64>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct After {
    /// The last event that is known already
    #[serde(default)]
    after: i64,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// The oldest first, a thousand at most.
    pub events: Vec<Event>,
}

/// What answers here, and its clock
#[utoipa::path(get, path = "/api/v1/about", responses(Refused<POLLS>,
    (status = 200, body = AboutYou)))]
async fn about(api: State<Api>, Extension(role): Extension<Role>) -> Json<AboutYou> {
    Json(AboutYou {
        about: api.fleet.about(),
        your_role: role,
    })
}

/// All flows
#[utoipa::path(get, path = "/api/v1/flows", params(Sight), responses(Refused<POLLS>,
    (status = 200, body = Flows), (status = 422, body = ProblemBody)))]
async fn flows(api: State<Api>, sight: Query<Sight>) -> Json<Flows> {
    let mut flows = api.fleet.flows();
    if !sight.0.pictures {
        flows.iter_mut().for_each(Flow::make_brief);
    }
    Json(Flows { flows })
}

/// A session: its scans, the flows that are to come, and the hosts that do not answer
#[utoipa::path(get, path = "/api/v1/session", responses(Refused<POLLS>,
    (status = 200, body = SessionPlan),
    (status = 404, body = ProblemBody, description = "This is an agent")))]
async fn session(api: State<Api>) -> Reply<Json<SessionPlan>> {
    let plan = api.fleet.session();
    plan.map(Json).ok_or_else(|| Problem::missing(NO_SESSION))
}

/// Begin a session that is held
#[utoipa::path(post, path = "/api/v1/session/begin", responses(Refused<ACTS>,
    (status = 200, body = SessionPlan),
    (status = 404, body = ProblemBody, description = "This is an agent"),
    (status = 409, body = ProblemBody, description = "It has begun")))]
async fn begin(api: State<Api>, _: Operator) -> Reply<Json<SessionPlan>> {
    api.fleet.drive(Drive::Begin).map(Json)
}

/// End a session: its senders first, and the others when all has come
#[utoipa::path(post, path = "/api/v1/session/end", responses(Refused<ACTS>,
    (status = 200, body = SessionPlan),
    (status = 404, body = ProblemBody, description = "This is an agent"),
    (status = 409, body = ProblemBody, description = "It has not begun, or ends already")))]
async fn end(api: State<Api>, _: Operator) -> Reply<Json<SessionPlan>> {
    api.fleet.drive(Drive::End).map(Json)
}

/// Whether flows could be started, without starting any
#[utoipa::path(post, path = "/api/v1/check", request_body = CheckFlows, responses(Refused<TELLS>,
    (status = 200, body = Checks)))]
async fn check(api: State<Api>, _: Operator, Body(asked): Body<CheckFlows>) -> Reply<Json<Checks>> {
    let flows = api.fleet.check(asked.flows).await?;
    Ok(Json(Checks { flows }))
}

/// Start a flow: a command with its options
#[utoipa::path(post, path = "/api/v1/flows", request_body = NewFlowSchema, responses(Refused<TELLS>,
    (status = 201, body = Flow),
    (status = 409, body = ProblemBody, description = "The name was used before, or there is no room for the flow"),
    (status = 422, body = ProblemBody, description = "It makes no sense, or is not allowed here")))]
async fn start(
    api: State<Api>,
    _: Operator,
    Body(flow): Body<NewFlow>,
) -> Reply<(StatusCode, Json<Flow>)> {
    Ok((StatusCode::CREATED, Json(api.fleet.start(flow).await?)))
}

/// One flow, with the pictures of its fringes
#[utoipa::path(get, path = "/api/v1/flows/{id}", params(("id" = FlowId, Path)), responses(Refused<POLLS>,
    (status = 200, body = Flow), (status = 404, body = ProblemBody)))]
async fn flow(api: State<Api>, Named(id): Named) -> Reply<Json<Flow>> {
    let flows = api.fleet.flows().into_iter();
    let mut found = flows.filter(|flow| flow.id == id);
    found.next().map(Json).ok_or_else(|| Problem::unknown(&id))
}

/// Change a running flow: rate, shed policy
#[utoipa::path(patch, path = "/api/v1/flows/{id}", params(("id" = FlowId, Path)), request_body = ChangeFlow, responses(Refused<TELLS>,
    (status = 200, body = Flow),
    (status = 404, body = ProblemBody),
    (status = 409, body = ProblemBody, description = "The flow is not at that revision, or does not run"),
    (status = 422, body = ProblemBody, description = "It makes no sense, or is not allowed here")))]
async fn change(
    api: State<Api>,
    Named(id): Named,
    _: Operator,
    Body(asked): Body<ChangeFlow>,
) -> Reply<Json<Flow>> {
    let change = Change {
        rate: asked.rate,
        shed: asked.shed,
    };
    if change == Change::default() {
        let why = "nothing is to be changed; give a rate, or shed, or both";
        return Err(Problem::unprocessable(why));
    }
    api.fleet.change(id, asked.revision, change).await.map(Json)
}

/// Have a flow end, with everything written
#[utoipa::path(post, path = "/api/v1/flows/{id}/stop", params(("id" = FlowId, Path)), request_body = StopFlow, responses(Refused<TELLS>,
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

/// Forget a flow that has ended; what it recorded stays, and its name stays used
#[utoipa::path(delete, path = "/api/v1/flows/{id}", params(("id" = FlowId, Path)), responses(Refused<ACTS>,
    (status = 204),
    (status = 404, body = ProblemBody),
    (status = 409, body = ProblemBody, description = "It has not ended")))]
async fn forget(api: State<Api>, Named(id): Named, _: Operator) -> Reply<StatusCode> {
    api.fleet.forget(id).await.map(|()| StatusCode::NO_CONTENT)
}

/// What a flow printed as its result, as its command does with --json
#[utoipa::path(get, path = "/api/v1/flows/{id}/result", params(("id" = FlowId, Path)), responses(Refused<POLLS>,
    (status = 200, body = Object),
    (status = 404, body = ProblemBody, description = "There is no such flow, or no result (yet)")))]
async fn result(api: State<Api>, Named(id): Named) -> Reply<Response> {
    let result = api.fleet.result(id).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], result).into_response())
}

/// The end of what a flow had to say beside its result
#[utoipa::path(get, path = "/api/v1/flows/{id}/log", params(("id" = FlowId, Path)), responses(Refused<POLLS>,
    (status = 200, body = String, content_type = "text/plain"),
    (status = 404, body = ProblemBody)))]
async fn log(api: State<Api>, Named(id): Named) -> Reply<String> {
    api.fleet.log(id).await
}

/// The course of a flow: rate, loss and where, shed, ring fill, fringes
#[utoipa::path(get, path = "/api/v1/flows/{id}/course", params(("id" = FlowId, Path), Part), responses(Refused<POLLS>,
    (status = 200, body = TimeSeries),
    (status = 404, body = ProblemBody),
    (status = 422, body = ProblemBody)))]
async fn course(api: State<Api>, id: Named, part: Query<Part>) -> Reply<Json<TimeSeries>> {
    course_of(api, id, part).await.map(Json)
}

/// The same as a table
#[utoipa::path(get, path = "/api/v1/flows/{id}/course.csv", params(("id" = FlowId, Path), Part), responses(Refused<POLLS>,
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
    let usual = to.saturating_sub(DEFAULT_COURSE).max(0);
    let span = Span {
        from: at(part.from.unwrap_or(usual)),
        to,
        step: part.step.unwrap_or(1),
    };
    if !(1..=86_400).contains(&span.step) {
        return Err(Problem::unprocessable("step is from 1 to 86400 seconds"));
    }
    if !api.fleet.flows().iter().any(|flow| flow.id == id) {
        return Err(Problem::unknown(&id));
    }
    let history = Arc::clone(&api.history);
    let course = off_thread(move || history.time_series(&id, span, now)).await?;
    course.map_err(Problem::internal)
}

/// What happened, the oldest first
#[utoipa::path(get, path = "/api/v1/events", params(After), responses(Refused<POLLS>,
    (status = 200, body = Events),
    (status = 422, body = ProblemBody)))]
async fn events(api: State<Api>, Query(asked): Query<After>) -> Reply<Json<Events>> {
    let history = Arc::clone(&api.history);
    let events = off_thread(move || history.events(asked.after)).await?;
    let events = events.map_err(Problem::internal)?;
    Ok(Json(Events { events }))
}

/// Counters of all flows as Prometheus reads them (OpenMetrics); `/metrics` answers the same
#[utoipa::path(get, path = "/api/v1/metrics", responses(Refused<POLLS>,
    (status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn scrape(api: State<Api>) -> Reply<Response> {
    let text = metrics::text(api.fleet.about(), api.fleet.flows());
    let text = text.map_err(Problem::internal)?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// What each counter of a status counts
#[utoipa::path(get, path = "/api/v1/counters", responses(Refused<POLLS>,
    (status = 200, body = Counters)))]
async fn counters() -> Json<Counters> {
    Json(Counters::default())
}

/// Runs what may wait for a disk.
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Reply<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|panic| {
        let error = format!("a part of the program failed: {panic}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    })
}
