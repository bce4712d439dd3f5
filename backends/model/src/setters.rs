//! Methods that set one field each, so that a host writes options in one expression.

/// For each `field: type` a public method of that name, which takes the options, sets the field,
/// and hands them back. A field that is an `Option` takes what it would have; the type may be
/// `impl Into<T>`.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($field:ident: $given:ty),+ $(,)?) => {
        $(
            #[doc = concat!(
                "Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ")."
            )]
            pub fn $field(mut self, $field: $given) -> Self {
                self.$field = $field.into();
                self
            }
        )+
    };
}
