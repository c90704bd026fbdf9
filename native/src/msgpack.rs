//! MessagePack: maps, lists, texts and finite numbers.

#![forbid(unsafe_code)]

use crate::source::{Kind, Scalar, Source, INT_LIMIT};

pub struct MessagePack<'a> {
    left: &'a [u8],
}

impl<'a> MessagePack<'a> {
    pub fn new(value: &'a [u8]) -> Self {
        MessagePack { left: value }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, left) = self.left.split_first()?;
        self.left = left;
        Some(*first)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, left) = self.left.split_first_chunk::<N>()?;
        self.left = left;
        Some(*first)
    }

    fn length_16(&mut self) -> Option<u32> {
        self.bytes().map(|bytes| u32::from(u16::from_be_bytes(bytes)))
    }

    fn length_32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    /// Reads how many there are: in the first byte, or in two or four bytes behind `long` or the byte after it.
    fn count(&mut self, short: u8, long: u8) -> Option<u32> {
        let first = self.byte()?;
        if first & 0xf0 == short {
            Some(u32::from(first & 0x0f))
        } else if first == long {
            self.length_16()
        } else if first == long + 1 {
            self.length_32()
        } else {
            None
        }
    }

    /// Reads the rest of a text, whatever its bytes are.
    fn text(&mut self, first: u8) -> Option<&'a [u8]> {
        let length = match first {
            0xa0..=0xbf => u32::from(first & 0x1f),
            0xd9 => u32::from(self.byte()?),
            0xda => self.length_16()?,
            0xdb => self.length_32()?,
            _ => return None,
        };
        let (text, left) = self.left.split_at_checked(usize::try_from(length).ok()?)?;
        self.left = left;
        Some(text)
    }
}

impl<'a> Source<'a> for MessagePack<'a> {
    fn kind(&mut self) -> Option<Kind> {
        Some(match *self.left.first()? {
            0x80..=0x8f | 0xde | 0xdf => Kind::Map,
            0x90..=0x9f | 0xdc | 0xdd => Kind::List,
            _ => Kind::Scalar,
        })
    }

    fn begin_map(&mut self) -> Option<u32> {
        self.count(0x80, 0xde)
    }

    fn next_name(&mut self, state: &mut u32) -> Option<Option<&'a [u8]>> {
        if *state == 0 {
            return Some(None);
        }
        *state -= 1;
        let first = self.byte()?;
        self.text(first).map(Some)
    }

    fn begin_list(&mut self) -> Option<u32> {
        self.count(0x90, 0xdc)
    }

    fn has_item(&mut self, state: &mut u32) -> Option<bool> {
        if *state == 0 {
            return Some(false);
        }
        *state -= 1;
        Some(true)
    }

    fn scalar(&mut self) -> Option<Scalar<'a>> {
        let first = self.byte()?;
        let integer = match first {
            0x00..=0x7f => i64::from(first),
            0xe0..=0xff => i64::from(first as i8),
            0xcc => i64::from(self.byte()?),
            0xcd => i64::from(u16::from_be_bytes(self.bytes()?)),
            0xce => i64::from(u32::from_be_bytes(self.bytes()?)),
            0xcf => i64::try_from(u64::from_be_bytes(self.bytes()?)).ok()?,
            0xd0 => i64::from(i8::from_be_bytes(self.bytes()?)),
            0xd1 => i64::from(i16::from_be_bytes(self.bytes()?)),
            0xd2 => i64::from(i32::from_be_bytes(self.bytes()?)),
            0xd3 => i64::from_be_bytes(self.bytes()?),
            0xc0 => return Some(Scalar::Null),
            0xc2 => return Some(Scalar::Bool(false)),
            0xc3 => return Some(Scalar::Bool(true)),
            0xca => return finite(f64::from(f32::from_be_bytes(self.bytes()?))),
            0xcb => return finite(f64::from_be_bytes(self.bytes()?)),
            _ => return Some(Scalar::Text(std::str::from_utf8(self.text(first)?).ok()?)),
        };
        if (1 - INT_LIMIT..INT_LIMIT).contains(&integer) {
            Some(Scalar::Int(integer))
        } else {
            None
        }
    }

    fn is_at_end(&mut self) -> bool {
        self.left.is_empty()
    }
}

fn finite<'a>(number: f64) -> Option<Scalar<'a>> {
    if number.is_finite() {
        Some(Scalar::Float(number))
    } else {
        None
    }
}
