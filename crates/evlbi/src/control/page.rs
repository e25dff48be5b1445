//! The page: what a browser is given, all of it from here.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Nothing from elsewhere, nothing in line, no frames.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FILES: [(&str, &str, &str); 5] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/index.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("page/page.js"),
    ),
    (
        "/chart.js",
        "text/javascript; charset=utf-8",
        include_str!("page/chart.js"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

pub fn router() -> Router {
    FILES
        .into_iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            let show =
                move || async move { ([(header::CONTENT_TYPE, kind)], text).into_response() };
            router.route(path, get(show))
        })
}
