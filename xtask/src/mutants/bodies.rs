//! The bodies of the functions in a file, which a mutant can be switched in.

use crate::Result;
use proc_macro2::Span;
use std::ops::Range;
use syn::visit::{self, Visit};

/// A function that is in no other one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Body {
    pub(super) function: String,
    /// All of it, with its braces.
    pub(super) block: Range<usize>,
    /// The word `const`, if it begins with that.
    pub(super) constness: Option<Range<usize>>,
    /// Does it return an `impl Trait`? Then two bodies return two types.
    pub(super) is_opaque: bool,
}

/// The functions of a file, and its modules of tests.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Bodies {
    pub(super) functions: Vec<Body>,
    pub(super) tests: Vec<Range<usize>>,
}

impl Bodies {
    /// # Errors
    /// If `text` is no Rust.
    pub(super) fn of(text: &str) -> Result<Self> {
        let file = syn::parse_file(text)?;
        let mut bodies = Self::default();
        bodies.visit_file(&file);
        Ok(bodies)
    }

    /// The function that `range` is in the body of.
    pub(super) fn around(&self, range: &Range<usize>) -> Option<&Body> {
        self.functions.iter().find(|body| is_in(range, &body.block))
    }

    /// Is it a part of a module of tests?
    pub(super) fn is_test(&self, range: &Range<usize>) -> bool {
        self.tests.iter().any(|tests| is_in(range, tests))
    }

    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let braces = block.brace_token.span;
        self.functions.push(Body {
            function: signature.ident.to_string(),
            block: braces.open().byte_range().start..braces.close().byte_range().end,
            constness: signature.constness.as_ref().map(|word| word.span.byte_range()),
            is_opaque: is_opaque(signature),
        });
    }
}

pub(super) fn is_in(part: &Range<usize>, whole: &Range<usize>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}

fn is_opaque(signature: &syn::Signature) -> bool {
    struct Impl(bool);
    impl Visit<'_> for Impl {
        fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut found = Impl(signature.asyncness.is_some());
    found.visit_return_type(&signature.output);
    found.0
}

impl<'a> Visit<'a> for Bodies {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.ident != "tests" {
            return visit::visit_item_mod(self, module);
        }
        let range = |span: Span| span.byte_range();
        if let Some((braces, _)) = &module.content {
            self.tests.push(range(braces.span.open()).start..range(braces.span.close()).end);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        self.add(&function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &'a syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig, block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        const fn one() -> u32 { fn inner() {} 1 }
        impl A { fn two(&self) -> impl Iterator<Item = u32> { [].into_iter() } }
        trait B { fn three(); fn four(x: impl C) -> [u8; { 1 + 1 }] { [0; 2] } }
        #[cfg(all(test, unix))] mod tests { fn five() {} }";

    #[test]
    fn functions_are_found_with_their_bodies() {
        let bodies = Bodies::of(TEXT).unwrap();
        let found: Vec<(&str, &str, bool, bool)> = bodies
            .functions
            .iter()
            .map(|f| {
                let block = &TEXT[f.block.clone()];
                (f.function.as_str(), block, f.constness.is_some(), f.is_opaque)
            })
            .collect();
        let wanted = [
            ("one", "{ fn inner() {} 1 }", true, false),
            ("two", "{ [].into_iter() }", false, true),
            ("four", "{ [0; 2] }", false, false),
        ];
        assert_eq!(found, wanted);
        assert_eq!(bodies.functions[0].constness.clone().map(|at| &TEXT[at]), Some("const"));
    }

    #[test]
    fn a_place_is_in_a_function_in_tests_or_in_neither() {
        let bodies = Bodies::of(TEXT).unwrap();
        let at = |text: &str| {
            let start = TEXT.find(text).expect("it is there");
            start..start + text.len()
        };
        let name = |text| bodies.around(&at(text)).map(|body| body.function.as_str());
        assert_eq!(name("inner"), Some("one"));
        assert_eq!(name("1 + 1"), None);
        assert!(bodies.is_test(&at("five")) && !bodies.is_test(&at("four")));
    }

    #[test]
    fn what_is_no_rust_is_refused() {
        assert!(Bodies::of("fn").is_err());
    }
}
