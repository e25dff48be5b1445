//! The page: what a browser is given, all of it from here.
//!
//! Here belong the files of the page; what they show comes by the interface ([`api`](crate::api)).

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// Nothing from elsewhere, nothing in line, no frames.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const FILES: [(&str, &str, &str); 5] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
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
