//! Any bytes as a job, a delay model and visibilities of DiFX: nothing panics, and parsed records are written unchanged.

use evlbi_fx::delay::Moment;
use evlbi_fx::difx::swin::{Reader, Record};
use evlbi_fx::difx::{Input, Model};

pub fn run(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(job) = Input::parse(text) {
            for telescope in &job.telescopes {
                let _ = telescope.clock.value(job.start);
            }
        }
        if let Ok(model) = Model::parse(text) {
            for telescope in 0..model.telescopes.len() {
                let moment = Moment::at(1_700_000_000);
                let _ = (
                    model.delay(telescope).about(moment),
                    model.uvw(telescope, moment),
                );
            }
        }
    }
    let records: Vec<Record> = Reader::new(bytes, vec![1, 4])
        .map_while(Result::ok)
        .collect();
    let mut written = Vec::new();
    for record in &records {
        record.write(&mut written).expect("memory can be written");
    }
    // The version and the high bits of the baseline are not kept.
    assert!(written.len() <= bytes.len());
}
