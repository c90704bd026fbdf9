//! Reads samples from records straight into rows of numbers, without an object for each. Optional: what it doesn't
//! read, and all where it isn't there, is decoded and folded in Python, with the same results.

mod event;
mod json;
mod msgpack;
mod source;

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString};

use event::{is_plain, Id, Name, Row, Samples, CELLS, PLAIN_CELLS};
use json::Json;
use msgpack::MessagePack;
use source::{Kind, Source};

/// Records are read so many at a time: what of them is held on to meanwhile is in a core's cache.
const PORTION: usize = 128;

/// What `Reader.read` returns: see `stream_metrics/core/compiled.py`.
type Stretch<'py> =
    (usize, usize, Bound<'py, PyBytes>, usize, Bound<'py, PyBytes>, Option<Bound<'py, PyList>>, Vec<(u32, u32)>);

/// Knows the lanes of windows by the names that events have for them.
#[pyclass]
struct Reader {
    runs: HashMap<Box<[u8]>, usize>,
    lanes: Vec<HashMap<i64, u32>>, // of each run, by step
    run: Vec<u8>,
    last_run: Vec<u8>,
    last_number: Option<usize>,
}

#[pymethods]
impl Reader {
    #[new]
    fn new() -> Self {
        Reader { runs: HashMap::new(), lanes: Vec::new(), run: Vec::new(), last_run: Vec::new(), last_number: None }
    }

    /// Knows no lane any more.
    fn forget(&mut self) {
        self.runs.clear();
        self.lanes.clear();
        self.last_number = None;
    }

    /// Reads values from a place on, up to the first that isn't read or whose window has no lane.
    fn read<'py>(
        &mut self,
        py: Python<'py>,
        values: &Bound<'py, PyList>,
        begin: usize,
        find: &Bound<'py, PyAny>,
    ) -> PyResult<Stretch<'py>> {
        let mut rows: Vec<Row> = Vec::new();
        let mut row_lanes: Vec<u32> = Vec::new();
        let mut ids: Vec<Option<Bound<'py, PyAny>>> = Vec::new();
        let mut has_ids = false;
        let mut num_batches = 0;
        let mut last = LastPlaces::default();
        let mut place = begin;
        let mut has_stopped = false;
        while !has_stopped && place < values.len() {
            let items = some_bytes(values, place)?;
            has_stopped = items.len() < PORTION.min(values.len() - place); // before a tombstone
            let mut samples = Samples::default();
            for item in &items {
                let before = samples.rows.len();
                let found = match read_value(item.as_bytes(), &mut samples) {
                    Some((name, is_batch)) => self.lane_of(&name, find)?.map(|lane| (lane, is_batch)),
                    None => None,
                };
                let Some((lane, is_batch)) = found else {
                    samples.truncate(before);
                    has_stopped = true;
                    break;
                };
                num_batches += usize::from(is_batch);
                row_lanes.resize(rows.len() + samples.rows.len(), lane);
                last.note(lane, place);
                place += 1;
            }
            rows.append(&mut samples.rows);
            has_ids = has_ids || samples.ids.iter().any(|id| *id != Id::None);
            ids.extend(samples.ids.iter().map(|id| object_of(py, id)));
        }
        let width = if rows.iter().all(is_plain) { PLAIN_CELLS } else { CELLS };
        let row_bytes = PyBytes::new_with(py, rows.len() * width * 8, |made| {
            for (row, cells) in rows.iter().zip(made.chunks_exact_mut(width * 8)) {
                put(row.iter().map(|number| number.to_ne_bytes()), cells);
            }
            Ok(())
        })?;
        let lane_bytes = PyBytes::new_with(py, row_lanes.len() * 4, |made| {
            put(row_lanes.iter().map(|lane| lane.to_ne_bytes()), made);
            Ok(())
        })?;
        let ids = if has_ids { Some(PyList::new(py, ids)?) } else { None };
        Ok((place - begin, num_batches, row_bytes, width, lane_bytes, ids, last.taken()))
    }
}

/// Writes as many of the numbers as there is room for.
fn put<const N: usize>(numbers: impl Iterator<Item = [u8; N]>, made: &mut [u8]) {
    for (number, cell) in numbers.zip(made.chunks_exact_mut(N)) {
        cell.copy_from_slice(&number);
    }
}

/// The last place of each lane that was seen.
#[derive(Default)]
struct LastPlaces {
    by_lane: Vec<Option<u32>>,
    lanes: Vec<u32>,
}

impl LastPlaces {
    fn note(&mut self, lane: u32, place: usize) {
        let index = lane as usize;
        if self.by_lane.len() <= index {
            self.by_lane.resize(index + 1, None);
        }
        if self.by_lane[index].replace(place as u32).is_none() {
            self.lanes.push(lane);
        }
    }

    fn taken(self) -> Vec<(u32, u32)> {
        self.lanes.iter().filter_map(|&lane| Some((lane, self.by_lane[lane as usize]?))).collect()
    }
}

impl Reader {
    /// Returns the lane of a window; asks `find` where it doesn't know it.
    fn lane_of(&mut self, name: &Name, find: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let known = self.number_of_run(name);
        if let Some(lane) = known.and_then(|run| self.lanes[run].get(&name.step)) {
            return Ok(Some(*lane));
        }
        let found = find.call1((name.run_id, name.scope, name.attempt, name.step))?;
        let Some(lane) = found.extract::<Option<u32>>()? else { return Ok(None) };
        let run = known.unwrap_or_else(|| {
            self.lanes.push(HashMap::new());
            self.runs.insert(self.run.as_slice().into(), self.lanes.len() - 1);
            self.lanes.len() - 1
        });
        self.lanes[run].insert(name.step, lane);
        Ok(Some(lane))
    }

    /// Returns the number of a run, scope and attempt, if one of its windows has a lane; `self.run` names it.
    fn number_of_run(&mut self, name: &Name) -> Option<usize> {
        self.run.clear();
        put_text(&mut self.run, name.run_id);
        put_text(&mut self.run, name.scope);
        self.run.extend_from_slice(&name.attempt.to_ne_bytes());
        if self.last_number.is_none() || self.run != self.last_run {
            self.last_number = self.runs.get(self.run.as_slice()).copied();
            self.last_run.clone_from(&self.run);
        }
        self.last_number
    }
}

/// Returns the next few values, up to one that is no bytes.
fn some_bytes<'py>(values: &Bound<'py, PyList>, begin: usize) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let mut items = Vec::with_capacity(PORTION);
    for place in begin..values.len().min(begin + PORTION) {
        match values.get_item(place)?.cast_into::<PyBytes>() {
            Ok(item) => items.push(item),
            Err(_) => break,
        }
    }
    Ok(items)
}

fn read_value<'a>(value: &'a [u8], samples: &mut Samples<'a>) -> Option<(Name<'a>, bool)> {
    let mut packed = MessagePack::new(value);
    if matches!(packed.kind()?, Kind::Map) {
        event::read(&mut packed, samples) // no text in JSON begins as a map does
    } else {
        event::read(&mut Json::new(value), samples)
    }
}

/// Adds a text, and what no text has after it.
fn put_text(name: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => name.extend_from_slice(text.as_bytes()),
        None => name.push(0xfe),
    }
    name.push(0xff);
}

fn object_of<'py>(py: Python<'py>, id: &Id) -> Option<Bound<'py, PyAny>> {
    match id {
        Id::None => None,
        Id::Int(number) => Some(PyInt::new(py, *number).into_any()),
        Id::Text(text) => Some(PyString::new(py, text).into_any()),
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Reader>()
}
