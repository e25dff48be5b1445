//! From the arguments of a command to the options of its engine.

/// Writes `From` of arguments for the options of an engine, so that each field is named once:
///
/// ```ignore
/// convert! {
///     SendArgs => SendOptions { source, to, rate }
///     with [no_gso] { offload: !no_gso }
///     without [json]
///     over SendOptions::default()
/// }
/// ```
///
/// `{ .. }` are the fields that both have. `with` takes other arguments and says which options are made of them. Of
/// arguments in `without` the engine knows nothing, and what is behind `over` gives the options without an argument.
/// An argument that stands nowhere does not compile, nor does an option where there is no `over`.
macro_rules! convert {
    (
        $args:ident => $options:ident { $($same:ident),* $(,)? }
        $(with [$($taken:ident),*] { $($option:ident: $value:expr),* $(,)? })?
        $(without [$($unknown:ident),*])?
        $(over $rest:expr)?
    ) => {
        impl From<$args> for $options {
            fn from(args: $args) -> $options {
                let $args { $($same,)* $($($taken,)*)? $($($unknown: _,)*)? } = args;
                $options { $($same,)* $($($option: $value,)*)? $(..$rest)? }
            }
        }
    };
}
