//! A file with all its mutants in it, one of which is in force.
//!
//! Each function with mutants becomes a `match` on the number of the mutant in force, with an arm for each of its
//! mutants, which has the whole body with that one change, and the body as it was in the last arm. So an arm compiles
//! and works as the file with that change alone does.

use super::bodies::{Bodies, Body, is_in};
use super::list::Mutant;
use crate::Result;
use std::ops::Range;

/// The place of the switch in the crate.
pub(super) const MODULE: &str = "mutants_of_xtask";
/// The variable of the environment that says which mutant is in force; zero is none.
pub(super) const VARIABLE: &str = "BLKMQ_XTASK_MUTANT";

/// The source of [`MODULE`], for crates with and without the standard library.
pub(super) fn module() -> String {
    format!(
        "//! The mutant in force.\n\nextern crate std;\nuse core::sync::atomic::{{AtomicU32, Ordering::Relaxed}};\n\n\
         static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);\n\n\
         #[inline]\npub(crate) fn active() -> u32 {{\n    match ACTIVE.load(Relaxed) {{\n        \
         u32::MAX => first(),\n        active => active,\n    }}\n}}\n\n\
         #[cold]\nfn first() -> u32 {{\n    let number = std::env::var(\"{VARIABLE}\");\n    \
         let active = number.map_or(0, |text| text.parse().expect(\"a number\"));\n    \
         ACTIVE.store(active, Relaxed);\n    active\n}}\n"
    )
}

/// A file as it is.
pub(super) struct Source {
    pub(super) file: String,
    pub(super) text: String,
    pub(super) bodies: Bodies,
}

impl Source {
    /// # Errors
    /// If it is no Rust.
    pub(super) fn new(file: String, text: String) -> Result<Self> {
        Ok(Self { bodies: Bodies::of(&text)?, file, text })
    }

    /// The function that can be switched to this mutant: unless it is outside of functions.
    pub(super) fn body(&self, mutant: &Mutant) -> Option<&Body> {
        self.bodies.around(&mutant.range(&self.text))
    }

    pub(super) fn is_test(&self, mutant: &Mutant) -> bool {
        self.bodies.is_test(&mutant.range(&self.text))
    }

    /// The file with these mutants of it, by their numbers. Each is in a function.
    pub(super) fn switched(&self, mutants: &[(u32, &Mutant)]) -> Switched {
        let mut switched = Switched { text: String::new(), arms: Vec::new() };
        let mut done = 0;
        for body in &self.bodies.functions {
            let is_here = |mutant: &Mutant| is_in(&mutant.range(&self.text), &body.block);
            let mutants: Vec<_> =
                mutants.iter().filter(|(_, mutant)| is_here(mutant)).copied().collect();
            if mutants.is_empty() {
                continue;
            }
            // In a constant function, the number of the mutant cannot be read.
            let end = body.constness.as_ref().map_or(body.block.start, |word| word.start);
            switched.text += &self.text[done..end];
            let start = body.constness.as_ref().map_or(body.block.start, |word| word.end);
            switched.text += &self.text[start..body.block.start];
            switched.add(&self.text, body, &mutants);
            done = body.block.end;
        }
        switched.text += &self.text[done..];
        switched
    }
}

/// A file with mutants, and where they are in it.
pub(super) struct Switched {
    pub(super) text: String,
    /// Bodies, and in them arms, both with the numbers of the mutants that are there.
    arms: Vec<(Range<usize>, Vec<u32>)>,
}

impl Switched {
    fn add(&mut self, text: &str, body: &Body, mutants: &[(u32, &Mutant)]) {
        let whole = self.text.len();
        self.text += &format!("{{ match crate::{MODULE}::active() {{\n");
        for (number, mutant) in mutants {
            let start = self.text.len();
            self.text += &format!("{number} => {}\n", mutant.applied(text, body.block.clone()));
            self.arms.push((start..self.text.len(), vec![*number]));
        }
        self.text += &format!("_ => {}\n}} }}", &text[body.block.clone()]);
        let numbers = mutants.iter().map(|(number, _)| *number).collect();
        self.arms.push((whole..self.text.len(), numbers));
    }

    /// The mutants in the smallest arm or body that has these bytes in it, which is an arm if there is one mutant in
    /// an arm of its own.
    pub(super) fn blamed(&self, bytes: &Range<usize>) -> Option<Blamed> {
        let (at, numbers) = self.arms.iter().find(|(arm, _)| is_in(bytes, arm))?;
        let is_arm = !self.text[at.clone()].starts_with('{');
        Some(if is_arm { Blamed::Arm(numbers[0]) } else { Blamed::Body(numbers.clone()) })
    }
}

/// The mutants that an error of the compiler speaks of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Blamed {
    /// One, which does not compile.
    Arm(u32),
    /// All of a function, which cannot be switched.
    Body(Vec<u32>),
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::mutant;
    use super::*;

    const TEXT: &str = "fn f() -> u32 { 1 + 2 }\npub const fn g() -> bool { !true }\n";

    fn source() -> Source {
        Source::new("a.rs".to_owned(), TEXT.to_owned()).unwrap()
    }

    #[test]
    fn every_mutant_has_an_arm_and_the_last_is_the_file() {
        let plus = |new| mutant(TEXT, "+", new, "BinaryOperator");
        let (one, two) = (plus("-"), plus("*"));
        let switched = source().switched(&[(1, &one), (2, &two)]);
        let expected = "fn f() -> u32 { match crate::mutants_of_xtask::active() {\n1 => { 1 -  2 }\n2 => { 1 *  2 }\n\
                        _ => { 1 + 2 }\n} }\npub const fn g() -> bool { !true }\n";
        assert_eq!(switched.text, expected);
    }

    #[test]
    fn a_constant_function_is_one_no_longer() {
        let not = mutant(TEXT, "!", "", "UnaryOperator");
        let text = source().switched(&[(7, &not)]).text;
        assert!(
            text.contains("pub  fn g() -> bool { match") && text.contains("7 => {  true }"),
            "{text}"
        );
    }

    #[test]
    fn an_error_is_of_an_arm_of_a_body_or_of_neither() {
        let (one, two) = (mutant(TEXT, "+", "-", "x"), mutant(TEXT, "+", "*", "x"));
        let switched = source().switched(&[(1, &one), (2, &two)]);
        let blamed = |text: &str| {
            let start = switched.text.find(text).expect("it is there");
            switched.blamed(&(start..start + text.len()))
        };
        assert_eq!(blamed("1 *  2"), Some(Blamed::Arm(2)));
        assert_eq!(blamed("1 + 2"), Some(Blamed::Body(vec![1, 2])));
        assert_eq!(blamed("match"), Some(Blamed::Body(vec![1, 2])));
        assert_eq!(blamed("const"), None);
    }
}
