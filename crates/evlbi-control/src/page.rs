//! Web UI: static files for browsers, compiled into the program.
//!
//! This module contains the files of the web UI. Their data comes from the HTTP API ([`api`](crate::api)).

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// Content security policy: nothing from other sites, nothing inline, no frames.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const FILES: [(&str, &str, &str); 7] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/format.js", SCRIPT, include_str!("page/format.js")),
    ("/safe.js", SCRIPT, include_str!("page/safe.js")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/icon.svg", SVG, include_str!("page/icon.svg")),
];

pub fn router() -> Router {
    let files = FILES.into_iter();
    files.fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(([(header::CONTENT_TYPE, kind)], text)))
    })
}
