//! What the two encodings have in common: maps, lists, and single values.

/// One value that is neither a map nor a list.
#[derive(Clone, Copy, PartialEq)]
pub enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
}

pub enum Kind {
    Map,
    List,
    Scalar,
}

/// Integers below this are read, whatever the encoding: none of them is a mark of the rows.
pub const INT_LIMIT: i64 = 1_000_000_000_000_000_000;

const MAX_DEPTH: u32 = 16;

/// Reads a value from its beginning. `None` is for "left to the decoder", and ends the reading of this value.
///
/// Texts stand in the value as they are, floats are finite, integers are below `INT_LIMIT`.
pub trait Source<'a> {
    /// Returns what comes next.
    fn kind(&mut self) -> Option<Kind>;

    /// Begins a map; the state is for `next_name`.
    fn begin_map(&mut self) -> Option<u32>;

    /// Returns the next name of the map, or `Some(None)` where it ends.
    fn next_name(&mut self, state: &mut u32) -> Option<Option<&'a [u8]>>;

    /// Begins a list; the state is for `has_item`.
    fn begin_list(&mut self) -> Option<u32>;

    /// Returns whether another item of the list comes.
    fn has_item(&mut self, state: &mut u32) -> Option<bool>;

    fn scalar(&mut self) -> Option<Scalar<'a>>;

    /// Returns whether all of the value has been read.
    fn is_at_end(&mut self) -> bool;

    /// Reads null, and nothing else.
    fn null(&mut self) -> Option<()> {
        (self.scalar()? == Scalar::Null).then_some(())
    }

    fn integer_or_null(&mut self) -> Option<Option<i64>> {
        match self.scalar()? {
            Scalar::Int(number) => Some(Some(number)),
            Scalar::Null => Some(None),
            _ => None,
        }
    }

    fn text_or_null(&mut self) -> Option<Option<&'a str>> {
        match self.scalar()? {
            Scalar::Text(text) => Some(Some(text)),
            Scalar::Null => Some(None),
            _ => None,
        }
    }

    /// Reads a number or a boolean as a double.
    fn number_or_null(&mut self) -> Option<Option<f64>> {
        match self.scalar()? {
            Scalar::Int(number) => Some(Some(number as f64)),
            Scalar::Float(number) => Some(Some(number)),
            Scalar::Bool(is_true) => Some(Some(f64::from(u8::from(is_true)))),
            Scalar::Null => Some(None),
            Scalar::Text(_) => None,
        }
    }

    /// Reads what nobody asks for.
    fn skip(&mut self) -> Option<()> {
        self.skip_at(0)
    }

    fn skip_at(&mut self, depth: u32) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        match self.kind()? {
            Kind::Map => {
                let mut state = self.begin_map()?;
                while self.next_name(&mut state)?.is_some() {
                    self.skip_at(depth + 1)?;
                }
            }
            Kind::List => {
                let mut state = self.begin_list()?;
                while self.has_item(&mut state)? {
                    self.skip_at(depth + 1)?;
                }
            }
            Kind::Scalar => {
                self.scalar()?;
            }
        }
        Some(())
    }
}
