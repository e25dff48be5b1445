use crate::cli::InspectArgs;
pub fn run(_: &InspectArgs) -> anyhow::Result<()> {
    Ok(())
}
