//! From an event to the rows of its samples. Only what needs no second look is read; all else is left to the decoder.

#![forbid(unsafe_code)]

use crate::source::{Kind, Scalar, Source};

/// The numbers of a row, in the order of `stream_metrics/core/rows.py`.
pub const CELLS: usize = 9;
/// So many of them, the first, are all that a plain sample has.
pub const PLAIN_CELLS: usize = 5;

pub type Row = [i64; CELLS];

const NO_LENGTH: i64 = i64::MIN;
const NO_POSITION: i64 = i64::MAX;
const NO_VERSION: i64 = i64::MIN;

const HAS_RAW_REWARD: i64 = 1;
const HAS_VERSIONS: i64 = 2;
const HAS_MIXED_VERSIONS: i64 = 4;

const COMPLETED: i64 = 1;
const TRUNCATED: i64 = 2;
const ABORTED: i64 = 3;
const FAILED: i64 = 4;
const OTHER_STATUS: i64 = 5;

const MAX_INTEGER: i64 = (1 << 53) - 1;
const MAX_NAME_LENGTH: usize = 512;
const MAX_VERSION_DIGITS: usize = 16;

#[derive(PartialEq)]
pub enum Id<'a> {
    None,
    Int(i64),
    Text(&'a str),
}

/// Samples in the order of the log.
#[derive(Default)]
pub struct Samples<'a> {
    pub rows: Vec<Row>,
    pub ids: Vec<Id<'a>>,
}

impl Samples<'_> {
    /// Keeps so many of them, the first.
    pub fn truncate(&mut self, count: usize) {
        self.rows.truncate(count);
        self.ids.truncate(count);
    }
}

/// Which window an event is for. What is absent, and null for that, is `None` or 0.
#[derive(Default)]
pub struct Name<'a> {
    pub run_id: Option<&'a str>,
    pub scope: Option<&'a str>,
    pub attempt: i64,
    pub step: i64,
}

/// What has been met of the names of a map: one that comes twice is left to the decoder.
#[derive(Default)]
struct Met(u32);

impl Met {
    fn note(&mut self, field: u32) -> Option<()> {
        let bit = 1 << field;
        if self.0 & bit != 0 {
            return None;
        }
        self.0 |= bit;
        Some(())
    }
}

struct Sample<'a> {
    group: Option<i64>,
    rollout: Option<i64>,
    reward: f64,
    length: Option<i64>,
    effective_length: Option<i64>,
    status: i64,
    position: i64,
    version: i64,
    raw_reward: f64,
    marks: i64,
    id: Id<'a>,
    met: Met,
}

impl<'a> Sample<'a> {
    fn new() -> Self {
        Sample {
            group: None,
            rollout: None,
            reward: f64::NAN,
            length: None,
            effective_length: None,
            status: 0,
            position: NO_POSITION,
            version: NO_VERSION,
            raw_reward: f64::NAN,
            marks: 0,
            id: Id::None,
            met: Met::default(),
        }
    }

    /// Reads a field if it is one of a sample, and returns whether it is.
    #[inline]
    fn take<S: Source<'a>>(&mut self, name: &[u8], source: &mut S) -> Option<bool> {
        match name {
            b"group_index" => {
                self.met.note(0)?;
                self.group = source.integer_or_null()?;
            }
            b"rollout_id" => {
                self.met.note(1)?;
                self.rollout = source.integer_or_null()?;
            }
            b"index" => {
                self.met.note(2)?;
                source.integer_or_null()?;
            }
            b"position" => {
                self.met.note(3)?;
                self.position = source.integer_or_null()?.unwrap_or(NO_POSITION);
            }
            b"sample_id" => {
                self.met.note(4)?;
                self.id = match source.scalar()? {
                    Scalar::Null => Id::None,
                    Scalar::Int(number) => Id::Int(number),
                    Scalar::Text(text) => Id::Text(text),
                    _ => return None,
                };
            }
            b"reward" => {
                self.met.note(5)?;
                self.reward = source.number_or_null()?.unwrap_or(f64::NAN);
            }
            b"response_length" => {
                self.met.note(6)?;
                self.length = source.integer_or_null()?;
            }
            b"effective_response_length" => {
                self.met.note(7)?;
                self.effective_length = source.integer_or_null()?;
            }
            b"status" => {
                self.met.note(8)?;
                self.status = match source.text_or_null()? {
                    None => 0,
                    Some("completed") => COMPLETED,
                    Some("truncated") => TRUNCATED,
                    Some("aborted") => ABORTED,
                    Some("failed") => FAILED,
                    Some(_) => OTHER_STATUS,
                };
            }
            b"weight_versions" => {
                self.met.note(9)?;
                self.take_versions(source)?;
            }
            b"metadata" => {
                self.met.note(10)?;
                self.take_metadata(source)?;
            }
            b"data_source" => {
                self.met.note(11)?;
                source.null()?;
            }
            b"values" => {
                self.met.note(12)?;
                source.null()?;
            }
            _ => return Some(false),
        }
        Some(true)
    }

    fn take_metadata<S: Source<'a>>(&mut self, source: &mut S) -> Option<()> {
        if !matches!(source.kind()?, Kind::Map) {
            return source.null();
        }
        let mut state = source.begin_map()?;
        let mut met = Met::default();
        while let Some(name) = source.next_name(&mut state)? {
            if name != b"raw_reward" {
                source.skip()?;
                continue;
            }
            met.note(0)?;
            if let Some(number) = source.number_or_null()? {
                self.raw_reward = number;
                self.marks |= HAS_RAW_REWARD;
            }
        }
        Some(())
    }

    fn take_versions<S: Source<'a>>(&mut self, source: &mut S) -> Option<()> {
        if !matches!(source.kind()?, Kind::List) {
            return source.null();
        }
        let mut state = source.begin_list()?;
        let mut first = None;
        while source.has_item(&mut state)? {
            let version = source.scalar()?;
            if *first.get_or_insert(version) != version {
                self.marks |= HAS_MIXED_VERSIONS;
            }
            let number = match version {
                Scalar::Int(number) => number,
                Scalar::Text(text) => match number_of(text) {
                    Some(number) => number,
                    None => continue, // a name: two of them make a sample mixed, but none is older
                },
                _ => return None,
            };
            if !(0..=MAX_INTEGER).contains(&number) {
                return None;
            }
            if self.version == NO_VERSION || number < self.version {
                self.version = number;
            }
        }
        if first.is_some() {
            self.marks |= HAS_VERSIONS;
        }
        Some(())
    }

    fn row(&self) -> Option<Row> {
        Some([
            self.group?,
            self.rollout?,
            self.reward.to_bits() as i64,
            self.effective_length.or(self.length).unwrap_or(NO_LENGTH),
            self.status,
            self.position,
            self.version,
            self.raw_reward.to_bits() as i64,
            self.marks,
        ])
    }
}

/// Returns whether a sample has nothing that doesn't fit into the first numbers of its row.
pub fn is_plain(row: &Row) -> bool {
    row[PLAIN_CELLS] == NO_POSITION && row[CELLS - 1] == 0
}

/// Returns the number that a version in digits is, `None` for a name.
fn number_of(version: &str) -> Option<i64> {
    if version.is_empty() || !version.bytes().all(|sign| sign.is_ascii_digit()) {
        return None;
    }
    let digits = version.trim_start_matches('0');
    if digits.len() > MAX_VERSION_DIGITS {
        return Some(MAX_INTEGER + 1);
    }
    Some(digits.bytes().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}

/// Adds the samples of an event, and returns its window's name and whether it is a list of them.
///
/// `None` for whatever is better left to the decoder; some of its samples may have been added.
pub fn read<'a, S: Source<'a>>(source: &mut S, samples: &mut Samples<'a>) -> Option<(Name<'a>, bool)> {
    let before = samples.rows.len();
    let mut name = Name::default();
    let mut step = None;
    let mut is_batch = None;
    let mut has_list = false;
    let mut has_fields = false;
    let mut met = Met::default();
    let mut sample = Sample::new();
    let mut state = source.begin_map()?;
    while let Some(field) = source.next_name(&mut state)? {
        if sample.take(field, source)? {
            has_fields = true;
            continue;
        }
        match field {
            b"type" => {
                met.note(0)?;
                is_batch = match source.scalar()? {
                    Scalar::Text("sample") => Some(false),
                    Scalar::Text("samples") => Some(true),
                    _ => return None,
                };
            }
            b"run_id" => {
                met.note(1)?;
                name.run_id = short_text(source)?;
            }
            b"scope" => {
                met.note(2)?;
                name.scope = short_text(source)?;
            }
            b"step" => {
                met.note(3)?;
                step = source.integer_or_null()?.filter(|step| (0..=MAX_INTEGER).contains(step));
                step?;
            }
            b"attempt" => {
                met.note(4)?;
                name.attempt = source.integer_or_null()?.unwrap_or(0);
                if !(0..=MAX_INTEGER).contains(&name.attempt) {
                    return None;
                }
            }
            b"samples" => {
                met.note(5)?;
                has_list = true;
                take_list(source, samples)?;
            }
            _ => source.skip()?,
        }
    }
    name.step = step?;
    let is_batch = is_batch?;
    if !source.is_at_end() || is_batch != has_list || (is_batch && (has_fields || samples.rows.len() == before)) {
        return None;
    }
    if !is_batch {
        samples.rows.push(sample.row()?);
        samples.ids.push(sample.id);
    }
    Some((name, is_batch))
}

fn short_text<'a, S: Source<'a>>(source: &mut S) -> Option<Option<&'a str>> {
    let text = source.text_or_null()?;
    if text.is_some_and(|text| text.len() > MAX_NAME_LENGTH) {
        return None;
    }
    Some(text)
}

fn take_list<'a, S: Source<'a>>(source: &mut S, samples: &mut Samples<'a>) -> Option<()> {
    let mut state = source.begin_list()?;
    while source.has_item(&mut state)? {
        let mut sample = Sample::new();
        let mut fields = source.begin_map()?;
        while let Some(field) = source.next_name(&mut fields)? {
            if !sample.take(field, source)? {
                source.skip()?;
            }
        }
        samples.rows.push(sample.row()?);
        samples.ids.push(sample.id);
    }
    Some(())
}
