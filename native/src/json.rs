//! JSON in its plainest form: texts without escapes, finite numbers.

#![forbid(unsafe_code)]

use crate::source::{Kind, Scalar, Source};

const MAX_DIGITS: usize = 18;
const MAX_NUMBER_LENGTH: usize = 64;

pub struct Json<'a> {
    left: &'a [u8],
}

impl<'a> Json<'a> {
    pub fn new(value: &'a [u8]) -> Self {
        Json { left: value }
    }

    /// Returns the next sign that is no space, without taking it.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        loop {
            let sign = *self.left.first()?;
            if sign > b' ' {
                return Some(sign);
            }
            if !matches!(sign, b' ' | b'\n' | b'\r' | b'\t') {
                return None;
            }
            self.left = self.left.get(1..)?;
        }
    }

    #[inline]
    fn advance(&mut self, count: usize) -> Option<()> {
        self.left = self.left.get(count..)?;
        Some(())
    }

    #[inline]
    fn take(&mut self, sign: u8) -> Option<()> {
        if self.peek()? == sign {
            self.advance(1)
        } else {
            None
        }
    }

    /// Reads a text, whatever its bytes are.
    fn text(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let length = length_of_text(self.left)?;
        let (text, left) = self.left.split_at_checked(length)?;
        if *left.first()? != b'"' {
            return None;
        }
        self.left = left.get(1..)?;
        Some(text)
    }

    fn word(&mut self, word: &[u8], meaning: Scalar<'a>) -> Option<Scalar<'a>> {
        self.left = self.left.strip_prefix(word)?;
        Some(meaning)
    }

    fn number(&mut self) -> Option<Scalar<'a>> {
        let text = self.left;
        let digits_at = usize::from(*text.first()? == b'-');
        let mut at = digits_at;
        let mut magnitude: i64 = 0;
        while let Some(digit @ b'0'..=b'9') = text.get(at) {
            magnitude = magnitude.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            at += 1;
        }
        let count = at - digits_at;
        if count == 0 || (count > 1 && *text.get(digits_at)? == b'0') {
            return None;
        }
        if !matches!(text.get(at), Some(b'.' | b'e' | b'E')) {
            if count > MAX_DIGITS || (digits_at == 1 && magnitude == 0) {
                return None; // of -0 the decoder makes what the field asks for
            }
            self.advance(at)?;
            return Some(Scalar::Int(if digits_at == 1 { -magnitude } else { magnitude }));
        }
        if text.get(at) == Some(&b'.') {
            at = after_digits(text, at + 1)?;
        }
        if let Some(b'e' | b'E') = text.get(at) {
            at += 1;
            if let Some(b'+' | b'-') = text.get(at) {
                at += 1;
            }
            at = after_digits(text, at)?;
        }
        if at > MAX_NUMBER_LENGTH {
            return None;
        }
        let number: f64 = std::str::from_utf8(text.get(..at)?).ok()?.parse().ok()?;
        if !number.is_finite() {
            return None;
        }
        self.advance(at)?;
        Some(Scalar::Float(number))
    }
}

/// Returns how many signs come before the first quote, backslash or control character.
#[inline]
fn length_of_text(signs: &[u8]) -> Option<usize> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let mut at = 0;
    while let Some(eight) = signs.get(at..)?.first_chunk::<8>() {
        let eight = u64::from_le_bytes(*eight);
        let quotes = eight ^ (EACH * b'"' as u64);
        let backslashes = eight ^ (EACH * b'\\' as u64);
        // The highest bit of each byte that is 0, or below a space; the lowest such bit is never wrong.
        let ends = (quotes.wrapping_sub(EACH) & !quotes
            | backslashes.wrapping_sub(EACH) & !backslashes
            | eight.wrapping_sub(EACH * b' ' as u64) & !eight)
            & (EACH * 0x80);
        if ends != 0 {
            return Some(at + ends.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = signs.get(at..)?.iter().position(|&sign| sign == b'"' || sign == b'\\' || sign < b' ')?;
    Some(at + rest)
}

/// Returns where the digits end, at least one.
fn after_digits(text: &[u8], begin: usize) -> Option<usize> {
    let count = text.get(begin..)?.iter().take_while(|sign| sign.is_ascii_digit()).count();
    if count == 0 {
        None
    } else {
        Some(begin + count)
    }
}

const FIRST: u32 = 0;
const LATER: u32 = 1;

impl<'a> Source<'a> for Json<'a> {
    fn kind(&mut self) -> Option<Kind> {
        Some(match self.peek()? {
            b'{' => Kind::Map,
            b'[' => Kind::List,
            _ => Kind::Scalar,
        })
    }

    fn begin_map(&mut self) -> Option<u32> {
        self.take(b'{')?;
        Some(FIRST)
    }

    #[inline]
    fn next_name(&mut self, state: &mut u32) -> Option<Option<&'a [u8]>> {
        if self.peek()? == b'}' {
            self.advance(1)?;
            return Some(None);
        }
        if *state == LATER {
            self.take(b',')?;
        }
        *state = LATER;
        let name = self.text()?;
        self.take(b':')?;
        Some(Some(name))
    }

    fn begin_list(&mut self) -> Option<u32> {
        self.take(b'[')?;
        Some(FIRST)
    }

    fn has_item(&mut self, state: &mut u32) -> Option<bool> {
        if self.peek()? == b']' {
            self.advance(1)?;
            return Some(false);
        }
        if *state == LATER {
            self.take(b',')?;
            if self.peek()? == b']' {
                return None;
            }
        }
        *state = LATER;
        Some(true)
    }

    #[inline]
    fn scalar(&mut self) -> Option<Scalar<'a>> {
        match self.peek()? {
            b'"' => Some(Scalar::Text(std::str::from_utf8(self.text()?).ok()?)),
            b'n' => self.word(b"null", Scalar::Null),
            b't' => self.word(b"true", Scalar::Bool(true)),
            b'f' => self.word(b"false", Scalar::Bool(false)),
            _ => self.number(),
        }
    }

    fn is_at_end(&mut self) -> bool {
        self.peek().is_none() && self.left.is_empty()
    }
}
