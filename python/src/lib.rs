//! The native module of the package `blkmq`: commands of the laboratory, experiments, and schedulers written in Python.
//!
//! A run does not hold the GIL. It uses a separate thread, while the caller's thread polls for signals, so that Ctrl-C
//! ends it. The rest of the package is written in Python, in `python/blkmq`.

mod policy;

use blkmq_cli::embedding::{self, Stop};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The interval at which signals are polled.
const LOOK: Duration = Duration::from_millis(20);

pyo3::create_exception!(_blkmq, Error, PyRuntimeError, "A run that did not go well.");
pyo3::create_exception!(_blkmq, UsageError, PyValueError, "Words that cannot be understood.");

/// Converts an error of a command to an exception with its text.
fn exception(error: embedding::Error) -> PyErr {
    if error.is_usage { UsageError::new_err(error.text) } else { Error::new_err(error.text) }
}

/// Runs `work` on a separate thread. A signal sets the stop that is passed to it.
fn apart<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> Result<T, embedding::Error> + Send,
) -> PyResult<T> {
    let stop = Stop::default();
    let done = py.detach(|| {
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(1);
            let worker = scope.spawn(|| {
                let done = work(&stop);
                // The receiver waits until the thread has ended.
                let _ = sender.send(done);
                drop(sender);
            });
            let mut interrupted = None;
            loop {
                match receiver.recv_timeout(LOOK) {
                    Ok(done) => return interrupted.map_or(Ok(done), Err),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        let panic = worker.join().expect_err("a thread without an answer");
                        resume_unwind(panic);
                    }
                }
                if interrupted.is_none()
                    && let Err(signal) = Python::attach(|py| py.check_signals())
                {
                    stop.set();
                    interrupted = Some(signal);
                }
            }
        })
    })?;
    done.map_err(exception)
}

/// The results of `blkmq sim` (or `blkmq bench`, if `real`) as JSON. `policy` creates instances of a scheduler.
#[pyfunction]
#[pyo3(signature = (words, real = false, policy = None))]
fn run(
    py: Python<'_>,
    words: Vec<String>,
    real: bool,
    policy: Option<Py<PyAny>>,
) -> PyResult<String> {
    let Some(make) = policy else {
        return apart(py, |stop| embedding::run(&words, real, None, stop));
    };
    let made = policy::Made::new(make);
    let text = apart(py, |stop| {
        made.during(stop, |factory| embedding::run(&words, false, Some(factory), stop))
    });
    // A fault of the policy ends the run early, so it is the cause of any later error.
    match made.fault() {
        Some(fault) => Err(fault),
        None => text,
    }
}

/// The results of `blkmq replay` as JSON.
#[pyfunction]
fn replay(py: Python<'_>, words: Vec<String>) -> PyResult<String> {
    apart(py, |stop| embedding::replay(&words, stop))
}

/// The facts about a trace as JSON.
#[pyfunction]
fn trace_info(py: Python<'_>, words: Vec<String>) -> PyResult<String> {
    apart(py, |_| embedding::trace_info(&words))
}

/// The names of the devices of simulations.
#[pyfunction]
fn devices() -> Vec<&'static str> {
    embedding::devices()
}

/// An attribute: name, default, least and greatest value, meaning.
type Attribute = (&'static str, i64, i64, i64, &'static str);

/// The schedulers, with their attributes.
#[pyfunction]
fn schedulers() -> Vec<(&'static str, Vec<Attribute>)> {
    let of = |it: embedding::Attribute| (it.name, it.default, it.min, it.max, it.help);
    let all = embedding::schedulers().into_iter();
    all.map(|(name, attributes)| (name, attributes.into_iter().map(of).collect())).collect()
}

/// Has the kernel end this process when its parent ends.
#[pyfunction]
fn end_with_parent() -> PyResult<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
        .map_err(|e| Error::new_err(e.to_string()))?;
    Ok(())
}

/// An experiment.
#[pyclass(frozen)]
struct Study(embedding::Study);

#[pymethods]
impl Study {
    #[new]
    #[pyo3(signature = (text, json = true))]
    fn new(py: Python<'_>, text: String, json: bool) -> PyResult<Self> {
        apart(py, |_| embedding::Study::parse(&text, json)).map(Self)
    }

    /// The study in JSON.
    fn json(&self) -> String {
        self.0.json()
    }

    fn __len__(&self) -> usize {
        self.0.points()
    }

    /// The identities of the points in `first..end`.
    fn ids(&self, first: usize, end: usize) -> Vec<String> {
        (first..end.min(self.0.points())).map(|index| self.0.id(index)).collect()
    }

    /// The rows of these points.
    fn run(&self, py: Python<'_>, points: Vec<usize>) -> PyResult<Vec<String>> {
        apart(py, |stop| points.iter().map(|index| self.0.run(*index, stop)).collect())
    }

    /// Writes the results to a folder, and returns the answers.
    #[pyo3(signature = (rows, folder = None))]
    fn finish(
        &self,
        py: Python<'_>,
        rows: Vec<String>,
        folder: Option<PathBuf>,
    ) -> PyResult<String> {
        apart(py, |_| self.0.finish(&rows, folder.as_deref()))
    }
}

/// The folder of results of a study.
#[pyclass(frozen)]
struct Folder(Mutex<Option<embedding::Folder>>);

#[pymethods]
impl Folder {
    /// Opens the folder. Also returns the rows in it.
    #[staticmethod]
    fn open(py: Python<'_>, folder: PathBuf, study: &Study) -> PyResult<(Self, Vec<String>)> {
        let (folder, rows) = apart(py, |_| embedding::Folder::open(&folder, &study.0))?;
        Ok((Self(Mutex::new(Some(folder))), rows))
    }

    /// Adds rows.
    fn add(&self, py: Python<'_>, rows: Vec<String>) -> PyResult<()> {
        apart(py, |_| {
            let mut folder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let folder = folder.as_mut().ok_or_else(closed)?;
            rows.iter().try_for_each(|row| folder.add(row))
        })
    }

    /// Waits until the rows are on disk, and releases the folder for other programs.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        apart(py, |_| {
            let folder = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            folder.map_or(Ok(()), |folder| folder.sync())
        })
    }
}

fn closed() -> embedding::Error {
    embedding::Error { text: "the folder is closed".into(), is_usage: true }
}

#[pymodule]
fn _blkmq(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("UsageError", module.py().get_type::<UsageError>())?;
    module.add_class::<Study>()?;
    module.add_class::<Folder>()?;
    module.add_class::<policy::Request>()?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(replay, module)?)?;
    module.add_function(wrap_pyfunction!(trace_info, module)?)?;
    module.add_function(wrap_pyfunction!(devices, module)?)?;
    module.add_function(wrap_pyfunction!(schedulers, module)?)?;
    module.add_function(wrap_pyfunction!(end_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(policy::reads_first, module)?)?;
    Ok(())
}
