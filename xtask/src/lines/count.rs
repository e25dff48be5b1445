//! Counts the lines of one source file by its tokens: a line with a token is code, or a test if it belongs to one.

use std::iter::Sum;
use std::ops::{Add, Range};
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Meta, Token};

/// Numbers of lines. Each line belongs to one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Lines with code of the program.
    pub code: usize,
    /// Lines with only a comment, including documentation.
    pub comments: usize,
    /// Empty lines.
    pub blank: usize,
    /// Lines of tests: all lines of their files and items.
    pub tests: usize,
    /// Lines of benches.
    pub benches: usize,
    /// Lines of examples.
    pub examples: usize,
}

impl Lines {
    /// Returns the numbers with their names.
    pub fn columns(&self) -> [(&'static str, usize); 6] {
        [
            ("code", self.code),
            ("comments", self.comments),
            ("blank", self.blank),
            ("tests", self.tests),
            ("benches", self.benches),
            ("examples", self.examples),
        ]
    }

    /// Returns the number of all lines.
    pub fn total(&self) -> usize {
        self.columns().iter().map(|(_, lines)| lines).sum()
    }
}

impl Add for Lines {
    type Output = Lines;

    fn add(self, other: Lines) -> Lines {
        Lines {
            code: self.code + other.code,
            comments: self.comments + other.comments,
            blank: self.blank + other.blank,
            tests: self.tests + other.tests,
            benches: self.benches + other.benches,
            examples: self.examples + other.examples,
        }
    }
}

impl Sum for Lines {
    fn sum<I: Iterator<Item = Lines>>(lines: I) -> Lines {
        lines.fold(Lines::default(), Add::add)
    }
}

/// Counts the lines of a source file. Also returns the modules in files of their own that it declares only for tests, as paths relative
/// to the directory of its modules.
///
/// # Errors
/// Returns an error if the text is not Rust.
pub fn count(text: &str) -> Result<(Lines, Vec<PathBuf>)> {
    let mut is_code = vec![false; text.lines().count()];
    let tokens = text.parse().map_err(|error| anyhow!("{error}"))?;
    mark(tokens, &mut is_code);
    let (of_tests, modules) = in_tests(text)?;
    let mut lines = Lines::default();
    for (number, (line, is_code)) in text.lines().zip(is_code).enumerate() {
        let counter = match line.trim().is_empty() {
            _ if of_tests.iter().any(|lines| lines.contains(&number)) => &mut lines.tests,
            _ if is_code => &mut lines.code,
            true => &mut lines.blank,
            false => &mut lines.comments,
        };
        *counter += 1;
    }
    Ok((lines, modules))
}

/// Returns the lines of a source file, from 0, that exist only in tests, and the modules in files of their own that it declares only
/// for tests, as paths relative to the directory of its modules.
///
/// # Errors
/// Returns an error if the text is not Rust.
pub fn in_tests(text: &str) -> Result<(Vec<Range<usize>>, Vec<PathBuf>)> {
    let mut tests = Tests::default();
    tests.visit_file(&syn::parse_file(text)?);
    Ok((tests.lines, tests.modules))
}

/// Marks the lines that have a token. Documentation is an attribute to the compiler, but counts as a comment here.
fn mark(tokens: TokenStream, is_code: &mut [bool]) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => {
                mark_span(group.span_open(), is_code);
                mark(group.stream(), is_code);
                mark_span(group.span_close(), is_code);
            }
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                let is_inner = |next: &TokenTree| matches!(next, TokenTree::Punct(sign) if sign.as_char() == '!');
                tokens.next_if(is_inner);
                if tokens.next_if(is_documentation).is_none() {
                    mark_span(sign.span(), is_code);
                }
            }
            token => mark_span(token.span(), is_code),
        }
    }
}

fn mark_span(span: Span, is_code: &mut [bool]) {
    is_code[span.start().line - 1..span.end().line].fill(true);
}

fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return false;
    };
    let mut inside = group.stream().into_iter();
    matches!(inside.next(), Some(TokenTree::Ident(name)) if name == "doc")
        && matches!(inside.next(), Some(TokenTree::Punct(mark)) if mark.as_char() == '=')
}

/// Items that exist only in tests.
#[derive(Default)]
struct Tests {
    /// Their lines, from 0.
    lines: Vec<Range<usize>>,
    /// Modules in files of their own.
    modules: Vec<PathBuf>,
    /// The modules around the current item.
    around: PathBuf,
}

impl Tests {
    fn add(&mut self, item: &impl Spanned) {
        let span = item.span();
        self.lines.push(span.start().line - 1..span.end().line);
    }
}

impl<'a> Visit<'a> for Tests {
    fn visit_item(&mut self, item: &'a Item) {
        let is_test = attributes(item).iter().any(is_for_tests);
        if is_test {
            self.add(item);
        }
        let Item::Mod(module) = item else {
            if !is_test {
                visit::visit_item(self, item);
            }
            return;
        };
        let path = self.around.join(module.ident.to_string());
        if module.content.is_none() {
            if is_test {
                self.modules.push(path);
            }
        } else if !is_test {
            let around = std::mem::replace(&mut self.around, path);
            visit::visit_item_mod(self, module);
            self.around = around;
        }
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        match item {
            ImplItem::Fn(function) if function.attrs.iter().any(is_for_tests) => self.add(item),
            _ => visit::visit_impl_item(self, item),
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether an attribute is `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let path = attribute.path();
    path.is_ident("test")
        || path.is_ident("cfg")
            && attribute
                .parse_args()
                .is_ok_and(|condition| needs_test(&condition))
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let all = syn::punctuated::Punctuated::<Meta, Token![,]>::parse_terminated;
            list.parse_args_with(all)
                .is_ok_and(|all| all.iter().any(needs_test))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
