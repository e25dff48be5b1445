//! Compares the deframer with streams whose content is known: lost frames become invalid frames with the lost headers, and all
//! else is unchanged.

mod formats;
mod hostile;
mod loss;
mod mark4;
mod reference;
mod select;
mod stream;
