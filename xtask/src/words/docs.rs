//! The rules of public doc comments: of functions the first word is a verb (*Returns*), of types and fields it is a noun.

use std::collections::HashSet;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Visibility};

use super::Line;

/// Third-person verbs that doc comments of functions begin with; those with a star are nouns, too.
const VERBS: &str = include_str!("verbs.txt");

/// Checks the doc comments of all public items in the crates: returns the rules that they break, with the indices of their lines.
///
/// # Errors
/// A source file that does not parse.
pub fn breaches(lines: &[Line]) -> Result<Vec<(&'static str, usize)>> {
    let words = || VERBS.split_whitespace();
    let verbs: HashSet<&str> = words().map(|word| word.trim_end_matches('*')).collect();
    let never_nouns: HashSet<&str> = words().filter(|word| !word.ends_with('*')).collect();
    let mut found = Vec::new();
    let mut first = 0;
    for file in lines.chunk_by(|one, two| one.path == two.path) {
        let (path, start) = (&file[0].path, first);
        first += file.len();
        if !path.starts_with("crates/") || !path.ends_with(".rs") {
            continue;
        }
        let text: String = file.iter().map(|line| format!("{}\n", line.text)).collect();
        let tree = syn::parse_file(&text).with_context(|| path.clone())?;
        let mut reader = Reader {
            verbs: &verbs,
            never_nouns: &never_nouns,
            found: Vec::new(),
        };
        reader.visit_file(&tree);
        let indices = reader.found.into_iter();
        found.extend(indices.map(|(id, number)| (id, start + number - 1)));
    }
    Ok(found)
}

struct Reader<'a> {
    verbs: &'a HashSet<&'a str>,
    never_nouns: &'a HashSet<&'a str>,
    found: Vec<(&'static str, usize)>,
}

impl Reader<'_> {
    fn function(&mut self, attributes: &[Attribute]) {
        if let Some((word, number)) = first_word(attributes)
            && !self.verbs.contains(word.as_str())
        {
            self.found.push(("doc-function", number));
        }
    }

    fn noun(&mut self, attributes: &[Attribute]) {
        if let Some((word, number)) = first_word(attributes)
            && self.never_nouns.contains(word.as_str())
        {
            self.found.push(("doc-type", number));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.function(&item.attrs);
        }
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.function(&item.attrs);
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.noun(&item.attrs);
            for member in &item.items {
                if let syn::TraitItem::Fn(function) = member {
                    self.function(&function.attrs);
                }
            }
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.noun(&item.attrs);
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.noun(&item.attrs);
        }
        visit::visit_item_enum(self, item);
    }
}

/// Returns the first word of an item's doc comment with the number of its line, from 1.
fn first_word(attributes: &[Attribute]) -> Option<(String, usize)> {
    let attribute = attributes.iter().find(|each| each.path().is_ident("doc"))?;
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    let Expr::Lit(ExprLit {
        lit: Lit::Str(text),
        ..
    }) = &pair.value
    else {
        return None;
    };
    let word = text.value().split_whitespace().next()?.to_owned();
    Some((word, text.span().start().line))
}
